"""What servers tell without being asked."""

import asyncio
from typing import Any

import pytest

from trunkline import Client, Settings
from trunkline.errors import MisuseError
from trunkline.facts import Dropped, HandlerFailed
from trunkline.protocol.types import LoggingMessageParams
from trunkline.testing import RecordingObserver, ScriptedServer

UPDATED = "notifications/resources/updated"


@pytest.mark.row("N07")
async def test_handler_receives_every_notification_of_its_name() -> None:
    server = ScriptedServer()
    heard: list[str] = []
    async with Client(server) as client:
        stop = client.on(UPDATED, lambda params: heard.append(params.uri))
        for uri in ("a:1", "a:2"):
            server.line.notify(UPDATED, {"uri": uri})
        await client.ping()
        stop()
        server.line.notify(UPDATED, {"uri": "a:3"})
        await client.ping()
    assert heard == ["a:1", "a:2"]


@pytest.mark.row("N07")
async def test_reader_yields_notifications() -> None:
    server = ScriptedServer()
    async with Client(server) as client:
        reader = client.notifications(UPDATED)
        everything = client.notifications()
        server.line.notify(UPDATED, {"uri": "a:1"})
        server.line.notify("notifications/prompts/list_changed")
        first = await anext(reader)
        assert (first.method, first.params.uri) == (UPDATED, "a:1")
        assert [(await anext(everything)).method for _ in range(2)] == [UPDATED, "notifications/prompts/list_changed"]
        waiting = asyncio.create_task(anext(reader))
        server.line.notify(UPDATED, {"uri": "a:2"})
        assert (await waiting).params.uri == "a:2"
    assert [notice async for notice in reader] == []  # ends with the client


async def test_slow_reader_loses_the_oldest() -> None:
    server = ScriptedServer()
    async with Client(server, settings=Settings(max_heard=2)) as client:
        reader = client.notifications(UPDATED)
        for number in range(5):
            server.line.notify(UPDATED, {"uri": f"a:{number}"})
        await client.ping()
        assert reader.dropped == 3
        reader.close()
        assert [notice.params.uri async for notice in reader] == ["a:3", "a:4"]


@pytest.mark.row("N09")
async def test_failing_handler_is_reported() -> None:
    server, observer = ScriptedServer(), RecordingObserver()
    heard: list[Any] = []

    def bad(_: Any) -> None:
        raise ValueError("mine")

    async def worse(_: Any) -> None:
        await asyncio.sleep(0)
        raise LookupError("mine too")

    async with Client(server, observers=[observer]) as client:
        for handler in (bad, worse, heard.append):
            client.on(UPDATED, handler)
        server.line.notify(UPDATED, {"uri": "a:1"})
        await client.ping()
        await client.ping()
    assert len(heard) == 1
    assert [type(fact.error) for fact in observer.of(HandlerFailed)] == [ValueError, LookupError]


@pytest.mark.row("N08")
async def test_unknown_notification_is_ignored() -> None:
    server, observer = ScriptedServer(), RecordingObserver()
    async with Client(server, observers=[observer]) as client:
        server.line.notify("notifications/weather", {"sun": True})
        await client.ping()
    assert "notifications/weather" in observer.of(Dropped)[0].why


async def test_log_messages_are_received() -> None:
    server = ScriptedServer(answered=["initialize", "ping", "logging/setLevel"])
    heard: list[LoggingMessageParams] = []
    async with Client(server, on_log=heard.append, log_level="warning") as client:
        server.line.notify("notifications/message", {"level": "error", "data": {"x": 1}, "logger": "db"})
        await client.ping()
    assert (heard[0].level, heard[0].data, heard[0].logger) == ("error", {"x": 1}, "db")
    levels = [m["params"] for m in server.line.transcript.said_by("client") if m.get("method") == "logging/setLevel"]
    assert levels == [{"level": "warning"}]


@pytest.mark.parametrize("name", ["notifications/nothing", "notifications/progress", "tools/list"])
async def test_unknown_name_is_refused(name: str) -> None:
    client = Client(ScriptedServer())
    with pytest.raises(MisuseError, match="servers send no notification"):
        client.on(name, print)
    with pytest.raises(MisuseError):
        client.notifications(name)


@pytest.mark.row("N13")
async def test_progress_with_unknown_token_is_dropped() -> None:
    server, observer = ScriptedServer(), RecordingObserver()
    async with Client(server, observers=[observer]) as client:
        server.line.notify("notifications/progress", {"progressToken": 99, "progress": 1})
        await client.ping()
    assert [fact.kind for fact in observer.of(Dropped)] == ["invalid_progress_token"]


async def test_short_names_are_accepted() -> None:
    server = ScriptedServer()
    heard: list[Any] = []
    async with Client(server) as client:
        client.on("resources/updated", heard.append)
        server.line.notify("resources/updated", {"uri": "a:1"})
        await client.ping()
    assert heard[0].uri == "a:1"
