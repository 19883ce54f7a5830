"""Batches, which revision 2025-03-26 has: the answers to one go out together, when the last of them is there."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field

from trunkline.protocol.events import CallReceived, Event, Refused
from trunkline.wire.messages import Malformed, Message, RequestId

__all__ = ["Batches"]


class Gathering(Struct):
    """The answers to one batch so far, and how many are still to come."""

    waiting: int = 1  # whoever reads the batch counts as one, so that it is not complete before it is read
    answers: list[Message] = field(default_factory=list[Message])


class Batches:
    """The batches of one connection that are not answered yet."""

    __slots__ = ("_send", "open")

    def __init__(self, send: Callable[[Sequence[Message]], None]) -> None:
        self._send = send
        self.open: dict[RequestId, Gathering] = {}  # by the requests that are not answered yet; empty most of the time

    def take_apart(
        self, messages: Sequence[Message | Malformed], receive: Callable[[Message | Malformed], Event]
    ) -> Iterator[Event]:
        """What the messages of one batch mean, one by one; what is refused is answered together with the others."""
        gathering = Gathering()
        for message in messages:
            event = receive(message)
            if isinstance(event, Refused):
                gathering.answers.append(event.reply)
                continue
            if isinstance(event, CallReceived):
                gathering.waiting += 1
                self.open[event.call.id] = gathering
            yield event
        self._done(gathering)

    def take(self, ident: RequestId, answer: Message | None) -> bool:
        """Takes the answer to a request, or learns that there will be none; False if it belongs to no batch."""
        gathering = self.open.pop(ident, None)
        if gathering is None:
            return False
        if answer is not None:
            gathering.answers.append(answer)
        self._done(gathering)
        return True

    def _done(self, gathering: Gathering) -> None:
        """One less to wait for; with the last one the answers go out."""
        gathering.waiting -= 1
        if not gathering.waiting and gathering.answers:
            self._send(gathering.answers)
