"""Run the work of a call: coroutines, plain functions on threads, and handlers with dependencies.

`start_work` runs a coroutine at once. If it ends without waiting, it needs no turn of the loop and no task survives. If
it waits, it is a task from then on, owned by the caller of `start_work`. Plain functions run on a thread. `on_done` is
called once, on the loop, when the work has ended; for a thread whose call is cancelled, at once.

`run_work` runs the same work inside a coroutine: for middleware, and for dependencies of a handler. Code around a plain
function ends after that function. A thread cannot be stopped, so if the call is cancelled, the coroutine still waits
for the thread; by then the caller has its reply, or wants none. Only a second cancellation, which the end of the loop
brings, abandons the thread.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from functools import partial
from inspect import isawaitable, iscoroutine
from types import CoroutineType, GeneratorType
from typing import Any, Protocol, assert_never, cast

from msgspec import Struct

from trunkline.registry.dependencies import DependencyPlan, DependencyStep, ProviderKind
from trunkline.registry.handlers import PlannedCall, StartMode, ThreadCall, exit_error
from trunkline.rpc.threads import Job, OnJobDone, ThreadPool

__all__ = [
    "CallbackWork",
    "Cancellable",
    "DeferredResult",
    "OnDone",
    "Task",
    "Work",
    "run_with_dependencies",
    "run_work",
    "running_thread",
    "start_work",
    "without_outermost_frame",
]

DependencyValues = dict[Callable[..., Any], Any]
"""The values of dependencies by their function. Each function is called once per call."""


class DeferredResult(Struct):
    """A result that is sent once a future is done. Several results may wait for one future."""

    waits_for: "asyncio.Future[Any]"
    outcome: Any


class CallbackWork:
    """Work that reports its own end, so that it needs a task only if it becomes complicated."""

    __slots__ = ()

    def start(self, threads: ThreadPool, on_done: "OnDone", call: Any) -> "Cancellable | None":
        """Start the work. Return None if it has ended; then `on_done` has been called."""
        raise NotImplementedError

    def run(self) -> Coroutine[Any, Any, Any]:
        """Return the same work as a coroutine, in place of `start`."""
        raise NotImplementedError


async def run_work(work: Any, threads: ThreadPool) -> Any:
    """Run work of any kind and return its result."""
    if iscoroutine(work):
        return await work
    if isinstance(work, ThreadCall):
        return work.finish(await _await_if_awaitable(await _run_on_thread(work.function, threads)))
    if isinstance(work, PlannedCall):
        return await run_with_dependencies(work, threads)
    if isinstance(work, CallbackWork):
        return await work.run()
    if isinstance(work, DeferredResult):
        await asyncio.shield(work.waits_for)
        return work.outcome
    return work


async def run_with_dependencies(work: PlannedCall, threads: ThreadPool) -> Any:
    """Run a handler with its dependencies, and tear these down in reverse order, however the call ends.

    Exceptions of the call are thrown into generators and context managers, so that they can roll back; they cannot
    suppress them. The reply is built from the returned value before the teardown.
    """
    plan = cast("DependencyPlan", work.handler.plan).current(work.context)
    failed: BaseException | None = None
    answer: Any = None
    try:
        async with AsyncExitStack() as stack:
            try:
                values: DependencyValues = {}
                for step in plan.before:
                    values[step.function] = await _provide_dependency(step, values, work.context, stack, threads)
                answer = work.finish(await _call_handler(work, plan, values, threads))
            except BaseException as error:
                failed = error
                raise
        if failed is not None:
            raise failed
        return answer
    except SystemExit as error:
        raise exit_error(error) from error
    finally:
        failed = None  # break the cycle: the error refers to this frame by its traceback, and this frame to the error


async def _call_handler(work: PlannedCall, plan: DependencyPlan, values: DependencyValues, threads: ThreadPool) -> Any:
    handler = work.handler
    if handler.start is StartMode.THREAD:
        return await _await_if_awaitable(
            await _run_on_thread(partial(_call_with_thread_dependencies, work, plan, values), threads)
        )
    return await _await_if_awaitable(
        handler.bind(work.arguments, _keyword_arguments(plan.sources, plan.contexts, values, work.context))
    )


def _may_be_awaitable(value: Any) -> bool:
    """Return whether a value has `__await__` or is a generator; most values do not, and `isawaitable` is slow."""
    return hasattr(value, "__await__") or type(value) is GeneratorType


async def _await_if_awaitable(value: Any) -> Any:
    return await value if isawaitable(value) else value


def _call_with_thread_dependencies(work: PlannedCall, plan: DependencyPlan, values: DependencyValues) -> Any:
    """Run a plain handler and the plain dependencies that only it uses, on one thread."""
    failed: BaseException | None = None
    value: Any = None
    try:
        with ExitStack() as stack:
            try:
                for step in plan.on_thread:
                    made = _call_dependency(step, values, work.context)
                    values[step.function] = (
                        made if step.provider_kind is ProviderKind.VALUE else stack.enter_context(made)
                    )
                value = work.handler.bind(
                    work.arguments, _keyword_arguments(plan.sources, plan.contexts, values, work.context)
                )
            except BaseException as error:
                failed = error
                raise
        if failed is not None:
            raise failed
        return value
    finally:
        failed = None  # as above


# --- one dependency ------------------------------------------------------------------------------


def _keyword_arguments(
    sources: Iterable[tuple[str, Callable[..., Any]]], contexts: Iterable[str], values: DependencyValues, context: Any
) -> dict[str, Any]:
    return {**{name: values[source] for name, source in sources}, **dict.fromkeys(contexts, context)}


def _call_dependency(step: DependencyStep, values: DependencyValues, context: Any) -> Any:
    """Call the function of a dependency; return its value, or the context manager of a generator."""
    function = step.function
    if step.provider_kind is ProviderKind.GENERATOR:
        function = contextlib.contextmanager(function)
    elif step.provider_kind is ProviderKind.ASYNC_GENERATOR:
        function = contextlib.asynccontextmanager(function)
    return function(**_keyword_arguments(step.needs, step.contexts, values, context))


async def _provide_dependency(
    step: DependencyStep, values: DependencyValues, context: Any, stack: AsyncExitStack, threads: ThreadPool
) -> Any:
    make = partial(_call_dependency, step, values, context)
    match step.provider_kind:
        case ProviderKind.VALUE:
            return await _run_on_thread(make, threads) if step.thread else make()
        case ProviderKind.AWAITED:
            return await make()
        case ProviderKind.GENERATOR | ProviderKind.MANAGER if step.thread:
            return await stack.enter_async_context(_ThreadContextManager(make, threads))
        case ProviderKind.GENERATOR | ProviderKind.MANAGER:
            return stack.enter_context(make())
        case ProviderKind.ASYNC_GENERATOR | ProviderKind.ASYNC_MANAGER:
            return await stack.enter_async_context(make())
        case _:
            assert_never(step.provider_kind)


class _ThreadContextManager:
    """A plain context manager that is entered and exited on a thread, not always the same one."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]], threads: ThreadPool) -> None:
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
            return await _run_on_thread(self._enter, self._threads)
        except asyncio.CancelledError as error:
            if self._entered is not None:  # entered despite the cancellation: exit it here, no other code will
                await self.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(self, *raised: object) -> Any:
        left = partial(cast("Any", self._entered).__exit__, *raised)
        return await _run_on_thread(left, self._threads)


