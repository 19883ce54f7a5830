"""The cost of Trunkline's store calls for a Valkey: `python -m bench.units`, a minute or two.

First it monitors, with MONITOR, a server of ours that repeats one operation: that shows the store calls of each
operation. Then it sends calls of the store's script from many connections at once, at full speed: that shows the
cost of each kind of call for Valkey, in CPU time and in time. `bench/scale.py` has these figures as its inputs.
"""

import asyncio
import hashlib
import os
import re
import select
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import hiredis
import msgspec
from bench.driver import INITIALIZE, Question, cpu_ns
from bench.http_driver import HttpServerProcess
from bench.valkey import Valkey
from bench.workers import WorkersProcess
from bench.workloads import AS_MODERN_TASK, AS_TASK, ECHO, KEYED, SET_LEVEL, STREAMED, SUBSCRIBE

from trunkline.stores.redis import store as redis_store

SERVER = [sys.executable, str(Path(__file__).parent / "server.py")]
SCRIPT = (Path(redis_store.__file__).parent / "script.lua").read_text("utf-8")
SHA = hashlib.sha1(SCRIPT.encode()).hexdigest()
TIMES = 40  # repetitions of each operation
HOMES = 1000  # homes of the calls, in turn
LINES = 16  # connections that send at once
DEPTH = 8  # calls that each of them sends in one piece
CALLS = 32_000  # of each kind
SUBSCRIBERS = (0, 20, 100)
TOLD = 20_000  # messages, to all of them together
VALUE = os.urandom(300)
_CALL = re.compile(r'"EVALSHA" "\w+" "1" "[^{]*\{([^}]*)\}" "(\w+)"', re.IGNORECASE)
_PUBLISHED = re.compile(r'\] "PUBLISH" ', re.IGNORECASE)
_pack = msgspec.msgpack.Encoder().encode


# --- calls per operation --------------------------------------------------------------------------


class Monitor:
    """Records every command of a Valkey."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(b"MONITOR\r\n")

    def close(self) -> None:
        self._socket.close()

    def heard(self, silence: float = 0.3) -> str:
        """All commands until it is idle."""
        said = bytearray()
        while select.select([self._socket], [], [], silence)[0]:
            said += self._socket.recv(1 << 20)
        return said.decode(errors="replace")


def asked_for(said: str) -> Counter[str]:
    """The calls of the script in a record, by the kind of home and operation; and the published messages."""
    calls = Counter(f"{at.partition('/')[0]} {what}" for at, what in _CALL.findall(said))
    published = [line for line in said.splitlines() if "[0 lua]" not in line and _PUBLISHED.search(line)]
    return calls + Counter({"bus publish": len(published)})


THINGS: dict[str, tuple[Question, str | None]] = {
    "a session opened": (INITIALIZE, None),
    "a call that changes nothing": (ECHO, None),
    "logging/setLevel": (SET_LEVEL, None),
    "resources/subscribe": (SUBSCRIBE, None),
    "a call answered as a stream of two events": (STREAMED, None),
    "a call with a key": (KEYED, None),
    "a task of 2025-11-25, made and done": (AS_TASK, None),
    "a task of the extension, made and done": (AS_MODERN_TASK, "2026-07-28"),
}


def things(folder: str) -> Iterator[tuple[str, Counter[str]]]:
    """The store calls of each operation, for all repetitions together."""
    for name, (question, stateless) in THINGS.items():
        with (
            Valkey(sys.executable, tempfile.mkdtemp(dir=folder)) as valkey,
            HttpServerProcess(SERVER, os.environ | {"BENCH_STORE": valkey.url}, stateless) as server,
            closing(Monitor(valkey.port)) as monitor,
        ):
            server.ask(question, 2, 1)
            monitor.heard()
            server.ask(question, TIMES, 1)
            yield name, asked_for(monitor.heard())


def carried(folder: str) -> tuple[str, Counter[str]]:
    """The store calls of a call that reaches another process than the owner of its session."""
    with Valkey(sys.executable, tempfile.mkdtemp(dir=folder)) as valkey:
        env = os.environ | {"BENCH_STORE": valkey.url, "BENCH_WORKERS": "2"}
        with (
            WorkersProcess(SERVER, env, workers=2, carried=True, timed=False) as server,
            closing(Monitor(valkey.port)) as monitor,
        ):
            server.ask(ECHO, 4, 2)
            monitor.heard()
            server.ask(ECHO, TIMES, 2)
            return "a call that is carried", asked_for(monitor.heard(0.05))


# --- cost of calls ----------------------------------------------------------------------------------


class Line:
    """A connection to a Valkey."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()
        self.waiting = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, packed: bytes, replies: int) -> None:
        """Send commands, in one piece."""
        self._socket.sendall(packed)
        self.waiting += replies

    def read(self) -> list[object]:
        """The replies, or messages, of one read."""
        self._reader.feed(self._socket.recv(1 << 18))
        found: list[object] = []
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, Exception):
                raise reply
            found.append(reply)
        self.waiting -= len(found)
        return found

    def ask(self, *words: str | int | bytes) -> object:
        """The reply to one command."""
        return self.ask_call(_command(*words))

    def ask_call(self, packed: bytes) -> object:
        """The reply to one encoded command."""
        self.send(packed, 1)
        while not (found := self.read()):
            pass
        return found[0]


