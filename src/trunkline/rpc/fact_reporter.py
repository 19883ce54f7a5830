"""Facts about one connection, reported to its observers."""

from collections.abc import Callable, Mapping
from contextvars import copy_context
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from msgspec import Raw, Struct
from msgspec.structs import replace

from trunkline.clock import Clock, LoopClock
from trunkline.errors import PeerError, RequestCancelled, RequestTimeout, TransportError
from trunkline.facts import (
    CallEnded,
    CallStarted,
    CallStep,
    Closed,
    Dropped,
    Fact,
    HandlerFailed,
    MessageUnreadable,
    Observers,
    Received,
    RequestEnded,
)
from trunkline.protocol.inflight import IncomingRequest, OutgoingRequest, TrackedRequest
from trunkline.rpc.dispatch import find_target
from trunkline.wire.codec import DecodeError, json_decoder

if TYPE_CHECKING:
    import asyncio

    from trunkline.protocol.session import Session
    from trunkline.rpc.call_timing import CallTiming, StepReporter
    from trunkline.tracing import Span
    from trunkline.transports.channel import ChannelInfo
    from trunkline.wire.messages import ErrorResponse

__all__ = ["FactReporter", "ObservedRequest"]

_connection_numbers: Final = count(1)
_Text = TypeVar("_Text", int | str, str)
_MAX_TEXT: Final = 1000  # characters of a text that the peer has chosen
_DIGEST_SIZE: Final = 6  # bytes: enough to tell sessions apart


class _FailedResult(Struct, rename="camel"):
    is_error: Any = False


_read_failure: Final = json_decoder(_FailedResult)


class ObservedRequest(NamedTuple):
    """A request of ours that an observer wants to know the end of."""

    started: float
    target: str | None
    span: "Span | None" = None


