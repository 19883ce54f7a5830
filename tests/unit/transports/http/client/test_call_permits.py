"""The limit on concurrent calls."""

import asyncio

from trunkline.transports.http.client.call_permits import CallPermits


async def waiting(permits: CallPermits) -> "asyncio.Task[None]":
    task = asyncio.ensure_future(permits.acquire())
    await asyncio.sleep(0)
    return task


async def test_permits_are_given_in_order() -> None:
    permits = CallPermits(1)
    await permits.acquire()
    first, second = await waiting(permits), await waiting(permits)
    assert not permits.try_acquire()
    permits.release()
    await first
    assert not second.done()
    assert not permits.try_acquire()  # the waiter has it
    permits.release()
    await second
    permits.release()
    assert permits.try_acquire()
    assert not permits.try_acquire()


async def test_cancelled_waiter_takes_no_permit() -> None:
    permits = CallPermits(1)
    assert permits.try_acquire()
    first, second = await waiting(permits), await waiting(permits)
    first.cancel()
    await asyncio.wait([first])
    permits.release()
    await second


async def test_permit_of_a_waiter_cancelled_in_the_same_turn_goes_to_the_next() -> None:
    for release_first in (True, False):
        permits = CallPermits(1)
        assert permits.try_acquire()
        first, second = await waiting(permits), await waiting(permits)
        if release_first:
            permits.release()
            first.cancel()
        else:
            first.cancel()
            permits.release()
        await second
        assert first.cancelled()
