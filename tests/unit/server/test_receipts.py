"""Receipts of a server's calls and tasks."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Context, Receipts, Server, Settings, TaskPolicy, ToolError
from trunkline.auth.principal import Principal
from trunkline.errors import ConfigError, MisuseError, StoreError
from trunkline.receipts.canonical import digest_json
from trunkline.receipts.checkpoints import create_key, is_signed, load_public_keys
from trunkline.receipts.reader import ChainReport, find_files, read_receipts, verify_receipts
from trunkline.testing import RawPeer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "receipts"


def make_server(receipts: Receipts, **options: Any) -> Server:
    server = Server("t", receipts=receipts, observers=[], **options)

    @server.tool
    async def echo(value: Any = None) -> Any:
        return value

    @server.tool
    def plain(text: str) -> str:
        return text

    @server.tool
    async def fail() -> str:
        raise ToolError("no such luck")

    @server.tool
    async def wait(ctx: Context) -> str:
        await ctx.info("started")
        await asyncio.Event().wait()
        return "never"

    @server.tool(task=TaskPolicy())
    async def job(value: int) -> int:
        if value < 0:
            raise ToolError("below zero")
        return value

    @server.resource("notes://{day}")
    async def note(day: str) -> str:
        return f"note of {day}"

    @server.prompt
    async def greet(name: str) -> str:
        return f"Hello {name}"

    return server


def receipts_in(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in find_files(folder)
        for line in file.path.read_text("utf-8").splitlines()
        if '"kind":"call"' in line
    ]


def verified(folder: Path, **options: Any) -> list[ChainReport]:
    return list(verify_receipts(find_files(folder), is_signed, **options))


def digest(value: object) -> str:
    return digest_json(json.dumps(value).encode())


@pytest.mark.row("V04")
async def test_receipt_has_digests_of_what_the_peer_sent_and_received(folder: Path) -> None:
    server = make_server(Receipts(folder))
    requests = [
        ("tools/call", {"name": "echo", "arguments": {"value": {"b": [1.5, 2], "a": "é"}}}, "echo"),
        ("tools/call", {"name": "plain", "arguments": {"text": "x"}}, "plain"),
        ("resources/read", {"uri": "notes://monday", "_meta": {"progressToken": 1}}, "notes://monday"),
        ("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}, "greet"),
    ]
    async with RawPeer(server, principal=Principal("ada")) as peer:
        await peer.initialize()
        replies = [await peer.request(method, params) for method, params, _ in requests]
        await peer.request("tools/list")
    await server.aclose()
    found = receipts_in(folder)
    assert [entry["method"] for entry in found] == [method for method, _, _ in requests]
    for entry, (_, params, name), reply in zip(found, requests, replies, strict=True):
        assert (entry["name"], entry["outcome"], entry["request"]) == (name, "ok", reply["id"])
        assert entry["arguments"] == digest(params.get("arguments", {"uri": "notes://monday"}))
        assert entry["result"] == digest(reply["result"])
        assert "'ada'" in entry["principal"]
        assert entry["revision"] == "2025-11-25"
        assert entry["time"].endswith("Z")


async def test_receipts_tell_how_calls_ended(folder: Path) -> None:
    server = make_server(Receipts(folder), settings=Settings(work_timeout=PATIENCE))
    async with RawPeer(server) as peer:
        await peer.initialize()
        failed = await peer.request("tools/call", {"name": "fail"})
        unknown = await peer.request("tools/call", {"name": "nothing"})
        bad = await peer.request("tools/call", {"name": 5})
        peer.send({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": {"name": "wait"}})
        await peer.receive()  # the handler has started
        peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "c"}})
        peer.send({"jsonrpc": "2.0", "id": "i", "method": "tools/call", "params": {"name": "wait"}})
        await peer.receive()
    await server.aclose()
    found = receipts_in(folder)
    assert [(entry.get("name"), entry["outcome"]) for entry in found] == [
        ("fail", "failed"),
        ("nothing", "error"),
        (None, "error"),
        ("wait", "cancelled"),
        ("wait", "error"),  # interrupted
    ]
    assert found[0]["result"] == digest(failed["result"])
    assert (found[1]["code"], found[1]["result"]) == (unknown["error"]["code"], digest(unknown["error"]))
    assert found[2]["code"] == bad["error"]["code"]
    assert "result" not in found[3]


async def test_task_has_receipts_of_its_creation_and_its_end(folder: Path) -> None:
    server = make_server(Receipts(folder))
    async with Client(server) as client:
        await client.call_tool("job", {"value": 3})
        with pytest.raises(Exception, match="below zero"):
            await client.call_tool("job", {"value": -3})
    await server.aclose()
    found = receipts_in(folder)
    created = [entry for entry in found if entry["outcome"] == "task"]
    ended = [entry for entry in found if entry["method"] == "tasks/end"]
    assert [entry["name"] for entry in (*created, *ended)] == ["job"] * 4
    assert [entry["task"] for entry in created] == [entry["task"] for entry in ended]
    assert [entry["arguments"] for entry in ended] == [digest({"value": 3}), digest({"value": -3})]
    assert [entry["outcome"] for entry in ended] == ["ok", "failed"]


async def test_refused_call_has_a_receipt(folder: Path) -> None:
    server = make_server(Receipts(folder), settings=Settings(server_rate="1/min"))
    async with RawPeer(server) as peer:
        await peer.initialize()
        for _ in range(4):
            await peer.request("tools/call", {"name": "echo"})
    await server.aclose()
    found = receipts_in(folder)
    assert {entry["name"] for entry in found} == {"echo"}
    assert len(found) == 4
    assert found[-1]["outcome"] != "ok"


async def test_restart_begins_a_chain_that_refers_to_the_last(folder: Path, tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    for _ in range(3):
        server = make_server(Receipts(folder, key=tmp_path / "key"))
        async with Client(server) as client:
            await client.call_tool("echo", {"value": 1})
        await server.aclose()
    reports = verified(folder, trusted=load_public_keys([tmp_path / "key.pub"]))
    assert [(report.ok, report.closed, report.calls, report.problems) for report in reports] == [
        (True, True, 1, [])
    ] * 3
    headers = [json.loads(file.path.read_text().splitlines()[0]) for file in find_files(folder)]
    assert sorted(len(header["links"]) for header in headers) == [0, 1, 1]
    (victim,) = [file for file in find_files(folder) if any(file.chain in header["links"] for header in headers)][:1]
    victim.path.unlink()
    (missing,) = [report for report in verified(folder) if not report.ok]
    assert missing.chain == victim.chain
    assert all(report.ok for report in verified(folder, pruned=True))


async def test_server_can_be_started_again(folder: Path) -> None:
    server = make_server(Receipts(folder))
    for _ in range(2):
        await server.start()
        async with RawPeer(server) as peer:
            await peer.initialize()
            await peer.request("tools/call", {"name": "echo"})
        await server.aclose()
    assert len(verified(folder)) == 2
    assert len(receipts_in(folder)) == 2


async def test_files_rotate_and_checkpoints_are_signed(folder: Path, tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    server = make_server(Receipts(folder, key=tmp_path / "key", segment_bytes=3000, checkpoint_calls=4, fsync=0))
    async with Client(server) as client:
        for number in range(50):
            await client.call_tool("echo", {"value": number})
            if number % 10 == 9:
                await _until(lambda expected=number + 1: len(receipts_in(folder)) == expected)
    await server.aclose()
    (report,) = verified(folder)
    assert (report.problems, report.calls, report.closed) == ([], 50, True)
    assert len(report.files) >= 3
    times = [entry.time for _, entry in read_receipts(find_files(folder))]
    assert times == sorted(times)
    assert len(times) == 50


async def _until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_session_and_task_ids_are_not_in_receipts(folder: Path) -> None:
    server = make_server(Receipts(folder))
    async with RawPeer(server) as peer:
        await peer.initialize()
        reply = await peer.request("tools/call", {"name": "job", "arguments": {"value": 1}, "task": {}})
    await server.aclose()
    assert reply["result"]["task"]["taskId"] not in "".join(file.path.read_text("utf-8") for file in find_files(folder))


def test_server_without_receipts_loads_none_of_it() -> None:
    program = """
