"""Session: protocol state machine of one side of a connection, without I/O.

`receive` takes a message and returns an event. `call`, `notify`, `reply` and `fail` return messages to send. Errors of
the peer are values (`MessageRefused`, `MessageIgnored`); errors of this side are raised. Time is passed in as `now`.

Clients and servers use it: `side` says which one this is.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never

from msgspec import UNSET, Raw

from trunkline.config import Settings
from trunkline.errors import CapabilityNotSupported, InvalidRequest, MethodNotFound, ProtocolError, RequestIdConflict
from trunkline.protocol import lifecycle
from trunkline.protocol import types as t
from trunkline.protocol.capabilities import (
    Capabilities,
    NegotiatedCapabilities,
    intersect_capabilities,
    is_declared,
    negotiate_capabilities,
    restrict_to_revision,
)
from trunkline.protocol.custom_methods import custom_method, is_custom
from trunkline.protocol.error_codes import error_object, from_founding_code
from trunkline.protocol.events import (
    CallCancelled,
    HandshakeCompleted,
    MessageIgnored,
    MessageRefused,
    NotificationReceived,
    ProgressReceived,
    RequestCancelled,
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
from trunkline.protocol.meta import PROGRESS_TOKEN, SHORTEST_ENVELOPE, add_meta, may_have_envelope
from trunkline.protocol.methods import ALIASES, PREFIX, Method, Side, find_method
from trunkline.protocol.projection import project, wrap_structured_content
from trunkline.protocol.refusals import malformed_refusal, request_refusal, send_refusal, unavailable_refusal
from trunkline.protocol.revisions import HANDSHAKE, NEWEST_HANDSHAKE, Revision, negotiate
from trunkline.protocol.types import CallToolResult, Implementation, InitializeParams, InitializeResult
from trunkline.wire.codec import DecodeError, decoder, json_decoder, to_json, to_raw
from trunkline.wire.messages import (
    Encoded,
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
    from trunkline.protocol.envelope import Envelope
    from trunkline.protocol.headers import RoutingHeaders
    from trunkline.protocol.modern import ModernProtocol
    from trunkline.protocol.profiles import Profile

__all__ = ["Session"]

_CANCELLED: Final = find_method("notifications/cancelled")
_NOTHING: Final[frozenset[str]] = frozenset()
_IDS: Final = (int, str)
_LONGEST_ID: Final = 18  # digits; our ids are consecutive numbers
_REPLACEABLE: Final = frozenset({Phase.INITIALIZING, Phase.READY, Phase.PAUSED})
_UNAVAILABLE: Final = frozenset({Phase.PAUSED, Phase.DRAINING, Phase.CLOSED})  # new requests are refused
_MAX_SHARED: Final = 512  # bytes of the description of a client; those of up to 256 clients stay in memory
_read_initialize: Final = decoder(InitializeParams)


class Origin(Protocol):
    """The origin of a message, as far as the protocol depends on it."""

    @property
    def routing_headers(self) -> "RoutingHeaders | None":
        """The headers of an HTTP request of the modern era, to be compared with the message."""
        ...

    @property
    def envelope(self) -> "Envelope | None":
        """The envelope of the request, if the transport has recognized it."""
        ...


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
        "_scheduled_id",
        "_sendable",
        "client_envelope",
        "failure",
        "find_custom",
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
        profile: "Profile | None" = None,
        find_custom: Callable[[str], Method | None] | None = None,
    ) -> None:
        """`get_modern` returns the handler of requests of the modern era, where they are accepted. `profile` holds in
        the handshake era; without one, the client may request it in `initialize`. `find_custom` returns the methods
        outside of the specification that this side handles."""
        self.find_custom = find_custom
        self.profile: Profile | None = None
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
        self._scheduled_id = 0  # our requests up to this id are in the deadline queue
        self._is_newest = True  # the revision is the newest one: no projection is necessary
        self._receivable: Receivable = {}  # methods that the peer may send now
        self._sendable: Sendable = {}  # methods that this side may send now
        if profile is not None:
            self.use_profile(profile)

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
        self._is_newest = self.effective_revision is NEWEST_HANDSHAKE and self.profile is None
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

    def use_profile(self, profile: "Profile") -> None:
        """Follow a profile from the next transition on."""
        self.profile = profile
        self.settings = profile.limit_times(self.settings)

    def fail_handshake(self, why: str) -> None:
        """Record a failed handshake. A session that replaces a lost one does not fail by that: the supervisor may
        retry."""
        self.failure = why
        if not self._reconnecting:
            self.transition(Signal.FAIL)

    def accept_initialize(self, params: InitializeParams) -> InitializeResult:
        """Handle a client's `initialize`: negotiate revision and capabilities, and return the result."""
        revision = negotiate(params.protocol_version, self.revisions)
        negotiated = negotiate_capabilities(self.own_capabilities, params.capabilities)
        if self.profile is None and "experimental" in params.capabilities:
            from trunkline.protocol.profiles import requested_profile  # imported here: few clients request one

            requested = requested_profile(params.capabilities)
            if requested is not None:
                self.use_profile(requested)
        profile = self.profile
        if profile is not None and profile.literal_capabilities:
            negotiated = intersect_capabilities(
                negotiated, add=profile.client_features, experimental=profile.capability
            )
        self.negotiated = negotiated
        self.revision = revision
        self.peer = _share(params.client_info)
        self.transition(Signal.RECV_INITIALIZE)
        return InitializeResult(
            protocol_version=revision.value,
            capabilities=restrict_to_revision(
                negotiated.server, revision, keep=_NOTHING if profile is None else profile.features
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

    def start_probe(
        self, now: float, timeout: float | None, waiter: Any, params: Any = UNSET
    ) -> tuple[OutgoingRequest, Request]:
        """Return the era probe, which asks whether the server speaks the modern era."""
        from trunkline.protocol.client_envelope import DISCOVER, PROBE_ID, ClientEnvelope  # imported here: for clients

        stamp = ClientEnvelope(self.info, self.own_capabilities, Revision.V2026_07_28)
        awaited = OutgoingRequest(PROBE_ID, DISCOVER, now, waiter=waiter)
        awaited.set_timeout(now, timeout, None)
        self._outgoing[PROBE_ID] = awaited
        self.deadlines.schedule(awaited)
        return awaited, Request(PROBE_ID, DISCOVER.name, stamp.add_to(params))

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
        self,
        message: Message | Malformed,
        now: float,
        origin: "Origin | None" = None,
    ) -> SessionEvent:
        """Handle a message from an origin, and return an event."""
        if type(message) is Request:  # `isinstance` is slow for a struct type, unless it is the type of the object
            params: Any = message.params
            if self.get_modern is not None and (
                (origin is not None and origin.routing_headers is not None)
                or ((type(params) is not Raw or len(params) >= SHORTEST_ENVELOPE) and may_have_envelope(params))
            ):
                event = self._receive_modern(message, now, self.get_modern(), origin)
                if event is not None:
                    return event
            row = self._receivable.get(message.method)
            ident = message.id
            if row is None or row.result_name is None or ident in self._incoming:
                row = row or self._receivable_custom(message)
                if row is None or row.result_name is None or ident in self._incoming:
                    return self._refuse_call(message, row)
            call = self._incoming[ident] = IncomingRequest(ident, row, now, origin, params)
            return call
        if type(message) is Response:
            awaited = self._outgoing.pop(message.id, None)
            if awaited is None or awaited.as_task:
                return self._receive_response(awaited, message.id, message.result, None)
            awaited.done = True
            return ResponseReceived(awaited, message.result)
        modern = origin is not None and origin.routing_headers is not None
        return self._receive_other(message, now, modern=modern)

    def _receive_modern(
        self,
        message: Request,
        now: float,
        modern: "ModernProtocol",
        origin: "Origin | None",
    ) -> SessionEvent | None:
        """Handle a request with an envelope; return None if it has none."""
        headers, envelope = (None, None) if origin is None else (origin.routing_headers, origin.envelope)
        try:
            admitted = modern.validate_request(message, headers, envelope)
            if admitted is None:
                return None
            if message.id in self._incoming:
                raise RequestIdConflict(message.id)
            if self.phase in _UNAVAILABLE:
                raise unavailable_refusal(message.method, self.phase)
        except ProtocolError as error:
            return MessageRefused(
                ErrorResponse(message.id, error_object(error, Revision.V2026_07_28, settings=self.settings)),
                method=message.method,
            )
        call = self._incoming[message.id] = IncomingRequest(
            message.id, admitted[0], now, origin, message.params, envelope=admitted[1]
        )
        return call

    def _receive_other(
        self, message: Notification | ErrorResponse | Malformed, now: float, *, modern: bool
    ) -> SessionEvent:
        match message:
            case Notification():
                return self._receive_notification(message, now, modern=modern)
            case ErrorResponse(id=ident, error=error):
                awaited = self._outgoing.pop(ident, None) if isinstance(ident, _IDS) else None
                return self._receive_response(awaited, ident, None, error)
            case Malformed():
                return self._receive_malformed(message)
            case _:
                assert_never(message)

    def _refuse_call(self, message: Request, row: Method | None) -> MessageRefused:
        agreed = self.revision is not None
        why = request_refusal(
            message,
            row,
            phase=self.phase,
            revision=self.effective_revision,
            side=self.side,
            negotiated=agreed,
            profile=self.profile,
        )
        return MessageRefused(self._error(message.id, why), method=message.method)

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

    def _receivable_custom(self, message: Request | Notification, *, modern: bool = False) -> Method | None:
        """Return the row of a method outside of the specification that this side handles now. The modern era has no
        phases: there, a notification is legal if it has an envelope or came over HTTP (`modern`)."""
        row = None if self.find_custom is None else self.find_custom(message.method)
        if row is None or lifecycle.allows(self.phase, row.receive_signal):
            return row
        if self.get_modern is None or row.is_request or self.phase is not Phase.CONNECTING:
            return None
        return row if modern or may_have_envelope(message.params) else None

    def _receive_notification(self, message: Notification, now: float, *, modern: bool) -> SessionEvent:
        name = ALIASES.get(message.method, message.method)
        row = self._receivable.get(name) or self._receivable_custom(message, modern=modern)
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
        if call is None and params.request_id is not None and self.profile is not None and self.profile.server_cancels:
            return self._receive_server_cancelled(params.request_id, params.reason)
        if call is None or call.method.name == "initialize":  # lifecycle: initialize is never cancelled
            return MessageIgnored("cancellation of a request that is not in flight", "unknown_request")
        del self._incoming[call.id]
        call.done = call.cancelled = True
        return CallCancelled(call, params.reason)

    def _receive_server_cancelled(self, ident: RequestId, reason: str | None) -> SessionEvent:
        """Handle the cancellation of a request of ours by the server, which only a profile allows."""
        request = self._outgoing.get(ident) if self.side is Side.CLIENT else None
        if request is None or request.method.name == "initialize":
            return MessageIgnored("cancellation of a request that is not in flight", "unknown_request")
        del self._outgoing[ident]
        request.done = True
        return RequestCancelled(request, reason)

    def _receive_progress(self, params: "t.ProgressParams", now: float) -> SessionEvent:
        request = self._outgoing.get(params.progress_token)
        if request is None and self._finished is not None:
            request = self._finished.find_progressing(params.progress_token)
        if request is None:
            return MessageIgnored("progress under a token that is not in use", "invalid_progress_token")
        if not request.record_progress(params.progress, now):
            return MessageIgnored("progress that does not grow", "progress_value_invalid")
        return ProgressReceived(request, params)

    def _receive_response(
        self, request: OutgoingRequest | None, ident: Any, result: Any, error: ErrorObject | None
    ) -> SessionEvent:
        """Handle a response: to `request`, or to none that is in flight."""
        if request is None and self._finished is not None and isinstance(ident, _IDS):
            request = self._finished.pop_abandoned(ident)
        if request is None:
            return self._receive_unmatched(ident, error)
        if error is not None and self.profile is not None and self.profile.founding_codes:
            result, error = self._receive_founding_error(request, error)
        if request.as_task and error is None:
            self._finished_requests().add_progressing(request)
        request.done = True
        return ResponseReceived(request, result, error)

    def _receive_founding_error(self, request: OutgoingRequest, error: ErrorObject) -> tuple[Any, ErrorObject | None]:
        """Return the result or the error that stands for a received error by default: the failure of a tool is a
        result."""
        from trunkline.protocol.tool_failures import (
            failure_of_error,
            is_tool_failure,
        )  # imported here: for a profile only

        error = from_founding_code(error, self.effective_revision)
        if request.method.fails_as_result and is_tool_failure(error, self.effective_revision):
            return to_raw(failure_of_error(error)), None
        return None, error

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
            if type(result) is CallToolResult and result.meta is None:  # has no cache lifetime
                return Response(call.id, modern.complete_tool_result(result, unwrap=call.unwrapped))
            hint = call.hint or modern.default_hint(call.method.name)
            return Response(call.id, modern.encode_result(result, hint=hint, unwrap=call.unwrapped))
        profile = self.profile
        if profile is not None and profile.founding_shapes:
            from trunkline.protocol.founding_shapes import shape_result  # imported here: for a profile only

            return Response(call.id, shape_result(result, self.effective_revision, call.target))
        return Response(call.id, project(result, self.effective_revision))

    def fail(self, call: IncomingRequest, error: ProtocolError) -> ErrorResponse | None:
        """Return the error response to a request of the peer; None if it must not be sent any more."""
        if call.done:
            return None
        call.done = True
        del self._incoming[call.id]
        return ErrorResponse(call.id, self.error_object(error, call))

    def profile_of(self, call: IncomingRequest) -> "Profile | None":
        """Return the profile of a request of the peer; requests of the modern era have none."""
        return self.profile if call.envelope is None else None

    def revision_of(self, call: IncomingRequest) -> Revision:
        """Return the revision of a request of the peer."""
        return self.effective_revision if call.envelope is None else Revision.V2026_07_28

    def _error(self, ident: Any, error: ProtocolError) -> ErrorResponse:
        return ErrorResponse(ident, self.error_object(error))

    def error_object(self, error: ProtocolError, call: IncomingRequest | None = None) -> ErrorObject:
        """Return an error as an object of the effective revision, or of that of a request of the peer."""
        if call is not None and call.envelope is not None:
            return error_object(error, Revision.V2026_07_28, settings=self.settings)
        return error_object(error, self.effective_revision, self.profile, self.settings)

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

        `timeout` replaces the default of the method; `capability` requires a further capability of the peer. The
        deadline enters the queue with the next `expired`; the caller adds one that is due before that.
        """
        found = self._sendable.get(name)
        if found is None or capability is not None:
            found = self._sendable_method(name, capability)
        row, allowed, longest = found
        ident = self.last_id = self.last_id + 1
        if on_progress is not None:  # our progress tokens are our request ids
            params = add_meta(params, {PROGRESS_TOKEN: ident})
        if self.client_envelope is not None:
            params = self.client_envelope.add_to(params)
        message = Request(ident, name, params if self._is_newest else self._older_params(params))
        limit = allowed if timeout is None else timeout
        # As `renew_deadline` does, without a call.
        if limit is None or (longest is not None and longest < limit):
            due = None if longest is None else now + longest
        else:
            due = now + limit
        awaited = self._outgoing[ident] = OutgoingRequest(
            ident, row, now, None, None, limit, longest, due, waiter=waiter, on_progress=on_progress
        )
        if name == "initialize":
            self.transition(Signal.SEND_INITIALIZE)
        return awaited, message

    def notify(self, name: str, params: Any = UNSET) -> Notification:
        """Return a notification of ours. Raise an error if it is illegal."""
        row, _, _ = self._sendable_method(name, None, request=False)
        if row.custom and self.client_envelope is not None:
            params = self.client_envelope.add_to(params)
        if self._is_newest:
            return Notification(name, params)
        return Notification(self.wire_name(name), params if params is UNSET else self._older_params(params))

    def wire_name(self, name: str) -> str:
        """Return the name under which a notification is sent."""
        bare = self.profile is not None and name in self.profile.bare_notifications
        return name.removeprefix(PREFIX) if bare else name

    def reshape(self, name: str, frame: Encoded) -> Notification:
        """Return a notification that was encoded for many sessions in the form of this one, which has a profile."""
        return Notification(self.wire_name(name), _encoded_decoder()(frame.frame).params)

    def _older_params(self, params: Any) -> Any:
        """Return params in the form of the effective revision or of the profile."""
        if self.profile is not None and self.profile.founding_shapes:
            from trunkline.protocol.founding_shapes import shape_params  # imported here: for a profile only

            return shape_params(params, self.effective_revision)
        return project(params, self.effective_revision)

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

    def cancel_call(self, call: IncomingRequest, reason: str) -> Notification | None:
        """Return the notification that a server has cancelled a call of its client; None unless the profile of the
        call has such notifications. The call still needs a response."""
        profile = self.profile_of(call)
        if profile is None or not profile.server_cancels or self.side is not Side.SERVER:
            return None
        return Notification("notifications/cancelled", t.CancelledParams(request_id=call.id, reason=reason))

    def _finished_requests(self) -> FinishedRequests:
        self._finished = self._finished or FinishedRequests()
        return self._finished

    def result_type(self, name: str) -> type[Any]:
        """Return the result type of a method."""
        row = find_method(name)
        if row is None and is_custom(name):
            return object
        if row is None or row.result is None:
            raise MethodNotFound(name)
        return row.result

    def may_send(self, name: str) -> bool:
        """Return whether this side may send a method now; of those outside of the specification, a notification."""
        return name in self._sendable or self._sendable_custom(name, request=False) is not None

    def _sendable_custom(self, name: str, *, request: bool) -> tuple[Method, float | None, float | None] | None:
        """Return the row and the time limits of a method outside of the specification; None if it is illegal now."""
        row = custom_method(name, request=request) if is_custom(name) else None
        if row is None or not lifecycle.allows(self.phase, row.send_signal):
            return None
        return row, row.time_limit.seconds(self.settings), self.settings.longest_call

    def _sendable_method(
        self, name: str, capability: str | None, *, request: bool = True
    ) -> tuple[Method, float | None, float | None]:
        """Return the row and the time limits of a method that is legal now; raise an error otherwise."""
        found = self._sendable.get(name) or self._sendable_custom(name, request=request)
        if found is None:
            raise send_refusal(
                name,
                phase=self.phase,
                revision=self.effective_revision,
                receiver=self.side.other,
                profile=self.profile,
            )
        if capability is not None and not self.has_capability(self.side.other, capability):
            raise CapabilityNotSupported(name, capability)
        return found

    # --- endings -------------------------------------------------------------------------------

    def expired(self, now: float) -> list[TrackedRequest]:
        """Return the requests, of either side, whose deadline has passed. They stay in flight until the caller ends
        them. The other requests in flight are in the deadline queue then."""
        self._schedule_new_requests()
        return self.deadlines.pop_expired(now)

    def _schedule_new_requests(self) -> None:
        """Add our requests since the last check to the deadline queue. Most have been answered by now, and never
        entered it."""
        for request in reversed(self._outgoing.values()):
            if isinstance(request.id, int):  # the era probe is scheduled with its start
                if request.id <= self._scheduled_id:
                    break
                self.deadlines.schedule(request)
        self._scheduled_id = self.last_id

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


def _share(info: Implementation) -> Implementation:
    """Return an equal description that all sessions of the same client program share, unless it is large."""
    encoded = to_json(info)
    return _read_implementation(encoded) if len(encoded) <= _MAX_SHARED else info


@lru_cache(256)
def _read_implementation(encoded: bytes) -> Implementation:
    return json_decoder(Implementation)(encoded)


@cache
def _notification_decoder(name: str) -> Callable[[Any], Any]:
    """Return the decoder of params, made when such a notification first arrives."""
    return decoder(getattr(t, name))


@cache
def _encoded_decoder() -> Callable[[Any], Notification]:
    """Return the decoder of notifications that were encoded for many sessions."""
    return json_decoder(Notification)


def _object(params: Any) -> Any:
    return b"{}" if params is UNSET else params
