"""Requests that other processes have brought, by themselves: who brings them and who answers are played here."""

import asyncio
import gc
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline.clock import LoopClock
from trunkline.config import Settings
from trunkline.protocol.profiles import PROFILES, Profile
from trunkline.server.access.principal_codec import PrincipalCodec
from trunkline.transports.channel import Channel, Receiver
from trunkline.transports.http.app import HttpApp
from trunkline.transports.http.forwarding.frames import (
    ChunkFrame,
    CreditFrame,
    DisconnectFrame,
    HolderFrame,
    RequestFrame,
    ResponseFrame,
    StreamEndFrame,
    StreamStartFrame,
)
from trunkline.transports.http.forwarding.inbound import ForwardedRequest, InboundDispatcher
from trunkline.transports.http.respond import Responder
from trunkline.transports.http.session.event_store import MemoryEventStore
from trunkline.transports.http.session.streams import STANDALONE, Stream
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.wire import sse
from trunkline.wire.codec import json_decoder

decode = json_decoder(dict[str, Any])


class Patient:
    """Holds everything, and answers nothing before its client has gone."""

    def __init__(self) -> None:
        self.begun, self.left = asyncio.Event(), asyncio.Event()

    async def handle_forwarded(self, request: ForwardedRequest) -> bool:
        self.begun.set()
        gone = asyncio.Event()
        request.when_disconnected(gone.set)
        await gone.wait()
        self.left.set()
        return True

    def on_renamed(self) -> None:
        pass


@pytest.fixture
def said() -> list[HolderFrame]:
    return []


@pytest.fixture
async def arrivals(said: list[HolderFrame]) -> InboundDispatcher:
    """What one process has been brought that answers one request at a time."""

    async def sent() -> None:
        pass

    def reply(_: str, frame: HolderFrame) -> bool:
        said.append(frame)
        return True

    return InboundDispatcher(reply, sent, PrincipalCodec(), LoopClock(asyncio.get_running_loop()), max_requests=1)


def ask(visit: int, size: int = 0) -> RequestFrame:
    """A request whose body, if it has one, is still to come."""
    return RequestFrame(visit, "POST", "s", False, [], "", "", None, None, 1000, size, b"")


async def test_losing_an_ingress_disconnects_its_requests(arrivals: InboundDispatcher) -> None:
    host = Patient()
    arrivals.targets.append(host)
    arrivals.on_frame("a", ask(1))
    await host.begun.wait()
    arrivals.on_peer_lost("b")
    await asyncio.sleep(0)
    assert not host.left.is_set()
    arrivals.on_peer_lost("a")
    async with asyncio.timeout(PATIENCE):
        await host.left.wait()
    await arrivals.close()


async def test_request_over_the_limit_is_refused_before_its_body(
    arrivals: InboundDispatcher, said: list[HolderFrame]
) -> None:
    arrivals.targets.append(Patient())
    arrivals.on_frame("a", ask(1, 5))
    arrivals.on_frame("a", ask(2, 5))
    await arrivals.close()
    assert [(frame.number, frame.status) for frame in said if isinstance(frame, ResponseFrame)] == [(2, 503)]
    arrivals.on_frame("a", DisconnectFrame(1))
    arrivals.on_frame("a", ask(3, 0))
    arrivals.on_frame("a", DisconnectFrame(3))
    await arrivals.close()
    assert len(said) == 1


async def test_refused_request_is_not_run_when_its_body_arrives(
    arrivals: InboundDispatcher, said: list[HolderFrame]
) -> None:
    class Noting(Patient):
        async def handle_forwarded(self, request: ForwardedRequest) -> bool:
            posted.append(request.received_body)
            return await super().handle_forwarded(request)

    posted: list[bytes] = []
    arrivals.targets.append(Noting())
    arrivals.on_frame("a", ask(1))
    arrivals.on_frame("a", ask(2, 1))
    arrivals.on_frame("a", ChunkFrame(2, b"x"))
    arrivals.on_frame("a", DisconnectFrame(1))
    await arrivals.close()
    arrivals.on_frame("a", DisconnectFrame(2))
    assert posted == [b""]
    assert [(frame.number, frame.status) for frame in said if isinstance(frame, ResponseFrame)] == [(2, 503)]


@pytest.mark.parametrize(("begins", "told"), [(False, ResponseFrame), (True, StreamEndFrame)])
async def test_internal_error_is_answered_500_or_ends_the_stream(
    arrivals: InboundDispatcher,
    said: list[HolderFrame],
    caplog: pytest.LogCaptureFixture,
    begins: bool,
    told: type[HolderFrame],
) -> None:
    class Broken(Patient):
        async def handle_forwarded(self, request: ForwardedRequest) -> bool:
            if begins:
                await request.begin_stream()
            raise RuntimeError("broken")

    arrivals.targets.append(Broken())
    arrivals.on_frame("a", ask(1))
    await arrivals.close()
    gc.collect()
    assert isinstance(said[-1], told)
    assert [frame.status for frame in said if isinstance(frame, ResponseFrame | StreamStartFrame)] == [
        200 if begins else 500
    ]
    assert "broken" in caplog.text