class FactReporter:
    """Report facts under the number of one connection. Without observers, no fact is created."""

    __slots__ = (
        *(
            "_clock",
            "_elapsed",
            "_ended",
            "_find_traceparent",
            "_make_timing",
            "_observers",
            "_opened_at",
            "_peer",
            "_report_step",
            "_session_digest",
            "_transport",
            "_wants_ended",
            "_wants_started",
        ),
        *("number", "observed", "session", "tracer", "wants_received"),
    )

    def __init__(
        self,
        clock: Clock,
        observers: Observers,
        info: "ChannelInfo | None" = None,
        session: "Session | None" = None,
    ) -> None:
        self.number = next(_connection_numbers)
        self.session = session
        self._clock = clock
        self._observers = observers
        self.observed = bool(observers)  # an observer wants more than failures, which have their own flag
        self._wants_ended = self._wants_started = self.wants_received = False
        self._report_step: StepReporter | None = None
        self.tracer = observers.tracer if self.observed else None  # starts the spans of calls and requests
        if self.observed:
            self._prepare(info)

    def _prepare(self, info: "ChannelInfo | None") -> None:
        """Find out what all facts about calls have in common."""
        from trunkline.rpc.call_timing import CallTiming, StepReporter, find_traceparent  # imported here: if observed

        self._make_timing, self._find_traceparent = CallTiming, find_traceparent
        observers = self._observers
        self._wants_ended, self._wants_started = observers.want(CallEnded), observers.want(CallStarted)
        self.wants_received = observers.want(Received)
        if observers.want(CallStep):
            self._report_step = StepReporter(self.number, observers.on)
        # The clock of some event loops counts in milliseconds, which is too coarse for durations.
        self._elapsed = monotonic if isinstance(self._clock, LoopClock) else self._clock.now
        self._transport, self._peer = ("", "") if info is None else (info.transport, info.peer)
        self._opened_at = None if info is None or info.stateless else self._clock.now()
        self._session_digest = None if info is None or info.session_id is None else _digest(info.session_id)
        # CPython passes more than 15 keyword arguments as a dict, which takes four times as long as copying this.
        self._ended = CallEnded(
            connection=self.number,
            at=0.0,
            request=None,
            method="",
            outcome="ok",
            code=None,
            seconds=0.0,
            started=True,
            transport=self._transport,
            session=self._session_digest,
        )

    def emit(self, fact: Callable[..., Any], **fields: Any) -> None:
        """Report a fact of the class `fact` if there is an observer."""
        if self.observed:
            self._observers.on(fact(connection=self.number, at=self._clock.now(), **fields))

    def report_closed(self, reason: str, failure: str | None) -> None:
        """Report that the connection has closed, and the class of the error that ended it."""
        session = self.session
        if self.observed and session is not None:
            now, opened_at = self._clock.now(), self._opened_at
            self._observers.on(
                Closed(
                    connection=self.number,
                    at=now,
                    reason=reason,
                    failure=failure,
                    side=session.side.name.lower(),
                    transport=self._transport,
                    revision=session.revision,
                    seconds=None if opened_at is None else now - opened_at,
                )
            )

    def want(self, kind: type[Fact]) -> bool:
        """Return whether an observer wants the facts of a class."""
        return self.observed and self._observers.want(kind)

    # --- calls of the peer ---------------------------------------------------------------------

    def on_call_queued(self, call: IncomingRequest, params: Any) -> None:
        """Report that a call has to wait, if an observer wants the steps of calls."""
        if self.tracer is not None and call.context is None:  # unless it has waited before
            call.context = copy_context()
        if self._report_step is not None:
            waited = self._clock.now() - call.started
            self._begin_timing(call, params, waited).report_step(call, "queued", waited)

    def on_call_started(
        self,
        call: IncomingRequest,
        params: Any,
        decode_early: Callable[[IncomingRequest, Any], tuple[Any, str | None]],
    ) -> None:
        """Note the time at which the handler of a call starts."""
        now = self._clock.now()
        waited = now - call.started
        timing: CallTiming = call.timing or self._begin_timing(call, params, waited)
        timing.on_started(call, waited)
        if self._wants_started:
            timing.params, target = decode_early(call, params)
            self._observers.on(
                CallStarted(
                    connection=self.number,
                    at=now,
                    request=call.id,
                    method=call.method.name,
                    target=target,
                    transport=self._transport,
                )
            )

    def _begin_timing(self, call: IncomingRequest, params: Any, waited: float) -> "CallTiming":
        timing = call.timing = self._make_timing(params, self._elapsed, self._report_step, self.tracer)
        if self._report_step is not None:
            self._report_step(call, "received", 0.0)
            self._report_step(call, "admitted", waited)
        return timing

    def emit_call_ended(
        self,
        call: IncomingRequest,
        outcome: str,
        code: int | None = None,
        *,
        kind: str | None = None,
        message: str | None = None,
        reference: str | None = None,
        response_size: int | None = None,
    ) -> None:
        """Report the outcome of a call. Only outcomes other than "ok" have a code, a kind, a message or a reference."""
        timing: CallTiming | None = call.timing
        if self._report_step is not None and timing is not None and response_size is not None:
            timing.report_step(call, "sent")
        if not self._wants_ended:
            return
        now = self._clock.now()
        waited, ran, sent = now - call.started, 0.0, 0.0
        traceparent: str | None = None
        started = False
        if timing is not None and timing.started is not None:
            started, done = True, self._elapsed()
            ended = done if timing.ended is None else timing.ended
            waited, ran, sent, traceparent = timing.waited, ended - timing.started, done - ended, timing.traceparent
        origin, session = call.origin, self.session
        fact = replace(
            self._ended,
            at=now,
            request=call.id if type(call.id) is int else _cut(call.id),
            method=call.method.name,
            target=None if call.target is None else _cut(call.target),
            seconds=waited + ran + sent,
            wait_seconds=waited,
            run_seconds=ran,
            send_seconds=sent,
            revision=None if session is None else session.revision_of(call),
            principal=None if origin is None or origin.principal is None else _subject(origin.principal),
            traceparent=_find_trace_elsewhere(call) if traceparent is None else _cut(traceparent),
            request_size=None if timing is None else timing.request_size,
            response_size=response_size,
            span=call.span,
        )
        if outcome != "ok" or not started:
            message = None if message is None else _cut(message)
            fact = replace(
                fact, started=started, outcome=outcome, code=code, kind=kind, message=message, reference=reference
            )
        self._observers.on(fact)

    def emit_refused(self, reply: "ErrorResponse", method: str, principal: Any) -> None:
        """Report a request that was refused before it became a call."""
        if self._wants_ended:
            self._observers.on(
                CallEnded(
                    connection=self.number,
                    at=self._clock.now(),
                    request=_cut(reply.id) if isinstance(reply.id, int | str) else None,
                    method=_cut(method),
                    outcome="refused",
                    code=reply.error.code,
                    kind=_text(reply.error.data, "kind"),
                    message=_cut(reply.error.message),
                    seconds=0.0,
                    transport=self._transport,
                    revision=None if self.session is None else self.session.revision,
                    session=self._session_digest,
                    principal=_subject(principal),
                )
            )

    # --- our requests --------------------------------------------------------------------------

    def begin_request(self, name: str, params: Any) -> "tuple[Any, ObservedRequest | None]":
        """Note that a request of ours is about to be sent, if an observer wants to know its end. Return its params,
        with the trace context of its span if there is a tracer."""
        if not self.observed or not self._observers.want(RequestEnded):
            return params, None
        started, target, tracer = self._elapsed(), find_target(name, params), self.tracer
        span = None if tracer is None else tracer.start_request(name, target)
        if span is None:
            return params, ObservedRequest(started, target)
        from trunkline.protocol.trace_context import add_trace  # imported here: if traced

        return add_trace(params, span[1]), ObservedRequest(started, target, span[0])

    def observe_request(
        self,
        request: OutgoingRequest,
        params: Any,
        size: int | None,
        waiter: "asyncio.Future[Any]",
        observed: "ObservedRequest",
    ) -> None:
        """Report the outcome of a request of ours once it is known."""
        request.target, request.span = observed.target, observed.span
        traceparent = self._find_traceparent(params)
        waiter.add_done_callback(
            lambda done: self._report_request(request, done, self._elapsed() - observed.started, size, traceparent)
        )

    def _report_request(
        self,
        request: OutgoingRequest,
        done: "asyncio.Future[Any]",
        seconds: float,
        size: int | None,
        traceparent: str | None,
    ) -> None:
        now, session = self._clock.now(), self.session
        error = None if done.cancelled() else done.exception()
        result = None if done.cancelled() or error is not None else done.result()
        data = getattr(error, "data", None)
        self._observers.on(
            RequestEnded(
                connection=self.number,
                at=now,
                request=request.id,
                method=request.method.name,
                target=request.target,
                outcome="cancelled" if done.cancelled() else _outcome(error, request.method.name, result),
                code=error.code if isinstance(error, PeerError) else None,
                kind=_text(data, "kind"),
                message=_cut(error.message) if isinstance(error, PeerError) else None,
                reference=_text(data, "reference"),
                seconds=seconds,
                transport=self._transport,
                revision=None if session is None else session.revision,
                session=self._session_digest,
                traceparent=traceparent,
                request_size=size,
                response_size=len(result) if type(result) is Raw else None,
                span=request.span,
                peer=self._peer,
            )
        )

    # --- failures ------------------------------------------------------------------------------

    def report_failure(self, call: TrackedRequest, reference: str, error: BaseException) -> None:
        """Report an error that the peer must not see. The peer sees `reference` instead, or nothing if it is "-"."""
        if self._observers.hear_failures:
            self._observers.on(
                HandlerFailed(
                    connection=self.number,
                    at=self._clock.now(),
                    request=call.id,
                    method=call.method.name,
                    target=call.target,
                    reference=reference,
                    error=error,
                    span=call.span,
                )
            )

    def report_crash(self, reference: str, error: BaseException) -> None:
        """Report an internal error that belongs to no call. The peer sees `reference`."""
        if self._observers.hear_failures:
            at = self._clock.now()
            self._observers.on(
                HandlerFailed(
                    connection=self.number,
                    at=at,
                    request=None,
                    method="the conversation",
                    reference=reference,
                    error=error,
                )
            )

    def report_unreadable(self, why: str, excerpt: bytes) -> None:
        """Report a message that could not be decoded or matched, with its first bytes."""
        if self._observers.hear_failures:
            at = self._clock.now()
            self._observers.on(MessageUnreadable(connection=self.number, at=at, why=why, excerpt=excerpt))

    def report_dropped(self, why: str, kind: str) -> None:
        """Report a message or a report of progress that was discarded."""
        self.emit(Dropped, why=why, kind=kind)


