"""Mutated bytes and hostile values in valid exchanges, for framing, codec and a whole server; and random schemas and
URI templates for a server's catalog: `python -m tests.fuzz.run`.

No input may crash or hang anything or cause an internal error, and the next valid message must work. Each case
depends on the seed and its number alone, so `--seed 7 --case 12` repeats one.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.fuzz import hostile
from tests.fuzz.definitions import fuzz_schema, fuzz_template
from tests.limits import PATIENCE

from trunkline import Context, PeerError, Server
from trunkline.config import Settings
from trunkline.errors import ConnectionClosed
from trunkline.facts import HandlerFailed
from trunkline.testing import RecordingObserver
from trunkline.transports.channel import ChannelInfo
from trunkline.transports.stream import StreamChannel
from trunkline.wire import codec
from trunkline.wire.framing import Frame, Framing, LengthFramer, LineFramer, TooLarge
from trunkline.wire.messages import Batch, Malformed

MAX_FRAME = 4096  # small, so that messages are often too large
LARGE_FRAME = 1 << 20  # for input that is hostile by its depth or length, which has to pass the framing first
INTERNAL_ERROR = -32603

Random = random.Random


class FuzzError(AssertionError):
    """A failed case, and the command to repeat it."""


# --- valid messages -----------------------------------------------------------------------------


def request(ident: int | str, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": ident, "method": method, **({"params": params} if params else {})}


def notification(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})}


def hello(revision: str) -> list[Any]:
    info = {"name": "fuzz", "version": "1"}
    capabilities = {"elicitation": {}, "roots": {"listChanged": True}}
    return [
        request(1, "initialize", protocolVersion=revision, capabilities=capabilities, clientInfo=info),
        notification("notifications/initialized"),
    ]


REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
TALK: tuple[Any, ...] = (
    request("a", "ping"),
    request(2, "tools/list", cursor="abc"),
    request(3, "tools/call", name="echo", arguments={"text": "héllo \U0001f600", "times": 2}, _meta={"progressToken": 3}),
    request(4, "tools/call", name="ask", arguments={}),
    {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept", "content": {"text": "yes"}}},
    {"jsonrpc": "2.0", "id": 2, "error": {"code": -1, "message": "no", "data": [1, 2.5, None, True]}},
    request(5, "resources/read", uri="fuzz://items/7"),
    request(6, "resources/read", uri="fuzz://static"),
    request(7, "resources/subscribe", uri="fuzz://static"),
    request(8, "resources/unsubscribe", uri="fuzz://static"),
    request(9, "resources/templates/list"),
    request(10, "prompts/get", name="greet", arguments={"who": "you"}),
    request(11, "completion/complete", ref={"type": "ref/prompt", "name": "greet"}, argument={"name": "who", "value": "y"}),
    request(12, "logging/setLevel", level="debug"),
    notification("notifications/cancelled", requestId=4, reason="enough"),
    notification("notifications/progress", progressToken=1, progress=0.5, total=1),
    notification("notifications/roots/list_changed"),
    [request(13, "ping"), notification("notifications/x"), request(14, "tools/list")],
    request(15, "prompts/list", limit=1),
)  # fmt: skip


def make_server(observer: RecordingObserver, max_frame: int) -> Server:
    """A server whose handlers never fail: each failure is ours."""
    server = Server("fuzz", observers=[observer], settings=Settings(stdio_message_size_limit=max_frame))

    @server.tool
    async def echo(text: str, ctx: Context, times: int = 1) -> str:
        ctx.progress(1)
        ctx.info(text)
        return text * min(max(times, 0), 3)

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            return (await ctx.elicit("Well?", {"type": "object", "properties": {"text": {"type": "string"}}})).action
        except (PeerError, ConnectionClosed) as error:  # rejected, unreadable, or not possible in that revision
            return str(error)

    server.add_resource("fuzz://static", "static")
    server.add_resource("fuzz://items/{item}", item_text)
    server.add_prompt("Hello, {who}!", name="greet")
    server.completion(prompt="greet", argument="who")(proposals)
    return server


async def item_text(item: str) -> str:
    return item


async def proposals(text: str) -> list[str]:
    return [text]


# --- mutations ----------------------------------------------------------------------------------

TOKENS = (
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"true", b"-0", b"1e999", b"9" * 40, b"\\ud800", b"\\u0000", b"\x00",
    b"\xff", b"\xc3", b"\r\n", b"\n", b"\r", b'"id":', b'"id":null', b'"jsonrpc":"2.0"', b'"method":"ping"', b"[" * 2000,
    b'{"a":' * 600, b"A" * (MAX_FRAME + 1), b"Content-Length: 5\r\n\r\n", b"Content-Length: -1\r\n\r\n", b"NaN",
)  # fmt: skip


def at(rng: Random, data: bytes) -> int:
    return rng.randrange(len(data) + 1)


def flip(rng: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def drop(rng: Random, data: bytes) -> bytes:
    start = at(rng, data)
    return data[:start] + data[start + rng.randint(1, 40) :]


def repeat(rng: Random, data: bytes) -> bytes:
    start = at(rng, data)
    return data[:start] + data[start : start + rng.randint(1, 200)] * rng.randint(2, 4) + data[start:]


def insert(rng: Random, data: bytes) -> bytes:
    where = at(rng, data)
    return data[:where] + rng.choice(TOKENS) + data[where:]


def noise(rng: Random, data: bytes) -> bytes:
    where = at(rng, data)
    return data[:where] + rng.randbytes(rng.randint(1, 30)) + data[where:]


def cross(rng: Random, data: bytes) -> bytes:
    return data[: at(rng, data)] + data[at(rng, data) :]


MUTATIONS: tuple[Callable[[Random, bytes], bytes], ...] = (flip, drop, repeat, insert, noise, cross)


def mutate(rng: Random, data: bytes) -> bytes:
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(MUTATIONS)(rng, data)
    return data


def pieces(rng: Random, data: bytes) -> list[bytes]:
    """The same bytes as several reads may return them; sometimes one by one."""
    if len(data) < MAX_FRAME and rng.random() < 0.1:
        return [data[start : start + 1] for start in range(len(data))]
    cuts = sorted({0, len(data), *(at(rng, data) for _ in range(rng.randint(0, 6)))})
    return [data[start:end] for start, end in pairwise(cuts)]


# --- the three targets --------------------------------------------------------------------------


@dataclass
class Case:
    """One case: the framing of an exchange, and its bytes after mutation."""

    rng: Random
    lines: bool
    opening: bytes  # the valid handshake
    data: bytes
    recovers: bool  # the next message can be found: not after a wrong length
    max_frame: int = MAX_FRAME

    @property
    def framing(self) -> Framing:
        return LineFramer(self.max_frame) if self.lines else LengthFramer(self.max_frame)


def make_case(seed: int, number: int) -> Case:
    """The case with that number."""
    rng = Random(f"{seed}/{number}")
    lines = rng.random() < 0.7
    framing = LineFramer(MAX_FRAME) if lines else LengthFramer(MAX_FRAME)
    opening = b"".join(framing.wrap(codec.to_json(message)) for message in hello(rng.choice(REVISIONS)))
    talk = rng.choices(TALK, k=rng.randint(1, 6))
    if rng.random() < 0.3:
        data = b"".join(framing.wrap(hostile.message(rng, message)) for message in talk)
        return Case(rng, lines, opening, data, recovers=True, max_frame=LARGE_FRAME)
    frames = [codec.to_json(message) for message in talk]
    recovers = lines or rng.random() < 0.7
    if lines or not recovers:
        data = mutate(rng, b"".join(framing.wrap(frame) for frame in frames))
    else:  # only the bodies change, and their lengths are right
        data = b"".join(framing.wrap(mutate(rng, frame)[:MAX_FRAME]) for frame in frames)
    return Case(rng, lines, opening, data, recovers)


def fuzz_framing(case: Case) -> None:
    """Check that frames do not depend on how the bytes arrive, and never exceed the limit."""
    for framing in (LineFramer, LengthFramer):
        stream = case.data if case.rng.random() < 0.5 else mutate(case.rng, case.data)
        whole = framing(MAX_FRAME).feed(stream)
        pieced = framing(MAX_FRAME)
        in_pieces: list[Frame] = [frame for piece in pieces(case.rng, stream) for frame in pieced.feed(piece)]
        if whole != in_pieces:
            raise FuzzError(f"{framing.__name__} cuts {stream!r} otherwise when it arrives in pieces")
        if any(isinstance(frame, bytes) and len(frame) > MAX_FRAME for frame in whole):
            raise FuzzError(f"{framing.__name__} lets {stream!r} pass")


def fuzz_codec(case: Case) -> None:
    """Check that each frame decodes to a value; a message can be encoded and decodes to the same kind again."""
    for frame in (*case.framing.feed(case.data), case.data, TooLarge(case.max_frame)):
        message = codec.decode(frame)
        for item in message.messages if isinstance(message, Batch) else (message,):
            if not isinstance(item, Malformed):
                again = codec.decode(codec.encode(item))
                if type(again) is not type(item):
                    raise FuzzError(f"{frame!r} is {item!r} at first, and {again!r} when it is written and read again")


class Wire:
    """Both ends of a byte stream, in memory."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.written += data

    async def finish(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


async def fuzz_server(case: Case) -> None:
    """Check that a whole server survives, has no internal error, and answers the next ping."""
    observer, wire = RecordingObserver(), Wire()
    server = make_server(observer, case.max_frame)
    channel = StreamChannel(ChannelInfo("fuzz"), max_frame=case.max_frame, settings=server.settings)
    channel.open(server.connect(channel), wire, wire)
    channel.feed(case.opening)
    for piece in pieces(case.rng, case.data):
        channel.feed(piece)
        if case.rng.random() < 0.5:
            await asyncio.sleep(0)
    if case.lines:
        channel.feed(b"\n")  # completes an unfinished message
    ident = "still there?"
    channel.feed(case.framing.wrap(codec.to_json(request(ident, "ping"))))
    async with asyncio.timeout(PATIENCE):
        while case.recovers and not any(answers(message, ident) for message in said(case, wire)):
            await asyncio.sleep(0)
    await channel.close()
    async with asyncio.timeout(PATIENCE):
        await server.aclose()
    if failures := observer.of(HandlerFailed):
        raise FuzzError(f"our own fault: {failures[0].method}: {failures[0].error!r}") from failures[0].error
    for message in said(case, wire):
        if isinstance(message, dict) and message.get("error", {}).get("code") == INTERNAL_ERROR:
            raise FuzzError(f"an internal error was sent: {message}")


def said(case: Case, wire: Wire) -> list[Any]:
    """The messages of the server so far; always JSON."""
    framing = LineFramer(1 << 30) if case.lines else LengthFramer(1 << 30)
    return [json.loads(frame) for frame in framing.feed(bytes(wire.written)) if isinstance(frame, bytes)]


def answers(message: Any, ident: str) -> bool:
    return isinstance(message, dict) and message.get("id") == ident and "result" in message


async def run_case(seed: int, number: int) -> None:
    """Run one case against all targets; raise `FuzzError` with the command to repeat it."""
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
    try:
        fuzz_framing(make_case(seed, number))
        fuzz_codec(make_case(seed, number))
        await fuzz_server(make_case(seed, number))
        fuzz_schema(Random(f"{seed}/{number}/schema"))
        for index in range(4):  # they cost a fraction of the others
            fuzz_template(Random(f"{seed}/{number}/template/{index}"))
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic of a compiled library is no Exception
        again = f"python -m tests.fuzz.run --seed {seed} --case {number}"
        raise FuzzError(f"{type(error).__name__}: {error}\n  again: {again}") from error
    if unhandled:
        raise FuzzError(f"nobody handled {unhandled}; seed {seed}, case {number}")


async def run(seed: int, cases: int) -> None:
    """Run the first cases of a seed."""
    for number in range(cases):
        await run_case(seed, number)


async def run_for(seed: int, seconds: float) -> int:
    """Run cases until the time is up; return their number."""
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        await run_case(seed, number)
        number += 1
    return number


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Feeds broken and hostile conversations, schemas and templates to a server."
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="a drawn one, if it is not given")
    parser.add_argument("--case", type=int, help="only this one")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    if options.case is not None:
        asyncio.run(run_case(seed, options.case))
        print("it works")
    else:
        print(f"{asyncio.run(run_for(seed, options.seconds)):,} cases, none went wrong")


if __name__ == "__main__":
    sys.exit(main())
