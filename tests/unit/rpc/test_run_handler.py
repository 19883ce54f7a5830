"""Starting handlers, and reporting their end."""

import asyncio
import sys
import threading
import types
from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline.registry.handlers import ThreadCall
from trunkline.rpc import run_handler
from trunkline.rpc.run_handler import run_work
from trunkline.rpc.threads import ThreadPool

CALL = object()


@pytest.fixture
async def threads() -> AsyncIterator[ThreadPool]:
    pool = ThreadPool(asyncio.get_running_loop(), 2)
    yield pool
    pool.close()


class EndRecorder:
    """Records the end of a call."""

    def __init__(self) -> None:
        self.ends: list[tuple[Any, BaseException | None]] = []
        self.event = asyncio.Event()

    def __call__(self, call: Any, value: Any, error: BaseException | None) -> None:
        assert call is CALL
        self.ends.append((value, error))
        self.event.set()

    async def end(self) -> tuple[Any, BaseException | None]:
        await asyncio.wait_for(self.event.wait(), PATIENCE)
        (end,) = self.ends
        return end


async def test_plain_result_is_reported_at_once(threads: ThreadPool) -> None:
    told = EndRecorder()
    assert run_handler.start_work("outcome", threads, told, CALL) is None
    assert told.ends == [("outcome", None)]


async def test_coroutine_without_waiting_is_reported_once(threads: ThreadPool) -> None:
    told = EndRecorder()

    async def quick() -> str:
        return "quick"

    working = run_handler.start_work(quick(), threads, told, CALL)
    if sys.version_info >= (3, 12):
        assert working is None
        assert told.ends == [("quick", None)]
    assert await told.end() == ("quick", None)


async def test_deferred_result_is_reported_when_its_future_is_done(threads: ThreadPool) -> None:
    told, failed, first = EndRecorder(), EndRecorder(), asyncio.get_running_loop().create_future()
    run_handler.start_work(run_handler.DeferredResult(first, "kept"), threads, told, CALL)
    assert told.ends == []
    first.set_result(None)
    assert await told.end() == ("kept", None)
    assert await run_work(run_handler.DeferredResult(first, "kept"), threads) == "kept"
    error, never = OSError("on purpose"), asyncio.get_running_loop().create_future()
    never.set_exception(error)
    run_handler.start_work(run_handler.DeferredResult(never, "never"), threads, failed, CALL)
    assert await failed.end() == (None, error)


async def test_cancelled_deferred_result_keeps_the_future(threads: ThreadPool) -> None:
    told, others, first = EndRecorder(), EndRecorder(), asyncio.get_running_loop().create_future()
    working = run_handler.start_work(run_handler.DeferredResult(first, "kept"), threads, told, CALL)
    run_handler.start_work(run_handler.DeferredResult(first, "kept"), threads, others, CALL)
    assert working is not None
    working.cancel()
    working.cancel()
    value, error = await told.end()
    assert value is None
    assert isinstance(error, asyncio.CancelledError)
    first.set_result(None)
    assert await others.end() == ("kept", None)
    assert len(told.ends) == 1


async def test_waiting_coroutine_can_be_cancelled(threads: ThreadPool) -> None:
    told, began = EndRecorder(), asyncio.Event()

    async def slow() -> None:
        began.set()
        await asyncio.Event().wait()

    working = run_handler.start_work(slow(), threads, told, CALL)
    await began.wait()
    assert working is not None
    working.cancel()
    value, error = await told.end()
    assert value is None
    assert isinstance(error, asyncio.CancelledError)


@pytest.mark.parametrize("waits", [False, True])
async def test_coroutine_exception_is_reported(threads: ThreadPool, *, waits: bool) -> None:
    told = EndRecorder()

    async def fail() -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("no")

    run_handler.start_work(fail(), threads, told, CALL)
    assert str((await told.end())[1]) == "no"


async def test_plain_function_runs_on_a_thread_and_finishes_on_the_loop(threads: ThreadPool) -> None:
    told, here = EndRecorder(), threading.get_ident()
    work = ThreadCall(threading.get_ident, lambda value: (value, threading.get_ident()))
    assert run_handler.start_work(work, threads, told, CALL) is not None
    (ran_on, finished_on), error = await told.end()
    assert ran_on != here
    assert finished_on == here
    assert error is None


async def test_exception_of_a_function_or_its_finish_is_reported(threads: ThreadPool) -> None:
    def fail(_: Any = None) -> None:
        raise ValueError("no")

    for work in (ThreadCall(fail, lambda value: value), ThreadCall(lambda: 1, fail)):
        told = EndRecorder()
        run_handler.start_work(work, threads, told, CALL)
        assert str((await told.end())[1]) == "no"


async def test_awaitable_of_a_plain_function_is_awaited_on_the_loop(threads: ThreadPool) -> None:
    told = EndRecorder()

    async def later() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    run_handler.start_work(ThreadCall(later, str.upper), threads, told, CALL)
    assert await told.end() == (threading.current_thread().name.upper(), None)


async def test_generator_of_a_plain_function_is_awaited_if_it_is_a_coroutine(threads: ThreadPool) -> None:
    @types.coroutine
    def later() -> Generator[None, None, str]:
        yield
        return "awaited"

    def pieces() -> Generator[str, None, None]:
        yield "a"

    for function, expected in ((later, "awaited"), (pieces, "generator")):
        told = EndRecorder()
        finish = lambda value: value if isinstance(value, str) else type(value).__name__  # noqa: E731
        run_handler.start_work(ThreadCall(function, finish), threads, told, CALL)
        assert await told.end() == (expected, None)


async def test_awaitable_of_a_plain_function_can_be_cancelled(threads: ThreadPool) -> None:
    told, began, stopped = EndRecorder(), asyncio.Event(), asyncio.Event()

    async def later() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    working = run_handler.start_work(ThreadCall(later, lambda value: value), threads, told, CALL)
    assert working is not None
    await asyncio.wait_for(began.wait(), PATIENCE)
    working.cancel()
    assert isinstance((await told.end())[1], asyncio.CancelledError)
    assert stopped.is_set()


async def test_abandoned_thread_is_reported_once_at_once(threads: ThreadPool) -> None:
    told, began, go, ended = EndRecorder(), threading.Event(), threading.Event(), threading.Event()

    def work() -> str:
        began.set()
        go.wait(PATIENCE)
        ended.set()
        return "late"

    working = run_handler.start_work(ThreadCall(work, lambda value: value), threads, told, CALL)
    assert working is not None
    assert await asyncio.to_thread(began.wait, 10)
    working.cancel()
    working.cancel()
    assert isinstance((await told.end())[1], asyncio.CancelledError)
    go.set()
    assert await asyncio.to_thread(ended.wait, 10)
    other = EndRecorder()
    run_handler.start_work(ThreadCall(lambda: "next", lambda value: value), threads, other, CALL)
    await other.end()
    assert len(told.ends) == 1
