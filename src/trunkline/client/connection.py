"""One server, spoken to: the handshake, and what the end of the line means."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from trunkline.client import era_probe
from trunkline.client.era_probe import Verdict
from trunkline.errors import (
    BadAnswer,
    ConnectionClosed,
    HandshakeFailed,
    PeerError,
    ProtocolError,
    RequestTimeout,
)
from trunkline.protocol.capabilities import without_newer
from trunkline.protocol.inflight import Running
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.meta import IDEMPOTENCY
from trunkline.protocol.methods import Side
from trunkline.protocol.revisions import Era, Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import DiscoverResult, Empty, InitializeParams, InitializeResult
from trunkline.rpc import connection
from trunkline.rpc.connection import KEEPALIVE_FAILED
from trunkline.rpc.outgoing_requests import loss
from trunkline.transports.channel import Channel, Closed, Repeating
from trunkline.wire import codec
from trunkline.wire.messages import RequestId

__all__ = ["Connection"]

_read_result: Final = codec.decoder(InitializeResult)
_read_discovery: Final = codec.decoder(DiscoverResult)
_MOST_QUESTIONS: Final = 2  # which era it is; the second is for a server that names a revision and wants it said again


class _Refused(Exception):
    """A server refuses the handshake, and perhaps names what it speaks instead."""

    def __init__(self, error: PeerError) -> None:
        self.error = error


class Connection(connection.Connection):
    """One line to a server, from its first message to its last."""

    def __init__(
        self,
        shared: connection.Shared,
        session: Session,
        channel: Channel,
        meaning: "Callable[[Connection, Closed], Signal]",
    ) -> None:
        self._meaning = meaning
        self._probing: asyncio.Task[bool] | None = None  # a ping whose answer decides
        self._sent: Callable[[], None] | None = None  # is told when our first question is out
        self._introducing = False  # initialize is about to go out
        self.probe_unanswered = False  # server/discover was sent, and no answer to it has come
        self.instructions: str | None = None
        self.questions = 0  # that are being put to a person on our side, about who we are
        self.settled: Callable[[], object] = bool  # is told when they have been answered
        super().__init__(shared, session, channel)
        self.gone: asyncio.Future[Closed] = self.loop.create_future()

    # --- the beginning -------------------------------------------------------------------------

    async def open(self, sent: Callable[[], None], era: Era | None) -> Era:
        """Finds out which era the server speaks, unless that is known, and begins. Raises `HandshakeFailed` if that
        comes to nothing. `sent` is told when we wait for the answer."""
        self._sent = sent
        modern = Revision.V2026_07_28 in self.session.revisions
        if modern and era is not Era.HANDSHAKE and await self._discover():
            return Era.MODERN
        try:
            await self._initialize()
        except _Refused as refused:
            # It may have taken our question for the beginning of the other era, and keeps to that.
            if modern and Revision.V2026_07_28.value in era_probe.named_by(refused.error) and await self._discover():
                return Era.MODERN
            raise self._failed(f"the server refused initialize: {era_probe.told_by(refused.error)}") from None
        return Era.HANDSHAKE

    async def _discover(self) -> bool:
        """Whether the server speaks the modern era, and we with it from now on."""
        try:
            answer = await self._ask_for_era()
        except HandshakeFailed as failed:
            raise self._failed(str(failed)) from None
        if answer is None:
            return False
        if self.session.phase is Phase.CONNECTING:
            self.step(Signal.SEND_INITIALIZE)
        self.session.discovered(answer)
        self.instructions = answer.instructions
        self.phase_changed(Phase.INITIALIZING)
        return True

    async def _ask_for_era(self) -> DiscoverResult | None:
        """What a server of the modern era tells of itself; None of any other. Raises `HandshakeFailed`."""
        ours = self.session.revisions
        for _ in range(_MOST_QUESTIONS):
            self.probe_unanswered = True
            try:
                raw = await self._requests.probe(self.settings.probe_timeout, self._first_is_out)
                self.probe_unanswered = False
                answer = _read_discovery(raw)
            except PeerError as error:
                self.probe_unanswered = False
                verdict = era_probe.of_error(error, ours)
                if verdict is not Verdict.AGAIN:
                    return None
            except (RequestTimeout, codec.DecodeError, RecursionError):
                return None
            else:
                return answer if era_probe.of_result(answer, ours) is Verdict.MODERN else None
        raise HandshakeFailed(f"the server says that it speaks {Revision.V2026_07_28}, and refuses it")

    async def _initialize(self) -> None:
        """Introduces us, and agrees on a revision and on capabilities. Raises `_Refused`, and `HandshakeFailed` if that
        comes to nothing; the phase is FAILED then, and `session.failure` says why."""
        if self.gone.done():  # while the server was asked for its era
            raise loss(self.gone.result())
        session = self.session
        wanted = max(revision for revision in session.revisions if revision.era is Era.HANDSHAKE)
        params = InitializeParams(
            protocol_version=wanted.value,
            capabilities=without_newer(session.offered, wanted),
            client_info=session.info,
        )
        self._introducing = True
        self.loop.call_soon(self._introduced)  # the next turn of the loop comes when the request is out
        try:
            result = _read_result(await self.request("initialize", params))
        except RequestTimeout as error:
            raise self._failed(f"the server did not answer initialize within {error.elapsed:g} s") from None
        except BadAnswer as error:
            raise self._failed(f"the server's answer to initialize is malformed: {error.message}") from None
        except PeerError as error:
            raise _Refused(error) from None
        except codec.DecodeError as error:
            raise self._failed(f"the server's answer to initialize is malformed: {error}") from None
        before = session.phase
        try:
            notice = session.initialized(result)
        except ProtocolError as error:
            self.phase_changed(before)
            raise HandshakeFailed(str(error)) from None
        self.instructions = result.instructions
        self.phase_changed(before)
        self.channel.send(notice)

    def _introduced(self) -> None:
        introducing, self._introducing = self._introducing, False
        if introducing and self.session.phase is Phase.INITIALIZING:
            self.phase_changed(Phase.CONNECTING)
            self._first_is_out()

    def _first_is_out(self) -> None:
        sent, self._sent = self._sent, None
        if sent is not None:
            sent()

    def _failed(self, why: str) -> HandshakeFailed:
        before = self.session.phase
        self.session.fail_handshake(why)
        self.phase_changed(before)
        return HandshakeFailed(why)

    def asking(self, request: RequestId, *, begun: bool) -> None:
        """Somebody is asked who we are, or has been."""
        self.questions += 1 if begun else -1
        if not begun:
            self.settled()
        super().asking(request, begun=begun)

    # --- the end -------------------------------------------------------------------------------

    async def answers(self) -> bool:
        """Whether the server still answers a ping. Those who ask at the same time share one."""
        if self.gone.done():
            return False
        if self._probing is None:
            self._probing = self.loop.create_task(self._probe())
            self._probing.add_done_callback(self._probed)
        return await asyncio.shield(self._probing)

    @property
    def modern(self) -> bool:
        """Whether every request stands for itself."""
        return self.session.stamp is not None

    @property
    def augments(self) -> bool:
        """Whether a request may ask to be run as a task."""
        return self.session.revision is Revision.V2025_11_25

    @property
    def minds_keys(self) -> bool:
        """Whether the server does once what is asked under one idempotency key, whatever becomes of its process."""
        return self.session.has(Side.SERVER, f"experimental.{IDEMPOTENCY}")

    @property
    def repeats(self) -> bool:
        """Whether arguments of tools are said a second time, outside of the message."""
        return self.modern and isinstance(self.channel, Repeating)

    @property
    def sign_of_life(self) -> str:
        """What a server is asked that shall only show that it is there."""
        return "server/discover" if self.modern else "ping"

    def dispatch(self, call: Running, params: Any) -> Any:
        """Puts a question of the server's to whoever answers it."""
        return self._dispatcher.dispatch(self, call, params)

    async def _probe(self) -> bool:
        try:
            await self.request(self.sign_of_life, Empty())
        except (ProtocolError, ConnectionClosed):  # no answer in time, or no line to ask on
            return False
        except PeerError:
            pass  # an error is an answer, too
        return True

    def _probed(self, _: "asyncio.Task[bool]") -> None:
        self._probing = None

    def give_up(self, reason: str) -> None:
        """Treats a server that does not answer as one that has gone; its channel is closed at leisure."""
        self.closed(Closed(reason))

    def _bury(self) -> None:
        self.give_up(KEEPALIVE_FAILED)

    def closed(self, closed: Closed) -> None:
        """The channel is gone, or was given up before."""
        if not self.gone.done():
            self._introduced()  # the line may have broken with that very request
            super().closed(closed)
            self.gone.set_result(closed)

    def ending(self, closed: Closed) -> Signal:
        """Whether the line is closed, lost for now or failed for good."""
        return self._meaning(self, closed)

    @property
    def ready(self) -> bool:
        """Whether calls can be made."""
        return self.session.phase is Phase.READY
