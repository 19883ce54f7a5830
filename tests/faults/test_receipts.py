"""Receipts of real processes: killed under load, with several workers, and on a full disk."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from tests.limits import PATIENCE
from tests.processes import children, command, eventually

from trunkline import Client
from trunkline.receipts.checkpoints import create_key, is_signed, load_public_keys
from trunkline.receipts.reader import find_files, read_receipts, verify_receipts

LOADED = """
    import asyncio, sys
    from trunkline import Client, Receipts, Server

    folder, key = sys.argv[1:]
    server = Server("loaded", receipts=Receipts(folder, key=key, segment_bytes=100_000, checkpoint_calls=50))

    @server.tool
    async def echo(value: int) -> int:
        return value

    async def main() -> None:
        async with Client(server) as client:
            number = 0
            while True:
                await asyncio.gather(*(client.call_tool("echo", {"value": number + more}) for more in range(20)))
                number += 20
                print(number, flush=True)

    asyncio.run(main())
"""

WORKERS = """
    import os, sys
    from trunkline import Receipts, Server

    server = Server("workers", receipts=Receipts(sys.argv[1], key=sys.argv[2]))

    @server.tool
    async def pid() -> int:
        return os.getpid()

    server.run("http", port=0, workers=2)
"""

FULL = """
    import asyncio, json, logging, resource, sys
    from pathlib import Path
    from trunkline import Receipts, Server
    from trunkline.receipts.reader import find_files
    from trunkline.testing import RawPeer

    folder, mode = Path(sys.argv[1]), sys.argv[2]
    server = Server("full", receipts=Receipts(folder, on_failure=mode, max_queue=50), observers=[])

    @server.tool
    async def echo(value: int) -> int:
        return value

    def size() -> int:
        return sum(file.path.stat().st_size for file in find_files(folder))

    async def call(peer: RawPeer, number: int) -> bool:
        reply = await peer.request("tools/call", {"name": "echo", "arguments": {"value": number}})
        if "error" in reply:
            assert "receipts cannot be written" in reply["error"]["message"], reply
        return "result" in reply

    class Failed(logging.StreamHandler):
        seen = False

        def emit(self, record: logging.LogRecord) -> None:
            super().emit(record)
            Failed.seen = Failed.seen or "cannot write receipts" in record.getMessage()

    logging.getLogger("trunkline").addHandler(Failed())

    async def main() -> None:
        outcomes = {"full": [], "free": []}
        async with RawPeer(server) as peer:
            await peer.initialize()
            assert await call(peer, 0)
            unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size() + 100, unlimited[1]))
            while len(outcomes["full"]) < 200 or not Failed.seen:
                outcomes["full"].append(await call(peer, len(outcomes["full"])))
                await asyncio.sleep(0.001)
            outcomes["full"].append(await call(peer, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
            while not outcomes["free"] or not outcomes["free"][-1]:
                outcomes["free"].append(await call(peer, 1000))
                await asyncio.sleep(0.05)
        await server.aclose()
        print(json.dumps(outcomes))

    asyncio.run(main())
"""


def _calls_until_killed(folder: Path, key: Path, seed: int) -> int:
    """Kill a process under load; return how many calls were answered."""
    chance = random.Random(seed)
    with subprocess.Popen([*command(LOADED), str(folder), str(key)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        wanted = chance.randrange(100, 1000)
        answered = 0
        while answered < wanted or not _has_checkpoint(folder, process.pid):
            answered = int(process.stdout.readline())
        process.kill()
        rest = process.stdout.read().split()
    return int(rest[-1]) if rest else answered


def _has_checkpoint(folder: Path, pid: int) -> bool:
    return any(b'"kind":"checkpoint"' in file.read_bytes() for file in folder.glob(f"*-{pid}-*"))


def _check_killed(folder: Path, key: Path, seeds: range) -> None:
    answered = [_calls_until_killed(folder, key, seed) for seed in seeds]
    reports = list(verify_receipts(find_files(folder), is_signed, trusted=load_public_keys([Path(f"{key}.pub")])))
    assert [problem for report in reports for problem in report.problems if not problem.is_warning] == []
    assert len(reports) == len(answered)
    assert not any(report.closed for report in reports)
    assert all(report.signed_through is not None for report in reports)
    assert sum(report.calls for report in reports) <= sum(answered) + 20 * len(answered)


def test_log_of_a_process_killed_under_load_is_intact(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    _check_killed(tmp_path / "receipts", tmp_path / "key", range(2))


@pytest.mark.long
def test_logs_of_many_killed_processes_are_intact(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    _check_killed(tmp_path / "receipts", tmp_path / "key", range(100, 120))


async def test_each_worker_writes_a_chain_and_all_are_verified_together(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    folder = tmp_path / "receipts"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command(WORKERS), str(folder), str(tmp_path / "key")], stderr=log)
        try:

            def url() -> str | None:
                found = re.search(rb"listens at (http://\S+/mcp)", os.pread(log.fileno(), 1 << 20, 0))
                return None if found is None else found[1].decode()

            address = await asyncio.to_thread(eventually, url)
            first = await asyncio.to_thread(eventually, lambda: len(found := children(process.pid)) == 2 and found)
            called: Counter[int] = Counter()
            await _call_until(address, called, lambda: len(called) == 2)
            os.kill(min(first), signal.SIGKILL)
            await asyncio.to_thread(eventually, lambda: len(now := children(process.pid)) == 2 and now != first)
            await _call_until(address, called, lambda: len(called) == 3)
            process.terminate()
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0
        finally:
            process.kill()
            process.wait()
    reports = list(verify_receipts(find_files(folder), is_signed, trusted=load_public_keys([tmp_path / "key.pub"])))
    assert [problem for report in reports for problem in report.problems if not problem.is_warning] == []
    by_process = {int(report.chain.split("-")[1]): report for report in reports}
    assert called.keys() <= by_process.keys()
    assert [pid for pid, report in by_process.items() if not report.closed] == [min(first)]
    for pid, count in called.items():
        if pid != min(first):
            assert by_process[pid].calls == count


async def _call_until(url: str, called: "Counter[int]", done) -> None:
    async with asyncio.timeout(PATIENCE):
        while not done():
            async with Client(url) as client:
                called[(await client.call_tool("pid", {})).data] += 1


@pytest.mark.parametrize("mode", ["continue", "refuse"])
def test_full_disk(tmp_path: Path, mode: str) -> None:
    ended = subprocess.run(
        [*command(FULL), str(tmp_path / "receipts"), mode],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    outcomes = json.loads(ended.stdout)
    (report,) = verify_receipts(find_files(tmp_path / "receipts"), is_signed)
    assert (report.problems, report.closed) == ([], True)
    ran = 1 + sum(outcomes["full"]) + sum(outcomes["free"])
    assert "cannot write receipts" in ended.stderr
    assert "receipts can be written again" in ended.stderr
    if mode == "continue":
        assert all(outcomes["full"])
        assert report.lost > 0
        assert report.calls + report.lost == ran
    else:
        assert not all(outcomes["full"])
        assert report.lost == 0
        assert report.calls == ran  # each call that ran has a receipt
    assert len(list(read_receipts(find_files(tmp_path / "receipts")))) == report.calls + (report.lost > 0)