async def test_close_cancels_unanswered_requests(arrivals: InboundDispatcher, said: list[HolderFrame]) -> None:
    class Stuck(Patient):
        async def handle_forwarded(self, request: ForwardedRequest) -> bool:
            try:
                return await super().handle_forwarded(request)
            finally:
                ended.set()

    ended = asyncio.Event()
    arrivals.targets.append(Stuck())
    arrivals.on_frame("a", ask(1))
    await arrivals.close()
    assert ended.is_set()
    assert said == []


@pytest.mark.row("W06")
async def test_unacknowledged_events_go_to_the_next_reader(
    arrivals: InboundDispatcher, said: list[HolderFrame]
) -> None:
    stream, begun = Stream(STANDALONE, MemoryEventStore(10, 10_000)), asyncio.Event()

    def accept(channel: Channel) -> Receiver:
        raise AssertionError(channel)

    class Reader(Patient):
        async def handle_forwarded(self, request: ForwardedRequest) -> bool:
            begun.set()
            guard = ListenerGuard(accept, Settings(), LoopClock(asyncio.get_running_loop()))
            await Responder(guard).write_stream(request, stream)
            self.left.set()
            return True

    host = Reader()
    arrivals.targets.append(host)
    older = [(b"mcp-protocol-version", b"2025-06-18")]
    arrivals.on_frame("a", RequestFrame(1, "GET", "s", False, older, "", "", None, None, 1000, 0, b""))
    await begun.wait()
    for number in range(3):
        stream.write(b'{"number":%d}' % number)
        await asyncio.sleep(0)
    parts = [frame for frame in said if isinstance(frame, ChunkFrame)]
    arrivals.on_frame("a", CreditFrame(1, len(parts[0].data)))
    arrivals.on_peer_lost("a")
    async with asyncio.timeout(PATIENCE):
        await host.left.wait()
    assert sum(len(part.data) for part in parts) == 3 * len(parts[0].data)
    assert stream.last_read == 1


def test_rewind_counts_only_events_of_standalone_stream() -> None:
    for number, mine, size, read in (
        (STANDALONE, True, len(sse.COMMENT), 2),
        (STANDALONE, True, 60, 1),
        (STANDALONE, True, 10_000, 0),
        (STANDALONE, False, 10_000, 2),
        (1, True, 10_000, 2),
    ):
        stream = Stream(number, MemoryEventStore(10, 10_000))
        stream.write(b'{"number":1}')
        stream.write(b'{"number":2}')
        reader = stream.attach()
        stream.take()
        stream.rewind(reader if mine else object(), size)
        assert stream.last_read == read


async def test_handling_that_continues_after_the_ingress_has_left_is_run(arrivals: InboundDispatcher) -> None:
    kept: list[ForwardedRequest] = []

    class Later:
        async def handle_forwarded(self, request: ForwardedRequest) -> bool:
            kept.append(request)
            return True

        def on_renamed(self) -> None:
            pass

    ran = asyncio.Event()

    async def rest() -> None:
        ran.set()

    arrivals.targets.append(Later())
    arrivals.on_frame("a", ask(1))
    async with asyncio.timeout(PATIENCE):
        while not kept:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    arrivals.on_frame("a", DisconnectFrame(1))
    await arrivals.close()
    kept[0].run(rest())
    async with asyncio.timeout(PATIENCE):
        await ran.wait()


@pytest.mark.row("E32058e")
@pytest.mark.parametrize(("profile", "code"), [(None, -32600), (PROFILES["erlmcp"], -32058)])
async def test_forwarded_request_has_the_codes_of_the_profile(
    profile: Profile | None, code: int, said: list[HolderFrame]
) -> None:
    async def sent() -> None:
        pass

    def reply(frame: HolderFrame) -> bool:
        said.append(frame)
        return True

    def accept(channel: Channel) -> Receiver:
        raise AssertionError(channel)

    clock = LoopClock(asyncio.get_running_loop())
    app = HttpApp(ListenerGuard(accept, Settings(), clock, profile=profile), "/")
    request = ForwardedRequest(ask(1), PrincipalCodec(), None, reply, sent)
    assert not await app.handle_forwarded(request)  # there is no such session
    request.refuse(404, "session not found", kind="session_not_found")
    assert isinstance(said[0], ResponseFrame)
    assert decode(said[0].body)["error"]["code"] == code
    app.close()
