"""Requests that are posted without a task, and how they continue if they have to wait after all."""

import asyncio
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest
from tests.contract.connections import Recorder, until
from tests.unit.transports.http.client.web import Visit, Web, event, web

from trunkline import Settings
from trunkline.transports.channel import Channel, MessageOrigin
from trunkline.transports.http.client.connector import HttpConnector
from trunkline.wire.messages import Request, Response

pytestmark = pytest.mark.off_the_record
SETTINGS = Settings(stream_retry=0.001, stop_timeout=1.0, max_calls=4)


@pytest.fixture
async def server() -> AsyncIterator[Web]:
    async with web() as made:
        yield made


async def connect(server: Web, recorder: Recorder, settings: Settings = SETTINGS, **options: Any) -> Channel:
    """Return a channel with one idle connection, so that the next request needs no task."""
    channel = await HttpConnector(server.url, settings=settings, **options).connect(lambda _: recorder)
    channel.send(Request(0, "ask"))
    await until(lambda: recorder.messages)
    recorder.messages.clear()
    return channel


def count_tasks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    loop = asyncio.get_running_loop()
    original, made = loop.create_task, list[Any]()

    def create(work: Any, **options: Any) -> Any:
        made.append(work)
        return original(work, **options)

    monkeypatch.setattr(loop, "create_task", create)
    return made


@pytest.mark.parametrize("auth", [None, "token"])
async def test_call_on_an_idle_connection_needs_no_task(
    server: Web, auth: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    channel = await connect(server, recorder, auth=auth)
    made = count_tasks(monkeypatch)
    for number in range(1, 6):
        channel.send(Request(number, "ask"))
        await until(lambda number=number: len(recorder.messages) == number)
    assert made == []
    assert [message.id for message in recorder.messages if isinstance(message, Response)] == [1, 2, 3, 4, 5]
    assert server.connections == 1
    assert {visit.headers.get("authorization") for visit in server.visits} == {auth and "Bearer token"}
    await channel.close()


def by_events(visit: Visit) -> None:
    visit.stream(event(visit.answer({})))
    visit.hang_up()


def in_pieces(visit: Visit) -> None:
    body = visit.answer({})
    visit.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
    asyncio.get_running_loop().call_soon(visit.write, body)


def redirected(visit: Visit) -> None:
    if visit.path == "/elsewhere":
        visit.reply({})
    else:
        visit.respond(307, Location="/elsewhere")


@pytest.mark.parametrize("respond", [by_events, in_pieces, redirected])
async def test_call_continues_in_a_task_in_the_context_of_its_caller(server: Web, respond: Any) -> None:
    caller: ContextVar[str] = ContextVar("caller", default="unset")
    seen: list[str] = []

    class InContext(Recorder):
        def received(self, messages: Any, origin: MessageOrigin) -> None:
            seen.append(caller.get())
            super().received(messages, origin)

    recorder = InContext()
    channel = await connect(server, recorder)
    server.on("ask", respond)
    caller.set("me")
    channel.send(Request(1, "ask"))
    await until(lambda: recorder.messages)
    assert seen[-1] == "me"
    await channel.close()


async def test_error_of_the_receiver_fails_its_request_only(server: Web) -> None:
    class Faulty(Recorder):
        def received(self, messages: Any, origin: MessageOrigin) -> None:
            if messages[0].id == 1:
                raise RuntimeError("a fault")
            super().received(messages, origin)

    recorder = Faulty()
    channel = await connect(server, recorder)
    channel.send(Request(1, "ask"))
    await until(lambda: recorder.without_answer)
    assert "a fault" in recorder.without_answer[0][1].reason
    channel.send(Request(2, "ask"))
    await until(lambda: recorder.messages)
    await channel.close()


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"]
)
async def test_close_ends_calls_in_progress(server: Web, head: bytes) -> None:
    recorder = Recorder()
    channel = await connect(server, recorder)
    server.on("ask", lambda visit: visit.write(head))
    channel.send(Request(1, "ask"))
    await server.visited("ask", 2)
    await channel.close()
    await until(lambda: server.open == 0)


async def test_broken_response_is_reported_as_unanswered(server: Web) -> None:
    recorder = Recorder()
    channel = await connect(server, recorder)
    server.on("ask", Visit.hang_up)
    channel.send(Request(1, "ask"))
    await until(lambda: recorder.without_answer)
    assert recorder.without_answer[0][1].reached
    assert len(server.seen("ask")) == 2
    await channel.close()


async def test_calls_never_exceed_the_limit(server: Web) -> None:
    busy: list[Visit] = []
    server.on("ask", lambda visit: visit.reply({}) if visit.message["id"] == 0 else busy.append(visit))
    recorder = Recorder()
    channel = await connect(server, recorder)
    for number in range(1, 21):
        channel.send(Request(number, "ask"))
    for answered in range(20):
        await until(lambda answered=answered: len(busy) >= min(4 + answered, 20))
        assert len(busy) == min(4 + answered, 20)
        busy[answered].reply({})
        await until(lambda answered=answered: len(recorder.messages) == answered + 1)
    await channel.close()
