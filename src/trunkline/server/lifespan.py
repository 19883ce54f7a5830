"""Lifespan of a server: an async context manager around all connections, for a pool, a model or a cache.

The server enters and exits it in one dedicated task, since some context managers require that. A started server holds
it until shutdown. A server that only serves clients in its own process exits it with the last of them.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from trunkline.errors import MisuseError
from trunkline.registry.signatures import accepts_positional, name_of, underlying_function

__all__ = ["Lifespan", "LifespanUsers"]

_ADVICE: Final = "write `async def lifespan(server): ...` with one `yield` between setup and cleanup"


@dataclass
class _LifespanRun:
    """One period from entering the context manager to exiting it."""

    task: "asyncio.Task[None]"
    started: "asyncio.Future[Any]"  # the entered value
    stop: asyncio.Event
    waiters: int = 0  # callers of `start` that wait for it

    @property
    def on_running_loop(self) -> bool:
        """Whether it belongs to the running loop."""
        return self.task.get_loop() is asyncio.get_running_loop()


class LifespanUsers:
    """Users that keep the lifespans of a server entered on the running loop: the started server, clients in this
    process, and servers that it is mounted in. Users on a closed loop do not count."""

    def __init__(self) -> None:
        self._started_on: asyncio.AbstractEventLoop | None = None
        self._clients: dict[object, asyncio.AbstractEventLoop] = {}

    @property
    def in_use(self) -> bool:
        """Whether any user is left."""
        loop = asyncio.get_running_loop()
        return self._started_on is loop or any(home is loop for home in self._clients.values())

    def mark_started(self) -> Callable[[], None]:
        """Count the started server as a user; return a function that undoes it."""
        before, self._started_on = self._started_on, asyncio.get_running_loop()

        def undo() -> None:
            self._started_on = before

        return undo

    def mark_ended(self) -> None:
        """Stop counting the server as a user. Clients remain users."""
        self._started_on = None

    def add(self, client: object) -> None:
        """Count a client, or a server, as a user."""
        self._clients[client] = asyncio.get_running_loop()

    def remove(self, client: object) -> None:
        """Stop counting a client as a user."""
        self._clients.pop(client, None)


class Lifespan:
    """An async context manager of the application, entered at most once at a time."""

    def __init__(self, factory: Callable[[Any], Any]) -> None:
        """`factory` takes the server and returns an async context manager, or is an async generator function that
        yields once. Raises `MisuseError` for anything else that is recognisable before the call."""
        _check_factory(factory)
        self._factory = (
            contextlib.asynccontextmanager(factory)
            if inspect.isasyncgenfunction(underlying_function(factory))
            else factory
        )
        self._name = name_of(factory)
        self._run: _LifespanRun | None = None
        self._exiting: asyncio.Task[None] | None = None  # the previous run, while it exits
        self._value: Any = None

    @property
    def running(self) -> bool:
        """Whether it is entered on the running loop."""
        return self._run is not None and self._run.on_running_loop and self._run.started.done()

    @property
    def value(self) -> Any:
        """The value of the last entered context manager."""
        return self._value

    async def start(self, server: Any) -> None:
        """Enter it unless it is entered, after a pending exit; raise what entering raises."""
        loop = asyncio.get_running_loop()
        while (leaving := self._exiting) is not None and not leaving.done() and leaving.get_loop() is loop:
            await asyncio.wait([leaving])
        life = self._run
        if life is None or not life.on_running_loop:
            started, stop = loop.create_future(), asyncio.Event()
            life = self._run = _LifespanRun(
                loop.create_task(self._enter_until_stopped(server, started, stop)), started, stop
            )
        life.waiters += 1
        try:
            await asyncio.wait([life.task, life.started], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if life.waiters == 1 and not life.started.done():  # no other caller waits
                await self._cancel_run(life)
            raise
        finally:
            life.waiters -= 1
        if life.task.done():  # entering failed
            self._clear_run(life)
            await life.task

    async def _cancel_run(self, run: _LifespanRun) -> None:
        self._clear_run(run)
        run.stop.set()  # entering may complete despite the cancellation
        run.task.cancel()
        await asyncio.gather(run.task, return_exceptions=True)

    def _clear_run(self, run: _LifespanRun) -> None:
        if self._run is run:  # else a newer run has begun
            self._run = None

    async def _enter_until_stopped(self, server: Any, started: "asyncio.Future[Any]", stop: asyncio.Event) -> None:
        try:
            manager = self._factory(server)
            if not hasattr(manager, "__aenter__"):
                raise MisuseError(
                    f"{self._label} returned {type(manager).__name__}, no async context manager; {_ADVICE}"
                )
            async with manager as value:
                self._value = value
                started.set_result(value)
                await stop.wait()
        except Exception as error:
            error.add_note(
                f"raised by {self._label}, {'at the end' if started.done() else 'before the first connection'}"
            )
            raise

    @property
    def _label(self) -> str:
        return f"lifespan {self._name!r}"

    async def stop(self) -> None:
        """Exit it if it is entered; raise what exiting raises."""
        life, self._run = self._run, None
        if life is not None and life.on_running_loop:
            self._exiting = life.task
            life.stop.set()
            await life.task


def _check_factory(factory: Any) -> None:
    """Raise `MisuseError` for a value that cannot be a lifespan."""
    if not callable(factory):
        raise MisuseError(f"lifespan= must be a function of the server, not {factory!r}; {_ADVICE}")
    name, runs = name_of(factory), underlying_function(factory)
    if inspect.iscoroutinefunction(runs):
        raise MisuseError(f"lifespan {name!r} is an async function that never yields; {_ADVICE}")
    if inspect.isgeneratorfunction(inspect.unwrap(runs)):
        raise MisuseError(f"lifespan {name!r} is a plain generator function, and must be async; {_ADVICE}")
    if not accepts_positional(factory, 1):
        raise MisuseError(f"lifespan {name!r} must take one argument, the server; {_ADVICE}")
