"""Work that is done once for all who need it at the same time."""

import asyncio

import pytest

from trunkline.auth.client.single_flight import SingleFlight
from trunkline.errors import AuthorizationFailed


class Work:
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


async def joined(flight: SingleFlight, work: Work, many: int) -> "list[asyncio.Task[None]]":
    tasks = [asyncio.create_task(flight.join(work)) for _ in range(many)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_all_who_come_at_the_same_time_share_it_and_the_next_has_it_done_anew() -> None:
    flight, work = SingleFlight(), Work()
    tasks = await joined(flight, work, 5)
    work.gate.set()
    await asyncio.gather(*tasks)
    assert work.begun == 1
    await flight.join(work)
    assert work.begun == 2


async def test_whoever_is_cancelled_takes_nothing_along() -> None:
    flight, work = SingleFlight(), Work()
    one, other = await joined(flight, work, 2)
    one.cancel()
    await asyncio.wait([one])
    work.gate.set()
    await other
    assert (one.cancelled(), work.begun, work.ended) == (True, 1, 1)


async def test_the_last_who_is_cancelled_ends_it_and_whoever_comes_then_begins_anew() -> None:
    flight, work = SingleFlight(), Work()
    one, other = await joined(flight, work, 2)
    one.cancel()
    other.cancel()
    late = asyncio.create_task(flight.join(work))
    await asyncio.wait([one, other])
    assert work.ended == 1
    work.gate.set()
    await late
    assert (work.begun, late.cancelled()) == (2, False)


async def test_everybody_gets_the_error_as_one_of_their_own() -> None:
    flight, work = SingleFlight(), Work()
    work.error = AuthorizationFailed("no", hop="token", clause="a rule", passing=True)
    tasks = await joined(flight, work, 3)
    work.gate.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert len({id(error) for error in errors}) == 3
    for error in errors:
        assert isinstance(error, AuthorizationFailed)
        assert (str(error), error.hop, error.clause, error.passing) == ("no", "token", "a rule", True)


def test_what_is_left_of_a_loop_that_has_ended_holds_nobody_up() -> None:
    flight = SingleFlight()
    works: list[Work] = []

    async def leave() -> None:
        works.append(Work())
        task = asyncio.create_task(flight.join(works[0]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()

    async def come() -> None:
        works.append(Work())
        works[1].gate.set()
        await flight.join(works[1])

    asyncio.run(leave())
    asyncio.run(come())
    assert works[1].ended == 1


async def test_a_mistake_of_ours_is_not_hidden() -> None:
    flight, work = SingleFlight(), Work()
    work.error = ValueError("ours")
    work.gate.set()
    with pytest.raises(ValueError, match="ours"):
        await flight.join(work)
