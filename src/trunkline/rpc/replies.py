"""Replies to the calls of a peer, and the facts about how each call ended."""

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Protocol

from trunkline.errors import ContentTooLarge, ProtocolError, RequestTimeout
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import TOOL_ERROR
from trunkline.protocol.session import Session
from trunkline.protocol.types import CallToolResult, InputRequiredResult
from trunkline.rpc.fact_reporter import FactReporter
from trunkline.transports.channel import Channel, Oversized
from trunkline.wire.messages import ErrorResponse, Message, RequestId

if TYPE_CHECKING:
    from trunkline.rpc.batches import Batches
    from trunkline.rpc.failures import Failure

__all__ = ["Replies", "ReplyRecorder", "failure_kind", "too_large_error"]


class ReplyRecorder(Protocol):
    """Recorder of replies. Its methods return at once and do not raise."""

    def on_reply(self, request: RequestId, reply: Message) -> None:
        """Record a reply that was sent."""
        ...

    def on_cancelled(self, call: IncomingRequest) -> None:
        """Record a call that gets no reply."""
        ...


class Replies:
    """Send the reply of each call once: a result, an error, or nothing if the peer has cancelled the call."""

    __slots__ = ("_channel", "_facts", "batches", "exposes_errors", "recorder", "session")

    def __init__(self, session: Session, channel: Channel, facts: FactReporter) -> None:
        self.session = session
        self._channel = channel
        self._facts = facts
        exposed = session.settings.expose_errors
        self.exposes_errors = channel.info.same_process if exposed is None else exposed
        self.batches: Batches | None = None  # created with the first batch
        self.recorder: ReplyRecorder | None = None  # of a server with receipts

    def reply_result(self, call: IncomingRequest, value: Any) -> None:
        """Reply with the value that a handler returned."""
        size: int | None = None
        if call.timing is not None:
            call.timing.on_ended(call)
        try:
            reply = self.session.reply(call, value)
            if reply is None:
                return
            if self.batches is None or not self.batches.add_reply(call.id, reply):
                size = self._channel.send(reply, about=call.id)
        except Exception as error:  # noqa: BLE001 - for example, a value that has no JSON
            self._reply_unsendable(call, error)
        else:
            if self.recorder is not None:
                self.recorder.on_reply(call.id, reply)
            if self._facts.observed:
                outcome = _outcome(value)
                kind = failure_kind(value) if outcome == "failed" else None
                self._facts.emit_call_ended(call, outcome, kind=kind, response_size=size)

    def _reply_unsendable(self, call: IncomingRequest, error: Exception) -> None:
        """Reply with an error, since the reply that was meant to be sent cannot be encoded or is too large."""
        if isinstance(error, Oversized):
            error = too_large_error(error)
        failure = self._build_failure(call, error)
        self._facts.report_failure(call, failure.reference or "-", error)
        reply = (
            ErrorResponse(call.id, self.session.error_object(failure.reply, call))
            if isinstance(failure.reply, ProtocolError)
            else self.session.encode_result(call, failure.reply)
        )
        try:
            size = self.send_reply(reply, call.id)
        except Oversized as still:  # the request id alone is that long
            reply = ErrorResponse(call.id, self.session.error_object(too_large_error(still), call))
            size = self.send_reply(reply, call.id)
        self._report_failed(call, reply, failure, error, size)

    def reply_error(self, call: IncomingRequest, error: BaseException) -> None:
        """Reply with the part of an exception that the peer may see."""
        if self.session.profile is not None:
            self._announce_cancellation(call, error)
        self.reply_failure(call, self._build_failure(call, error), error)

    def _announce_cancellation(self, call: IncomingRequest, error: BaseException) -> None:
        """Tell the client that the server has cancelled its call, under a profile that has it. The error response
        follows, since JSON-RPC requires one; a client that has ended the call ignores it."""
        if isinstance(error, CancelledError):  # raised by the handler itself: the caller still waits
            reason = "cancelled"
        elif isinstance(error, RequestTimeout) and error.method == call.method.name:  # the deadline of this call
            reason = "timeout"
        else:
            return
        cancelled = self.session.cancel_call(call, reason)
        if cancelled is not None:
            self._channel.send(cancelled, about=call.id)

    def _build_failure(self, call: IncomingRequest, error: BaseException) -> "Failure":
        from trunkline.rpc.failures import build_failure  # imported here: most calls succeed

        session = self.session
        return build_failure(
            error,
            call,
            session.revision_of(call),
            session.settings,
            expose=self.exposes_errors,
            profile=session.profile_of(call),
        )

    def reply_failure(self, call: IncomingRequest, failure: "Failure", error: BaseException) -> None:
        """Reply with a failure that was built from `error`."""
        if failure.reference is not None:
            self._facts.report_failure(call, failure.reference, error)
        if call.timing is not None:
            call.timing.on_ended(call)
        size: int | None = None
        try:
            reply: Message | None = (
                self.session.fail(call, failure.reply)
                if isinstance(failure.reply, ProtocolError)
                else self.session.reply(call, failure.reply)
            )
            if reply is not None:
                size = self.send_reply(reply, call.id)
        except Exception as unsendable:  # noqa: BLE001 - for example, error data that has no JSON
            self._reply_unsendable(call, unsendable)
            return
        self._report_failed(call, reply, failure, error, size)

    def _report_failed(
        self,
        call: IncomingRequest,
        reply: Message | None,
        failure: "Failure",
        error: BaseException,
        size: int | None,
    ) -> None:
        """Report a call that was answered with a failure."""
        if self._facts.observed:
            code = reply.error.code if isinstance(reply, ErrorResponse) else None
            outcome = "failed" if code is None else "error"
            self._facts.emit_call_ended(
                call,
                "timeout" if isinstance(error, RequestTimeout) else outcome,
                code,
                kind=failure_kind(failure.reply),
                message=reply.error.message if isinstance(reply, ErrorResponse) else None,
                reference=failure.reference,
                response_size=size,
            )

    def send_reply(self, reply: Message, request_id: RequestId) -> int | None:
        """Send a reply, alone or together with the other replies of its batch. Return its size, if it is known."""
        if self.batches is None or not self.batches.add_reply(request_id, reply):
            size = self._channel.send(reply, about=request_id)
        else:
            size = None
        if self.recorder is not None:
            self.recorder.on_reply(request_id, reply)
        return size

    def skip_reply(self, call: IncomingRequest) -> None:
        """End a call that the peer has cancelled. No reply is sent."""
        if self.batches is not None:
            self.batches.add_reply(call.id, None)
        if call.origin is not None and call.origin.stream is not None:
            call.origin.stream.give_up(call.id if call.origin.original_id is None else call.origin.original_id)
        if self.recorder is not None:
            self.recorder.on_cancelled(call)
        self._facts.emit_call_ended(call, "cancelled")


def too_large_error(error: Oversized) -> ContentTooLarge:
    """Return the error that the peer receives in place of a reply above the transport's size limit."""
    return ContentTooLarge(error.size, error.limit, setting=error.setting)


def _outcome(value: Any) -> str:
    if isinstance(value, InputRequiredResult):
        return "input_required"
    return "failed" if isinstance(value, CallToolResult) and value.is_error else "ok"


def failure_kind(value: Any) -> str | None:
    """Return the error kind of an error, or of a failed tool result."""
    if isinstance(value, ProtocolError):
        return _kind_of(value.data)
    if isinstance(value, CallToolResult) and value.is_error:
        return _kind_of((value.meta or {}).get(TOOL_ERROR))
    return None


def _kind_of(details: Any) -> str | None:
    from trunkline.protocol.error_kinds import kind_of  # imported here: for failures only

    return kind_of(details)
