"""Session: one conversation, seen from one side of it, without any I/O.

`receive` takes a message and gives an event. `call`, `notify`, `reply` and `fail` give messages to be sent. What
the peer got wrong is a value (`Refused`, `Ignored`); what our own side got wrong is raised. Time comes in as `now`.

Both sides use it: `side` says which one we are.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, assert_never

from msgspec import UNSET, Raw
from msgspec.structs import replace

from trunkline.config import Settings
from trunkline.errors import CapabilityNotSupported, InvalidRequest, MethodNotFound, ProtocolError, RequestIdConflict
from trunkline.protocol import lifecycle
from trunkline.protocol.capabilities import Capabilities, Negotiated, agree, declared, without_newer
from trunkline.protocol.client_envelope import DISCOVER, PROBE, Stamp, introduced
from trunkline.protocol.envelope import carried_by
from trunkline.protocol.error_codes import error_object
from trunkline.protocol.events import (
    Answered,
    AnswerUnusable,
    CallReceived,
    Cancelled,
    Event,
    Ignored,
    NoticeReceived,
    Opened,
    ProgressHeard,
    Refused,
)
from trunkline.protocol.inflight import Aftermath, Awaited, Running, Timetable, Tracked
from trunkline.protocol.legal_methods import Receivable, Sendable, needed, tables
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.meta import PROGRESS_TOKEN
from trunkline.protocol.methods import ALIASES, Method, Side, Wait, find, widened_capabilities
from trunkline.protocol.modern import CACHED, CacheHint, Stateless
from trunkline.protocol.projection import project, structured_in_object
from trunkline.protocol.refusals import unavailable, unreadable, why_not_sent, why_not_taken
from trunkline.protocol.revisions import HANDSHAKE, NEWEST, Revision, negotiate
from trunkline.protocol.types import (
    CallToolResult,
    CancelledParams,
    DiscoverResult,
    Implementation,
    InitializeParams,
    InitializeResult,
    ProgressParams,
)
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

__all__ = ["Session"]

_CANCELLED: Final = find("notifications/cancelled")
_NOTHING: Final[frozenset[str]] = frozenset()
_LONGEST_ID: Final = 18  # digits; our ids are numbers that are counted up
_REPLACEABLE: Final = frozenset({Phase.INITIALIZING, Phase.READY, Phase.PAUSED})
_read_cancelled: Final = decoder(CancelledParams)
_read_initialize: Final = decoder(InitializeParams)
_read_progress: Final = decoder(ProgressParams)


class Session:
    """One conversation: of the handshake era, with requests of the modern one beside it where those are taken; or of
    the modern era alone. There may be thousands that do nothing, so it is kept small."""

    __slots__ = (
        *("_again", "_awaited", "_open", "_plain", "_running", "_sendable", "_timetable", "failure", "info"),
        *("instructions", "last_id", "negotiated", "offered", "peer", "phase", "profile", "revision", "revisions"),
        *("_aftermath", "settings", "side", "stamp", "stateless"),
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
        stateless: Stateless | None = None,
        profile: str | None = None,
    ) -> None:
        """`stateless` answers requests of the modern era, where they are taken, beside those of the handshake.
        `profile` has methods of its own, in the handshake era."""
        self.profile = profile
        self.side = side
        self.info = info
        self.stateless = stateless
        self.stamp: Stamp | None = None  # what goes on our requests, where the server speaks the modern era
        self.instructions = instructions
        self.revisions = revisions if isinstance(revisions, tuple) else tuple(revisions)
        self.settings = settings or Settings()
        self.phase = phase  # of a conversation that takes the place of one that was lost, RECONNECTING
        self._again = phase is Phase.RECONNECTING
        self.failure: str | None = None  # why the handshake came to nothing
        self.revision: Revision | None = None  # agreed upon in the handshake
        self.peer: Implementation | None = None
        self.negotiated: Negotiated | None = None
        self.offered: Capabilities = capabilities or {}  # what our side declares
        self._timetable: Timetable | None = None
        self._running: dict[RequestId, Running] = {}
        self._awaited: dict[RequestId, Awaited] = {}
        self._aftermath: Aftermath | None = None
        self.last_id = 0  # of our requests
        self._plain = True  # the types are those of the revision spoken: little to project
        self._open: Receivable = {}  # what the peer may send now
        self._sendable: Sendable = {}  # what we may

    # --- facts ---------------------------------------------------------------------------------

    @property
    def spoken(self) -> Revision:
        """The revision to speak: the one agreed upon, or the newest until then."""
        return self.revision or NEWEST

    @property
    def timetable(self) -> Timetable:
        """The deadlines of what is under way."""
        if self._timetable is None:
            self._timetable = Timetable()
        return self._timetable

    @property
    def in_flight(self) -> Mapping[RequestId, Running]:
        """The peer's requests that we work on."""
        return self._running

    @property
    def pending(self) -> Mapping[RequestId, Awaited]:
        """Our requests that are not answered yet."""
        return self._awaited

    def allows(self, signal: Signal) -> bool:
        """Whether a signal is legal now."""
        return lifecycle.allows(self.phase, signal)

    def has(self, side: Side, capability: str) -> bool:
        """Whether that side has a capability that both may rely on."""
        if self.negotiated is None:
            return False
        return declared(self.negotiated.server if side is Side.SERVER else self.negotiated.client, capability)

    # --- phases --------------------------------------------------------------------------------

    def step(self, signal: Signal) -> None:
        """Moves to the next phase; raises `WrongPhase` where the table has none."""
        self.phase = lifecycle.step(self.phase, signal)
        self._plain = self.spoken is NEWEST
        server = needed(self.negotiated.server) if self.negotiated is not None else _NOTHING
        client = needed(self.negotiated.client) if self.negotiated is not None else _NOTHING
        ours, theirs = (server, client) if self.side is Side.SERVER else (client, server)
        self._open, self._sendable = tables(
            self.side, self.phase, self.spoken, ours=ours, theirs=theirs, settings=self.settings, profile=self.profile
        )

    def fail_handshake(self, why: str) -> None:
        """Gives the handshake up. A conversation that takes the place of a lost one has not failed by that: whoever
        keeps the line may try once more."""
        self.failure = why
        if not self._again:
            self.step(Signal.FAIL)

    def initialize(self, params: InitializeParams) -> InitializeResult:
        """Takes a client's `initialize`: settles revision and capabilities, and gives the answer."""
        revision = negotiate(params.protocol_version, self.revisions)
        self.negotiated = agree(self.offered, params.capabilities)
        self.revision = revision
        self.peer = params.client_info
        self.step(Signal.RECV_INITIALIZE)
        return InitializeResult(
            protocol_version=revision.value,
            capabilities=without_newer(self.negotiated.server, revision, keep=widened_capabilities(self.profile)),
            server_info=self.info,
            instructions=self.instructions,
        )

    def assume(self, revision: Revision) -> None:
        """Takes the handshake for made, with a client that speaks a revision and has told no capabilities."""
        self.restore(revision, Negotiated(without_newer(self.offered, revision), {}), None, complete=True)

    def restore(self, revision: Revision, agreed: Negotiated, peer: Implementation | None, *, complete: bool) -> None:
        """Takes the handshake for made, as it was elsewhere; `complete`: with `initialized` said."""
        self.revision = revision
        self.negotiated = agreed
        self.peer = peer
        self.step(Signal.RECV_INITIALIZE)
        if complete:
            self.step(Signal.RECV_INITIALIZED)

    def initialized(self, result: InitializeResult) -> Notification:
        """Takes a server's answer to our `initialize`; the notification that completes the handshake."""
        revision = next((r for r in self.revisions if r.value == result.protocol_version), None)
        if revision is None:
            self.fail_handshake(f"the server speaks revision {result.protocol_version!r}, which we do not")
            raise InvalidRequest(self.failure or "")
        self.revision = revision
        self.peer = result.server_info
        self.negotiated = Negotiated(result.capabilities, without_newer(self.offered, revision))
        self.step(Signal.SEND_INITIALIZED)
        return Notification("notifications/initialized")

    def probe(self, now: float, timeout: float | None, waiter: Any) -> tuple[Awaited, Request]:
        """A question whether the server speaks the modern era, before anything else is said."""
        stamp = Stamp(self.info, self.offered, Revision.V2026_07_28)
        awaited = Awaited(PROBE, DISCOVER, now, waiter=waiter)
        awaited.limit(now, timeout, None)
        self._awaited[PROBE] = awaited
        self.timetable.watch(awaited)
        return awaited, Request(PROBE, DISCOVER.name, stamp.put_on(UNSET))

    def discovered(self, result: DiscoverResult) -> None:
        """Takes a server's answer to that: from now on every request stands for itself."""
        self.revision = Revision.V2026_07_28
        self.negotiated = Negotiated(result.capabilities, without_newer(self.offered, self.revision))
        self.peer = introduced(result.meta)
        self.stamp = Stamp(self.info, self.offered, self.revision)
        self.step(Signal.SEND_INITIALIZED)

    # --- receiving -----------------------------------------------------------------------------

    def receive(self, message: Message | Malformed, now: float, headers: Mapping[str, str] | None = None) -> Event:
        """What a message means. `headers` came with it, where a transport has some."""
        if isinstance(message, Request):
            if self.stateless is not None and (headers is not None or carried_by(message.params)):
                event = self._receive_modern(message, now, self.stateless, headers)
                if event is not None:
                    return event
            row = self._open.get(message.method)
            ident = message.id
            if row is None or row.result is None or ident in self._running:
                return self._refuse_call(message, row)
            call = self._running[ident] = Running(ident, row, now)
            return CallReceived(call, message.params)
        if isinstance(message, Response):
            return self._receive_answer(message.id, message.result, None)
        return self._receive_other(message, now)

    def _receive_modern(
        self, message: Request, now: float, stateless: Stateless, headers: Mapping[str, str] | None
    ) -> Event | None:
        """What a request with an envelope means; None if it has none after all."""
        try:
            admitted = stateless.admit(message, headers)
            if admitted is None:
                return None
            if message.id in self._running:
                raise RequestIdConflict(message.id)
            if self.phase in {Phase.PAUSED, Phase.DRAINING, Phase.CLOSED}:
                raise unavailable(message.method, self.phase)
        except ProtocolError as error:
            return Refused(ErrorResponse(message.id, error_object(error, Revision.V2026_07_28)))
        call = self._running[message.id] = Running(message.id, admitted[0], now, envelope=admitted[1])
        return CallReceived(call, message.params)

    def _receive_other(self, message: Notification | ErrorResponse | Malformed, now: float) -> Event:
        match message:
            case Notification():
                return self._receive_notice(message, now)
            case ErrorResponse(id=ident, error=error):
                return self._receive_answer(ident, None, error)
            case Malformed():
                return self._receive_malformed(message)
            case _:
                assert_never(message)

    def _refuse_call(self, message: Request, row: Method | None) -> Refused:
        agreed = self.revision is not None
        why = why_not_taken(message, row, phase=self.phase, spoken=self.spoken, side=self.side, agreed=agreed)
        return Refused(self._error(message.id, why))

    def replaced_by(self, message: Request) -> bool:
        """Whether a request that was refused may begin another session in the place of this one: `initialize`, with
        params that can be read, while no request of the peer is under way."""
        if message.method != "initialize" or self.phase not in _REPLACEABLE or self._running:
            return False
        try:
            _read_initialize(_object(message.params))
        except (DecodeError, RecursionError):
            return False
        return True

    def _receive_notice(self, message: Notification, now: float) -> Event:
        name = ALIASES.get(message.method, message.method)
        row = self._open.get(name)
        if name == "notifications/cancelled" and self._running:
            row = _CANCELLED  # names what is under way, whatever the era and the phase
        if row is None or row.request:
            return Ignored(
                f"notification {message.method!r} in phase {self.phase.name.lower()}", "unknown_notification"
            )
        try:
            match name:
                case "notifications/initialized":
                    opened = self.phase is not Phase.READY
                    self.step(Signal.RECV_INITIALIZED)
                    return Opened() if opened else Ignored("initialized was said before", "duplicate_notification")
                case "notifications/cancelled":
                    return self._receive_cancelled(_read_cancelled(_object(message.params)))
                case "notifications/progress":
                    return self._receive_progress(_read_progress(_object(message.params)), now)
                case _:
                    return NoticeReceived(row, message.params)
        except (DecodeError, RecursionError) as error:
            return Ignored(f"params of {name}: {error}", "invalid_params")

    def _receive_cancelled(self, params: CancelledParams) -> Event:
        call = None if params.request_id is None else self._running.get(params.request_id)
        if call is None or call.method.name == "initialize":  # lifecycle: initialize is never cancelled
            return Ignored("cancelled a request that is not under way", "unknown_request")
        del self._running[call.id]
        call.done = call.cancelled = True
        return Cancelled(call, params.reason)

    def _receive_progress(self, params: ProgressParams, now: float) -> Event:
        request = self._awaited.get(params.progress_token)
        if request is None and self._aftermath is not None:
            request = self._aftermath.telling(params.progress_token)
        if request is None:
            return Ignored("progress under a token that is not in use", "invalid_progress_token")
        if not request.heard(params.progress, now):
            return Ignored("progress that does not grow", "progress_value_invalid")
        return ProgressHeard(request, params)

    def _receive_answer(self, ident: Any, result: Any, error: ErrorObject | None) -> Event:
        request = self._awaited.pop(ident, None) if isinstance(ident, int | str) else None
        if request is None and self._aftermath is not None and isinstance(ident, int | str):
            request = self._aftermath.answered(ident)
        if request is None:
            return self._unexpected(ident, error)
        if request.as_task and error is None:
            self._after().go_on(request)
        request.done = True
        return Answered(request, result, error)

    def _unexpected(self, ident: Any, error: ErrorObject | None) -> Event:
        """An answer that names none of our requests. Some peers write the id 1 as "1"."""
        if isinstance(ident, str) and ident.isdecimal() and len(ident) <= _LONGEST_ID:
            request = self._awaited.get(int(ident))
            if request is not None:
                return self._unusable(request, f'its id is the string "{ident}", and not the number {ident}')
        if error is not None and not isinstance(ident, int | str):
            why = f"the peer could not read a message: {error.message} ({error.code})"
            return Ignored(why, "unexpected_reply", unassigned=True)
        return Ignored("an answer to nothing that we wait for", "unexpected_reply")

    def _unusable(self, request: Awaited, why: str, *, too_large: bool = False) -> AnswerUnusable:
        del self._awaited[request.id]
        request.done = True
        return AnswerUnusable(request, why, too_large)

    def _receive_malformed(self, fault: Malformed) -> Event:
        if fault.is_reply or fault.lacks_method:
            request = None if fault.id is None else self._awaited.get(fault.id)
            if request is not None:
                return self._unusable(request, fault.why, too_large=fault.limit is not None)
        if fault.is_reply:
            why = f"unreadable answer: {fault.why}"
            return Ignored(why, "invalid_request", unassigned=True, excerpt=fault.excerpt)
        return Refused(self.complaint(fault), fault.excerpt)

    def complaint(self, fault: Malformed) -> ErrorResponse:
        """The answer to something that could not be read."""
        # An unreadable id is left out from 2025-11-25 on and null before (base protocol, "Responses").
        nameless = UNSET if self.spoken >= Revision.V2025_11_25 else None
        return self._error(nameless if fault.id is None else fault.id, unreadable(fault))

    # --- sending -------------------------------------------------------------------------------

    def reply(self, call: Running, result: Any) -> Response | None:
        """The answer to a request of the peer's, whose id is free again; None if nothing may be sent any more.

        `result` is projected to the revision spoken, unless it is `Raw`, which goes out as it stands.
        """
        if call.done:
            return None
        call.done = True
        del self._running[call.id]
        if not self._plain or call.envelope is not None:
            return self.written(call, result)
        return Response(call.id, structured_in_object(result) if type(result) is CallToolResult else result)

    def written(self, call: Running, result: Any) -> Response:
        """A result as the revision of its request says it."""
        if type(result) is Raw:
            return Response(call.id, result)
        if call.envelope is not None and self.stateless is not None:
            hint = call.hint or (CacheHint() if call.method.name in CACHED else None)
            return Response(call.id, self.stateless.dressed(result, hint=hint, natural=call.natural))
        return Response(call.id, project(result, self.spoken))

    def fail(self, call: Running, error: ProtocolError) -> ErrorResponse | None:
        """The error that answers a request of the peer's; None if nothing may be sent any more."""
        if call.done:
            return None
        call.done = True
        del self._running[call.id]
        return ErrorResponse(call.id, error_object(error, self.revision_of(call)))

    def revision_of(self, call: Running) -> Revision:
        """The revision that a request of the peer's is written in."""
        return self.spoken if call.envelope is None else Revision.V2026_07_28

    def _error(self, ident: Any, error: ProtocolError) -> ErrorResponse:
        return ErrorResponse(ident, self.error_object(error))

    def error_object(self, error: ProtocolError) -> ErrorObject:
        """An error as this conversation says it."""
        return error_object(error, self.spoken)

    def call(
        self,
        name: str,
        params: Any,
        now: float,
        *,
        timeout: float | None = None,
        needs: str | None = None,
        on_progress: Any = None,
        waiter: Any = None,
    ) -> tuple[Awaited, Request]:
        """A request of ours and its entry among those we wait for. Raises before anything is sent if it may not be.

        `timeout` replaces the time that the method has by default; `needs` asks for more than its capability.
        """
        row, allowed = self._row(name, needs)
        ident = self.last_id = self.last_id + 1
        if on_progress is not None:  # our tokens are our request ids
            params = replace(params, meta={**(params.meta or {}), PROGRESS_TOKEN: ident})
        if self.stamp is not None:
            params = self.stamp.put_on(params)
        message = Request(ident, name, params if self._plain else project(params, self.spoken))
        awaited = Awaited(ident, row, now, waiter=waiter, on_progress=on_progress)
        longest = None if row.wait is Wait.ENDLESS else self.settings.longest_call
        awaited.limit(now, allowed if timeout is None else timeout, longest)
        self._awaited[ident] = awaited
        self.timetable.watch(awaited)
        if name == "initialize":
            self.step(Signal.SEND_INITIALIZE)
        return awaited, message

    def notify(self, name: str, params: Any = UNSET) -> Notification:
        """A notification of ours. Raises if it may not be sent."""
        self._row(name, None)
        return Notification(name, params if self._plain or params is UNSET else project(params, self.spoken))

    def tell_about(self, call: Running, name: str, params: Any) -> Notification | None:
        """A notification about a request of the peer's that is under way; None if it may not be sent."""
        if call.envelope is not None:
            return None if call.done else Notification(name, project(params, Revision.V2026_07_28))
        return self.notify(name, params) if self.may_send(name) else None

    def cancel(self, request: Awaited, reason: str | None = None) -> Notification | None:
        """Gives a request of ours up and says so; None if there is nothing to say any more."""
        if request.done:
            return None
        request.done = True
        del self._awaited[request.id]
        if request.late is not None:
            self._after().give_up(request)
        if request.as_task or request.method.name == "initialize":
            return None  # cancellation: initialize must not be cancelled, and a task only by its own name
        return Notification("notifications/cancelled", CancelledParams(request_id=request.id, reason=reason))

    def _after(self) -> Aftermath:
        self._aftermath = self._aftermath or Aftermath()
        return self._aftermath

    def result_type(self, name: str) -> type[Any]:
        """What a request of that method is answered with."""
        row = find(name)
        if row is None or row.result is None:
            raise MethodNotFound(name)
        return row.result

    def may_send(self, name: str) -> bool:
        """Whether a notification or request of ours would be legal now."""
        return name in self._sendable

    def _row(self, name: str, needs: str | None) -> tuple[Method, float | None]:
        """The row of a method that we may send now, and its time; raises why we may not."""
        found = self._sendable.get(name)
        if found is None:
            raise why_not_sent(name, phase=self.phase, spoken=self.spoken, receiver=self.side.other)
        if needs is not None and not self.has(self.side.other, needs):
            raise CapabilityNotSupported(name, needs)
        return found

    # --- endings -------------------------------------------------------------------------------

    def expired(self, now: float) -> list[Tracked]:
        """The requests, of either side, whose time is up. They stay under way until they are ended."""
        return self.timetable.due(now)

    def close(self, signal: Signal = Signal.CLOSE) -> list[Awaited]:
        """Ends the conversation; gives the requests of ours that were still under way, now done. `signal` says how:
        closed in good order, or lost, or failed."""
        for request in self._running.values():
            request.done = True
        self._running.clear()
        awaited = self.stop_waiting()
        self.step(signal)
        return awaited

    def stop_waiting(self) -> list[Awaited]:
        """Gives up all requests of ours, without a word to the peer; gives them, now done."""
        awaited = list(self._awaited.values())
        for request in awaited:
            request.done = True
        self._awaited.clear()
        return awaited


def _object(params: Any) -> Any:
    return b"{}" if params is UNSET else params
