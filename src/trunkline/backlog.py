"""Accept connections from the backlog of a listening socket, and distinguish temporary failures from permanent ones."""

import errno
import select
import socket
from collections.abc import Iterator
from typing import Any, Final, cast

from trunkline.fdlimit import DescriptorReserve

__all__ = ["DescriptorsExhausted", "ListenerClosed", "accept_pending", "is_listening"]

_MAX_ACCEPTS: Final = 64  # accepted connections per turn of the loop
_EXHAUSTED_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_CLOSED_ERRNOS: Final = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSOCK})  # shut down, closed, or replaced
_HANGUP_EVENTS: Final = getattr(select, "POLLHUP", 0) | getattr(select, "POLLRDHUP", 0)


class DescriptorsExhausted(Exception):
    """No more connections may be accepted until descriptors are free."""


class ListenerClosed(Exception):
    """A socket no longer listens because it was shut down or closed from outside."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(
            f"the listener at {_address(listener)} has ended: its socket was shut down or closed; "
            "no connections are accepted there until it is restarted"
        )


def accept_pending(listener: socket.socket, reserve: DescriptorReserve) -> Iterator[socket.socket]:
    """Accept the pending connections, up to 64 at once. The caller may stop early; the remaining ones stay in the
    backlog.

    Raise `DescriptorsExhausted` after a connection that uses the reserve, or if there is no free descriptor; raise
    `ListenerClosed` if the socket will never accept again.
    """
    for number in range(_MAX_ACCEPTS):
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED_ERRNOS:
                raise DescriptorsExhausted from None
            if error.errno in _CLOSED_ERRNOS or (number == 0 and _is_shut_down(listener)):
                raise ListenerClosed(listener) from None
            return  # the backlog is empty; accept(2) also reports network errors of the connection
        is_reserved = reserve.contains(connection.fileno())
        yield connection
        if is_reserved:
            raise DescriptorsExhausted


def is_listening(listener: socket.socket) -> bool:
    """Return whether a socket still listens. An event loop reports nothing for a descriptor that was closed under
    it."""
    try:
        return listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0
    except OSError as error:
        return error.errno not in _CLOSED_ERRNOS


def _is_shut_down(listener: socket.socket) -> bool:
    """Return whether a socket that was readable, and had nothing to accept, was shut down. A Unix socket stays
    readable then, and `accept` reports an empty backlog."""
    if not hasattr(select, "poll"):
        return False
    poller = select.poll()
    poller.register(listener, select.POLLIN | _HANGUP_EVENTS)
    return any(events & _HANGUP_EVENTS for _, events in poller.poll(0))


def _address(listener: socket.socket) -> str:
    try:
        name: Any = listener.getsockname()
    except OSError:
        return "an unknown address"
    if not isinstance(name, tuple):
        return str(name)
    host, port = cast("tuple[str, int]", name[:2])
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
