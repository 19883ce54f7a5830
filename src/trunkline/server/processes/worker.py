"""A process that runs plain functions of tools, one at a time, for a server.

The server and the process exchange frames over a socket: a length, and a pickle. Before it runs a function, the process
sends a byte, so the server knows which calls a dead process has not begun. One thread reads them, so that the
process ends at once when the server does, even while a function computes; the main thread runs the functions. An idle
process ends in good order, so that libraries such as exporters of traces can finish. Standard output goes to standard
error, since it may be the server's connection to its client.
"""

import contextlib
import os
import pickle
import queue
import runpy
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any, Final, NamedTuple

__all__ = ["END_TIMEOUT", "HEADER", "MAIN_ALIAS", "STARTED", "Job", "Outcome", "find_function", "is_worker", "main"]

END_TIMEOUT: Final = 2.0  # seconds that an idle process has to end in good order
HEADER: Final = struct.Struct(">Q")  # the length of a frame
STARTED: Final = b"\x01"  # sent before the function of a job runs
MAIN_ALIAS: Final = "__mp_main__"  # the name that the main module has here, as in `multiprocessing`


class Job(NamedTuple):
    """A call: the function by its module and name, the pickled positional and keyword arguments, and a pickled function
    that makes the span of the call current."""

    module: str
    qualname: str
    arguments: bytes
    continue_trace: bytes | None = None


class Outcome(NamedTuple):
    """The value of a call, or its error as pickled exception and text."""

    value: bytes | None
    error: bytes | None = None
    text: str = ""


class _State:
    is_worker = False


def is_worker() -> bool:
    """Return whether this process is such a worker."""
    return _State.is_worker


def find_function(module: str, qualname: str) -> Any:
    """Return a function by its module and name. Raise `ImportError` or `AttributeError` if there is none."""
    if module not in sys.modules:
        __import__(module)
    found: Any = sys.modules[module]
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def main(descriptor: int, main_path: str | None, main_name: str | None) -> None:
    """Run the jobs that arrive at a socket until it is closed."""
    _State.is_worker = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the server, which then ends this process
    connection = socket.socket(fileno=descriptor)
    jobs: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    idle = threading.Event()
    threading.Thread(target=_read_frames, args=(connection, jobs, idle), daemon=True).start()
    loaded = False
    idle.set()
    while True:
        frame = jobs.get()
        idle.clear()
        if frame is None:
            return
        connection.sendall(STARTED)
        try:
            job: Job = pickle.loads(frame)  # noqa: S301 - from the server
            if job.module == "__main__" and not loaded:
                _load_main(main_path, main_name)
                loaded = True
            outcome = _run(job)
        except BaseException as error:  # noqa: BLE001 - reported to the server
            outcome = _failed(error)
        reply = pickle.dumps(outcome)
        idle.set()  # before the reply: the server may end once it has that
        connection.sendall(HEADER.pack(len(reply)) + reply)


def _read_frames(connection: socket.socket, jobs: "queue.SimpleQueue[bytes | None]", idle: threading.Event) -> None:
    """Queue every frame; end the process when the server has gone."""
    try:
        while header := _read_exactly(connection, HEADER.size):
            jobs.put(_read_exactly(connection, HEADER.unpack(header)[0]))
        if idle.is_set():
            jobs.put(None)
            time.sleep(END_TIMEOUT)
    finally:
        os._exit(0)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    """Return the next bytes; empty at the end of the stream."""
    parts: list[bytes] = []
    while size and (part := connection.recv(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"" if size else b"".join(parts)


def _load_main(path: str | None, name: str | None) -> None:
    """Run the server's main module under another name, so that `if __name__ == "__main__"` is false in it."""
    if path is None and name is None:
        raise ImportError("a function of an interactive session cannot run in a process; put it into a module")
    content = (
        runpy.run_module(name, run_name=MAIN_ALIAS, alter_sys=True)
        if name is not None
        else runpy.run_path(str(path), run_name=MAIN_ALIAS)
    )
    module = type(sys)(MAIN_ALIAS)
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules[MAIN_ALIAS] = module


def _run(job: Job) -> Outcome:
    function = find_function(job.module, job.qualname)
    positional, named = _load_arguments(job.arguments)
    context = copy_context()  # the span of this call must not be current in the next one
    if job.continue_trace is not None:
        with contextlib.suppress(Exception):  # a tracer's fault is its own
            context.run(pickle.loads(job.continue_trace))  # noqa: S301 - from the server
    value = context.run(function, *positional, **named)
    try:
        return Outcome(pickle.dumps(value))
    except Exception as error:
        raise TypeError(f"the result cannot be pickled: {error}") from error


def _load_arguments(pickled: bytes) -> tuple[Sequence[Any], dict[str, Any]]:
    return pickle.loads(pickled)  # noqa: S301 - from the server


def _failed(error: BaseException) -> Outcome:
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - an exception with other arguments than its class takes fails here
    except Exception:  # noqa: BLE001 - the text is all that can be sent
        pickled = None
    return Outcome(None, pickled, text)