def _command(*words: str | int | bytes) -> bytes:
    encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)


def call(at: str, what: str, *asked: object, values: Sequence[bytes] = ()) -> bytes:
    """A call of the store's script, as the store makes it."""
    return _command("EVALSHA", SHA, 1, f"trunkline:{{{at}}}", what, _pack((None, *asked)), *values)


def home(n: int) -> str:
    return f"session/{n:043}"


def kinds(tokens: Sequence[int]) -> dict[str, list[bytes]]:
    """Calls of each kind, one for each home, which has a record and a lease already."""
    ends = time.time() + 3600
    numbers = list(enumerate(tokens))

    def commit(n: int, fence: int | None, *rests: str) -> bytes:
        writes = [(rest, None, ends, place) for place, rest in enumerate(rests, 3)]
        held = (None, None) if fence is None else ("", fence)
        return call(home(n), "commit", "f" * 32, *held, writes, values=[VALUE] * len(rests))

    return {
        "commit": [commit(n, None, "/record") for n, _ in numbers],
        "commit, fenced": [commit(n, token, "/record") for n, token in numbers],
        "commit of two, fenced": [commit(n, token, "/record", "/events/1") for n, token in numbers],
        "get": [call(home(n), "get", "/record") for n, _ in numbers],
        "page of one": [call(home(n), "page", "[/record", "(/recore", 100) for n, _ in numbers],
        "acquire": [call(home(n), "acquire", "/tasks/1", "bench", 3600, None) for n, _ in numbers],
        "acquire, refused": [call(home(n), "acquire", "", "somebody", 3600, None) for n, _ in numbers],
        "renew": [call(home(n), "renew", "", token, "bench", 3600) for n, token in numbers],
        "register": [call("homes", "register", home(n)) for n, _ in numbers],
        "sweep": [call(home(n), "sweep", 500) for n, _ in numbers],
        "settle": [call("homes", "settle", home(n), "1", "inf") for n, _ in numbers],
    }


class Bench:
    """A Valkey with sessions in it, and connections to it."""

    def __init__(self, valkey: Valkey, folder: str, stack: ExitStack) -> None:
        self._valkey = valkey
        self._folder = Path(folder)
        self._lines = [stack.enter_context(closing(Line(valkey.port))) for _ in range(LINES)]
        line = self._lines[0]
        line.ask("SCRIPT", "LOAD", SCRIPT)
        self.tokens: list[int] = []
        for n in range(HOMES):
            self.tokens.append(line.ask_call(call(home(n), "acquire", "", "bench", 3600, None))[0])

    def memory(self) -> int:
        """The memory of the Valkey, in bytes."""
        said = self._lines[0].ask("INFO", "memory")
        return int(re.search(rb"used_memory:(\d+)", said)[1])

    def _written(self) -> int:
        return sum(path.stat().st_size for path in self._folder.rglob("*.aof"))

    def sent(self, commands: Sequence[bytes], count: int = CALLS) -> tuple[float, float, float]:
        """CPU time of Valkey, time, both in µs, and bytes written to its file, for each of so many calls."""
        pieces = [b"".join(commands[n : n + DEPTH]) for n in range(0, len(commands) - DEPTH + 1, DEPTH)]
        poll, by_number = select.poll(), {line.fileno(): line for line in self._lines}
        for number in by_number:
            poll.register(number, select.POLLIN)
        cpu, written, begun = cpu_ns(self._valkey.pid), self._written(), time.perf_counter_ns()
        left, done = count // DEPTH, 0
        for line in self._lines:
            left -= 1
            line.send(pieces[left % len(pieces)], DEPTH)
        while done < count // DEPTH * DEPTH:
            for number, _ in poll.poll():
                line = by_number[number]
                done += len(line.read())
                if not line.waiting and left:
                    left -= 1
                    line.send(pieces[left % len(pieces)], DEPTH)
        passed = time.perf_counter_ns() - begun
        return (
            (cpu_ns(self._valkey.pid) - cpu) / done / 1000,
            passed / done / 1000,
            (self._written() - written) / done,
        )

    def told(self, subscribers: int, size: int = 200) -> float:
        """CPU time of Valkey, in µs, to publish one message to so many."""
        with ExitStack() as stack:
            lines = [stack.enter_context(closing(Line(self._valkey.port))) for _ in range(subscribers)]
            for line in lines:
                line.ask("SUBSCRIBE", "news")
            packed, count = _command("PUBLISH", "news", b"n" * size), TOLD // max(1, subscribers)
            before = cpu_ns(self._valkey.pid)
            for first in range(0, count, DEPTH):
                self._lines[0].send(packed * min(DEPTH, count - first), min(DEPTH, count - first))
                while self._lines[0].waiting:
                    self._lines[0].read()
                for line in lines:
                    line.read()
            return (cpu_ns(self._valkey.pid) - before) / count / 1000

    def paged(self, entries: int = 500) -> float:
        """CPU time of Valkey, in µs, to read a page of so many entries of an owner, without values."""
        line = self._lines[0]
        for n in range(entries):
            entry = [(f"/open/{n:043}", None, time.time() + 3600, 3)]
            line.ask_call(call("owner/somebody", "commit", "f" * 32, None, None, entry, values=[b""]))
        return self.sent([call("owner/somebody", "page", "[/open/", "(/open0", entries)] * DEPTH, 160)[0]

    def counted(self, names: int = 200, times: int = 400) -> float:
        """CPU time of Valkey, in µs, to count the subscribers of one channel, in a request for many."""
        packed = _command(
            "PUBSUB", "NUMSUB", *(f"trunkline:bus:{0:016x}:to:{name:016x}:{0:016x}" for name in range(names))
        )
        before = cpu_ns(self._valkey.pid)
        for _ in range(times):
            self._lines[0].send(packed, 1)
            while self._lines[0].waiting:
                self._lines[0].read()
        return (cpu_ns(self._valkey.pid) - before) / times / names / 1000


