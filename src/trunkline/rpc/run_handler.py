"""Starts calls; nothing else does.

A handler is driven at once. If it is done without waiting, that was all: no task outlives this call, and no turn
of the loop was taken. If it waits, it is a task from then on, owned by whoever holds what `start` gives back. Plain
functions go to a thread. `done` is told once, on the loop, of how it ended; of a thread that is given up, at once.

Runs the work of a call from within a coroutine: what goes around a handler, and what a handler depends on.

Whatever goes around a plain function ends after it. A thread cannot be stopped, so when the call is cancelled while it
runs, the coroutine still waits for the thread; the caller has been answered, or wants no answer. Only a second
cancellation, which the end of the loop brings, leaves the thread to itself.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from functools import partial
from inspect import isawaitable, iscoroutine
from types import CoroutineType
from typing import Any, Protocol, assert_never, cast

from msgspec import Struct

from trunkline.registry.dependencies import Gives, Plan, Step
from trunkline.registry.handlers import Needing, OnThread, Start, exited
from trunkline.rpc.threads import Done, Job, Threads

__all__ = ["After", "Told", "Work", "Working", "perform", "provide", "start"]

Values = dict[Callable[..., Any], Any]
"""What functions have given, by the function: each is asked once per call."""


class After(Struct):
    """An outcome that counts once something else is done, which others may wait for, too."""

    first: "asyncio.Future[Any]"
    outcome: Any


async def perform(work: Any, threads: Threads) -> Any:
    """The outcome of work that a feature gave back, whatever kind it is."""
    if iscoroutine(work):
        return await work
    if isinstance(work, OnThread):
        return work.finish(await _settled(await _on_thread(work.function, threads)))
    if isinstance(work, Needing):
        return await provide(work, threads)
    if isinstance(work, After):
        await asyncio.shield(work.first)
        return work.outcome
    return work


async def provide(work: Needing, threads: Threads) -> Any:
    """Runs a handler with all that it depends on, and tears that down in reverse order, however the call ends.

    What the call raises is thrown into generators and context managers, so that they can undo things; they cannot
    make it vanish. The answer is made of the value before anything is torn down.
    """
    plan = cast("Plan", work.handler.plan)
    failed: BaseException | None = None
    answer: Any = None
    try:
        async with AsyncExitStack() as stack:
            try:
                values: Values = {}
                for step in plan.first:
                    values[step.function] = await _given(step, values, work.context, stack, threads)
                answer = work.finish(await _called(work, plan, values, threads))
            except BaseException as error:
                failed = error
                raise
        if failed is not None:
            raise failed
        return answer
    except SystemExit as error:
        raise exited(error) from error
    finally:
        failed = None  # or the error would refer to this frame by its traceback, and this frame to the error


async def _called(work: Needing, plan: Plan, values: Values, threads: Threads) -> Any:
    handler = work.handler
    if handler.start is Start.THREAD:
        return await _settled(await _on_thread(partial(_beside, work, plan, values), threads))
    return await _settled(handler.bind(work.arguments, _by_name(plan.given, plan.contexts, values, work.context)))


async def _settled(value: Any) -> Any:
    return await value if isawaitable(value) else value


def _beside(work: Needing, plan: Plan, values: Values) -> Any:
    """A plain handler and its own plain dependencies, on their thread."""
    failed: BaseException | None = None
    value: Any = None
    try:
        with ExitStack() as stack:
            try:
                for step in plan.beside:
                    made = _made(step, values, work.context)
                    values[step.function] = made if step.gives is Gives.VALUE else stack.enter_context(made)
                value = work.handler.bind(work.arguments, _by_name(plan.given, plan.contexts, values, work.context))
            except BaseException as error:
                failed = error
                raise
        if failed is not None:
            raise failed
        return value
    finally:
        failed = None  # as above


# --- one dependency ------------------------------------------------------------------------------


def _by_name(
    sources: Iterable[tuple[str, Callable[..., Any]]], contexts: Iterable[str], values: Values, context: Any
) -> dict[str, Any]:
    return {**{name: values[source] for name, source in sources}, **dict.fromkeys(contexts, context)}


def _made(step: Step, values: Values, context: Any) -> Any:
    """What the function returns; of a generator, a context manager."""
    function = step.function
    if step.gives is Gives.GENERATOR:
        function = contextlib.contextmanager(function)
    elif step.gives is Gives.ASYNC_GENERATOR:
        function = contextlib.asynccontextmanager(function)
    return function(**_by_name(step.needs, step.contexts, values, context))


async def _given(step: Step, values: Values, context: Any, stack: AsyncExitStack, threads: Threads) -> Any:
    make = partial(_made, step, values, context)
    match step.gives:
        case Gives.VALUE:
            return await _on_thread(make, threads) if step.thread else make()
        case Gives.AWAITED:
            return await make()
        case Gives.GENERATOR | Gives.MANAGER if step.thread:
            return await stack.enter_async_context(_OnThreadManager(make, threads))
        case Gives.GENERATOR | Gives.MANAGER:
            return stack.enter_context(make())
        case Gives.ASYNC_GENERATOR | Gives.ASYNC_MANAGER:
            return await stack.enter_async_context(make())
        case _:
            assert_never(step.gives)


class _OnThreadManager:
    """A plain context manager that is entered and left on a thread, not always the same one."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]], threads: Threads) -> None:
        self._make = make
        self._threads = threads
        self._entered: AbstractContextManager[Any] | None = None

    def _enter(self) -> Any:
        manager = self._make()
        value = manager.__enter__()
        self._entered = manager
        return value

    async def __aenter__(self) -> Any:
        try:
            return await _on_thread(self._enter, self._threads)
        except asyncio.CancelledError as error:
            if self._entered is not None:  # all the same: nobody else will leave it
                await self.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(self, *raised: object) -> Any:
        left = partial(cast("Any", self._entered).__exit__, *raised)
        return await _on_thread(left, self._threads)


