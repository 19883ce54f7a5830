"""Health monitor of a server: runs the checks of the application, and collects the state of its own components.

A check with an interval runs on it while the server serves, and probes are answered from its last result. Probes drive
the other checks, and those whose result is older than their interval: all run concurrently, each within its time limit.
A running check is not started again, and its result is reused for its interval, or for a moment, so probes may be
frequent. A probe waits less than a second; for a check that takes longer it uses the last result. Clients learn only
which check fails; the log has the reason, once when a check begins to fail and once when it recovers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from trunkline.clock import Clock, Timer
from trunkline.errors import RegistrationError
from trunkline.facts import HealthChanged, Observers
from trunkline.server.access.rules import evaluate_predicate
from trunkline.server.options import Health
from trunkline.server.resilience.breaker_states import BreakerState
from trunkline.server.resilience.health_states import ComponentHealth, HealthState, HealthTransition, overall_state

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Cluster
    from trunkline.server.resilience.circuit_breaker import CircuitBreaker
    from trunkline.supervision.supervisor import ChildStatus

__all__ = ["HealthCheck", "HealthMonitor", "HealthReport", "make_check"]

_PROBE_TIMEOUT: Final = 0.8  # seconds that a probe waits: Kubernetes gives it one second by default
_RESULT_LIFETIME: Final = 0.5  # seconds that a result is reused
_BREAKER_STATES: Final = {
    BreakerState.CLOSED: HealthState.HEALTHY,
    BreakerState.HALF_OPEN: HealthState.DEGRADED,
    BreakerState.OPEN: HealthState.UNHEALTHY,
}

_log: Final = logging.getLogger("trunkline")


class HealthCheck(Struct, frozen=True):
    """A registered check."""

    predicate: Health
    interval: float | None = None  # seconds between two runs; None: it runs for probes only
    timeout: float = _PROBE_TIMEOUT
    critical: bool = True  # False: its failure degrades the server, which stays ready
    failures: int = 1  # consecutive ones, with which it is unhealthy


def make_check(
    name: str, predicate: Any, *, interval: float | None, timeout: float, critical: bool, failures: int
) -> HealthCheck:
    """Return a check. Raises `RegistrationError` for invalid options."""
    for option, value in (("interval", interval), ("timeout", timeout), ("failures", failures)):
        number: Any = value
        wrong = not isinstance(number, int | float) or isinstance(number, bool) or number <= 0
        if wrong and not (option == "interval" and number is None):
            raise RegistrationError(f"health check {name!r}: {option}= must be a number above 0, not {number!r}")
    return HealthCheck(predicate, interval, timeout, critical, failures)


class HealthReport(Struct, frozen=True):
    """The health of a server: its state, and its components by name."""

    state: HealthState
    components: Mapping[str, ComponentHealth]

    def details(self) -> dict[str, Any]:
        """Describe the components as JSON."""
        return {
            name: {
                "status": component.state.value,
                "critical": component.critical,
                **({"reason": component.reason} if component.reason else {}),
                "history": [
                    {"at": step.at, "from": step.before.value, "to": step.after.value} for step in component.history
                ],
            }
            for name, component in self.components.items()
        }


class _CheckRun(NamedTuple):
    """One run of a check."""

    check: HealthCheck
    task: "asyncio.Task[None]"
    started_at: float


class HealthMonitor:
    """Runs the registered checks and keeps the states of all components."""

    def __init__(
        self,
        checks: Mapping[str, HealthCheck],
        get_clock: Callable[[], Clock],
        store_writable: Callable[[], Awaitable[bool]],
        get_breakers: "Callable[[], Iterable[CircuitBreaker]]",
        get_cluster: "Callable[[], Cluster | None]",
        *,
        observers: Observers,
        get_children: "Callable[[], ChildStatus | None]" = lambda: None,
    ) -> None:
        """`store_writable` returns whether the store accepts writes; `get_children` describes what the server's
        supervisor keeps running."""
        self._get_children = get_children
        self._checks = checks
        self._get_clock = get_clock
        self._store_writable = store_writable
        self._get_breakers = get_breakers
        self._get_cluster = get_cluster
        self._observers = observers
        self._components: dict[str, ComponentHealth] = {}  # of checks
        self._own: dict[str, ComponentHealth] = {}  # of the server itself
        self._runs: dict[str, _CheckRun] = {}
        self._results_at: dict[str, float] = {}  # when each check had its last result
        self._timers: dict[str, Timer] = {}  # of checks with an interval
        self._serving = False

    def start(self) -> None:
        """Run the checks with an interval on it from now on, until `close`."""
        self._serving = True
        for name, check in self._checks.items():
            if check.interval is not None and name not in self._timers:
                self._recent_run(name, check, self._get_clock())

    async def run_checks(self) -> dict[str, tuple[bool, bool]]:
        """Run every check. Return whether it passes, and whether it allows the server to be ready: it passes, has
        failed fewer times than count, or is not critical."""
        await self._refresh()
        components = {name: self._of_check(name, check) for name, check in self._checks.items()}
        return {name: (it.state is HealthState.HEALTHY, it.usable) for name, it in components.items()}

    async def report(self, worker_states: Sequence[str] = ("ready",)) -> HealthReport:
        """Return the health of the server and its components. `worker_states` are those of its workers."""
        writable, _ = await asyncio.gather(self._store_writable(), self._refresh())
        self._set("store", HealthState.HEALTHY if writable else HealthState.UNHEALTHY, "it is not writable")
        ready = sum(state == "ready" for state in worker_states)
        state = HealthState.UNHEALTHY if not ready else HealthState.DEGRADED
        if ready == len(worker_states):
            state = HealthState.HEALTHY
        self._set("workers", state, f"{ready} of {len(worker_states)} are ready")
        for breaker in self._get_breakers():
            name, state = f"breaker {breaker.name}", _BREAKER_STATES[breaker.state]
            self._set(name, state, f"it is {breaker.state.value}", critical=False)
        cluster = self._get_cluster()
        if cluster is not None:
            state = HealthState.HEALTHY if cluster.lease_valid else HealthState.DEGRADED
            self._set("cluster", state, "the lease of this process is not renewed", critical=False)
        children = self._get_children()
        if children is not None:
            down = [f"{child.name} is {child.state.value}: {child.last_failure}" for child in children.impaired()]
            self._set(
                "supervision", HealthState.DEGRADED if down else HealthState.HEALTHY, "; ".join(down), critical=False
            )
        checks = {name: self._of_check(name, check) for name, check in self._checks.items()}
        named = {f"check {name}" if name in self._own else name: component for name, component in checks.items()}
        components = {**named, **self._own}
        return HealthReport(overall_state(components.values()), components)

    def close(self) -> None:
        """Stop running checks."""
        self._serving = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for run in self._runs.values():
            run.task.cancel()
        self._runs.clear()

    # --- components ------------------------------------------------------------------------------

    def _of_check(self, name: str, check: HealthCheck) -> ComponentHealth:
        component = self._components.get(name)
        if component is None:
            component = ComponentHealth(critical=check.critical, failures=check.failures)
            self._components[name] = component
        return component

    def _set(self, name: str, state: HealthState, reason: str, *, critical: bool = True) -> None:
        """Set the state of a component of the server; the reason is for states other than healthy."""
        component = self._own.get(name)
        if component is None:
            component = self._own[name] = ComponentHealth(critical=critical)
        reason = "" if state is HealthState.HEALTHY else reason
        self._report_change(name, component.change(state, reason, self._get_clock().now()))

    def _report_change(self, name: str, change: HealthTransition | None) -> None:
        if change is not None and self._observers and change.before is not HealthState.UNKNOWN:
            before, after = change.before.value, change.after.value
            self._observers.on(
                HealthChanged(connection=0, at=change.at, name=name, before=before, after=after, reason=change.reason)
            )

    # --- checks ----------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        """Run the checks whose results are old, and wait for all running ones without a fresh result, but not for
        long."""
        clock = self._get_clock()
        runs = {name: self._recent_run(name, check, clock) for name, check in self._checks.items()}
        running = {task for name, task in runs.items() if not task.done() and not self._has_fresh_result(name, clock)}
        if not running:
            return
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = clock.call_at(clock.now() + _PROBE_TIMEOUT, lambda: due.set_result(None))
        try:
            while running and not due.done():
                done, _ = await asyncio.wait({*running, due}, return_when=asyncio.FIRST_COMPLETED)
                running -= done
        finally:
            timer.cancel()
            due.cancel()

    def _recent_run(self, name: str, check: HealthCheck, clock: Clock) -> "asyncio.Task[None]":
        """Return the running or most recent run of a check if it is fresh; otherwise start one."""
        loop, run, now = asyncio.get_running_loop(), self._runs.get(name), clock.now()
        if run is not None and run.check is check and run.task.get_loop() is loop:
            lifetime = check.interval or _RESULT_LIFETIME
            if not run.task.done() or 0 <= now - run.started_at < lifetime:
                return run.task
        return self._start_run(name, check, clock)

    def _start_run(self, name: str, check: HealthCheck, clock: Clock) -> "asyncio.Task[None]":
        loop, last, now = asyncio.get_running_loop(), self._runs.get(name), clock.now()
        if last is not None and last.check is not check:  # another check has replaced it
            last.task.cancel()
            self._components.pop(name, None)
            self._results_at.pop(name, None)
        run = self._runs[name] = _CheckRun(check, loop.create_task(self._run(name, check, clock)), now)
        self._schedule(name, check, clock)
        return run.task

    def _has_fresh_result(self, name: str, clock: Clock) -> bool:
        interval, at = self._checks[name].interval, self._results_at.get(name)
        return interval is not None and at is not None and 0 <= clock.now() - at < interval

    def _schedule(self, name: str, check: HealthCheck, clock: Clock) -> None:
        """Run a check again after its interval, while the server serves."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        if self._serving and check.interval is not None:
            self._timers[name] = clock.call_at(clock.now() + check.interval, partial(self._run_again, name, clock))

    def _run_again(self, name: str, clock: Clock) -> None:
        check, last = self._checks[name], self._runs[name]
        if check.interval is not None and (last.check is not check or last.task.done()):
            self._start_run(name, check, clock)
        else:
            self._schedule(name, check, clock)  # it still runs

    async def _run(self, name: str, check: HealthCheck, clock: Clock) -> None:
        def expire() -> None:
            self._record(name, check, f"no result within {check.timeout:g} s")

        timer = clock.call_at(clock.now() + check.timeout, expire)
        why: str | None = None
        try:
            if not await evaluate_predicate(check.predicate):
                why = "it returned False"
        except Exception as error:  # noqa: BLE001 - a raising check has failed
            why = repr(error)
        finally:
            timer.cancel()
        self._record(name, check, why)

    def _record(self, name: str, check: HealthCheck, why: str | None) -> None:
        component = self._of_check(name, check)
        self._results_at[name] = self._get_clock().now()
        failed_before = component.state in {HealthState.DEGRADED, HealthState.UNHEALTHY}
        change = component.record(why is None, why or "", self._get_clock().now())
        self._report_change(name, change)
        if why is not None and not failed_before:
            effect = "the server is not ready" if not component.usable else "the server stays ready"
            _log.error("health check %r fails: %s; %s", name, why, effect)
        elif why is None and failed_before:
            _log.warning("health check %r passes again", name)
