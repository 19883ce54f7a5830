"""What a server holds from before the first connection until after the last: a pool, a model, a cache.

It is entered and left in one task of its own, whoever starts and ends the server: some context managers insist on that.

A server that was started holds it until the server ends. A server that serves only clients in its own process, which
start it by themselves, leaves it with the last of them.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from trunkline.errors import MisuseError
from trunkline.registry.signatures import accepts_positional, name_of, underlying_function

__all__ = ["Lifespan"]

_ADVICE: Final = "write `async def lifespan(server): ...` with one `yield` between setup and cleanup"


@dataclass
class _LifespanRun:
    """One time from entering to leaving."""

    task: "asyncio.Task[None]"
    started: "asyncio.Future[Any]"  # what it gave
    stop: asyncio.Event
    waiters: int = 0  # those who wait until it has been entered

    @property
    def on_running_loop(self) -> bool:
        """Whether it is a life on the running loop."""
        return self.task.get_loop() is asyncio.get_running_loop()


class _LifespanUsers:
    """Those for whom a lifespan is kept entered, on the running loop: the server itself once it was started, and
    clients in the same process. Those of a loop that has ended count no more."""

    def __init__(self) -> None:
        self._started_on: asyncio.AbstractEventLoop | None = None
        self._clients: dict[object, asyncio.AbstractEventLoop] = {}

    @property
    def in_use(self) -> bool:
        """Whether there is one."""
        loop = asyncio.get_running_loop()
        return self._started_on is loop or any(home is loop for home in self._clients.values())

    def mark_started(self) -> Callable[[], None]:
        """The server was started; gives what undoes that."""
        before, self._started_on = self._started_on, asyncio.get_running_loop()

        def undo() -> None:
            self._started_on = before

        return undo

    def mark_ended(self) -> None:
        """The server has ended. Clients may come back by themselves."""
        self._started_on = None

    def add(self, client: object) -> None:
        """A client uses it."""
        self._clients[client] = asyncio.get_running_loop()

    def remove(self, client: object) -> None:
        """It does so no more."""
        self._clients.pop(client, None)


class Lifespan:
    """An async context manager, entered once at a time."""

    def __init__(self, factory: Callable[[Any], Any]) -> None:
        """`make` takes the server and returns an async context manager, or is an async generator function that yields
        once. Raises `MisuseError` for anything else, as far as that shows before it is called."""
        _check_factory(factory)
        self._factory = (
            contextlib.asynccontextmanager(factory)
            if inspect.isasyncgenfunction(underlying_function(factory))
            else factory
        )
        self._name = name_of(factory)
        self._run: _LifespanRun | None = None
        self._exiting: asyncio.Task[None] | None = None  # of the life before
        self._value: Any = None
        self.users = _LifespanUsers()

    @property
    def running(self) -> bool:
        """Whether it has been entered, on the running loop."""
        return self._run is not None and self._run.on_running_loop and self._run.started.done()

    @property
    def value(self) -> Any:
        """What it gave last."""
        return self._value

    async def start(self, server: Any) -> None:
        """Enters it, once, and after it has been left; raises what it raises."""
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
            if life.waiters == 1 and not life.started.done():  # nobody else wants it
                await self._cancel_run(life)
            raise
        finally:
            life.waiters -= 1
        if life.task.done():  # it failed
            self._clear_run(life)
            await life.task

    async def _cancel_run(self, run: _LifespanRun) -> None:
        self._clear_run(run)
        run.stop.set()  # it may be entered all the same
        run.task.cancel()
        await asyncio.gather(run.task, return_exceptions=True)

    def _clear_run(self, run: _LifespanRun) -> None:
        if self._run is run:  # or else another one has begun
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
        """Leaves it, if it was entered; raises what that raises."""
        life, self._run = self._run, None
        if life is not None and life.on_running_loop:
            self._exiting = life.task
            life.stop.set()
            await life.task


def _check_factory(factory: Any) -> None:
    """Raise `MisuseError` for what cannot be a lifespan."""
    if not callable(factory):
        raise MisuseError(f"lifespan= must be a function of the server, not {factory!r}; {_ADVICE}")
    name, runs = name_of(factory), underlying_function(factory)
    if inspect.iscoroutinefunction(runs):
        raise MisuseError(f"lifespan {name!r} is an async function that never yields; {_ADVICE}")
    if inspect.isgeneratorfunction(inspect.unwrap(runs)):
        raise MisuseError(f"lifespan {name!r} is a plain generator function, and must be async; {_ADVICE}")
    if not accepts_positional(factory, 1):
        raise MisuseError(f"lifespan {name!r} must take one argument, the server; {_ADVICE}")
