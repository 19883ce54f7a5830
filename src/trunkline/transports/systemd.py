"""Sockets that systemd passed to this process (socket activation, `sd_listen_fds(3)`).

systemd opens the sockets of a socket unit and passes them to the service as the descriptors from 3 on. `LISTEN_FDS` is
their number, `LISTEN_PID` the process that they are for, and `LISTEN_FDNAMES` their names, separated by colons. The
variables are removed from the environment at the first use, so that child processes do not take the sockets for theirs;
the remaining sockets are kept for later calls.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from trunkline.config import take_environment
from trunkline.errors import ConfigError

__all__ = ["take_sockets"]

_FIRST_DESCRIPTOR: Final = 3
_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")
_UNNAMED: Final = "unknown"  # systemd's name for a socket without one

Passed = list[tuple[str, int]]
"""Names and descriptors of sockets that systemd passed."""

_remaining: Passed = []  # read from the environment and not taken yet


def take_sockets(name: str = "", *, unix: bool | None = None) -> list[socket.socket]:
    """Take over the sockets of a name, or all sockets without one. Raise `ConfigError` if there are none, or if a
    descriptor is not a listening stream socket, or not of the right family: Unix if `unix` is true, TCP if it is
    false."""
    _remaining.extend(parse_variables(take_environment(_VARIABLES), os.getpid()))
    chosen = [(known, number) for known, number in _remaining if name in {"", known}]
    if not chosen:
        raise ConfigError(_describe_missing(name, [known for known, _ in _remaining]))
    sockets: list[socket.socket] = []
    try:
        for known, number in chosen:
            _remaining.remove((known, number))
            sockets.append(_adopt(known, number))
            _check_family(known, sockets[-1], unix)
    except BaseException:
        for adopted in sockets:
            adopted.close()
        raise
    return sockets


def parse_variables(variables: Mapping[str, str], pid: int) -> Passed:
    """Return the names and descriptors that the variables describe; none if they are missing. Raise `ConfigError` if
    they are invalid or for another process than `pid`."""
    if "LISTEN_FDS" not in variables:
        return []
    count, owner = variables["LISTEN_FDS"], variables.get("LISTEN_PID", "")
    if not count.isdecimal():
        raise ConfigError(f"LISTEN_FDS is the number of sockets that systemd passed, not {count!r}")
    if owner != str(pid):
        raise ConfigError(
            f"LISTEN_PID is {owner!r}, but this is process {pid}: systemd passed its sockets to another process. Name "
            "the Python interpreter itself in ExecStart=; a shell script has to start it with exec"
        )
    names = variables["LISTEN_FDNAMES"].split(":") if "LISTEN_FDNAMES" in variables else [_UNNAMED] * int(count)
    if len(names) != int(count):
        raise ConfigError(f"LISTEN_FDNAMES has {len(names)} names for the {count} sockets of LISTEN_FDS")
    return [(name, _FIRST_DESCRIPTOR + index) for index, name in enumerate(names)]


def _describe_missing(name: str, others: Sequence[str]) -> str:
    if others:
        return (
            f"systemd passed no socket with the name {name!r}, only {', '.join(others)}: set FileDescriptorName={name} "
            "in the socket unit"
        )
    return (
        "systemd passed no sockets: LISTEN_FDS is not set, or the sockets were taken already. Start the service by its "
        "socket unit (systemctl start NAME.socket), which needs the name of the service or Service="
    )


def _adopt(name: str, number: int) -> socket.socket:
    """Return the listening socket of a descriptor; child processes do not inherit it."""
    try:
        adopted = socket.socket(fileno=number)
    except OSError as error:
        raise ConfigError(f"descriptor {number} ({name}) is not a socket: {error.strerror}") from error
    try:
        listens = adopted.type == socket.SOCK_STREAM and adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if not listens:
            raise ConfigError(
                f"the socket {name} (descriptor {number}) does not accept connections: use ListenStream= and Accept=no "
                "in the socket unit"
            )
        adopted.set_inheritable(False)
        adopted.setblocking(False)
    except BaseException:
        adopted.close()
        raise
    return adopted


def _check_family(name: str, adopted: socket.socket, unix: bool | None) -> None:
    is_unix = isinstance(adopted.getsockname(), str | bytes)
    if unix is not None and unix is not is_unix:
        kind, wanted, example = ("TCP", "Unix", "/run/server.sock") if unix else ("Unix", "TCP", "127.0.0.1:4000")
        raise ConfigError(
            f"the socket {name} is a {kind} socket, and this transport needs a {wanted} socket: "
            f"ListenStream={example} in the socket unit, or another transport"
        )