async def _run_on_thread(function: Callable[[], Any], threads: ThreadPool) -> Any:
    """Run a plain function on a thread. If it has not started when the call is cancelled, it never starts."""
    ended: asyncio.Future[None] = threads.loop.create_future()
    outcome: list[tuple[Any, BaseException | None]] = []
    started = cancelled = False

    def run() -> Any:
        nonlocal started
        # Set before the check: either this thread sees the cancellation, or the canceller sees the start.
        started = True
        if cancelled:
            raise asyncio.CancelledError
        return function()

    def done(value: Any, error: BaseException | None) -> None:
        if not ended.done():
            outcome.append((value, error))
            ended.set_result(None)

    job = Job(run, done)
    threads.submit(job)
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        cancelled = True
        task = asyncio.current_task()
        if started and (task is None or task.cancelling() <= 1):
            await ended  # a second cancellation ends this wait
        raise
    value, error = outcome.pop()
    if error is None:
        return value
    try:
        if isinstance(error, SystemExit):
            raise exit_error(error) from error
        raise error
    finally:
        del error  # break the cycle of the error and this frame


def running_thread(work: Any) -> int | None:
    """Return the thread on which the work of a call runs now; None if it runs, or waits, on the loop."""
    if isinstance(work, _ThreadWork):
        return work.job.thread
    waiting: Any = cast("asyncio.Task[Any]", work).get_coro() if isinstance(work, asyncio.Task) else None
    while (inner := getattr(waiting, "cr_await", None)) is not None and iscoroutine(inner):
        waiting = inner
    frame = getattr(waiting, "cr_frame", None)
    if frame is None or frame.f_code is not _run_on_thread.__code__:
        return None
    return cast("Job", frame.f_locals["job"]).thread


