"""Serving processes on this machine, by their control sockets."""

import contextlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import MsgspecError

from trunkline.errors import ConfigError, MisuseError
from trunkline.server.introspection.control_socket import SUFFIX, default_folder
from trunkline.server.introspection.process_state import CallStack, ProcessState
from trunkline.wire import codec

__all__ = ["TIMEOUT", "Answers", "find_sockets", "query_stacks", "query_state", "query_states"]

T = TypeVar("T")

_MAX_THREADS: Final = 32
TIMEOUT: Final = 5.0
"""Seconds for a process to answer; its loop may be busy."""

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


class Answers(NamedTuple):
    """The states of the processes that answered, and a line about each that did not."""

    states: list[ProcessState]
    silent: list[str]


def query_states(paths: list[Path], timeout: float = TIMEOUT) -> Answers:
    """Ask all processes for their states, at the same time: one of them may be stopped, or its loop blocked."""
    answers = Answers([], [])
    if len(paths) <= 1:  # needs no thread
        for path in paths:
            _collect(partial(query_state, path, timeout), answers)
        return answers
    with ThreadPoolExecutor(_MAX_THREADS) as threads:
        for answer in [threads.submit(query_state, path, timeout) for path in paths]:
            _collect(answer.result, answers)
    return answers


def _collect(get_state: Callable[[], ProcessState | None], answers: Answers) -> None:
    try:
        if (state := get_state()) is not None:
            answers.states.append(state)
    except ConfigError as error:
        answers.silent.append(str(error))


def query_state(path: Path, timeout: float = TIMEOUT) -> ProcessState | None:
    """Return the state of a process; None if it has ended."""
    return _query(path, b"state\n", _decode_state, timeout)


def query_stacks(path: Path, timeout: float = TIMEOUT) -> list[CallStack] | None:
    """Return the calls that a process runs, with their stacks; None if it has ended."""
    return _query(path, b"stacks\n", _decode_stacks, timeout)


def _query(path: Path, request: bytes, decode: Any, timeout: float) -> Any:
    try:
        answer = _exchange(path, request, timeout)
    except (ConnectionResetError, BrokenPipeError):  # it ends at this moment
        return None
    except (ConnectionRefusedError, FileNotFoundError):
        with contextlib.suppress(OSError):
            path.unlink()  # the process was killed, and could not remove it
        return None
    except OSError as error:
        raise ConfigError(f"the process at {path} does not answer: {error}") from error
    if not answer:  # likewise
        return None
    try:
        return decode(answer)
    except MsgspecError as error:
        raise ConfigError(f"the process at {path} sends something else than this version expects: {error}") from error


def _exchange(path: Path, request: bytes, timeout: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(request)
        with connection.makefile("rb") as answer:
            return answer.read()
