"""One server, spoken to: the handshake, and what the end of the line means."""

import asyncio
from collections.abc import Callable
from typing import Final

from trunkline.conversation import connection
from trunkline.conversation.connection import KEEPALIVE_FAILED
from trunkline.errors import ConnectionClosed, HandshakeFailed, PeerError, ProtocolError, RequestTimeout
from trunkline.protocol.capabilities import without_newer
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.session import Session
from trunkline.protocol.types import Empty, InitializeParams, InitializeResult
from trunkline.transports.channel import Channel, Closed
from trunkline.wire import codec

__all__ = ["Connection"]

_read_result: Final = codec.decoder(InitializeResult)


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
        self._sent: Callable[[], None] | None = None  # is told when initialize is out
        self.instructions: str | None = None
        super().__init__(shared, session, channel)
        self.gone: asyncio.Future[Closed] = self.loop.create_future()

    # --- the handshake -------------------------------------------------------------------------

    async def initialize(self, sent: Callable[[], None]) -> None:
        """Introduces us, and agrees on a revision and on capabilities. Raises `HandshakeFailed` if that comes to
        nothing; the phase is FAILED then, and `session.failure` says why. `sent` is told when we wait for the answer.
        """
        session = self.session
        wanted = max(session.revisions)
        params = InitializeParams(
            protocol_version=wanted.value,
            capabilities=without_newer(session.offered, wanted),
            client_info=session.info,
        )
        self._sent = sent
        self.loop.call_soon(self._introduced)  # the next turn of the loop comes when the request is out
        try:
            result = _read_result(await self.request("initialize", params))
        except RequestTimeout as error:
            raise self._failed(f"the server did not answer initialize within {error.elapsed:g} s") from None
        except PeerError as error:
            raise self._failed(f"the server refused initialize: {error}") from None
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
        sent, self._sent = self._sent, None
        if sent is not None and self.session.phase is Phase.INITIALIZING:
            self.phase_changed(Phase.CONNECTING)
            sent()

    def _failed(self, why: str) -> HandshakeFailed:
        before = self.session.phase
        self.session.fail_handshake(why)
        self.phase_changed(before)
        return HandshakeFailed(why)

    # --- the end -------------------------------------------------------------------------------

    async def answers(self) -> bool:
        """Whether the server still answers a ping. Those who ask at the same time share one."""
        if self.gone.done():
            return False
        if self._probing is None:
            self._probing = self.loop.create_task(self._probe())
            self._probing.add_done_callback(self._probed)
        return await asyncio.shield(self._probing)

    async def _probe(self) -> bool:
        try:
            await self.request("ping", Empty())
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
