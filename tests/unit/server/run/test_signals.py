"""Signals that end a serving process."""

import asyncio
import os
import signal

import pytest
from tests.limits import PATIENCE

from trunkline.server.run.signals import on_signals

NUMBERS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.row("D13")
@pytest.mark.parametrize("number", NUMBERS)
async def test_signal_calls_back_on_the_loop_and_handlers_are_restored(number: signal.Signals) -> None:
    before, told = signal.getsignal(number), asyncio.Event()
    with on_signals(asyncio.get_running_loop(), told.set):
        os.kill(os.getpid(), number)
        await asyncio.wait_for(told.wait(), PATIENCE)
    assert signal.getsignal(number) is before


async def test_each_hangup_calls_back_and_ends_nothing() -> None:
    before, told, hung_up = signal.getsignal(signal.SIGHUP), asyncio.Event(), asyncio.Event()
    with on_signals(asyncio.get_running_loop(), told.set, hung_up.set):
        for _ in range(2):
            hung_up.clear()
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.wait_for(hung_up.wait(), PATIENCE)
    assert not told.is_set()
    assert signal.getsignal(signal.SIGHUP) is before


async def test_hangup_without_callback_keeps_its_disposition() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with on_signals(asyncio.get_running_loop(), asyncio.Event().set):
        assert signal.getsignal(signal.SIGHUP) is before


async def test_signals_are_ignored_on_other_threads() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]

    async def elsewhere() -> None:
        with on_signals(asyncio.get_running_loop(), asyncio.Event().set):
            assert [signal.getsignal(number) for number in NUMBERS] == before

    await asyncio.to_thread(asyncio.run, elsewhere())