async def hearing(port: int) -> float:
    """CPU time of a process of ours, in µs, to receive a change of another process that has no waiter there."""
    store = redis_store.RedisStore(f"redis://127.0.0.1:{port}")
    await store.open()
    heard = 0

    def count(keys: frozenset[str] | None) -> None:
        nonlocal heard
        heard += len(keys or ())

    store.watch("session/", count)
    await store.get("session/1/record")
    with closing(Line(port)) as line:
        for n in range(HOMES):
            writes = [("/record", None, None, 3)]
            line.ask_call(call(home(n), "commit", "f" * 32, None, None, writes, values=[VALUE]))
    before = time.process_time_ns()
    while heard < HOMES:
        await asyncio.sleep(0)
    spent = time.process_time_ns() - before
    await store.close()
    return spent / heard / 1000


def main() -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as folder:
        print(f"what is asked of the store, for each of {TIMES}")
        for name, calls in (*things(folder), carried(folder)):
            told = ", ".join(f"{count / TIMES:.2f} {what}" for what, count in sorted(calls.items()))
            print(f"  {name:<44}{told or 'nothing'}", flush=True)
        for fsync in ("always", "everysec"):
            _print_costs(fsync, tempfile.mkdtemp(dir=folder))


def _print_costs(fsync: str, folder: str) -> None:
    with ExitStack() as stack:
        valkey = stack.enter_context(Valkey(sys.executable, folder, fsync))
        bench = Bench(valkey, folder, stack)
        print(f"appendfsync {fsync:<32}{'CPU µs':>10}{'µs':>10}{'a second':>12}{'sent B':>10}{'file B':>10}")
        for name, commands in kinds(bench.tokens).items():
            cpu, passed, written = min(bench.sent(commands) for _ in range(3))
            size = sum(map(len, commands)) / len(commands)
            figures = f"{cpu:>10.1f}{passed:>10.1f}{1e6 / passed:>12,.0f}{size:>10.0f}{written:>10.0f}"
            print(f"  {name:<42}{figures}", flush=True)
        if fsync == "everysec":
            print(f"  memory of a session with a record, a lease, an event: {bench.memory() / HOMES:,.0f} B")
            for subscribers in SUBSCRIBERS:
                best = min(bench.told(subscribers) for _ in range(3))
                print(f"  CPU to publish 200 B to {subscribers}: {best:.1f} µs", flush=True)
            print(f"  CPU to read a page of 500 entries: {bench.paged():,.0f} µs")
            print(f"  CPU to count the subscribers of one channel: {bench.counted():.2f} µs")
            print(f"  CPU of a process that hears of a change: {asyncio.run(hearing(valkey.port)):.1f} µs")


if __name__ == "__main__":
    main()
