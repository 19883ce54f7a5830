"""Replies to the calls of a peer, and the facts about how each call ended."""

from typing import TYPE_CHECKING, Any

from trunkline.errors import ContentTooLarge, ProtocolError, RequestTimeout
from trunkline.protocol.error_codes import error_object
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.session import Session
from trunkline.protocol.types import CallToolResult, InputRequiredResult
from trunkline.rpc.fact_reporter import FactReporter
from trunkline.transports.channel import Channel, Oversized
from trunkline.wire.messages import ErrorResponse, Message, RequestId

if TYPE_CHECKING:
    from trunkline.rpc.batches import Batches
    from trunkline.rpc.failures import Failure

__all__ = ["Replies", "too_large_error"]


class Replies:
    """Send the reply of each call once: a result, an error, or nothing if the peer has cancelled the call."""

    __slots__ = ("_channel", "_facts", "batches", "exposes_errors", "session")

    def __init__(self, session: Session, channel: Channel, facts: FactReporter) -> None:
        self.session = session
        self._channel = channel
        self._facts = facts
        exposed = session.settings.expose_errors
        self.exposes_errors = channel.info.same_process if exposed is None else exposed
        self.batches: Batches | None = None  # created with the first batch

    def reply_result(self, call: IncomingRequest, value: Any) -> None:
        """Reply with the value that a handler returned."""
        try:
            reply = self.session.reply(call, value)
            if reply is not None and (self.batches is None or not self.batches.add_reply(call.id, reply)):
                self._channel.send(reply, about=call.id)
        except Exception as error:  # noqa: BLE001 - for example, a value that has no JSON
            self._reply_unsendable(call, error)
        else:
            if reply is not None and self._facts.observed:
                self._facts.emit_call_ended(call, _outcome(value))

    def _reply_unsendable(self, call: IncomingRequest, error: Exception) -> None:
        """Reply with an error, since the reply that was meant to be sent cannot be encoded or is too large."""
        from trunkline.rpc.failures import build_failure  # imported here: most calls succeed

        if isinstance(error, Oversized):
            error = too_large_error(error)
        revision = self.session.revision_of(call)
        failure = build_failure(error, call, revision, expose=self.exposes_errors)
        self._facts.report_failure(call, failure.reference or "-", error)
        reply = (
            ErrorResponse(call.id, error_object(failure.reply, revision))
            if isinstance(failure.reply, ProtocolError)
            else self.session.encode_result(call, failure.reply)
        )
        try:
            self.send_reply(reply, call.id)
        except Oversized as still:  # the request id alone is that long
            reply = ErrorResponse(call.id, error_object(too_large_error(still), revision))
            self.send_reply(reply, call.id)
        code = reply.error.code if isinstance(reply, ErrorResponse) else None
        self._facts.emit_call_ended(call, "failed" if code is None else "error", code)

    def reply_error(self, call: IncomingRequest, error: BaseException) -> None:
        """Reply with the part of an exception that the peer may see."""
        from trunkline.rpc.failures import build_failure  # imported here: most calls succeed

        revision = self.session.revision_of(call)
        self.reply_failure(call, build_failure(error, call, revision, expose=self.exposes_errors), error)

    def reply_failure(self, call: IncomingRequest, failure: "Failure", error: BaseException) -> None:
        """Reply with a failure that was built from `error`."""
        if failure.reference is not None:
            self._facts.report_failure(call, failure.reference, error)
        try:
            reply: Message | None = (
                self.session.fail(call, failure.reply)
                if isinstance(failure.reply, ProtocolError)
                else self.session.reply(call, failure.reply)
            )
            if reply is not None:
                self.send_reply(reply, call.id)
        except Exception as unsendable:  # noqa: BLE001 - for example, error data that has no JSON
            self._reply_unsendable(call, unsendable)
            return
        if self._facts.observed:
            code = reply.error.code if isinstance(reply, ErrorResponse) else None
            outcome = "failed" if code is None else "error"
            self._facts.emit_call_ended(call, "timeout" if isinstance(error, RequestTimeout) else outcome, code)

    def send_reply(self, reply: Message, request_id: RequestId) -> None:
        """Send a reply, alone or together with the other replies of its batch."""
        if self.batches is None or not self.batches.add_reply(request_id, reply):
            self._channel.send(reply, about=request_id)

    def skip_reply(self, call: IncomingRequest) -> None:
        """End a call that the peer has cancelled. No reply is sent."""
        if self.batches is not None:
            self.batches.add_reply(call.id, None)
        if call.origin is not None and call.origin.stream is not None:
            call.origin.stream.give_up(call.id if call.origin.original_id is None else call.origin.original_id)
        self._facts.emit_call_ended(call, "cancelled")


def too_large_error(error: Oversized) -> ContentTooLarge:
    """Return the error that the peer receives in place of a reply above the transport's size limit."""
    return ContentTooLarge(error.size, error.limit, setting=error.setting)


def _outcome(value: Any) -> str:
    if isinstance(value, InputRequiredResult):
        return "input_required"
    return "failed" if isinstance(value, CallToolResult) and value.is_error else "ok"
