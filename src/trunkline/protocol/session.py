"""Session: protocol state machine of one side of a connection, without I/O.

`receive` takes a message and returns an event. `call`, `notify`, `reply` and `fail` return messages to send. Errors of
the peer are values (`MessageRefused`, `MessageIgnored`); errors of this side are raised. Time is passed in as `now`.

Clients and servers use it: `side` says which one this is.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, assert_never

from msgspec import UNSET, Raw
from msgspec.structs import replace

from trunkline.config import Settings
from trunkline.errors import CapabilityNotSupported, InvalidRequest, MethodNotFound, ProtocolError, RequestIdConflict
from trunkline.protocol import lifecycle
from trunkline.protocol import types as t
from trunkline.protocol.capabilities import (
    Capabilities,
    NegotiatedCapabilities,
    is_declared,
    negotiate_capabilities,
    restrict_to_revision,
)
from trunkline.protocol.error_codes import error_object
from trunkline.protocol.events import (
    CallCancelled,
    CallReceived,
    HandshakeCompleted,
    MessageIgnored,
    MessageRefused,
    NotificationReceived,
    ProgressReceived,
    ResponseReceived,
    ResponseUnusable,
    SessionEvent,
)
from trunkline.protocol.inflight import (
    DeadlineQueue,
    FinishedRequests,
    IncomingRequest,
    OutgoingRequest,
    TrackedRequest,
)
from trunkline.protocol.legal_methods import Receivable, Sendable, legal_methods, required_capabilities
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.meta import PROGRESS_TOKEN, may_have_envelope
from trunkline.protocol.methods import ALIASES, Method, Side, TimeLimit, find_method, widened_capabilities
from trunkline.protocol.projection import project, wrap_structured_content
from trunkline.protocol.refusals import malformed_refusal, request_refusal, send_refusal, unavailable_refusal
from trunkline.protocol.revisions import HANDSHAKE, NEWEST_HANDSHAKE, Revision, negotiate
from trunkline.protocol.types import CallToolResult, Implementation, InitializeParams, InitializeResult
from trunkline.wire.codec import DecodeError, decoder
from trunkline.wire.messages import (
    ErrorObject,
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
)

if TYPE_CHECKING:
    from trunkline.protocol.client_envelope import ClientEnvelope
    from trunkline.protocol.headers import RoutingHeaders
    from trunkline.protocol.modern import ModernProtocol

__all__ = ["Session"]

_CANCELLED: Final = find_method("notifications/cancelled")
_NOTHING: Final[frozenset[str]] = frozenset()
_IDS: Final = (int, str)
_LONGEST_ID: Final = 18  # digits; our ids are consecutive numbers
_REPLACEABLE: Final = frozenset({Phase.INITIALIZING, Phase.READY, Phase.PAUSED})
_UNAVAILABLE: Final = frozenset({Phase.PAUSED, Phase.DRAINING, Phase.CLOSED})  # new requests are refused
_read_initialize: Final = decoder(InitializeParams)


class Session:
    """One session: of the handshake era, with requests of the modern era where the server accepts them; or of the
    modern era alone. There may be thousands of idle sessions, so it is small."""

    __slots__ = (
        "_deadlines",
        "_finished",
        "_incoming",
        "_is_newest",
        "_outgoing",
        "_receivable",
        "_reconnecting",
        "_sendable",
        "client_envelope",
        "failure",
        "get_modern",
        "info",
        "instructions",
        "last_id",
        "negotiated",
        "own_capabilities",
        "peer",
        "phase",
        "profile",
        "revision",
        "revisions",
        "settings",
        "side",
    )

    def __init__(
        self,
        side: Side,
        *,
        info: Implementation,
        capabilities: Capabilities | None = None,
        instructions: str | None = None,
        revisions: Iterable[Revision] = HANDSHAKE,
        settings: Settings | None = None,
        phase: Phase = Phase.NEW,
        get_modern: "Callable[[], ModernProtocol] | None" = None,
        profile: str | None = None,
    ) -> None:
        """`get_modern` returns the handler of requests of the modern era, where they are accepted. `profile` adds
        methods to the handshake era."""
        self.profile = profile
        self.side = side
        self.info = info
        self.get_modern = get_modern
        self.client_envelope: ClientEnvelope | None = (
            None  # envelope of our requests, if the server is of the modern era
        )
        self.instructions = instructions
        self.revisions = revisions if isinstance(revisions, tuple) else tuple(revisions)
        self.settings = settings or Settings()
        self.phase = phase  # RECONNECTING for a session that replaces a lost one
        self._reconnecting = phase is Phase.RECONNECTING
        self.failure: str | None = None  # why the handshake failed
        self.revision: Revision | None = None  # negotiated in the handshake
        self.peer: Implementation | None = None
        self.negotiated: NegotiatedCapabilities | None = None
        self.own_capabilities: Capabilities = capabilities or {}  # capabilities of this side
        self._deadlines: DeadlineQueue | None = None
        self._incoming: dict[RequestId, IncomingRequest] = {}
        self._outgoing: dict[RequestId, OutgoingRequest] = {}
        self._finished: FinishedRequests | None = None
        self.last_id = 0  # id of our latest request
        self._is_newest = True  # the revision is the newest one: no projection is necessary
        self._receivable: Receivable = {}  # methods that the peer may send now
        self._sendable: Sendable = {}  # methods that this side may send now

    # --- facts ---------------------------------------------------------------------------------

    @property
    def effective_revision(self) -> Revision:
        """The negotiated revision, or the newest before negotiation."""
        return self.revision or NEWEST_HANDSHAKE

    @property
    def deadlines(self) -> DeadlineQueue:
        """The deadlines of requests in flight."""
        if self._deadlines is None:
            self._deadlines = DeadlineQueue()
        return self._deadlines

    @property
    def incoming_requests(self) -> Mapping[RequestId, IncomingRequest]:
        """Requests of the peer that are being handled."""
        return self._incoming

    @property
    def outgoing_requests(self) -> Mapping[RequestId, OutgoingRequest]:
        """Our requests that wait for a response."""
        return self._outgoing

    def allows(self, signal: Signal) -> bool:
        """Return whether a lifecycle signal is legal now."""
        return lifecycle.allows(self.phase, signal)

    def has_capability(self, side: Side, capability: str) -> bool:
        """Return whether a side has negotiated a capability."""
        if self.negotiated is None:
            return False
        return is_declared(self.negotiated.server if side is Side.SERVER else self.negotiated.client, capability)

    # --- phases --------------------------------------------------------------------------------

    def transition(self, signal: Signal) -> None:
        """Move to the next phase; raise `WrongPhase` if the table has no such transition."""
        self.phase = lifecycle.next_phase(self.phase, signal)
        self._is_newest = self.effective_revision is NEWEST_HANDSHAKE
        server = required_capabilities(self.negotiated.server) if self.negotiated is not None else _NOTHING
        client = required_capabilities(self.negotiated.client) if self.negotiated is not None else _NOTHING
        ours, theirs = (server, client) if self.side is Side.SERVER else (client, server)
        self._receivable, self._sendable = legal_methods(
            self.side,
            self.phase,
            self.effective_revision,
            ours=ours,
            theirs=theirs,
            settings=self.settings,
            profile=self.profile,
        )

    def fail_handshake(self, why: str) -> None:
        """Record a failed handshake. A session that replaces a lost one does not fail by that: the supervisor may
        retry."""
        self.failure = why
        if not self._reconnecting:
            self.transition(Signal.FAIL)

    def accept_initialize(self, params: InitializeParams) -> InitializeResult:
        """Handle a client's `initialize`: negotiate revision and capabilities, and return the result."""
        revision = negotiate(params.protocol_version, self.revisions)
        self.negotiated = negotiate_capabilities(self.own_capabilities, params.capabilities)
        self.revision = revision
        self.peer = params.client_info
        self.transition(Signal.RECV_INITIALIZE)
        return InitializeResult(
            protocol_version=revision.value,
            capabilities=restrict_to_revision(
                self.negotiated.server, revision, keep=widened_capabilities(self.profile)
            ),
            server_info=self.info,
            instructions=self.instructions,
        )

    def assume_handshake(self, revision: Revision) -> None:
        """Act as if the handshake was complete, with a client of a revision that has no capabilities."""
        self.restore_handshake(
            revision,
            NegotiatedCapabilities(restrict_to_revision(self.own_capabilities, revision), {}),
            None,
            complete=True,
        )

    def restore_handshake(
        self, revision: Revision, negotiated: NegotiatedCapabilities, peer: Implementation | None, *, complete: bool
    ) -> None:
        """Restore the handshake of another process; `complete`: the client has sent `initialized`."""
        self.revision = revision
        self.negotiated = negotiated
        self.peer = peer
        self.transition(Signal.RECV_INITIALIZE)
        if complete:
            self.transition(Signal.RECV_INITIALIZED)

    def complete_handshake(self, result: InitializeResult) -> Notification:
        """Handle the response to our `initialize`; return the notification that completes the handshake."""
        revision = next((r for r in self.revisions if r.value == result.protocol_version), None)
        if revision is None:
            self.fail_handshake(f"the server chose the unsupported revision {result.protocol_version!r}")
            raise InvalidRequest(self.failure or "")
        self.revision = revision
        self.peer = result.server_info
        self.negotiated = NegotiatedCapabilities(
            result.capabilities, restrict_to_revision(self.own_capabilities, revision)
        )
        self.transition(Signal.SEND_INITIALIZED)
        return Notification("notifications/initialized")

    def start_probe(self, now: float, timeout: float | None, waiter: Any) -> tuple[OutgoingRequest, Request]:
        """Return the era probe, which asks whether the server speaks the modern era."""
        from trunkline.protocol.client_envelope import DISCOVER, PROBE_ID, ClientEnvelope  # imported here: for clients

        stamp = ClientEnvelope(self.info, self.own_capabilities, Revision.V2026_07_28)
        awaited = OutgoingRequest(PROBE_ID, DISCOVER, now, waiter=waiter)
        awaited.set_timeout(now, timeout, None)
        self._outgoing[PROBE_ID] = awaited
        self.deadlines.schedule(awaited)
        return awaited, Request(PROBE_ID, DISCOVER.name, stamp.add_to(UNSET))

    def complete_discovery(self, result: "t.DiscoverResult") -> None:
        """Handle the response to the era probe: from now on every request has an envelope."""
        from trunkline.protocol.client_envelope import ClientEnvelope, read_server_info  # imported here: for clients

        self.revision = Revision.V2026_07_28
        self.negotiated = NegotiatedCapabilities(
            result.capabilities, restrict_to_revision(self.own_capabilities, self.revision)
        )
        self.peer = read_server_info(result.meta)
        self.client_envelope = ClientEnvelope(self.info, self.own_capabilities, self.revision)
        self.transition(Signal.SEND_INITIALIZED)

    # --- receiving -----------------------------------------------------------------------------

    def receive(
        self, message: Message | Malformed, now: float, headers: "RoutingHeaders | None" = None
    ) -> SessionEvent:
        """Handle a message and return an event. `headers` are those of an HTTP transport of the modern era."""
        if isinstance(message, Request):
            if self.get_modern is not None and (headers is not None or may_have_envelope(message.params)):
                event = self._receive_modern(message, now, self.get_modern(), headers)
                if event is not None:
                    return event
            row = self._receivable.get(message.method)
            ident = message.id
            if row is None or row.result_name is None or ident in self._incoming:
                return self._refuse_call(message, row)
            call = self._incoming[ident] = IncomingRequest(ident, row, now)
            return CallReceived(call, message.params)
        if isinstance(message, Response):
            return self._receive_response(message.id, message.result, None)
        return self._receive_other(message, now)

    def _receive_modern(
        self, message: Request, now: float, modern: "ModernProtocol", headers: "RoutingHeaders | None"
    ) -> SessionEvent | None:
        """Handle a request with an envelope; return None if it has none."""
        try:
            admitted = modern.validate_request(message, headers)
            if admitted is None:
                return None
            if message.id in self._incoming:
                raise RequestIdConflict(message.id)
            if self.phase in _UNAVAILABLE:
                raise unavailable_refusal(message.method, self.phase)
        except ProtocolError as error:
            return MessageRefused(ErrorResponse(message.id, error_object(error, Revision.V2026_07_28)))
        call = self._incoming[message.id] = IncomingRequest(message.id, admitted[0], now, envelope=admitted[1])
        return CallReceived(call, message.params)

    def _receive_other(self, message: Notification | ErrorResponse | Malformed, now: float) -> SessionEvent:
        match message:
            case Notification():
                return self._receive_notification(message, now)
            case ErrorResponse(id=ident, error=error):
                return self._receive_response(ident, None, error)
            case Malformed():
                return self._receive_malformed(message)
            case _:
                assert_never(message)

    def _refuse_call(self, message: Request, row: Method | None) -> MessageRefused:
        agreed = self.revision is not None
        why = request_refusal(
            message, row, phase=self.phase, revision=self.effective_revision, side=self.side, negotiated=agreed
        )
        return MessageRefused(self._error(message.id, why))

    def replaced_by(self, message: Request) -> bool:
        """Return whether a refused request may begin a new session in place of this one: a valid `initialize` while no
        request of the peer is in flight."""
        if message.method != "initialize" or self.phase not in _REPLACEABLE or self._incoming:
            return False
        try:
            _read_initialize(_object(message.params))
        except (DecodeError, RecursionError):
            return False
        return True

    def _receive_notification(self, message: Notification, now: float) -> SessionEvent:
        name = ALIASES.get(message.method, message.method)
        row = self._receivable.get(name)
        if name == "notifications/cancelled" and self._incoming:
            row = _CANCELLED  # refers to a request in flight, in any era and phase
        if row is None or row.is_request:
            return MessageIgnored(
                f"notification {message.method!r} in phase {self.phase.name.lower()}", "unknown_notification"
            )
        try:
            match name:
                case "notifications/initialized":
                    opened = self.phase is not Phase.READY
                    self.transition(Signal.RECV_INITIALIZED)
                    return (
                        HandshakeCompleted()
                        if opened
                        else MessageIgnored("duplicate notifications/initialized", "duplicate_notification")
                    )
                case "notifications/cancelled":
                    return self._receive_cancelled(_notification_decoder("CancelledParams")(_object(message.params)))
                case "notifications/progress":
                    return self._receive_progress(_notification_decoder("ProgressParams")(_object(message.params)), now)
                case _:
                    return NotificationReceived(row, message.params)
        except (DecodeError, RecursionError) as error:
            return MessageIgnored(f"params of {name}: {error}", "invalid_params")

    def _receive_cancelled(self, params: "t.CancelledParams") -> SessionEvent:
        call = None if params.request_id is None else self._incoming.get(params.request_id)
        if call is None or call.method.name == "initialize":  # lifecycle: initialize is never cancelled
            return MessageIgnored("cancellation of a request that is not in flight", "unknown_request")
        del self._incoming[call.id]
        call.done = call.cancelled = True
        return CallCancelled(call, params.reason)

    def _receive_progress(self, params: "t.ProgressParams", now: float) -> SessionEvent:
        request = self._outgoing.get(params.progress_token)
        if request is None and self._finished is not None:
            request = self._finished.find_progressing(params.progress_token)
        if request is None:
            return MessageIgnored("progress under a token that is not in use", "invalid_progress_token")
        if not request.record_progress(params.progress, now):
            return MessageIgnored("progress that does not grow", "progress_value_invalid")
        return ProgressReceived(request, params)

    def _receive_response(self, ident: Any, result: Any, error: ErrorObject | None) -> SessionEvent:
        request = self._outgoing.pop(ident, None) if isinstance(ident, _IDS) else None
        if request is None and self._finished is not None and isinstance(ident, _IDS):
            request = self._finished.pop_abandoned(ident)
        if request is None:
            return self._receive_unmatched(ident, error)
        if request.as_task and error is None:
            self._finished_requests().add_progressing(request)
        request.done = True
        return ResponseReceived(request, result, error)

    def _receive_unmatched(self, ident: Any, error: ErrorObject | None) -> SessionEvent:
        """Handle a response that matches none of our requests. Some peers send the id 1 as "1"."""
        if isinstance(ident, str) and ident.isdecimal() and len(ident) <= _LONGEST_ID:
            request = self._outgoing.get(int(ident))
            if request is not None:
                return self._unusable(request, f'its id is the string "{ident}" instead of the number {ident}')
        if error is not None and not isinstance(ident, int | str):
            why = f"the peer could not decode a message: {error.message} ({error.code})"
            return MessageIgnored(why, "unexpected_reply", unassigned=True)
        return MessageIgnored("a response that matches no pending request", "unexpected_reply")

    def _unusable(self, request: OutgoingRequest, why: str, *, too_large: bool = False) -> ResponseUnusable:
        del self._outgoing[request.id]
        request.done = True
        return ResponseUnusable(request, why, too_large)

    def _receive_malformed(self, fault: Malformed) -> SessionEvent:
        if fault.is_reply or fault.lacks_method:
            request = None if fault.id is None else self._outgoing.get(fault.id)
            if request is not None:
                return self._unusable(request, fault.why, too_large=fault.limit is not None)
        if fault.is_reply:
            why = f"unreadable response: {fault.why}"
            return MessageIgnored(why, "invalid_request", unassigned=True, excerpt=fault.excerpt)
        return MessageRefused(self.malformed_response(fault), fault.excerpt)

    def malformed_response(self, fault: Malformed) -> ErrorResponse:
        """Return the error response to a malformed message."""
        # An unreadable id is left out from 2025-11-25 on and null before (base protocol, "Responses").
        nameless = UNSET if self.effective_revision >= Revision.V2025_11_25 else None
        return self._error(nameless if fault.id is None else fault.id, malformed_refusal(fault))

    # --- sending -------------------------------------------------------------------------------

    def reply(self, call: IncomingRequest, result: Any) -> Response | None:
        """Return the response to a request of the peer, whose id is free again; None if it must not be sent any more.

        `result` is projected to the effective revision, unless it is `Raw`, which is sent unchanged.
        """
        if call.done:
            return None
        call.done = True
        del self._incoming[call.id]
        if not self._is_newest or call.envelope is not None:
            return self.encode_result(call, result)
        if type(result) is CallToolResult and type(result.structured_content) is not dict:
            result = wrap_structured_content(result)
        return Response(call.id, result)

    def encode_result(self, call: IncomingRequest, result: Any) -> Response:
        """Return the response with a result in the form of the request's revision."""
        if type(result) is Raw:
            return Response(call.id, result)
        if call.envelope is not None and self.get_modern is not None:
            modern = self.get_modern()
            hint = call.hint or modern.default_hint(call.method.name)
            if type(result) is CallToolResult and result.meta is None and hint is None:
                return Response(call.id, modern.complete_tool_result(result, unwrap=call.unwrapped))
            return Response(call.id, modern.encode_result(result, hint=hint, unwrap=call.unwrapped))
        return Response(call.id, project(result, self.effective_revision))

    def fail(self, call: IncomingRequest, error: ProtocolError) -> ErrorResponse | None:
        """Return the error response to a request of the peer; None if it must not be sent any more."""
        if call.done:
            return None
        call.done = True
        del self._incoming[call.id]
        return ErrorResponse(call.id, error_object(error, self.revision_of(call)))

    def revision_of(self, call: IncomingRequest) -> Revision:
        """Return the revision of a request of the peer."""
        return self.effective_revision if call.envelope is None else Revision.V2026_07_28

    def _error(self, ident: Any, error: ProtocolError) -> ErrorResponse:
        return ErrorResponse(ident, self.error_object(error))

    def error_object(self, error: ProtocolError) -> ErrorObject:
        """Return an error as an object of the effective revision."""
        return error_object(error, self.effective_revision)

    def call(
        self,
        name: str,
        params: Any,
        now: float,
        *,
        timeout: float | None = None,
        capability: str | None = None,
        on_progress: Any = None,
        waiter: Any = None,
    ) -> tuple[OutgoingRequest, Request]:
        """Return a new request of ours and its record. Raise an error if it is illegal.

        `timeout` replaces the default of the method; `capability` requires a further capability of the peer.
        """
        row, allowed = self._sendable_method(name, capability)
        ident = self.last_id = self.last_id + 1
        if on_progress is not None:  # our progress tokens are our request ids
            params = replace(params, meta={**(params.meta or {}), PROGRESS_TOKEN: ident})
        if self.client_envelope is not None:
            params = self.client_envelope.add_to(params)
        message = Request(ident, name, params if self._is_newest else project(params, self.effective_revision))
        longest = None if row.time_limit is TimeLimit.ENDLESS else self.settings.longest_call
        limit = allowed if timeout is None else timeout
        awaited = OutgoingRequest(ident, row, now, limit, longest, waiter=waiter, on_progress=on_progress)
        awaited.renew_deadline(now)
        self._outgoing[ident] = awaited
        self.deadlines.schedule(awaited)
        if name == "initialize":
            self.transition(Signal.SEND_INITIALIZE)
        return awaited, message

    def notify(self, name: str, params: Any = UNSET) -> Notification:
        """Return a notification of ours. Raise an error if it is illegal."""
        self._sendable_method(name, None)
        return Notification(
            name, params if self._is_newest or params is UNSET else project(params, self.effective_revision)
        )

    def notify_about(self, call: IncomingRequest, name: str, params: Any) -> Notification | None:
        """Return a notification about a request of the peer in flight; None if it is illegal."""
        if call.envelope is not None:
            return None if call.done else Notification(name, project(params, Revision.V2026_07_28))
        return self.notify(name, params) if self.may_send(name) else None

    def cancel(self, request: OutgoingRequest, reason: str | None = None) -> Notification | None:
        """Abandon a request of ours; return the cancellation to send, or None if there is none."""
        if request.done:
            return None
        request.done = True
        del self._outgoing[request.id]
        if request.on_late_response is not None:
            self._finished_requests().add_abandoned(request)
        if request.as_task or request.method.name == "initialize":
            return None  # cancellation: initialize must not be cancelled, and tasks have their own method
        return Notification("notifications/cancelled", t.CancelledParams(request_id=request.id, reason=reason))

    def _finished_requests(self) -> FinishedRequests:
        self._finished = self._finished or FinishedRequests()
        return self._finished

    def result_type(self, name: str) -> type[Any]:
        """Return the result type of a method."""
        row = find_method(name)
        if row is None or row.result is None:
            raise MethodNotFound(name)
        return row.result

    def may_send(self, name: str) -> bool:
        """Return whether this side may send a method now."""
        return name in self._sendable

    def _sendable_method(self, name: str, capability: str | None) -> tuple[Method, float | None]:
        """Return the row and time limit of a method that is legal now; raise an error otherwise."""
        found = self._sendable.get(name)
        if found is None:
            raise send_refusal(name, phase=self.phase, revision=self.effective_revision, receiver=self.side.other)
        if capability is not None and not self.has_capability(self.side.other, capability):
            raise CapabilityNotSupported(name, capability)
        return found

    # --- endings -------------------------------------------------------------------------------

    def expired(self, now: float) -> list[TrackedRequest]:
        """Return the requests, of either side, whose deadline has passed. They stay in flight until the caller ends
        them."""
        return self.deadlines.pop_expired(now)

    def close(self, signal: Signal = Signal.CLOSE) -> list[OutgoingRequest]:
        """End the session; return our requests that were in flight. `signal` says whether it was closed, lost or
        failed."""
        for request in self._incoming.values():
            request.done = True
        self._incoming.clear()
        awaited = self.abandon_requests()
        self.transition(signal)
        return awaited

    def abandon_requests(self) -> list[OutgoingRequest]:
        """Abandon all requests of ours without notifying the peer; return them."""
        awaited = list(self._outgoing.values())
        for request in awaited:
            request.done = True
        self._outgoing.clear()
        return awaited


@cache
def _notification_decoder(name: str) -> Callable[[Any], Any]:
    """Return the decoder of params, made when such a notification first arrives."""
    return decoder(getattr(t, name))


def _object(params: Any) -> Any:
    return b"{}" if params is UNSET else params
