"""A stream that is cut, anywhere: no message is lost, and none comes twice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.contract.connections import Recorder, until
from tests.unit.transports.http.client.web import Visit, Web, event, web

from trunkline import Settings
from trunkline.transports.channel import Channel
from trunkline.transports.http.client.connector import HttpConnector
from trunkline.wire.messages import Notification, Request

NOTICE = b'{"jsonrpc":"2.0","method":"n","params":{"n":%d}}'
pytestmark = pytest.mark.off_the_record
SETTINGS = Settings(stream_retry=0.001, stop_timeout=1.0)


@asynccontextmanager
async def line(server: Web, settings: Settings = SETTINGS) -> AsyncIterator[tuple[Channel, Recorder]]:
    recorder = Recorder()
    channel = await HttpConnector(server.url, settings=settings).connect(lambda _: recorder)
    yield channel, recorder
    await channel.close()


def events_for(ident: int) -> list[bytes]:
    """What a request is answered with: a position, two notifications and the answer."""
    answer = b'{"jsonrpc":"2.0","id":%d,"result":{}}' % ident
    datas = [b"", NOTICE % 1, NOTICE % 2, answer]
    return [event(data, id=f"{ident}/{number}", retry=1) for number, data in enumerate(datas)]


def whole(recorder: Recorder) -> bool:
    return [type(message).__name__ for message in recorder.messages] == ["Notification", "Notification", "Response"]


def plain(visit: Visit, data: bytes, cut: int) -> None:
    visit.stream(data[:cut])


def chunked(visit: Visit, data: bytes, cut: int) -> None:
    """Cuts what is on the wire, in the middle of a chunk or of its header."""
    visit.chunked()
    parts = data.split(b"\n\n")[:-1]
    wire = b"".join(b"%x\r\n%b\n\n\r\n" % (len(part) + 2, part) for part in parts) + b"0\r\n\r\n"
    visit.write(wire[:cut])


@pytest.mark.row("HTT-20", "W06")
@pytest.mark.parametrize("write", [plain, chunked])
@pytest.mark.parametrize("end", [Visit.hang_up, Visit.reset])
async def test_stream_cut_at_any_byte_is_resumed(
    write: Callable[[Visit, bytes, int], None], end: Callable[[Visit], None]
) -> None:
    primed = len(events_for(1000)[0])
    most = len(b"".join(events_for(1000))) + (0 if write is plain else 40)

    async with web() as server:

        def answer(visit: Visit) -> None:
            ident = visit.message["id"]
            write(visit, b"".join(events_for(ident)), ident - 1000)
            end(visit)

        def go_on(visit: Visit) -> None:
            ident, _, number = visit.headers["last-event-id"].partition("/")
            visit.stream(b"".join(events_for(int(ident))[int(number) + 1 :]))
            visit.hang_up()

        server.on("ask", answer)
        server.on("GET", go_on)
        for cut in range(most + 1):
            async with line(server) as (channel, recorder):
                channel.send(Request(1000 + cut, "ask"))
                await until(lambda: recorder.without_answer or len(recorder.messages) == 3)
                if recorder.without_answer:
                    assert recorder.messages == []  # nothing was lost that had been numbered
                    assert recorder.without_answer[0][1].reached
                    assert cut < primed + 10 or end is Visit.reset
                else:
                    assert whole(recorder)
                    assert [bytes(message.params) for message in recorder.messages[:2]] == [b'{"n":1}', b'{"n":2}']  # type: ignore[union-attr]
            assert whole(recorder) or recorder.without_answer
        assert len(server.seen("ask")) == most + 1


@pytest.mark.row("W06")
async def test_repeated_events_are_delivered_once() -> None:
    async with web() as server:

        def answer(visit: Visit) -> None:
            visit.stream(b"".join(events_for(7)[:3]))
            visit.hang_up()

        def go_on(visit: Visit) -> None:
            assert visit.headers["last-event-id"] == "7/2"
            visit.stream(b"".join(events_for(7)))  # all of it, once more
            visit.hang_up()

        server.on("ask", answer)
        server.on("GET", go_on)
        async with line(server) as (channel, recorder):
            channel.send(Request(7, "ask"))
            await until(lambda: len(recorder.messages) >= 3)
        assert whole(recorder)


async def test_events_without_ids_are_all_delivered() -> None:
    async with web() as server:

        def answer(visit: Visit) -> None:
            visit.stream(event(NOTICE % 1, id="a") + event(NOTICE % 1) + event(NOTICE % 1))
            visit.write(event(visit.answer({})))
            visit.hang_up()

        server.on("ask", answer)
        async with line(server) as (channel, recorder):
            channel.send(Request(1, "ask"))
            await until(lambda: len(recorder.messages) == 4)


async def test_resumption_gives_up_after_repeated_failures() -> None:
    async with web() as server:

        def cut(visit: Visit) -> None:
            visit.stream(event(b"", id="1", retry=1))
            visit.hang_up()

        server.on("ask", cut)
        server.on("GET", Visit.reset)
        async with line(server) as (channel, recorder):
            channel.send(Request(1, "ask"))
            await until(lambda: recorder.without_answer)
            assert not recorder.ends
        assert 6 <= len(server.seen("GET")) <= 14  # the pool may send a GET once more by itself


async def test_paused_channel_delivers_nothing() -> None:
    async with web() as server, line(server) as (channel, recorder):
        channel.pause()
        channel.pause()
        channel.send(Request(1, "ask"))
        await server.visited("ask")
        for _ in range(20):
            await asyncio.sleep(0)
        assert recorder.messages == []
        channel.resume()
        channel.resume()
        await until(lambda: recorder.messages)


async def test_notifications_are_sequential_and_before_responses() -> None:
    async with web() as server:
        busy: list[Any] = []

        async def slowly(visit: Visit) -> None:
            busy.append(visit)
            assert len(busy) == 1
            await asyncio.sleep(0)
            busy.remove(visit)
            visit.respond(202)

        server.on("n", slowly)
        async with line(server) as (channel, _):
            for number in range(20):
                channel.send(Notification("n", {"number": number}))
            channel.send([])
            await server.visited("POST", 21)
        assert [visit.message["params"]["number"] for visit in server.seen("n")] == list(range(20))
        assert server.seen("POST")[-1].message == []


@pytest.mark.row("N14")
async def test_server_that_accepts_nothing_is_disconnected() -> None:
    settings = Settings(unsent_high=1000, unsent_limit=5000, stop_timeout=0.05)
    taken = asyncio.Event()

    async def never(visit: Visit) -> None:
        await taken.wait()
        visit.respond(202)

    async with web() as server:
        server.on("n", never)
        async with line(server, settings) as (channel, recorder):
            channel.send(Notification("n", {"x": "x" * 2000}))
            draining = asyncio.create_task(channel.drain())
            await server.visited("n")
            assert not draining.done()
            taken.set()
            await draining
            taken.clear()
            channel.send(Notification("n", {"x": "x" * 6000}))
            await until(lambda: recorder.ends)
            assert "unread" in recorder.ends[0].reason
            channel.send(Notification("n"))
            await channel.drain()
            taken.set()
        assert len(recorder.ends) == 1