import asyncio, sys
from trunkline import Client, Server
server = Server("t")
@server.tool
async def echo() -> str: return "x"
async def main():
    async with Client(server) as client:
        await client.call_tool("echo", {})
asyncio.run(main())
print([name for name in sys.modules if name.startswith(("trunkline.receipts", "trunkline.server.call_receipts"))])
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert found.stdout == "[]\n"


async def test_bad_key_and_folder_fail_the_start(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "not a key").write_text("x")
    (tmp_path / "not a key").chmod(0o600)
    with pytest.raises(ConfigError, match="no private key"):
        await make_server(Receipts(folder, key=tmp_path / "not a key")).start()
    with pytest.raises(StoreError, match="cannot write receipts"):
        await make_server(Receipts(tmp_path / "not a key")).start()
    create_key(tmp_path / "open")
    (tmp_path / "open").chmod(0o644)
    with pytest.raises(ConfigError, match="other users can read"):
        await make_server(Receipts(folder, key=tmp_path / "open")).start()


@pytest.mark.parametrize(
    "options",
    [{"fsync": -1}, {"fsync": "x"}, {"max_queue": 0}, {"on_failure": "stop"}, {"key": 5}, {"checkpoint_interval": 0}],
    ids=str,
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Receipts("receipts", **options)


def test_server_takes_only_receipts() -> None:
    with pytest.raises(MisuseError, match="a Receipts"):
        Server("t", receipts="receipts")  # type: ignore[arg-type]


async def test_clients_that_start_together_share_a_chain(folder: Path) -> None:
    server = make_server(Receipts(folder))

    async def use() -> None:
        async with Client(server) as client:
            await client.call_tool("echo", {"value": 1})

    await asyncio.gather(*(use() for _ in range(5)))
    await server.aclose()
    (report,) = verified(folder)
    assert (report.calls, report.closed) == (5, True)
