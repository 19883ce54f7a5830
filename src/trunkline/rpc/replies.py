"""Answers to a peer's calls: what is sent when one has ended, and what is told of that."""

from typing import Any

from trunkline.clock import Clock
from trunkline.errors import ContentTooLarge, ProtocolError, RequestTimeout
from trunkline.facts import Observers
from trunkline.protocol.error_codes import error_object
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.session import Session
from trunkline.protocol.types import CallToolResult, InputRequiredResult
from trunkline.rpc.batches import Batches
from trunkline.rpc.dispatch import Failure, build_failure
from trunkline.rpc.fact_reporter import FactReporter
from trunkline.transports.channel import Channel, Oversized
from trunkline.wire.messages import ErrorResponse, Message, RequestId

__all__ = ["Replies", "too_large_error"]


class Replies(FactReporter):
    """The end of a line that answers. Each call has one answer, or none if nobody waits for it any more."""

    __slots__ = ("_batches", "channel", "exposes_errors", "session")

    def __init__(self, session: Session, channel: Channel, clock: Clock, observers: Observers) -> None:
        super().__init__(clock, observers)
        self.session = session
        self.channel = channel
        exposed = session.settings.expose_errors
        self.exposes_errors = channel.info.same_process if exposed is None else exposed
        self._batches: Batches | None = None  # where there has been one

    def reply_result(self, call: IncomingRequest, value: Any) -> None:
        """Answers a call with what it has come to."""
        try:
            answer = self.session.reply(call, value)
            if answer is not None and (self._batches is None or not self._batches.add_reply(call.id, answer)):
                self.channel.send(answer, about=call.id)
        except Exception as error:  # noqa: BLE001 - a value without JSON, for one
            self._reply_unsendable(call, error)
        else:
            if answer is not None and self.observed:
                self.emit_call_ended(call, _outcome(value))

    def _reply_unsendable(self, call: IncomingRequest, error: Exception) -> None:
        if isinstance(error, Oversized):
            error = too_large_error(error)
        revision = self.session.revision_of(call)
        failure = build_failure(error, call, revision, expose=self.exposes_errors)
        self.report_failure(call, failure.reference or "-", error)
        answer = (
            ErrorResponse(call.id, error_object(failure.reply, revision))
            if isinstance(failure.reply, ProtocolError)
            else self.session.encode_result(call, failure.reply)
        )
        try:
            self.send_reply(answer, call.id)
        except Oversized as again:  # the id of the request alone is that long
            answer = ErrorResponse(call.id, error_object(too_large_error(again), revision))
            self.send_reply(answer, call.id)
        code = answer.error.code if isinstance(answer, ErrorResponse) else None
        self.emit_call_ended(call, "failed" if code is None else "error", code)

    def reply_error(self, call: IncomingRequest, error: BaseException) -> None:
        """Answers a call with what its peer is told of an exception."""
        revision = self.session.revision_of(call)
        self.reply_failure(call, build_failure(error, call, revision, expose=self.exposes_errors), error)

    def reply_failure(self, call: IncomingRequest, failure: Failure, error: BaseException) -> None:
        """Answers a call that failed."""
        if failure.reference is not None:
            self.report_failure(call, failure.reference, error)
        try:
            answer: Message | None = (
                self.session.fail(call, failure.reply)
                if isinstance(failure.reply, ProtocolError)
                else self.session.reply(call, failure.reply)
            )
            if answer is not None:
                self.send_reply(answer, call.id)
        except Exception as unsendable:  # noqa: BLE001 - data without JSON, for one
            self._reply_unsendable(call, unsendable)
            return
        if self.observed:
            code = answer.error.code if isinstance(answer, ErrorResponse) else None
            outcome = "failed" if code is None else "error"
            self.emit_call_ended(call, "timeout" if isinstance(error, RequestTimeout) else outcome, code)

    def send_reply(self, reply: Message, request_id: RequestId) -> None:
        """Sends the answer to a call, alone or with the others of its batch."""
        if self._batches is None or not self._batches.add_reply(request_id, reply):
            self.channel.send(reply, about=request_id)

    def skip_reply(self, call: IncomingRequest) -> None:
        """The peer does not want to know any more."""
        if self._batches is not None:
            self._batches.add_reply(call.id, None)
        if call.origin is not None and call.origin.stream is not None:
            call.origin.stream.give_up(call.id if call.origin.named is None else call.origin.named)
        self.emit_call_ended(call, "cancelled")


def too_large_error(error: Oversized) -> ContentTooLarge:
    """What the peer is told of an answer that its transport does not take."""
    return ContentTooLarge(error.size, error.limit, setting=error.setting)


def _outcome(value: Any) -> str:
    if isinstance(value, InputRequiredResult):
        return "input_required"
    return "failed" if isinstance(value, CallToolResult) and value.is_error else "ok"
