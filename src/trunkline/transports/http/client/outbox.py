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
from trunkline.transports.channel import Mirrors
from trunkline.transports.http.client.headers import label
from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Message, Notification, Request, RequestId

__all__ = ["INITIALIZE", "INITIALIZED", "Letter", "Outbox"]

INITIALIZE: Final = "initialize"
INITIALIZED: Final = "notifications/initialized"
_CANCELLED: Final = "notifications/cancelled"
_FIRST: Final = frozenset({INITIALIZE, INITIALIZED})


class Letter(Struct, eq=False):
    """One message on its way to the server."""

    body: bytes
    method: str = ""
    request: RequestId | None = None  # that it is, and that has to be answered
    in_turn: bool = False  # it goes after the notifications before it
    cancels: RequestId | None = None  # the request that it calls off
    label: Mapping[str, str] | None = None  # the headers of a request of the modern era
    posted: bool = False
    taken: bool = False  # by the server, as far as can be told

    @classmethod
    def of(cls, message: Message | Encoded | Sequence[Message], mirrors: Mirrors = lambda _: ()) -> "Letter":
        """The letter of a message. Raises TypeError for one that has no JSON, or no headers where it needs some."""
        body = message.frame if isinstance(message, Encoded) else codec.to_json(message)
        if isinstance(message, Request):
            return cls(body, message.method, message.id, label=_label(message, mirrors))
        if isinstance(message, Notification):
            called_off = message.method == _CANCELLED
            cancels = getattr(message.params, "request_id", None) if called_off else None
            return cls(body, message.method, in_turn=True, cancels=cancels)
        return cls(body, in_turn=True)


def _label(request: Request, mirrors: Mirrors) -> Mapping[str, str] | None:
    try:
        return label(request, mirrors)
    except InvalidValue as error:
        raise TypeError(str(error)) from error


class Outbox:
    """Keeps what may not go out yet."""

    def __init__(self) -> None:
        self._first: Letter | None = None  # that all others wait for
        self._notice: Letter | None = None  # that those in turn wait for
        self._behind: deque[Letter] = deque()  # it
        self._held: deque[Letter] = deque()  # by the first

    @property
    def opening(self) -> Letter | None:
        """The letter that all others wait for."""
        return self._first

    def put(self, letter: Letter) -> list[Letter]:
        """Takes a letter; gives it back if it may go now."""
        if self._first is not None:
            self._held.append(letter)
            return []
        if letter.in_turn and self._notice is not None:
            self._behind.append(letter)
            return []
        if letter.method in _FIRST:
            self._first = letter
        if letter.in_turn and letter.method:
            self._notice = letter
        return [letter]

    def done(self, letter: Letter) -> list[Letter]:
        """A letter has arrived, or never will: gives those that may go now. Twice is once."""
        ready: list[Letter] = []
        if letter is self._notice:
            self._notice = None
        if letter is self._first:
            self._first = None
        while self._behind and self._notice is None:
            ready += self.put(self._behind.popleft())
        while self._held and self._first is None:
            ready += self.put(self._held.popleft())
        return ready
