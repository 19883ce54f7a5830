"""The cost of receipts: per call with and without them, and the time that a long log takes to be verified.

    python -m bench.receipts [--entries 1000000]

A call is `tools/call` of an async tool over a connection in memory, from its frame to the frame of its reply. The
variants take turns within one process, in short batches; CPU time, best and median. "loop" is the time of the event
loop's thread, "process" includes the thread that writes.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from statistics import median

from trunkline import Receipts, Server, Settings
from trunkline.receipts.canonical import digest_json
from trunkline.receipts.checkpoints import create_key, is_signed, load_public_keys, load_signer
from trunkline.receipts.entry import CallEntry, format_time
from trunkline.receipts.reader import find_files, verify_receipts
from trunkline.receipts.segments import ChainFiles
from trunkline.testing import RawPeer
from trunkline.transports.channel import MessageOrigin
from trunkline.wire import codec

CALL = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"add","arguments":{"a":5,"b":3}}}'
FRAMES = [CALL % ident for ident in range(100)]  # the calls of one read
READS = 5  # of one batch
ROUNDS = 60
SETTLE = 0.1  # seconds after a batch, in which the thread writes


async def open_peer(stack: AsyncExitStack, receipts: Receipts | None) -> Callable[[], Awaitable[None]]:
    """Return a function that makes the calls of one batch of a server."""
    server = Server("bench", receipts=receipts, observers=[], settings=Settings(max_calls=len(FRAMES)))

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    peer = await stack.enter_async_context(RawPeer(server))
    stack.push_async_callback(server.aclose)
    await peer.initialize()
    connection, origin, replies = peer.connection, MessageOrigin(), count()
    peer.put = lambda _: next(replies)  # instead of storing and reading each frame

    async def run_batch() -> None:
        for _ in range(READS):
            connection.received([codec.decode(frame) for frame in FRAMES], origin)
            while connection.running_calls():
                await asyncio.sleep(0)

    await run_batch()
    assert next(replies) == READS * len(FRAMES)
    return run_batch


async def measure_calls(folder: Path) -> None:
    """Print the cost of a call of each variant."""
    create_key(folder / "key")
    variants = {
        "off": None,
        "on, not signed": Receipts(folder / "plain"),
        "on, signed": Receipts(folder / "signed", key=folder / "key"),
        "on, signed, fsync per batch": Receipts(folder / "synced", key=folder / "key", fsync=0),
    }
    async with AsyncExitStack() as stack:
        batches = {name: await open_peer(stack, receipts) for name, receipts in variants.items()}
        loop: dict[str, list[float]] = {name: [] for name in batches}
        process: dict[str, list[float]] = {name: [] for name in batches}
        calls = READS * len(FRAMES)
        await asyncio.sleep(SETTLE)
        for _ in range(ROUNDS):
            for name, run_batch in batches.items():
                began = time.thread_time_ns(), time.process_time_ns()
                await run_batch()
                await asyncio.sleep(SETTLE)
                loop[name].append((time.thread_time_ns() - began[0]) / calls / 1000)
                process[name].append((time.process_time_ns() - began[1]) / calls / 1000)
    for name, receipts in variants.items():
        if receipts is not None:
            (report,) = verify_receipts(find_files(receipts.folder), is_signed)
            assert (report.calls, report.problems) == ((ROUNDS + 1) * calls, []), name
    print(f"{'microseconds of CPU per call':32}{'loop: best':>12}{'median':>9}{'process: best':>15}{'median':>9}")
    for name in batches:
        figures = (min(loop[name]), median(loop[name]), min(process[name]), median(process[name]))
        print(f"{name:32}{figures[0]:>12.2f}{figures[1]:>9.2f}{figures[2]:>15.2f}{figures[3]:>9.2f}")


def entries_from(first: int, number: int) -> Iterator[CallEntry]:
    """Yield receipts such as those of a server."""
    now, digest = format_time(time.time()), digest_json(b'{"a":5,"b":3}')
    for n in range(first, first + number):
        yield CallEntry(
            n=n,
            time=now,
            method="tools/call",
            name="add",
            principal="Principal Principal('ada', issuer='https://issuer.example', client='desktop')",
            session="0123456789abcdef",
            connection=12,
            transport="http",
            revision="2026-07-28",
            request=n,
            outcome="ok",
            arguments=digest,
            result=digest,
            seconds=0.000123,
        )


def measure_verification(folder: Path, entries: int) -> None:
    """Print how long a log takes to be written and verified."""
    create_key(folder / "verify.key")
    files = ChainFiles(folder / "long", "bench", load_signer(folder / "verify.key"), 64 * 1024 * 1024)
    written = 0
    began = time.process_time()
    while written < entries:
        files.append(entries_from(files.next, 1000))
        files.checkpoint()
        files.rotate_if_full()
        written += 1000
    files.checkpoint(final=True)
    files.close()
    wrote = time.process_time() - began
    found = find_files(folder / "long")
    size = sum(file.path.stat().st_size for file in found)
    began, wall = time.process_time(), time.monotonic()
    (report,) = verify_receipts(found, is_signed, trusted=load_public_keys([folder / "verify.key.pub"]))
    took, waited = time.process_time() - began, time.monotonic() - wall
    assert report.closed
    assert report.problems == []
    print(f"{report.calls:,} receipts in {len(found)} files, {size / 1e6:.0f} MB, {written // 1000 + 1:,} checkpoints")
    print(f"written in {wrote:.1f} s of CPU; verified in {took:.1f} s of CPU, {waited:.1f} s in all")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000, help="receipts of the verified log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure_calls(Path(folder)))
        measure_verification(Path(folder), options.entries)


if __name__ == "__main__":
    main()
