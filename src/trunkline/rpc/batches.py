"""JSON-RPC batches (revision 2025-03-26): the replies to a batch are sent together, when the last one is complete."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field

from trunkline.protocol.events import MessageRefused, SessionEvent
from trunkline.protocol.inflight import IncomingRequest
from trunkline.wire.messages import Malformed, Message, RequestId

__all__ = ["Batches"]


class PendingBatch(Struct):
    """The replies to one batch so far, and the number still missing."""

    remaining: int = 1  # reading the batch counts as one, so that it is not complete before all of it is read
    replies: list[Message] = field(default_factory=list[Message])


class Batches:
    """The batches of one connection whose replies are incomplete."""

    __slots__ = ("_send", "pending")

    def __init__(self, send: Callable[[Sequence[Message]], None]) -> None:
        self._send = send
        self.pending: dict[RequestId, PendingBatch] = {}  # by the id of each request without a reply

    def receive(
        self, messages: Sequence[Message | Malformed], receive_message: Callable[[Message | Malformed], SessionEvent]
    ) -> Iterator[SessionEvent]:
        """Yield the event of each message in a batch. The reply to a refused message is sent with the others."""
        batch = PendingBatch()
        for message in messages:
            event = receive_message(message)
            if isinstance(event, MessageRefused):
                batch.replies.append(event.reply)
                continue
            if isinstance(event, IncomingRequest):
                batch.remaining += 1
                self.pending[event.id] = batch
            yield event
        self._count_down(batch)

    def add_reply(self, request_id: RequestId, reply: Message | None) -> bool:
        """Add the reply to a request, or None if it gets none; return False if it belongs to no batch."""
        batch = self.pending.pop(request_id, None)
        if batch is None:
            return False
        if reply is not None:
            batch.replies.append(reply)
        self._count_down(batch)
        return True

    def _count_down(self, batch: PendingBatch) -> None:
        """Count one reply, and send all of them after the last one."""
        batch.remaining -= 1
        if not batch.remaining and batch.replies:
            self._send(batch.replies)
