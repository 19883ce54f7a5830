"""Work that runs once for all concurrent callers."""

import asyncio

import pytest

from trunkline.auth.client.single_flight import SingleFlight
from trunkline.errors import AuthorizationFailed


class SharedWork:
    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> None:
        self.begun += 1
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
        finally:
            self.ended += 1


async def joined(flight: SingleFlight, work: SharedWork, many: int) -> "list[asyncio.Task[None]]":
    tasks = [asyncio.create_task(flight.join(work)) for _ in range(many)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_concurrent_callers_share_one_run() -> None:
    flight, work = SingleFlight(), SharedWork()
    tasks = await joined(flight, work, 5)
    work.gate.set()
    await asyncio.gather(*tasks)
    assert work.begun == 1
    await flight.join(work)
    assert work.begun == 2


async def test_cancelled_caller_does_not_end_the_run() -> None:
    flight, work = SingleFlight(), SharedWork()
    one, other = await joined(flight, work, 2)
    one.cancel()
    await asyncio.wait([one])
    work.gate.set()
    await other
    assert (one.cancelled(), work.begun, work.ended) == (True, 1, 1)


async def test_last_cancelled_caller_ends_the_run() -> None:
    flight, work = SingleFlight(), SharedWork()
    one, other = await joined(flight, work, 2)
    one.cancel()
    other.cancel()
    late = asyncio.create_task(flight.join(work))
    await asyncio.wait([one, other])
    assert work.ended == 1
    work.gate.set()
    await late
    assert (work.begun, late.cancelled()) == (2, False)


async def test_each_caller_gets_its_own_exception() -> None:
    flight, work = SingleFlight(), SharedWork()
    work.error = AuthorizationFailed("no", hop="token", clause="a rule", passing=True)
    tasks = await joined(flight, work, 3)
    work.gate.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert len({id(error) for error in errors}) == 3
    for error in errors:
        assert isinstance(error, AuthorizationFailed)
        assert (str(error), error.hop, error.clause, error.passing) == ("no", "token", "a rule", True)


def test_run_of_closed_loop_is_ignored() -> None:
    flight = SingleFlight()
    works: list[SharedWork] = []

    async def leave() -> None:
        works.append(SharedWork())
        task = asyncio.create_task(flight.join(works[0]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()

    async def come() -> None:
        works.append(SharedWork())
        works[1].gate.set()
        await flight.join(works[1])

    asyncio.run(leave())
    asyncio.run(come())
    assert works[1].ended == 1


async def test_unexpected_exception_is_raised() -> None:
    flight, work = SingleFlight(), SharedWork()
    work.error = ValueError("ours")
    work.gate.set()
    with pytest.raises(ValueError, match="ours"):
        await flight.join(work)
