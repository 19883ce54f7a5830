"""Serving processes on this machine, by their control sockets."""

import contextlib
import os
import socket
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import MsgspecError

from trunkline.errors import ConfigError, MisuseError
from trunkline.server.introspection.control_socket import SUFFIX, default_folder
from trunkline.server.introspection.process_state import CallStack, ProcessState
from trunkline.wire import codec

__all__ = ["find_sockets", "query_stacks", "query_state", "query_states"]

T = TypeVar("T")

_TIMEOUT: Final = 5.0  # seconds for a process to answer; its loop may be busy
_decode_state: Final = codec.decoder(ProcessState)
_decode_stacks: Final = codec.decoder(list[CallStack])


def find_sockets(place: str | None, pid: int | None) -> list[Path]:
    """Return the control sockets at a place: a socket, or a folder with sockets; by default the folder of this user.
    With `pid`, return the one of that process. Raises `MisuseError` if there is no such place."""
    if place is not None and not os.path.exists(place):
        raise MisuseError(f"there is no control socket, and no folder with some, at {place}")
    folder = default_folder() if place is None else Path(place)
    if not folder.is_dir():
        return [folder] if folder.exists() else []
    if pid is not None:
        wanted = folder / f"{pid}{SUFFIX}"
        if not wanted.exists():
            raise MisuseError(f"process {pid} has no control socket in {folder}")
        return [wanted]
    return sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: (len(path.name), path.name))


def query_states(paths: list[Path]) -> list[ProcessState]:
    """Return the states of all processes that answer."""
    return [state for path in paths if (state := query_state(path)) is not None]


def query_state(path: Path) -> ProcessState | None:
    """Return the state of a process; None if it has ended."""
    return _query(path, b"state\n", _decode_state)


def query_stacks(path: Path) -> list[CallStack] | None:
    """Return the calls that a process runs, with their stacks; None if it has ended."""
    return _query(path, b"stacks\n", _decode_stacks)


def _query(path: Path, request: bytes, decode: Any) -> Any:
    try:
        answer = _exchange(path, request)
    except (ConnectionRefusedError, FileNotFoundError):
        with contextlib.suppress(OSError):
            path.unlink()  # the process was killed, and could not remove it
        return None
    except OSError as error:
        raise ConfigError(f"the process at {path} does not answer: {error}") from error
    try:
        return decode(answer)
    except MsgspecError as error:
        raise ConfigError(f"the process at {path} sends something else than this version expects: {error}") from error


def _exchange(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT)
        connection.connect(str(path))
        connection.sendall(request)
        with connection.makefile("rb") as answer:
            return answer.read()
