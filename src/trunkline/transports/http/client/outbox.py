"""Order of outgoing POSTs.

Each message is its own POST, and two concurrent POSTs may arrive in any order. So nothing is sent before `initialize`
is answered, nor after `notifications/initialized` before the server has accepted it. Notifications are sent one after
the other, and a response is sent after the notifications before it, which may be its progress. Requests wait for no
other messages.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from trunkline.errors import TransportError
from trunkline.protocol.headers import InvalidValue
from trunkline.transports.channel import MirrorLookup
from trunkline.transports.http.client.headers import (
    build_modern_headers,
    build_notification_headers,
    build_trace_headers,
)
from trunkline.transports.http.client.http_backend import Reply
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
    request_id: RequestId | None = None  # set for a request
    ordered: bool = False  # sent after the notifications before it
    cancels: RequestId | None = None  # the request that it cancels
    modern_headers: Mapping[str, str] | None = None  # set for a request or notification of the modern era
    trace_headers: Mapping[str, str] | None = None  # of a request with a trace context
    started: bool = False
    accepted: bool = False  # by the server, or given up
    has_permit: bool = False  # one of max_calls
    outcome: Reply | TransportError | None = None  # of the first attempt, if it was made without a task

    @classmethod
    def from_message(
        cls, message: Message | Encoded | Sequence[Message], mirrors: MirrorLookup = lambda _: ()
    ) -> "PendingPost":
        """Encode a message. Raise TypeError if it has no JSON form, or if an argument does not fit into its header."""
        body = message.frame if isinstance(message, Encoded) else codec.to_json(message)
        if isinstance(message, Request):
            modern, trace = _modern_headers(message, mirrors), build_trace_headers(message)
            return cls(body, message.method, message.id, modern_headers=modern, trace_headers=trace)
        if isinstance(message, Notification):
            called_off = message.method == _CANCELLED
            cancels = getattr(message.params, "request_id", None) if called_off else None
            headers = build_notification_headers(message)
            return cls(body, message.method, ordered=True, cancels=cancels, modern_headers=headers)
        return cls(body, ordered=True)


def _modern_headers(request: Request, mirrors: MirrorLookup) -> Mapping[str, str] | None:
    try:
        return build_modern_headers(request, mirrors)
    except InvalidValue as error:
        raise TypeError(str(error)) from error


class Outbox:
    """Queue of the messages that must wait for earlier ones."""

    def __init__(self) -> None:
        self._barrier: PendingPost | None = None  # all other messages wait for it
        self._notification: PendingPost | None = None  # ordered messages wait for it
        self._after_notification: deque[PendingPost] = deque()  # ordered messages behind _notification
        self._after_barrier: deque[PendingPost] = deque()  # messages behind _barrier

    @property
    def barrier(self) -> PendingPost | None:
        """The message that all others wait for."""
        return self._barrier

    def put(self, pending: PendingPost) -> list[PendingPost]:
        """Add a message; return it if it may be sent now."""
        if self._barrier is not None:
            self._after_barrier.append(pending)
            return []
        if pending.ordered and self._notification is not None:
            self._after_notification.append(pending)
            return []
        if pending.method in _BARRIER_METHODS:
            self._barrier = pending
        if pending.ordered and pending.method:
            self._notification = pending
        return [pending]

    def complete(self, pending: PendingPost) -> list[PendingPost]:
        """Record that a message has arrived or failed; return those that may be sent now. Idempotent."""
        ready: list[PendingPost] = []
        if pending is self._notification:
            self._notification = None
        if pending is self._barrier:
            self._barrier = None
        while self._after_notification and self._notification is None:
            ready += self.put(self._after_notification.popleft())
        while self._after_barrier and self._barrier is None:
            ready += self.put(self._after_barrier.popleft())
        return ready
