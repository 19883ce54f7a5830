"""The cost of the parts of a request within one process, beside the rates that the founding documents require.

One thread, the best of several runs, CPU time. `make bench` prints this after its table; a missed gate fails the run.
`inprocess.py PATH` also writes the rates to a JSON file.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from msgspec import Raw

from trunkline import Server
from trunkline.protocol.capabilities import NegotiatedCapabilities
from trunkline.protocol.lifecycle import Signal
from trunkline.protocol.methods import Side
from trunkline.protocol.session import Session
from trunkline.protocol.types import CallToolParams, Empty, Implementation
from trunkline.registry.validators import Validator
from trunkline.testing import RawPeer
from trunkline.transports.channel import MessageOrigin
from trunkline.wire import codec
from trunkline.wire.messages import Request, Response

RUNS = 7
RUN_NS = 30_000_000  # CPU time that one run aims at
SUBSCRIBERS = 1000
URI = "bench://item/7"
READ = Raw(b'{"uri":"bench://item/7"}')
CALL = (
    b'{"jsonrpc":"2.0","id":7,"method":"tools/call",'
    b'"params":{"name":"add","arguments":{"a":5,"b":3},"_meta":{"progressToken":7}}}'
)
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0},
        "b": {"type": "integer"},
        "unit": {"enum": ["m", "km"]},
        "note": {"type": "string", "maxLength": 100},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Rate:
    """One row: the rate per second, and the required one."""

    row: str
    name: str
    per_second: float
    wanted: int
    gate: bool = False

    @property
    def missed(self) -> bool:
        """Return whether it is a gate, and not reached."""
        return self.gate and self.per_second < self.wanted

    def __str__(self) -> str:
        times = self.per_second / self.wanted
        verdict = ("FAIL" if self.missed else "PASS") + "  gate" if self.gate else ""
        figures = f"{self.per_second:>12,.0f}{self.wanted:>12,.0f}{times:>9.2f}"
        return f"  {self.row:<5}{self.name:<44}{figures}  {verdict}".rstrip()


def rate(action: Callable[[], object], each: int = 1) -> float:
    """Operations per second of CPU time, when one call does `each` of them."""
    times, spent = 1, _spent(action, 1)
    while spent < RUN_NS // 4:
        times *= 2
        spent = _spent(action, times)
    times = max(1, int(times * RUN_NS / spent))
    return times * each * 1e9 / min(_spent(action, times) for _ in range(RUNS))


def _spent(action: Callable[[], object], times: int) -> int:
    start = time.process_time_ns()
    for _ in range(times):
        action()
    return time.process_time_ns() - start


def make_server() -> Server:
    """A server with one entry to measure, among others of its kind."""
    server = Server("bench")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    for number in range(100):
        server.add_resource(f"bench://item/{number}", f"item {number}")
    return server


def decoding(server: Server) -> Callable[[], object]:
    """Decode a frame into a message, its params into their type, and its arguments into those of the tool, with
    validation.
    """
    read_params = codec.json_decoder(CallToolParams)  # as the dispatcher does
    tools, decode = server.tools.live, codec.decode_request  # as the channel of a server does

    def action() -> object:
        params = read_params(decode(CALL).params)
        return tools[params.name].decode(params.arguments)

    return action


def validation() -> Callable[[], object]:
    """Validate a value against a handwritten JSON Schema."""
    accepts, value = Validator(SCHEMA, "the benchmark").accepts, {"a": 5, "b": 3, "unit": "km"}
    assert accepts(value)
    assert not accepts({"a": -1, "b": 3})
    return lambda: accepts(value)


def ready_session() -> Session:
    """A server's side of a session, after its handshake."""
    session = Session(Side.SERVER, info=Implementation(name="bench", version="1"))
    session.negotiated = NegotiatedCapabilities({}, {})
    for signal in (Signal.CONNECT, Signal.RECV_INITIALIZE, Signal.RECV_INITIALIZED):
        session.transition(signal)
    return session


def tracking() -> Callable[[], object]:
    """Track a request of the peer, from arrival to response."""
    session, ids, result = ready_session(), count(), Empty()

    def action() -> object:
        return session.reply(session.receive(Request(next(ids), "ping"), 1.0), result)

    assert action() == Response(0, result)
    assert not session.incoming_requests
    return action


def asking() -> Callable[[], object]:
    """Track a request of ours, from sending to response."""
    session, nothing, times = ready_session(), Empty(), count()

    def action() -> object:
        now = float(next(times))
        awaited, request = session.call("ping", nothing, now)
        session.receive(Response(request.id, {}), now)
        return awaited

    assert action().done
    assert not session.outgoing_requests
    return action


def reading(server: Server) -> Callable[[], object]:
    """Look up a resource by its URI."""
    get = server.resources.get
    assert get(URI) is not None
    return lambda: get(URI)


async def dispatching(server: Server) -> float:
    """Read a resource: from the received request to the encoded response, on a line in memory."""
    peer, ids, origin = RawPeer(server), count(100), MessageOrigin()
    connection = peer.open()
    await peer.initialize()
    heard = [0]
    peer.put = _counter(heard, 0)  # instead of keeping and reading each frame

    def action() -> None:
        connection.received([Request(next(ids), "resources/read", READ)], origin)

    action()
    assert heard == [1]
    found = rate(action)
    await server.aclose()
    return found


async def telling(server: Server) -> float:
    """Send `resources/updated` to many subscribers, each on a connection in memory, up to their inboxes."""
    peers = [RawPeer(server) for _ in range(SUBSCRIBERS)]
    for peer in peers:
        peer.open()
        await peer.initialize()
        await peer.result("resources/subscribe", {"uri": URI})
    heard = [0] * SUBSCRIBERS
    for index, peer in enumerate(peers):
        peer.put = _counter(heard, index)  # instead of storing and reading each frame
    server.notify_updated(URI)
    assert heard == [1] * SUBSCRIBERS
    found = rate(lambda: server.notify_updated(URI), SUBSCRIBERS)
    await server.aclose()
    return found


def _counter(heard: list[int], index: int) -> Callable[[bytes], None]:
    def put(_: bytes) -> None:
        heard[index] += 1

    return put


def rates() -> Iterator[Rate]:
    """Measure everything."""
    server = make_server()
    yield Rate("Z01", "decode and validate a tools/call", rate(decoding(server)), 1_000_000, gate=True)
    yield Rate("Z02", "validate by a JSON Schema", rate(validation()), 500_000)
    yield Rate("Z03", "register and resolve a request of the peer's", rate(tracking()), 550_000)
    yield Rate("Z03", "register and resolve a request of ours", rate(asking()), 550_000, gate=True)
    yield Rate("Z04", "read from a registry", rate(reading(server)), 242_000)
    yield Rate("Z04", "answer a resources/read", asyncio.run(dispatching(make_server())), 242_000, gate=True)
    yield Rate("Z05", f"tell {SUBSCRIBERS:,} subscribers in memory, each", asyncio.run(telling(server)), 100_000)


def main(path: str | None = None) -> int:
    """Print the rates; the exit status is 1 when a gate is missed."""
    print(f"{'in process':<51}{'per second':>12}{'wanted':>12}{'times':>9}")
    found: list[Rate] = []
    for one in rates():
        found.append(one)
        print(one, flush=True)
    if path is not None:
        Path(path).write_text(json.dumps([asdict(one) for one in found]), "utf-8")
    return int(any(one.missed for one in found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
