"""The backlog of a listening socket: accept what waits there, and tell a passing failure from a final one."""

import errno
import select
import socket
from collections.abc import Iterator
from typing import Any, Final, cast

from trunkline.fdlimit import DescriptorReserve

__all__ = ["DescriptorsExhausted", "ListenerClosed", "accept_pending"]

_MAX_ACCEPTS: Final = 64  # connections that are accepted before anything else has its turn
_EXHAUSTED_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_CLOSED_ERRNOS: Final = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSOCK})  # shut down, closed, or replaced
_HANGUP_EVENTS: Final = getattr(select, "POLLHUP", 0) | getattr(select, "POLLRDHUP", 0)


class DescriptorsExhausted(Exception):
    """No more connections may be accepted until descriptors are free."""


class ListenerClosed(Exception):
    """A socket does not listen any more, because it was shut down or closed from outside."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(
            f"the listener at {_address(listening)} has ended: its socket was shut down or closed; "
            "no connections are accepted there until the server is started again"
        )


def accept_pending(listening: socket.socket, reserve: DescriptorReserve) -> Iterator[socket.socket]:
    """Accept the connections that wait, up to 64 at once. The caller may stop early; the others stay in the backlog.

    Raise `DescriptorsShort` after a connection that uses the reserve, or if there is no descriptor for another one;
    raise `ListenerEnded` if the socket will never give one again.
    """
    for number in range(_MAX_ACCEPTS):
        try:
            connection, _ = listening.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED_ERRNOS:
                raise DescriptorsExhausted from None
            if error.errno in _CLOSED_ERRNOS or (number == 0 and _is_shut_down(listening)):
                raise ListenerClosed(listening) from None
            return  # nothing waits, or what waited has gone; accept(2) also reports network errors of the connection
        is_reserved = reserve.contains(connection.fileno())
        yield connection
        if is_reserved:
            raise DescriptorsExhausted


def _is_shut_down(listening: socket.socket) -> bool:
    """Whether a socket that was readable, and had nothing to accept, was shut down. A Unix socket is readable for ever
    then, and `accept` says that nothing waits."""
    if not hasattr(select, "poll"):
        return False
    poller = select.poll()
    poller.register(listening, select.POLLIN | _HANGUP_EVENTS)
    return any(found & _HANGUP_EVENTS for _, found in poller.poll(0))


def _address(listening: socket.socket) -> str:
    try:
        name: Any = listening.getsockname()
    except OSError:
        return "an address that is not known any more"
    if not isinstance(name, tuple):
        return str(name)
    host, port = cast("tuple[str, int]", name[:2])
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
