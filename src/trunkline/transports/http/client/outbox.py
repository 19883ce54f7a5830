"""What is to be posted, in the order that matters.

Each message is a POST of its own, and two that are under way at once may arrive in any order. So nothing goes out
before `initialize` is answered, nor after `notifications/initialized` before that has been taken. Notifications go one
after the other, and an answer of ours goes after the notifications before it: they may be its progress. Requests wait
for nobody else.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from trunkline.protocol.headers import InvalidValue
from trunkline.transports.channel import MirrorLookup
from trunkline.transports.http.client.headers import build_modern_headers
from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Message, Notification, Request, RequestId

__all__ = ["INITIALIZE", "INITIALIZED", "Outbox", "PendingPost"]

INITIALIZE: Final = "initialize"
INITIALIZED: Final = "notifications/initialized"
_CANCELLED: Final = "notifications/cancelled"
_BARRIER_METHODS: Final = frozenset({INITIALIZE, INITIALIZED})


class PendingPost(Struct, eq=False):
    """One message on its way to the server."""

    body: bytes
    method: str = ""
    request_id: RequestId | None = None  # that it is, and that has to be answered
    ordered: bool = False  # it goes after the notifications before it
    cancels: RequestId | None = None  # the request that it calls off
    modern_headers: Mapping[str, str] | None = None  # the headers of a request of the modern era
    started: bool = False
    accepted: bool = False  # by the server, as far as can be told

    @classmethod
    def from_message(
        cls, message: Message | Encoded | Sequence[Message], mirrors: MirrorLookup = lambda _: ()
    ) -> "PendingPost":
        """The letter of a message. Raises TypeError for one that has no JSON, or no headers where it needs some."""
        body = message.frame if isinstance(message, Encoded) else codec.to_json(message)
        if isinstance(message, Request):
            return cls(body, message.method, message.id, modern_headers=_modern_headers(message, mirrors))
        if isinstance(message, Notification):
            called_off = message.method == _CANCELLED
            cancels = getattr(message.params, "request_id", None) if called_off else None
            return cls(body, message.method, ordered=True, cancels=cancels)
        return cls(body, ordered=True)


def _modern_headers(request: Request, mirrors: MirrorLookup) -> Mapping[str, str] | None:
    try:
        return build_modern_headers(request, mirrors)
    except InvalidValue as error:
        raise TypeError(str(error)) from error


class Outbox:
    """Keeps what may not go out yet."""

    def __init__(self) -> None:
        self._barrier: PendingPost | None = None  # that all others wait for
        self._notification: PendingPost | None = None  # that those in turn wait for
        self._after_notification: deque[PendingPost] = deque()  # it
        self._after_barrier: deque[PendingPost] = deque()  # by the first

    @property
    def barrier(self) -> PendingPost | None:
        """The letter that all others wait for."""
        return self._barrier

    def put(self, letter: PendingPost) -> list[PendingPost]:
        """Takes a letter; gives it back if it may go now."""
        if self._barrier is not None:
            self._after_barrier.append(letter)
            return []
        if letter.ordered and self._notification is not None:
            self._after_notification.append(letter)
            return []
        if letter.method in _BARRIER_METHODS:
            self._barrier = letter
        if letter.ordered and letter.method:
            self._notification = letter
        return [letter]

    def complete(self, letter: PendingPost) -> list[PendingPost]:
        """A letter has arrived, or never will: gives those that may go now. Twice is once."""
        ready: list[PendingPost] = []
        if letter is self._notification:
            self._notification = None
        if letter is self._barrier:
            self._barrier = None
        while self._after_notification and self._notification is None:
            ready += self.put(self._after_notification.popleft())
        while self._after_barrier and self._barrier is None:
            ready += self.put(self._after_barrier.popleft())
        return ready
