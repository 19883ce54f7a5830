"""Batches, which revision 2025-03-26 has: the answers to one go out together, when the last of them is there."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field

from trunkline.protocol.events import CallReceived, MessageRefused, SessionEvent
from trunkline.wire.messages import Malformed, Message, RequestId

__all__ = ["Batches"]


class PendingBatch(Struct):
    """The answers to one batch so far, and how many are still to come."""

    remaining: int = 1  # whoever reads the batch counts as one, so that it is not complete before it is read
    replies: list[Message] = field(default_factory=list[Message])


class Batches:
    """The batches of one connection that are not answered yet."""

    __slots__ = ("_send", "pending")

    def __init__(self, send: Callable[[Sequence[Message]], None]) -> None:
        self._send = send
        self.pending: dict[
            RequestId, PendingBatch
        ] = {}  # by the requests that are not answered yet; empty most of the time

    def receive(
        self, messages: Sequence[Message | Malformed], receive_message: Callable[[Message | Malformed], SessionEvent]
    ) -> Iterator[SessionEvent]:
        """What the messages of one batch mean, one by one; what is refused is answered together with the others."""
        gathering = PendingBatch()
        for message in messages:
            event = receive_message(message)
            if isinstance(event, MessageRefused):
                gathering.replies.append(event.reply)
                continue
            if isinstance(event, CallReceived):
                gathering.remaining += 1
                self.pending[event.call.id] = gathering
            yield event
        self._count_down(gathering)

    def add_reply(self, request_id: RequestId, reply: Message | None) -> bool:
        """Takes the answer to a request, or learns that there will be none; False if it belongs to no batch."""
        gathering = self.pending.pop(request_id, None)
        if gathering is None:
            return False
        if reply is not None:
            gathering.replies.append(reply)
        self._count_down(gathering)
        return True

    def _count_down(self, batch: PendingBatch) -> None:
        """One less to wait for; with the last one the answers go out."""
        batch.remaining -= 1
        if not batch.remaining and batch.replies:
            self._send(batch.replies)
