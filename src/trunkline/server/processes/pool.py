"""Processes for tools that compute: a bounded number, started when they are needed.

A process runs one call at a time. It is killed if the call is cancelled or times out, and another one takes its place.
A call whose process dies fails alone; if the process died idle, the call has not begun, and runs in another one.

The processes end with the server, also if the server is killed: they watch their end of a socket. They are new
interpreters, not forks, since a server has threads; they inherit no descriptors besides that socket and standard error.
"""

import asyncio
import functools
import inspect
import os
import pickle
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline.errors import InternalError, RegistrationError
from trunkline.registry.signatures import hints_of, is_context_annotation, name_of, underlying_function
from trunkline.server.context import Context
from trunkline.server.processes import worker
from trunkline.server.processes.worker import END_TIMEOUT, HEADER, MAIN_ALIAS, STARTED, Job, Outcome, find_function

if TYPE_CHECKING:
    from trunkline.tracing import GuardedTracer

__all__ = ["ProcessDied", "ProcessPool", "run_in_process"]


class ProcessDied(InternalError):
    """The process of a call ended before the call did."""

    kind = "tool_execution_failed"

    def __init__(self, name: str, status: int | None) -> None:
        reason = f"was ended by signal {-status}" if status is not None and status < 0 else f"exited with code {status}"
        super().__init__(f"the process that ran {name!r} {reason}; other calls are not affected")


