"""Threads for plain functions."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.processes import eventually

from trunkline.rpc.threads import Job, ThreadPool

wanted: ContextVar[str] = ContextVar("wanted", default="nothing")


@pytest.fixture
async def threads() -> AsyncIterator[ThreadPool]:
    pool = ThreadPool(asyncio.get_running_loop(), 4)
    yield pool
    pool.close()


async def outcome(threads: ThreadPool, function: Any) -> tuple[Any, BaseException | None]:
    told: asyncio.Future[tuple[Any, BaseException | None]] = asyncio.get_running_loop().create_future()
    threads.submit(Job(function, lambda value, error: told.set_result((value, error))))
    return await asyncio.wait_for(told, PATIENCE)


def alive() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("trunkline-")}


async def test_function_runs_on_a_thread_and_reports_on_the_loop(threads: ThreadPool) -> None:
    here, told = threading.get_ident(), []
    done = asyncio.Event()

    def tell(value: Any, error: BaseException | None) -> None:
        told.append((value, error, threading.get_ident()))
        done.set()

    threads.submit(Job(threading.get_ident, tell))
    await asyncio.wait_for(done.wait(), PATIENCE)
    ((value, error, told_on),) = told
    assert value != here
    assert error is None
    assert told_on == here


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_any_exception_is_passed_on(threads: ThreadPool, raised: BaseException) -> None:
    def fail() -> None:
        raise raised

    assert await outcome(threads, fail) == (None, raised)
    assert await outcome(threads, lambda: "alive") == ("alive", None)


async def test_action_runs_at_once_on_the_loop_and_soon_from_a_thread(threads: ThreadPool) -> None:
    here, ran_on = threading.get_ident(), []
    assert threads.run_on_loop(lambda: ran_on.append(threading.get_ident())) is True
    assert ran_on == [here]

    def run_from_a_thread() -> bool:
        return threads.run_on_loop(lambda: ran_on.append(threading.get_ident()))

    assert await outcome(threads, run_from_a_thread) == (False, None)  # reported after the action
    assert ran_on == [here, here]


async def test_function_sees_the_context_of_its_caller(threads: ThreadPool) -> None:
    wanted.set("this")
    assert (await outcome(threads, wanted.get))[0] == "this"


async def test_short_jobs_use_few_threads() -> None:
    threads, before = ThreadPool(asyncio.get_running_loop(), 32), alive()
    for _ in range(100):
        await outcome(threads, lambda: None)
    assert len(alive() - before) <= 3
    threads.close()


async def test_blocked_job_does_not_delay_others(threads: ThreadPool) -> None:
    held = threading.Event()
    threads.submit(Job(lambda: held.wait(PATIENCE), lambda value, error: None))
    assert (await outcome(threads, lambda: "not kept waiting"))[0] == "not kept waiting"
    held.set()


async def test_two_slow_jobs_overlap(threads: ThreadPool) -> None:
    meeting = threading.Barrier(2)
    first, second = await asyncio.gather(
        outcome(threads, lambda: meeting.wait(PATIENCE)), outcome(threads, lambda: meeting.wait(PATIENCE))
    )
    assert first[1] is second[1] is None


async def test_thread_limit_is_kept_and_all_jobs_run(threads: ThreadPool) -> None:
    running, most, lock = 0, 0, threading.Lock()
    release = threading.Event()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        release.wait(PATIENCE)
        with lock:
            running -= 1

    waiting = [asyncio.ensure_future(outcome(threads, work)) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.to_thread(eventually, lambda: running == 4)
    release.set()
    await asyncio.gather(*waiting)
    assert most == 4


async def test_job_cancelled_in_the_queue_never_runs() -> None:
    threads, go, ran = ThreadPool(asyncio.get_running_loop(), 1), threading.Event(), []
    threads.submit(Job(lambda: go.wait(PATIENCE), lambda value, error: None))
    dropped = Job(lambda: ran.append("dropped"), lambda value, error: ran.append("told"))
    threads.submit(dropped)
    dropped.cancel()
    go.set()
    await outcome(threads, lambda: ran.append("last"))
    assert ran == ["last"]
    threads.close()


async def test_job_cancelled_while_running_is_not_reported(threads: ThreadPool) -> None:
    began, go, told = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        go.wait(PATIENCE)

    job = Job(work, lambda value, error: told.append(value))
    threads.submit(job)
    assert await asyncio.to_thread(began.wait, 10)
    job.cancel()
    go.set()
    await outcome(threads, lambda: None)
    await outcome(threads, lambda: None)
    assert told == []


async def test_posted_action_runs_before_the_job_ends(threads: ThreadPool) -> None:
    """Also when another job has ended just before, and the loop already knows of that one."""
    seen: list[str] = []
    other_ended, all_ended = threading.Event(), threading.Event()
    done = asyncio.Event()

    def other() -> None:
        threads.post(lambda: seen.append("other"))
        other_ended.set()

    def work() -> None:
        other_ended.wait(PATIENCE)
        threads.post(lambda: seen.append("posted"))
        all_ended.set()

    def told(value: Any, error: BaseException | None) -> None:
        seen.append("ended")
        done.set()

    threads.submit(Job(other, lambda value, error: None))
    threads.submit(Job(work, told))
    assert all_ended.wait(PATIENCE)  # the loop is blocked meanwhile
    await asyncio.wait_for(done.wait(), PATIENCE)
    assert seen == ["other", "posted", "ended"]


async def test_failing_posted_action_does_not_stop_the_rest(threads: ThreadPool) -> None:
    loop, seen, failures = asyncio.get_running_loop(), asyncio.Event(), []
    loop.set_exception_handler(lambda loop, context: failures.append(context["exception"]))

    def fail() -> None:
        raise ValueError("no")

    threads.post(fail)
    threads.post(seen.set)
    await asyncio.wait_for(seen.wait(), PATIENCE)
    assert [str(failure) for failure in failures] == ["no"]


async def test_close_ends_threads_and_drops_queued_jobs() -> None:
    before = alive()
    threads, began, go, ran = ThreadPool(asyncio.get_running_loop(), 2), threading.Semaphore(0), threading.Event(), []
    await asyncio.gather(*(outcome(threads, threading.Event().is_set) for _ in range(3)))

    def work() -> None:
        began.release()
        go.wait(PATIENCE)

    for _ in range(2):
        threads.submit(Job(work, lambda value, error: ran.append("told")))
    threads.submit(Job(lambda: ran.append("never"), lambda value, error: None))
    for _ in range(2):
        assert await asyncio.to_thread(began.acquire, timeout=10)
    threads.close()
    go.set()
    await asyncio.to_thread(eventually, lambda: not alive() - before)
    while len(ran) < 2:
        await asyncio.sleep(0)
    assert ran == ["told", "told"]


def test_job_outliving_its_loop_ends_silently() -> None:
    go, threads = threading.Event(), []

    async def begin() -> None:
        threads.append(ThreadPool(asyncio.get_running_loop(), 1))
        threads[0].submit(Job(lambda: go.wait(PATIENCE), lambda value, error: None))

    before = alive()
    asyncio.run(begin())
    go.set()
    eventually(lambda: threads[0]._idle)  # it has returned to the pool
    threads[0].close()
    eventually(lambda: not alive() - before)