class Cancellable(Protocol):
    """Work that can be cancelled. Cancelling it also calls `on_done`."""

    def cancel(self) -> object: ...


OnDone = Callable[[Any, Any, BaseException | None], None]
"""Called with a call that has ended, and its value or its exception."""

Work = Coroutine[Any, Any, Any] | ThreadCall | PlannedCall | CallbackWork | DeferredResult | Any
"""The return value of a method handler: a coroutine, a function for a thread, a handler with dependencies, work that
reports its own end, a deferred result, or the result itself. A coroutine that has been started is a task."""


Task: Any = asyncio.Task  # a type checker does not know `eager_start`


def start_work(work: Work, threads: ThreadPool, on_done: OnDone, call: Any) -> Cancellable | None:
    """Start the work of a call on the running loop. Return None if it has ended; then `on_done` has been called."""
    if type(work) is CoroutineType:
        work = Task(work, **threads.task_options)
    if isinstance(work, asyncio.Task):
        task = cast("asyncio.Task[Any]", work)
        if not task.done():
            task.add_done_callback(lambda ended: _report_task_outcome(ended, on_done, call))
            return task
        _report_task_outcome(task, on_done, call)
        del task, work  # break the cycle: the task refers to its error, and the error's frames to this one
        return None
    if type(work) is ThreadCall:
        return _start_on_thread(work, threads, on_done, call)
    if type(work) is PlannedCall:
        return start_work(run_with_dependencies(work, threads), threads, on_done, call)
    if isinstance(work, CallbackWork):
        return work.start(threads, on_done, call)
    if type(work) is DeferredResult:
        return _DeferredWork(work, on_done, call)
    on_done(call, work, None)
    return None


class _DeferredWork:
    """A deferred result that waits for its future. It needs no task."""

    __slots__ = ("_call", "_on_done", "_outcome")

    def __init__(self, work: DeferredResult, on_done: OnDone, call: Any) -> None:
        self._outcome = work.outcome
        self._on_done: OnDone | None = on_done
        self._call = call
        work.waits_for.add_done_callback(self._on_ready)

    def _on_ready(self, first: "asyncio.Future[Any]") -> None:
        done, self._on_done = self._on_done, None
        if done is None:
            return  # cancelled
        error = asyncio.CancelledError() if first.cancelled() else first.exception()
        done(self._call, self._outcome if error is None else None, error)

    def cancel(self) -> None:
        done, self._on_done = self._on_done, None
        if done is not None:
            done(self._call, None, asyncio.CancelledError())


def _report_task_outcome(task: "asyncio.Task[Any]", on_done: OnDone, call: Any) -> None:
    try:
        value = task.result()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - passed to `on_done`
        on_done(call, None, without_outermost_frame(error))
    else:
        on_done(call, value, None)


def without_outermost_frame(error: BaseException) -> BaseException:
    """Remove the frame that called `Task.result` from the traceback of the task's error: that frame refers to the task,
    and so to the error. Only the first call of `result` returns the traceback."""
    return error.with_traceback(None if error.__traceback__ is None else error.__traceback__.tb_next)


def _start_on_thread(work: ThreadCall, threads: ThreadPool, on_done: OnDone, call: Any) -> Cancellable:
    def finished(value: Any, error: BaseException | None) -> None:
        if error is None:
            if _may_be_awaitable(value) and isawaitable(value):  # of a plain function: await it on the loop
                follow.next_work = start_work(_await_and_finish(value, work.finish), threads, on_done, call)
                return
            try:
                value = work.finish(value)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as raised:  # noqa: BLE001 - passed to `on_done`
                error = raised
        on_done(call, value, error)

    job = Job(work.function, finished)
    follow = _ThreadWork(job, partial(on_done, call))
    threads.submit(job)
    return follow


class _ThreadWork:
    """A job on a thread, and the work that its value may become if that is awaitable."""

    __slots__ = ("job", "next_work", "on_done")

    def __init__(self, job: Job, on_done: OnJobDone) -> None:
        self.job = job
        self.on_done = on_done
        self.next_work: Cancellable | None = None

    def cancel(self) -> None:
        if self.next_work is not None:
            self.next_work.cancel()
        elif not self.job.cancelled:
            self.job.cancel()
            self.on_done(None, asyncio.CancelledError())  # the thread may run on; its result is ignored


async def _await_and_finish(value: Any, finish: Callable[[Any], Any]) -> Any:
    return finish(await value)