class _Process:
    """One process, and the connection to it."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.started = False  # whether the function of the latest job has begun

    async def call(self, frame: bytes) -> Outcome | None:
        """Run a job; return None if the process ends first."""
        self.started = False
        try:
            self._writer.write(HEADER.pack(len(frame)) + frame)
            await self._writer.drain()
            await self._reader.readexactly(len(STARTED))
            self.started = True
            header = await self._reader.readexactly(HEADER.size)
            return pickle.loads(await self._reader.readexactly(HEADER.unpack(header)[0]))  # noqa: S301 - from our process
        except (asyncio.IncompleteReadError, OSError):
            return None

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        self._process.kill()
        self._writer.close()

    async def end(self) -> int:
        """Let an idle process end in good order; kill it if it takes too long. Return its status."""
        self._writer.close()
        timer = asyncio.get_running_loop().call_later(END_TIMEOUT, self._process.kill)
        try:
            return await self.wait()
        finally:
            timer.cancel()

    async def wait(self) -> int:
        """Wait for the end of the process and return its status."""
        return await asyncio.to_thread(self._process.wait)


class ProcessPool:
    """Processes of one event loop. `run` may be called concurrently; further calls wait for a free process."""

    def __init__(self, limit: int, tracer: "GuardedTracer | None" = None) -> None:
        """At most `limit` processes run. With a `tracer`, the current span of a call is current in its process, too."""
        self._limit = limit
        self._tracer = tracer
        self._running = 0  # calls that have a process, or are starting one
        self._idle: list[_Process] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._busy: set[_Process] = set()
        self._ending: set[asyncio.Task[int]] = set()
        self._closed = False

    @property
    def busy(self) -> int:
        """Calls that have a process, or are starting one."""
        return self._running

    @property
    def queued(self) -> int:
        """Calls that wait for a process."""
        return sum(not waiter.done() for waiter in self._waiting)

    async def run(self, name: str, job: Job) -> Any:
        """Run a job and return its value, or raise its exception. Cancelling this kills the process."""
        if self._tracer is not None:
            job = job._replace(continue_trace=self._tracer.carry_current())
        frame = pickle.dumps(job)
        await self._acquire()
        try:
            outcome = None
            while self._idle and outcome is None:
                process = self._idle.pop()
                outcome = await self._run_in(process, frame)
                if outcome is None and process.started:
                    raise ProcessDied(name, await process.wait())
            if outcome is None:
                process = await self._start_process()
                outcome = await self._run_in(process, frame)
                if outcome is None:
                    raise ProcessDied(name, await process.wait())
        finally:
            self._release()
        return _unpack(name, outcome)

    async def _run_in(self, process: _Process, frame: bytes) -> Outcome | None:
        """Run a job in a process; return None if the process ends first."""
        self._busy.add(process)
        outcome: Outcome | None = None
        try:
            outcome = await process.call(frame)
        finally:
            self._busy.discard(process)
            if outcome is None or self._closed:
                self._kill(process)
            else:
                self._idle.append(process)
        return outcome

    async def _acquire(self) -> None:
        """Wait until there is room for another process, first come, first served."""
        if self._running >= self._limit:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._release()  # the room was given to this call
                else:
                    self._waiting.remove(waiter)
                raise
        else:
            self._running += 1

    def _release(self) -> None:
        """Give the room to the next call, or free it."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._running -= 1

    async def _start_process(self) -> _Process:
        starting = asyncio.ensure_future(_start())
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._end_unused)
            raise

    def _end_unused(self, starting: "asyncio.Future[_Process]") -> None:
        """End a process whose call was cancelled while it started."""
        if not starting.cancelled() and starting.exception() is None:
            self._kill(starting.result())

    def _kill(self, process: _Process) -> None:
        process.kill()
        self._await_end(process.wait())

    def _await_end(self, end: Coroutine[Any, Any, int]) -> None:
        ending = asyncio.ensure_future(end)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all processes, and wait for that. Busy ones are killed, and their calls fail."""
        self._closed = True
        idle, self._idle = self._idle, []
        for process in idle:
            self._await_end(process.end())
        for process in self._busy:
            self._kill(process)
        if self._ending:
            await asyncio.wait(self._ending)


async def _start() -> _Process:
    """Start a process."""
    ours, theirs = socket.socketpair()
    try:
        process = await asyncio.to_thread(_spawn, theirs)
        theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    return _Process(process, reader, writer)


def _spawn(connection: socket.socket) -> "subprocess.Popen[bytes]":
    main = sys.modules["__main__"]
    sys.modules.setdefault(MAIN_ALIAS, main)  # its classes have this module in the results
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = None if spec is None else spec.name
    arguments = (connection.fileno(), None if path is None else str(Path(path).absolute()), name)
    code = f"import sys; sys.path[:] = {sys.path!r}; from {worker.__name__} import main; main(*{arguments!r})"
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=2, pass_fds=[connection.fileno()]
    )


def _unpack(name: str, outcome: Outcome) -> Any:
    if outcome.value is not None:
        try:
            return pickle.loads(outcome.value)  # noqa: S301 - from our process
        except Exception as error:
            raise TypeError(f"the result of {name!r} cannot be unpickled: {error}") from error
    raised: Any = RuntimeError(outcome.text) if outcome.error is None else pickle.loads(outcome.error)  # noqa: S301
    raised.add_note(f"in the process of {name!r}:\n{outcome.text}")
    raise raised


def run_in_process(function: Callable[..., Any], get_pool: Callable[[], ProcessPool]) -> Callable[..., Any]:
    """Return an async function with the signature of a plain one, which runs that one in a process. Raise
    `RegistrationError` for a function that cannot run there."""
    name = name_of(function)
    _check_function(function, name)
    module, qualname = function.__module__, function.__qualname__

    @functools.wraps(function)
    async def call(*positional: Any, **named: Any) -> Any:
        if find_function(module, qualname) is not function:
            raise TypeError(f"{module}.{qualname} is another function now, so a process cannot find {name!r}")
        try:
            arguments = pickle.dumps((positional, named))
        except Exception as error:
            raise TypeError(f"the arguments of {name!r} cannot be pickled: {error}") from error
        return await get_pool().run(name, Job(module, qualname, arguments))

    return call


def _check_function(function: Callable[..., Any], name: str) -> None:
    inner, what = underlying_function(function), f"tool {name!r} cannot run in a process: "
    if os.name != "posix":
        raise RegistrationError(f"{what}this needs a POSIX system")
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
        raise RegistrationError(f"{what}it must be a plain function, neither async nor a generator")
    if not inspect.isfunction(function) or "<" in function.__qualname__:
        raise RegistrationError(f"{what}it must be a function of a module, which another process can import")
    if any(is_context_annotation(hint, Context) for key, hint in hints_of(function, name).items() if key != "return"):
        raise RegistrationError(f"{what}the context of a call stays in the server's process; remove the parameter")
