"""Health checks of an application: the predicates registered with `@server.health`, which `/readyz` runs.

All checks run concurrently, each within a time limit. A running check is not started again, and its result is reused
for a moment, so probes may be frequent. Clients learn only which check fails; the log has the reason, once when a check
begins to fail and once when it recovers.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from trunkline.server.access.rules import evaluate_predicate
from trunkline.server.options import Health

__all__ = ["HealthChecks"]

_CHECK_TIMEOUT: Final = 0.8  # seconds that a check may take: Kubernetes gives a probe one second by default
_RESULT_LIFETIME: Final = 0.5  # seconds that a result is reused

_log: Final = logging.getLogger("trunkline")


class _CheckRun(NamedTuple):
    """One run of a check."""

    check: Health
    task: "asyncio.Task[bool]"
    started_at: float


class HealthChecks:
    """Runs the registered health checks and caches their results."""

    def __init__(self, checks: Mapping[str, Health]) -> None:
        self._checks = checks
        self._runs: dict[str, _CheckRun] = {}
        self._failing: set[str] = set()

    async def run_all(self) -> dict[str, bool]:
        """Run every check and return whether it passed. A check that raises or exceeds the limit has failed."""
        tasks = {name: self._recent_run(name, check) for name, check in self._checks.items()}
        if not tasks:
            return {}
        await asyncio.wait(tasks.values(), timeout=_CHECK_TIMEOUT)
        return {name: task.done() and not task.cancelled() and task.result() for name, task in tasks.items()}

    def close(self) -> None:
        """Cancel the running checks."""
        for run in self._runs.values():
            run.task.cancel()
        self._runs.clear()

    def _recent_run(self, name: str, check: Health) -> "asyncio.Task[bool]":
        """Return the running or most recent run of a check if it is fresh; otherwise start one."""
        loop, run = asyncio.get_running_loop(), self._runs.get(name)
        ours = run is not None and run.check is check and run.task.get_loop() is loop
        if run is not None and ours and (not run.task.done() or loop.time() < run.started_at + _RESULT_LIFETIME):
            return run.task
        run = self._runs[name] = _CheckRun(check, loop.create_task(self._run(name, check)), loop.time())
        return run.task

    async def _run(self, name: str, check: Health) -> bool:
        late = asyncio.get_running_loop().call_later(
            _CHECK_TIMEOUT, self._record_failure, name, f"no result within {_CHECK_TIMEOUT:g} s"
        )
        why = "it returned False"
        try:
            well = await evaluate_predicate(check)
        except Exception as error:  # noqa: BLE001 - a raising check has failed
            well, why = False, repr(error)
        finally:
            late.cancel()
        if not well:
            self._record_failure(name, why)
        elif name in self._failing:
            self._failing.discard(name)
            _log.warning("health check %r passes again", name)
        return well

    def _record_failure(self, name: str, why: str) -> None:
        if name not in self._failing:
            self._failing.add(name)
            _log.error("health check %r fails: %s; the server is not ready", name, why)
