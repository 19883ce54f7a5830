"""Recorded conversations."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from trunkline import Client, Context, Server, TaskPolicy
from trunkline.errors import MisuseError, PeerError
from trunkline.testing import Cassette, CassetteDrift, FakeModel, FakeUser, ScriptedServer, serve_http


def make_server(*, greeting: str = "Hello") -> Server:
    server = Server("greeter", observers=[])

    @server.tool
    async def greet(name: str, ctx: Context) -> str:
        await ctx.progress(1, 2)
        await ctx.info("greeting")
        return f"{greeting}, {name}"

    @server.tool
    async def consult(ctx: Context) -> str:
        return (await ctx.sample("how?")).text

    @server.tool(task=TaskPolicy("required"))
    async def slow() -> str:
        return "at last"

    @server.tool
    async def log_in(token: str, note: str) -> str:
        return f"Authorization: Bearer {token}"

    return server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "greetings.jsonl"


async def converse(client: Client) -> None:
    progress: list[float] = []
    result = await client.call_tool("greet", {"name": "Ada"}, on_progress=lambda p: progress.append(p.progress))
    assert (result.data, progress) == ("Hello, Ada", [1])
    assert (await client.call_tool("consult")).data == "carefully"
    assert (await client.call_tool("slow")).data == "at last"


async def recorded(path: Path, revision: str) -> Cassette:
    cassette = Cassette(path)
    client = Client(cassette.record(make_server()), sampling=FakeModel(["carefully"]), revision=revision, title="x")
    async with client:
        await converse(client)
    return cassette


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


async def test_recording_is_readable(path: Path, revision: str) -> None:
    await recorded(path, revision)
    lines = lines_of(path)
    assert lines[:2] == [{"cassette": 1, "target": "greeter"}, {"connection": 1}]
    said = [line["client"].get("method") for line in lines if "client" in line]
    assert "tools/call" in said
    assert any(line.get("server", {}).get("method") == "notifications/progress" for line in lines)


async def test_client_passes_its_recorded_conversation(path: Path, revision: str) -> None:
    await recorded(path, revision)
    with Cassette(path) as cassette:
        async with Client(cassette.replay(), sampling=FakeModel(["carefully"]), revision=revision, title="x") as client:
            await converse(client)
    assert repr(cassette) == f"<Cassette {str(path)!r}>"


async def test_server_passes_its_recorded_conversation(path: Path, revision: str) -> None:
    await (await recorded(path, revision)).play_to(make_server())


async def test_drift_of_the_client_is_shown(path: Path, revision: str) -> None:
    await recorded(path, revision)
    cassette = Cassette(path)
    async with Client(cassette.replay(), sampling=FakeModel(), revision=revision, title="x") as client:
        with pytest.raises(PeerError, match="the client sent another message"):
            await client.call_tool("greet", {"name": "Bob"})
        if revision == "2025-11-25":
            await client.ping()  # needs no recording
    with pytest.raises(CassetteDrift) as raised:
        cassette.assert_played()
    told = str(raised.value).splitlines()
    assert told[0] == "differences from greetings.jsonl; record it again if they are intended:"
    assert re.fullmatch(r"  line \d+: the client sent another message", told[1])
    assert told[2].startswith('    expected: tools/call {"name":"greet","arguments":{"name":"Ada"}')
    assert told[3].startswith('    actual:   tools/call {"name":"greet","arguments":{"name":"Bob"}')
    assert '    params.arguments.name: expected "Ada", is "Bob"' in told
    assert any("the client did not send" in line for line in told)


async def test_drift_of_the_server_is_shown(path: Path, revision: str) -> None:
    cassette = await recorded(path, revision)
    with pytest.raises(CassetteDrift) as raised:
        await cassette.play_to(make_server(greeting="Hi"))
    told = str(raised.value)
    assert "the server sent another message" in told
    assert 'result.content[0].text: expected "Hello, Ada", is "Hi, Ada"' in told


async def test_missing_message_of_the_server_is_shown(path: Path) -> None:
    async with Client(Cassette(path).record(make_server())):
        pass
    more = {"server": {"jsonrpc": "2.0", "method": "notifications/never", "params": {}}}
    path.write_text(path.read_text("utf-8") + json.dumps(more) + "\n", "utf-8")
    with pytest.raises(CassetteDrift, match=r"the server did not send\n    notifications/never"):
        await Cassette(path, patience=3).play_to(make_server())


async def test_surplus_message_of_the_server_is_shown(path: Path) -> None:
    await recorded(path, "2025-11-25")
    without = [line for line in path.read_text("utf-8").splitlines() if "notifications/message" not in line]
    path.write_text("\n".join(without), "utf-8")
    with pytest.raises(CassetteDrift, match=r"sent more than was recorded:\n    notifications/message"):
        await Cassette(path).play_to(make_server())


async def test_unrecorded_messages_of_the_client_are_shown(path: Path) -> None:
    async with Client(Cassette(path).record(make_server())):
        pass
    cassette = Cassette(path)
    async with Client(cassette.replay()) as client:
        with pytest.raises(PeerError):
            await client.list_tools()
    with pytest.raises(CassetteDrift, match=r"sent more than was recorded:\n    tools/list"), cassette:
        pass


async def test_concurrent_requests_may_change_their_order(path: Path) -> None:
    names = [f"n{number}" for number in range(5)]
    async with Client(Cassette(path).record(make_server())) as client:
        await asyncio.gather(*(client.call_tool("greet", {"name": name}) for name in names))
    with Cassette(path) as cassette:
        async with Client(cassette.replay()) as client:
            calls = [client.call_tool("greet", {"name": name}) for name in reversed(names)]
            assert [result.data for result in await asyncio.gather(*calls)] == [f"Hello, {n}" for n in reversed(names)]


async def test_secrets_are_redacted(path: Path) -> None:
    arguments = {"token": "abc123", "note": "card 1234567890123456"}
    cassette = Cassette(path, redact=[re.compile(r"\d{16}"), "serial-number"])
    async with Client(cassette.record(make_server())) as client:
        await client.call_tool("log_in", arguments, meta={"example/x": {"serialNumber": 5, "Api-Key": "k"}})
    text = path.read_text("utf-8")
    assert not re.search(r"abc123|1234567890123456|\"k\"|: ?5\b", text)
    assert '"note":"card [redacted]"' in text
    assert "Authorization: Bearer [redacted]" in text
    with Cassette(path, redact=[re.compile(r"\d{16}"), "serial-number"]) as replayed:
        async with Client(replayed.replay()) as client:
            await client.call_tool("log_in", arguments, meta={"example/x": {"serialNumber": 5, "Api-Key": "k"}})


async def test_members_can_be_ignored(path: Path) -> None:
    async with Client(Cassette(path).record(make_server())) as client:
        await client.call_tool("greet", {"name": "Ada"})
    with Cassette(path, ignore=["name"]) as cassette:
        async with Client(cassette.replay()) as client:
            assert (await client.call_tool("greet", {"name": "Bob"})).data == "Hello, Ada"


async def test_conversation_over_http_is_recorded(path: Path) -> None:
    with serve_http(make_server()) as url:
        async with Client(Cassette(path).record(url)) as client:
            await client.call_tool("greet", {"name": "Ada"})
    with Cassette(path) as cassette:
        async with Client(cassette.replay()) as client:
            assert (await client.call_tool("greet", {"name": "Ada"})).data == "Hello, Ada"


async def test_each_connection_is_replayed_in_turn(path: Path) -> None:
    scripted = ScriptedServer()
    async with Client(Cassette(path).record(scripted)) as client:
        await client.list_tools()
        scripted.line.die("gone")
        await scripted.connected(2)
        await client.list_tools()
    lines = lines_of(path)
    assert [line["connection"] for line in lines if "connection" in line] == [1, 2]
    assert {"closed": "gone"} in lines
    with Cassette(path) as cassette:
        async with Client(cassette.replay()) as client:
            await client.list_tools()
            await client.list_tools()
        assert client.losses == 1


@pytest.mark.off_the_record
async def test_malformed_message_is_recorded(path: Path) -> None:
    scripted = ScriptedServer()
    async with Client(Cassette(path).record(scripted)):
        scripted.line.send(b"nonsense")
        await scripted.line.receive()
    assert any("not JSON" in line.get("malformed", "") for line in lines_of(path))


def test_other_files_are_refused(path: Path) -> None:
    path.write_text('{"cassette": 99}\n', "utf-8")
    with pytest.raises(MisuseError, match="is not a cassette of version 1; record it again"):
        Cassette(path).replay()


async def test_elicitation_is_replayed_to_a_server(path: Path) -> None:
    server = Server("t", observers=[])

    @server.tool
    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("Name?", str)).data)

    for revision in ("2025-11-25", "2026-07-28"):
        cassette, user = Cassette(path), FakeUser({"value": "Ada"})
        async with Client(cassette.record(server), elicitation=user, revision=revision) as client:
            assert (await client.call_tool("ask")).data == "Ada"
        await cassette.play_to(server)