def _outcome(error: BaseException | None, method: str, result: Any) -> str:
    """Return the outcome of a request of ours, in the words for calls."""
    match error:
        case None:
            return "failed" if method == "tools/call" and _is_failed_result(result) else "ok"
        case RequestCancelled():
            return "cancelled"
        case RequestTimeout():
            return "timeout"
        case TransportError():
            return "closed"
        case _:
            return "error"


def _is_failed_result(result: Any) -> bool:
    """Return whether an encoded result says that the tool has failed."""
    if type(result) is not Raw or bytes(result).find(b'"isError"') < 0:
        return False
    try:
        return _read_failure(result).is_error is True
    except (DecodeError, RecursionError):
        return False


def _cut(text: _Text) -> _Text:
    """Cut a text of the peer off: facts wait in queues, and a message may be large."""
    return text[:_MAX_TEXT] if type(text) is str and len(text) > _MAX_TEXT else text


def _subject(principal: Any) -> str | None:
    """Return the id of a principal: its subject, or the principal itself if an application identifies by a text."""
    subject = principal if isinstance(principal, str) else getattr(principal, "subject", None)
    return subject if isinstance(subject, str) else None


def _find_trace_elsewhere(call: IncomingRequest) -> str | None:
    """Return the trace context of a call whose params have none: of its envelope, or of the HTTP request."""
    if call.envelope is not None and isinstance(call.envelope.traceparent, str):
        return _cut(call.envelope.traceparent)
    headers = None if call.origin is None else call.origin.headers
    return None if headers is None else headers.get("traceparent")  # the size of headers is limited


def _digest(session: str) -> str:
    """Return a digest of a session id, with which a reader of a log cannot use the session."""
    from hashlib import blake2s  # imported here: most connections have no session id

    return blake2s(session.encode(), digest_size=_DIGEST_SIZE).hexdigest()


def _text(data: Any, name: str) -> str | None:
    """Return a member of the data of an error, if it is a text."""
    value = cast("Mapping[str, Any]", data).get(name) if isinstance(data, Mapping) else None
    return value if isinstance(value, str) else None