async def _on_thread(function: Callable[[], Any], threads: Threads) -> Any:
    """What a plain function gives on a thread. If it has not begun when the call is cancelled, it never does."""
    ended: asyncio.Future[None] = threads.loop.create_future()
    outcome: list[tuple[Any, BaseException | None]] = []
    begun = unwanted = False

    def run() -> Any:
        nonlocal begun
        begun = True  # before the look: either this thread learns that it is not wanted, or who cancels that it began
        if unwanted:
            raise asyncio.CancelledError
        return function()

    def done(value: Any, error: BaseException | None) -> None:
        if not ended.done():
            outcome.append((value, error))
            ended.set_result(None)

    threads.submit(Job(run, done))
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        unwanted = True
        task = asyncio.current_task()
        if begun and (task is None or task.cancelling() <= 1):
            await ended  # a second cancellation ends this wait
        raise
    value, error = outcome.pop()
    if error is None:
        return value
    try:
        if isinstance(error, SystemExit):
            raise exited(error) from error
        raise error
    finally:
        del error  # or the error would refer to this frame, and this frame to the error


class Working(Protocol):
    """Something under way that can be stopped. Whoever waits for its end is told of that too."""

    def cancel(self) -> object: ...


_COROUTINE: Any = CoroutineType

Told = Callable[[Any, Any, BaseException | None], None]
"""Who is told of the end of a call: the call, the value it gave, or what it raised."""

Work = Coroutine[Any, Any, Any] | OnThread | Needing | After | Any
"""What a feature gives back: a coroutine, a function for a thread, one that needs others, or the outcome itself, now or
after something else."""


if sys.version_info >= (3, 12):
    _task = partial(asyncio.Task, eager_start=True)  # runs a coroutine until it first waits, right here
else:
    _task = asyncio.Task  # without eager tasks, the coroutine starts on the next turn of the loop


def start(work: Work, threads: Threads, done: Told, call: Any) -> Working | None:
    """Gets the work of a call going, on the running loop. None: it is done, and `done` has been told."""
    if type(work) is _COROUTINE:
        task: asyncio.Task[Any] = _task(work, loop=threads.loop)  # pyright: ignore[reportArgumentType]
        if not task.done():
            task.add_done_callback(lambda ended: _ended(ended, done, call))
            return task
        _ended(task, done, call)
        return None
    if type(work) is OnThread:
        return _start_thread(work, threads, done, call)
    if type(work) is Needing:
        return start(provide(work, threads), threads, done, call)
    if type(work) is After:
        return _Later(work, done, call)
    done(call, work, None)
    return None


class _Later:
    """An outcome that is told when something else is done. It takes no task."""

    __slots__ = ("_call", "_done", "_outcome")

    def __init__(self, work: After, done: Told, call: Any) -> None:
        self._outcome = work.outcome
        self._done: Told | None = done
        self._call = call
        work.first.add_done_callback(self._tell)

    def _tell(self, first: "asyncio.Future[Any]") -> None:
        done, self._done = self._done, None
        if done is None:
            return  # nobody waits for it any more
        error = asyncio.CancelledError() if first.cancelled() else first.exception()
        done(self._call, self._outcome if error is None else None, error)

    def cancel(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self._call, None, asyncio.CancelledError())


def _ended(task: "asyncio.Task[Any]", done: Told, call: Any) -> None:
    try:
        value = task.result()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - told to whoever waits
        # Leave this frame out of the traceback: it refers to the task, and so to the error.
        beyond = None if error.__traceback__ is None else error.__traceback__.tb_next
        done(call, None, error.with_traceback(beyond))
    else:
        done(call, value, None)


def _start_thread(work: OnThread, threads: Threads, done: Told, call: Any) -> Working:
    def finished(value: Any, error: BaseException | None) -> None:
        if error is None:
            if isawaitable(value):  # a plain function that gave an awaitable: the loop has to wait for it
                follow.next = start(_awaited(value, work.finish), threads, done, call)
                return
            try:
                value = work.finish(value)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as raised:  # noqa: BLE001 - told to whoever waits
                error = raised
        done(call, value, error)

    job = Job(work.function, finished)
    follow = _OnThreadWork(job, partial(done, call))
    threads.submit(job)
    return follow


class _OnThreadWork:
    """A job on a thread, and what it may turn into."""

    __slots__ = ("done", "job", "next")

    def __init__(self, job: Job, done: Done) -> None:
        self.job = job
        self.done = done
        self.next: Working | None = None

    def cancel(self) -> None:
        if self.next is not None:
            self.next.cancel()
        elif not self.job.dropped:
            self.job.cancel()
            self.done(None, asyncio.CancelledError())  # a thread may go on with it, but nobody waits for that


async def _awaited(value: Any, finish: Callable[[Any], Any]) -> Any:
    return finish(await value)
