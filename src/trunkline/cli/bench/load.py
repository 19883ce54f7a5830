"""The load generator: sends requests by a plan and records their ends.

In the open loop the start of each request is fixed beforehand, whatever the server does. Event loops wait for whole
milliseconds, which would be added to every latency, so a thread sleeps for the last few milliseconds before a start.
Its wake-up delays a start by 0.2 to 0.4 ms; polling delays it less, but takes up to a CPU that the server may need.

In the closed loop a request starts when another one has ended.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from trunkline.cli.bench.cpu import cpu_of_children
from trunkline.cli.bench.measurement import Measurement, Outcome

__all__ = ["Send", "apply_load", "now"]

Send = Callable[[], Awaitable[Outcome]]
"""Sends one request over one connection; returns its outcome instead of raising."""

_MAX_PENDING: Final = 10_000  # requests without a response in the open loop; further ones wait, and their latency grows
_ROUNDING: Final = 1e-6  # a share of a request
_EXACT: Final = 0.003  # seconds before a start that a thread sleeps

now: Final = time.perf_counter


async def apply_load(measurement: Measurement, senders: Sequence[Send]) -> None:
    """Send requests until the plan ends and all of them have. If it is cancelled, the measurement is of the time until
    then."""
    probe = asyncio.ensure_future(_measure_cpu(measurement))
    try:
        async with asyncio.TaskGroup() as requests:
            if measurement.plan.rate is None:
                for number in range(measurement.plan.concurrency):
                    requests.create_task(_send_in_turn(measurement, senders[number % len(senders)]))
            else:
                with ThreadPoolExecutor(1, "start") as sleeper:
                    await _send_at_rate(measurement, senders, measurement.plan.rate, requests, sleeper)
        await probe
    except asyncio.CancelledError:
        measurement.interrupt(now())
        raise
    finally:
        probe.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await probe


async def _send_in_turn(measurement: Measurement, send: Send) -> None:
    while (start := now()) < measurement.ends:
        await _send_one(measurement, send, start)


async def _send_at_rate(
    measurement: Measurement,
    senders: Sequence[Send],
    rate: float,
    requests: asyncio.TaskGroup,
    sleeper: ThreadPoolExecutor,
) -> None:
    plan, first = measurement.plan, measurement.started
    pending = asyncio.Semaphore(_MAX_PENDING)

    async def send_one(send: Send, intended: float) -> None:
        try:
            await _send_one(measurement, send, intended)
        finally:
            pending.release()

    count = math.ceil((plan.warm_up + plan.duration) * rate - _ROUNDING)
    for number in range(count):
        intended = first + number / rate
        await _sleep_until(intended, sleeper)
        held_back = pending.locked()
        await pending.acquire()
        if held_back and now() >= measurement.ends:
            measurement.unsent = min(count - number, math.ceil(plan.duration * rate - _ROUNDING))
            return
        requests.create_task(send_one(senders[number % len(senders)], intended))


async def _sleep_until(due: float, sleeper: ThreadPoolExecutor) -> None:
    """Sleep until a time, and at least until other work had its turn."""
    if (left := due - now()) > 2 * _EXACT:
        await asyncio.sleep(left - _EXACT)
        left = due - now()
    if left > 0:
        await asyncio.get_running_loop().run_in_executor(sleeper, time.sleep, left)
    else:
        await asyncio.sleep(0)


async def _send_one(measurement: Measurement, send: Send, intended: float) -> None:
    measurement.begin(intended, now())
    outcome = await send()
    measurement.end(intended, now(), outcome)


async def _measure_cpu(measurement: Measurement) -> None:
    """Record the CPU time that the run costs the server, if it is our child, and ourselves."""
    await asyncio.sleep(max(measurement.begins - now(), 0))
    server, own = cpu_of_children(), time.process_time()
    try:
        await asyncio.sleep(max(measurement.ends - now(), 0))
    finally:  # also of a run that was interrupted
        ended = cpu_of_children()
        measurement.client_cpu = time.process_time() - own
        if server is not None and ended is not None:
            measurement.server_cpu = max(ended - server, 0.0)
