"""Open the listening sockets of an address: of a host and port, of a path, or passed by systemd.

A Unix socket is a file. The server that created it removes it at the end; the next server removes a stale file, on
which no process listens any more. Sockets that systemd passed stay open in systemd, and their files are left in place.
"""

import asyncio
import contextlib
import errno
import ipaddress
import socket
import stat
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from trunkline.config import Settings, UnixSocketAccess
from trunkline.errors import ConfigError, TransportError
from trunkline.transports.addresses import Address, format_bound, format_host_port
from trunkline.transports.origin_policy import ANY_IP_ADDRESS
from trunkline.transports.systemd import take_sockets

__all__ = [
    "LOOPBACK_ADDRESS",
    "ListeningSockets",
    "bind",
    "bind_unix",
    "open_sockets",
    "resolve",
    "warn_if_unencrypted",
]

LOOPBACK_ADDRESS: Final = "127.0.0.1"

_BACKLOG: Final = 1024  # pending connections per listening socket
_ADDRESS_UNAVAILABLE: Final = frozenset(
    {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
)  # a host name may resolve to addresses of other machines
_ADVICE: Final = {
    errno.EADDRINUSE: "; stop the other program or choose another port",
    errno.EACCES: "; choose a port above 1023, or run with the right to use this one",
    errno.EADDRNOTAVAIL: "; choose an address of this machine",
}
_REUSE_ADVICE: Final = (
    "; to share the port, all processes need the setting reuse_port and the same user, or choose another port"
)
_MODES: Final[Mapping[UnixSocketAccess, int]] = {"owner": 0o600, "group": 0o660, "all": 0o666}
_FAMILY_REQUIRED: Final = {"tcp": False, "unix": True}  # by transport: whether sockets must be Unix sockets
_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - only compared with

AddressInfo = tuple[Any, ...]
"""One entry of the result of `getaddrinfo`."""


class ListeningSockets:
    """The sockets that listen at one address."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        address: str,
        *,
        host_names: Sequence[str] = (),
        remove_file: Callable[[], object] = lambda: None,
        open_again: "Callable[[int], ListeningSockets] | None" = None,
    ) -> None:
        """`address` is the one that clients use. `host_names` are the names that an HTTP server answers to, besides
        the loopback names. `open_again` opens the socket with a number again."""
        self.sockets = list(sockets)
        self.address = address
        self.host_names = tuple(host_names)
        self.remove_file = remove_file
        self._open_again = open_again

    def reopen(self, number: int) -> socket.socket:
        """Open a socket that no longer listens again, at the same address; return it. Raises `TransportError`."""
        if self._open_again is None:
            raise TransportError(
                f"cannot listen at {self.address} again: another program has opened its socket; restart that one"
            )
        opened = self._open_again(number)
        self.sockets[number], self.remove_file = opened.sockets[0], opened.remove_file
        return self.sockets[number]

    def close(self) -> None:
        """Close the sockets, and remove the socket file that was created for them."""
        for listener in self.sockets:
            listener.close()
        self.remove_file()


def open_sockets(where: Address, settings: Settings, resolved: Sequence[AddressInfo] | None = None) -> ListeningSockets:
    """Open the sockets of an address, or take them over from systemd; `resolved` are the addresses of the host if they
    are known."""
    if where.inherited:
        opened = _open_inherited(where)
    elif where.socket_path:
        opened = bind_unix(where, settings.unix_socket_access)
    else:
        listeners = bind(where.host, where.port, resolved, reuse_port=settings.reuse_port)
        address = format_bound(where, listeners[0].getsockname())
        places = [(listener.family, listener.getsockname()) for listener in listeners]
        again = partial(_reopen, places, address, reuse_port=settings.reuse_port)
        opened = ListeningSockets(listeners, address, host_names=_default_host_names(where.host), open_again=again)
    return opened


def _open_inherited(where: Address) -> ListeningSockets:
    sockets = take_sockets(where.host, unix=False if where.secure else _FAMILY_REQUIRED.get(where.transport))
    first = sockets[0].getsockname()
    hosts = [place[0] for place in map(_bound_to, sockets) if place]
    names = dict.fromkeys(name for host in hosts for name in _default_host_names(host))
    return ListeningSockets(sockets, format_bound(where, first), host_names=tuple(names))


def _bound_to(listener: socket.socket) -> tuple[Any, ...]:
    """Return the host and port of a socket; nothing for a Unix socket."""
    name: Any = listener.getsockname()
    return cast("tuple[Any, ...]", name) if isinstance(name, tuple) else ()


def _default_host_names(host: str) -> tuple[str, ...]:
    """Return the host names that a server bound to `host` answers to, besides the loopback names."""
    if host in _WILDCARDS:
        return (socket.gethostname(), ANY_IP_ADDRESS)
    return (f"[{host}]" if ":" in host else host,)


def warn_if_unencrypted(where: Address, opened: ListeningSockets) -> None:
    """Warn if other machines can reach the sockets of an address without encryption."""
    hosts = [place[0] for place in map(_bound_to, opened.sockets) if place]
    if where.secure or all(ipaddress.ip_address(host.partition("%")[0]).is_loopback for host in hosts):
        return
    local = "a socket unit with a loopback address" if where.inherited else f"host={LOOPBACK_ADDRESS!r}"
    warnings.warn(
        f"{opened.address} can be reached from other machines without encryption; pass tls=, or {local}",
        RuntimeWarning,
        stacklevel=4,
    )


# --- a host and port -------------------------------------------------------------------------------


async def resolve(host: str, port: int) -> Sequence[AddressInfo]:
    """Return the addresses of a host to listen on; a numeric address is resolved without a thread."""
    flags = socket.AI_PASSIVE
    try:
        return socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=flags | socket.AI_NUMERICHOST if host else flags
        )
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        try:
            return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        except OSError as error:
            raise _cannot_listen(host, port, error) from error


def bind(
    host: str, port: int, addresses: Sequence[AddressInfo] | None = None, *, reuse_port: bool = False
) -> list[socket.socket]:
    """Open a listening socket for each address of a host. If the port is 0, all sockets share the port that the
    system chose. With `reuse_port`, other processes of the same user may listen on the port, too."""
    if reuse_port and not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError(
            "the setting reuse_port needs SO_REUSEPORT, which this system lacks: leave it off, and use workers= to "
            "serve one port with several processes"
        )
    listeners: list[socket.socket] = []
    chosen, unavailable = port, OSError("it has no address")
    try:
        if addresses is None:
            addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            try:
                listeners.append(_open_listener(family, (address[0], chosen, *address[2:]), reuse_port))
            except OSError as error:
                if error.errno not in _ADDRESS_UNAVAILABLE:
                    raise
                unavailable = error
            else:
                chosen = listeners[-1].getsockname()[1]
        if not listeners:
            raise unavailable
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise _cannot_listen(host, port, error, reuse_port=reuse_port) from error
    return listeners


def _open_listener(family: int, address: tuple[Any, ...], reuse_port: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _reopen(
    places: Sequence[tuple[int, tuple[Any, ...]]], address: str, number: int, *, reuse_port: bool
) -> ListeningSockets:
    """Open one of several sockets again, at the address that it was bound to."""
    family, bound = places[number]
    try:
        return ListeningSockets([_open_listener(family, bound, reuse_port)], address)
    except OSError as error:
        raise _cannot_listen(bound[0], bound[1], error, reuse_port=reuse_port) from error


def _cannot_listen(host: str, port: int, error: OSError, *, reuse_port: bool = False) -> TransportError:
    reason = f"{error.strerror or error}"
    if isinstance(error, socket.gaierror):
        advice = "; choose a name or an address of this machine"
    elif reuse_port and error.errno == errno.EADDRINUSE:
        advice = _REUSE_ADVICE
    else:
        advice = _ADVICE.get(error.errno or 0, "")
    return TransportError(f"cannot listen on {format_host_port(host, port)}: {reason}{advice}")


# --- Unix sockets ----------------------------------------------------------------------------------


def bind_unix(where: Address, access: UnixSocketAccess = "owner") -> ListeningSockets:
    """Create the socket file of an address and listen on it. `access` names the users that may connect."""
    path = Path(where.socket_path)
    address = format_bound(where, where.socket_path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path, address)
        listener.bind(str(path))
        path.chmod(_MODES[access])  # connections are refused until `listen`
        inode = path.stat().st_ino
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException as error:
        listener.close()
        if isinstance(error, OSError) and not isinstance(error, TransportError):
            raise TransportError(f"cannot listen on {address}: {error.strerror or error}") from error
        raise
    return ListeningSockets(
        [listener],
        address,
        remove_file=partial(_remove_own, path, inode),
        open_again=lambda _: bind_unix(where, access),
    )


def _remove_own(path: Path, inode: int) -> None:
    """Remove a socket file, unless another server has replaced it: then its inode differs."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ino == inode:
            path.unlink()


def _remove_stale(path: Path, address: str) -> None:
    """Remove a socket file on which no process listens. Raise TransportError if one does, or if the file is not a
    socket."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise TransportError(
            f"cannot listen on {address}: a file that is not a socket exists there; choose another path"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog must not block
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise TransportError(f"cannot listen on {address}: another server listens there; stop it, or choose another path")
