"""A client's connection: era detection, the handshake, and the consequences of a closed channel."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from trunkline.client import era_probe
from trunkline.client.era_probe import EraVerdict
from trunkline.errors import (
    BadAnswer,
    ConnectionClosed,
    HandshakeFailed,
    PeerError,
    ProtocolError,
    RequestTimeout,
)
from trunkline.protocol.capabilities import restrict_to_revision
from trunkline.protocol.extensions import negotiated_settings
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.meta import IDEMPOTENCY
from trunkline.protocol.methods import Side
from trunkline.protocol.revisions import Era, Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import DiscoverResult, Empty, InitializeParams, InitializeResult
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION
from trunkline.rpc.connection import KEEPALIVE_FAILED, LoopResources, PeerConnection
from trunkline.rpc.outgoing_requests import closed_error
from trunkline.transports.channel import Channel, ChannelClosed, MirroringChannel
from trunkline.wire import codec
from trunkline.wire.messages import RequestId

__all__ = ["ClientConnection"]

_decode_initialize_result: Final = codec.decoder(InitializeResult)
_decode_discover_result: Final = codec.decoder(DiscoverResult)
_DECLARED: Final[Mapping[str, Any]] = {"extensions": {TASKS_EXTENSION: {}}}  # by every client
_MAX_ERA_PROBES: Final = 2  # the second is for a server that refuses, and names a modern revision that we have


class _InitializeRefused(Exception):
    """The server has refused `initialize`; its error may name the revisions that it speaks."""

    def __init__(self, error: PeerError) -> None:
        self.error = error


class ClientConnection(PeerConnection):
    """One connection to a server, from its first message to its last."""

    def __init__(
        self,
        shared: LoopResources,
        session: Session,
        channel: Channel,
        classify_close: "Callable[[ClientConnection, ChannelClosed], Signal]",
    ) -> None:
        """`classify_close` decides what the end of the channel means for the session."""
        self._classify_close = classify_close
        self._ping_task: asyncio.Task[bool] | None = None  # shared by concurrent callers of `responds_to_ping`
        self._on_first_sent: Callable[[], None] | None = None  # called when the first request has been sent
        self._initialize_queued = False  # initialize is in the write buffer
        self.probe_unanswered = False  # server/discover was sent, and has no response
        self.instructions: str | None = None
        self.pending_authorizations = 0  # requests that wait for a person to authorize them
        self.on_authorized: Callable[[], object] = bool  # called after each of them
        self.modern = False  # every request carries its own envelope; known after the handshake, as are these:
        self.supports_tool_tasks = False  # the server has declared that calls of its tools may run as tasks
        self.supports_tasks_extension = False  # the server may run calls as tasks in the modern era
        self.discovered_versions: tuple[str, ...] = ()  # the revisions that a server of the modern era supports
        super().__init__(shared, session, channel)
        self.disconnected: asyncio.Future[ChannelClosed] = self.loop.create_future()

    # --- handshake -----------------------------------------------------------------------------

    async def open(self, on_sent: Callable[[], None], era: Era | None) -> Era:
        """Detect the server's era, unless it is known, and complete the handshake. Raises `HandshakeFailed`. `on_sent`
        is called when the first request has been sent."""
        self._on_first_sent = on_sent
        found = await self._detect_and_initialize(era)
        negotiated = self.session.negotiated
        self.modern = found is Era.MODERN
        self.supports_tool_tasks = self.session.has_capability(Side.SERVER, "tasks.requests.tools.call")
        self.supports_tasks_extension = (
            negotiated is not None and negotiated_settings(TASKS_EXTENSION, _DECLARED, negotiated.server) is not None
        )
        return found

    async def _detect_and_initialize(self, era: Era | None) -> Era:
        modern = Revision.V2026_07_28 in self.session.revisions
        if modern and era is not Era.HANDSHAKE and await self._discover():
            return Era.MODERN
        try:
            await self._initialize()
        except _InitializeRefused as refused:
            # The server may have taken server/discover for the start of the modern era, and insist on it.
            if (
                modern
                and Revision.V2026_07_28.value in era_probe.supported_revisions(refused.error)
                and await self._discover()
            ):
                return Era.MODERN
            raise self._fail_handshake(
                f"the server refused initialize: {era_probe.describe_error(refused.error)}"
            ) from None
        return Era.HANDSHAKE

    async def _discover(self) -> bool:
        """Send `server/discover`; return whether the server speaks the modern era, and switch to it if so."""
        try:
            answer = await self._probe_era()
        except HandshakeFailed as failed:
            raise self._fail_handshake(str(failed)) from None
        if answer is None:
            return False
        if self.session.phase is Phase.CONNECTING:
            self.step(Signal.SEND_INITIALIZE)
        self.session.complete_discovery(answer)
        self.instructions = answer.instructions
        self.discovered_versions = tuple(answer.supported_versions)
        self.report_phase_change(Phase.INITIALIZING)
        return True

    async def _probe_era(self) -> DiscoverResult | None:
        """Return the discovery result of a server of the modern era; None for any other. Raises `HandshakeFailed`."""
        ours = self.session.revisions
        for _ in range(_MAX_ERA_PROBES):
            self.probe_unanswered = True
            try:
                raw = await self._requests.probe(self.settings.probe_timeout, self._report_first_sent)
                self.probe_unanswered = False
                answer = _decode_discover_result(raw)
            except PeerError as error:
                self.probe_unanswered = False
                verdict = era_probe.classify_error(error, ours)
                if verdict is not EraVerdict.RETRY:
                    return None
            except (RequestTimeout, codec.DecodeError, RecursionError):
                return None
            else:
                return answer if era_probe.classify_result(answer, ours) is EraVerdict.MODERN else None
        raise HandshakeFailed(f"the server names {Revision.V2026_07_28} as supported, and refuses it")

    async def _initialize(self) -> None:
        """Send `initialize` and negotiate a revision and capabilities. Raises `_InitializeRefused` for an error
        response, and `HandshakeFailed` for any other failure; then the phase is FAILED, and `session.failure` has the
        reason."""
        if self.disconnected.done():  # during era detection
            raise closed_error(self.disconnected.result())
        session = self.session
        wanted = max(revision for revision in session.revisions if revision.era is Era.HANDSHAKE)
        kept = frozenset[str]() if session.profile is None else session.profile.features
        params = InitializeParams(
            protocol_version=wanted.value,
            capabilities=restrict_to_revision(session.own_capabilities, wanted, keep=kept),
            client_info=session.info,
        )
        self._initialize_queued = True
        self.loop.call_soon(self._on_initialize_sent)  # by the next turn of the loop, the request has been written
        try:
            result = _decode_initialize_result(await self.request("initialize", params))
        except RequestTimeout as error:
            raise self._fail_handshake(f"the server did not answer initialize within {error.elapsed:g} s") from None
        except BadAnswer as error:
            raise self._fail_handshake(f"the server's answer to initialize is malformed: {error.message}") from None
        except PeerError as error:
            raise _InitializeRefused(error) from None
        except codec.DecodeError as error:
            raise self._fail_handshake(f"the server's answer to initialize is malformed: {error}") from None
        before = session.phase
        try:
            notice = session.complete_handshake(result)
        except ProtocolError as error:
            self.report_phase_change(before)
            raise HandshakeFailed(str(error)) from None
        self.instructions = result.instructions
        self.report_phase_change(before)
        self.channel.send(notice)

    def _on_initialize_sent(self) -> None:
        introducing, self._initialize_queued = self._initialize_queued, False
        if introducing and self.session.phase is Phase.INITIALIZING:
            self.report_phase_change(Phase.CONNECTING)
            self._report_first_sent()

    def _report_first_sent(self) -> None:
        sent, self._on_first_sent = self._on_first_sent, None
        if sent is not None:
            sent()

    def _fail_handshake(self, reason: str) -> HandshakeFailed:
        before = self.session.phase
        self.session.fail_handshake(reason)
        self.report_phase_change(before)
        return HandshakeFailed(reason)

    def authorizing(self, request: RequestId, *, begun: bool) -> None:
        """Count the requests that wait for a person to authorize the client."""
        self.pending_authorizations += 1 if begun else -1
        if not begun:
            self.on_authorized()
        super().authorizing(request, begun=begun)

    # --- state and closing ---------------------------------------------------------------------

    async def responds_to_ping(self) -> bool:
        """Return whether the server responds to a ping. Concurrent callers share one."""
        if self.disconnected.done():
            return False
        if self._ping_task is None:
            self._ping_task = self.loop.create_task(self._ping_server())
            self._ping_task.add_done_callback(self._on_ping_done)
        return await asyncio.shield(self._ping_task)

    @property
    def supports_task_augmentation(self) -> bool:
        """Whether a request may ask to be run as a task."""
        return self.session.revision is Revision.V2025_11_25

    @property
    def supports_idempotency_keys(self) -> bool:
        """Whether the server runs a call once per idempotency key, even across restarts of its process."""
        return self.session.has_capability(Side.SERVER, f"experimental.{IDEMPOTENCY}")

    @property
    def mirrors_arguments(self) -> bool:
        """Whether arguments of tools are repeated outside of the message, in HTTP headers."""
        return self.modern and isinstance(self.channel, MirroringChannel)

    @property
    def liveness_method(self) -> str:
        """The request that checks whether the server responds."""
        return "server/discover" if self.modern else "ping"

    def dispatch(self, call: IncomingRequest, params: Any) -> Any:
        """Call the handler of a request of the server."""
        return self._dispatcher.dispatch(self, call, params)

    async def _ping_server(self) -> bool:
        try:
            await self.request(self.liveness_method, Empty())
        except (ProtocolError, ConnectionClosed):  # no response in time, or no connection
            return False
        except PeerError:
            pass  # an error is a response, too
        return True

    def _on_ping_done(self, _: "asyncio.Task[bool]") -> None:
        self._ping_task = None

    def declare_lost(self, reason: str) -> None:
        """Treat an unresponsive server as disconnected. The supervisor closes its channel in the background."""
        self.closed(ChannelClosed(reason))

    def _on_keepalive_failed(self) -> None:
        self.declare_lost(KEEPALIVE_FAILED)

    def closed(self, closed: ChannelClosed) -> None:
        """End the connection, unless `declare_lost` has done so before."""
        if not self.disconnected.done():
            self._on_initialize_sent()  # the connection may have been lost with that very request
            super().closed(closed)
            self.disconnected.set_result(closed)

    def closing_signal(self, closed: ChannelClosed) -> Signal:
        """Return whether the session is closed, lost for now or failed for good."""
        return self._classify_close(self, closed)

    @property
    def ready(self) -> bool:
        """Whether calls can be made."""
        return self.session.phase is Phase.READY
