"""One peer, served: how many calls at once, in what order, and what is left when it goes."""

import asyncio
import threading
from typing import Any

import pytest

from trunkline import Context, Server, Settings
from trunkline.errors import MisuseError, RequestTimeout, WrongPhase
from trunkline.facts import (
    CallEnded,
    CallStarted,
    Closed,
    Connected,
    Dropped,
    Fact,
    HandlerFailed,
    PhaseChanged,
    Received,
)
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.server.features import lifecycle, tools
from trunkline.testing import ManualClock, RawPeer, RecordingObserver
from trunkline.transports.memory import MemoryChannel


class Gate:
    """A server whose tools wait until they are let go."""

    def __init__(self, **options: Any) -> None:
        self.observer = RecordingObserver()
        self.server = Server("t", observers=[self.observer], **options)
        self.go = asyncio.Event()
        self.running = 0
        self.most = 0
        self.began: list[int] = []

        @self.server.tool
        async def wait(number: int = 0) -> int:
            self.began.append(number)
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await self.go.wait()
            finally:
                self.running -= 1
            return number

        @self.server.tool
        async def quick() -> str:
            return "quick"

    def call(self, peer: RawPeer, number: int = 0) -> int | str:
        return peer.call("tools/call", {"name": "wait", "arguments": {"number": number}})


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


# --- many calls -------------------------------------------------------------------------------------------------


async def test_a12_a_blocking_plain_tool_does_not_stall_ping() -> None:
    server, began, go = Server("t"), threading.Event(), threading.Event()

    @server.tool
    def block() -> str:
        began.set()
        go.wait(10)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "block"})
        assert await asyncio.to_thread(began.wait, 10)
        assert await peer.result("ping") == {}
        assert not go.is_set()
        go.set()
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_two_slow_calls_overlap(kind: str) -> None:
    server, both, meeting = Server("t"), asyncio.Barrier(2), threading.Barrier(2)

    async def meet() -> str:
        await asyncio.wait_for(both.wait(), 10)
        return "met"

    def meet_on_thread() -> str:
        meeting.wait(10)
        return "met"

    server.add_tool(meet if kind == "async" else meet_on_thread, name="meet")
    async with RawPeer(server) as peer:
        await peer.initialize()
        for _ in range(2):
            peer.call("tools/call", {"name": "meet"})
        answers = [await peer.receive() for _ in range(2)]
    assert [answer["result"]["content"][0]["text"] for answer in answers] == ["met", "met"]


async def test_no_more_calls_run_than_allowed_and_the_others_get_their_turn_in_order() -> None:
    gate = Gate(settings=Settings(max_calls=2))
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        for number in range(6):
            gate.call(peer, number)
        await turns()
        assert gate.began == [0, 1]
        gate.go.set()
        answers = [await peer.receive() for _ in range(6)]
    assert gate.most == 2
    assert gate.began == [0, 1, 2, 3, 4, 5]
    assert [answer["result"]["structuredContent"]["result"] for answer in answers] == [0, 1, 2, 3, 4, 5]


async def test_reading_pauses_when_too_many_wait_and_goes_on_when_half_of_them_have_had_their_turn() -> None:
    gate = Gate(settings=Settings(max_calls=2, max_waiting=4))
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        for number in range(6):
            gate.call(peer, number)
        await turns()
        ping = peer.call("ping")
        gate.call(peer, 6)
        await turns()
        assert peer.waiting() == []  # nothing is read any more, not even a ping
        assert len(peer.connection.session.in_flight) == 6
        gate.go.set()
        assert (await peer.answer_to(ping))["result"] == {}
        assert len(await peer.quiet()) == 7


async def test_answers_and_cancellations_are_taken_while_calls_wait_their_turn() -> None:
    server = Server("t", settings=Settings(max_calls=1))

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.ping()
        return "asked"

    async with RawPeer(server) as peer:
        await peer.initialize()
        first, second, third = (peer.call("tools/call", {"name": "ask"}) for _ in range(3))
        peer.reply(await peer.receive(), {})
        assert (await peer.answer_to(first))["result"]["isError"] is False
        peer.notify("notifications/cancelled", {"requestId": second})
        told = [await peer.receive(), await peer.receive()]
        asked = next(message for message in told if message["method"] == "ping" and message["id"] == 3) if False else None
        requests = [message for message in told if message.get("method") == "ping"]
        peer.reply(requests[-1], {})
        del asked
        answered = await _answer_every_ping(peer, third)
        assert answered["result"]["isError"] is False


async def _answer_every_ping(peer: RawPeer, ident: int | str) -> Any:
    while True:
        message = await peer.receive()
        if message.get("id") == ident and "method" not in message:
            return message
        if message.get("method") == "ping":
            peer.reply(message, {})
