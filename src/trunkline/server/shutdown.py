"""Staged, bounded shutdown of a server.

A signal, the end of standard input or the program itself can begin it. It has five stages that run one after another,
each with a time limit. A stage that exceeds its limit is cancelled and the next one begins, so shutdown takes bounded
time whatever tools and peers do. A process started by `run()` exits with 0, or with the code of the first stage that
exceeded its limit:

    UnsubscribeResources   81   close the listeners, stop sending change notifications
    DrainPendingRequests   82   finish running requests and refuse new ones; limited by `drain_timeout`
    CloseTransport         83   end the streams and close the connections
    PersistSession         84   write the state that outlives the process
    Terminate              85   run the shutdown callbacks, exit the lifespan, close the store

A crash (an internal error, or the error passed to `abort()`) has three steps: log the error, write a crash dump if
`crash_folder` is set, and close everything without draining. The process exits with 1 and a traceback.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from inspect import isawaitable
from typing import Any, Final

from trunkline.config import Settings
from trunkline.facts import CrashStep, Fact, HandlerFailed, Observers, ShutdownOverran, ShutdownStep
from trunkline.registry.signatures import name_of
from trunkline.server.runtime import ServerRuntime

__all__ = ["EXIT_CODES", "Shutdown"]

EXIT_CODES: Final[Mapping[str, int]] = {
    "UnsubscribeResources": 81,
    "DrainPendingRequests": 82,
    "CloseTransport": 83,
    "PersistSession": 84,
    "Terminate": 85,
}
"""Exit codes of a process, by the first shutdown stage that exceeded its time limit."""

_DRAIN_STAGE: Final = "DrainPendingRequests"
_CANCEL_GRACE: Final = 0.5  # seconds that a cancelled stage has to clean up


class Shutdown:
    """The shutdown sequence of one server: callbacks, stages, crash handling and its reports to observers.

    At most one sequence runs at a time; after it the server can serve again. A crash replaces a running shutdown.
    """

    def __init__(self, runtime: ServerRuntime, observers: Observers, settings: Settings) -> None:
        self._runtime = runtime
        self._observers = observers
        self._settings = settings
        self._callbacks: list[Callable[[], Any]] = []
        self._task: asyncio.Task[tuple[str, ...]] | None = None
        self._begun = asyncio.Event()
        self.crash: BaseException | None = None

    def add_callback(self, function: Callable[[], Any]) -> None:
        """Register a function, plain or async, for the stage Terminate; the last one added runs first."""
        self._callbacks.append(function)

    async def run(self) -> tuple[str, ...]:
        """Shut down in stages and return the names of those that exceeded their limit. Concurrent callers share one
        sequence, which goes on if a caller is cancelled."""
        return await asyncio.shield(self.begin())

    @property
    def readiness(self) -> str:
        """The state of the server for health checks and load balancers: "ready", "paused" or "draining"."""
        if self._task is not None or self.crash is not None:
            return "draining"
        return "paused" if self._runtime.connections.paused else "ready"

    async def wait_begun(self) -> None:
        """Wait until a shutdown or a crash begins."""
        await self._begun.wait()

    def begin(self) -> "asyncio.Task[tuple[str, ...]]":
        """Return the shutdown that runs on this loop; start one if there is none."""
        task = self._task
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = self._start(self._run_shutdown())
        return task

    def abort(self, error: BaseException) -> None:
        """Crash: report the error, write a crash dump if `crash_folder` is set, and close everything without draining.
        Only the first error counts. Must run on the loop."""
        if self.crash is not None:
            return
        self.crash = error
        self._report_fact(CrashStep, step="LogError", error=error)
        self._report_failure(error, "the server")
        dump = self._write_crash_dump(error)
        self._report_fact(CrashStep, step="PersistCrashDump", error=error, file=dump)
        if self._task is not None:
            self._task.cancel()
        self._start(self._run_crash_shutdown(error))

    def _start(self, sequence: Coroutine[Any, Any, tuple[str, ...]]) -> "asyncio.Task[tuple[str, ...]]":
        loop = asyncio.get_running_loop()
        task = self._task = loop.create_task(sequence)
        loop.call_soon_threadsafe(self._begun.set)  # thread-safe: wakes the loop if this runs in a signal handler
        return task

    async def _run_shutdown(self) -> tuple[str, ...]:
        runtime = self._runtime
        return await self._run_stages(
            {
                "UnsubscribeResources": runtime.unsubscribe_resources,
                _DRAIN_STAGE: runtime.drain,
                "CloseTransport": runtime.close_transports,
                "PersistSession": runtime.persist,
                "Terminate": self._run_terminate_stage,
            },
            lambda stage: self._report_fact(ShutdownStep, step=stage),
        )

    async def _run_crash_shutdown(self, error: BaseException) -> tuple[str, ...]:
        runtime = self._runtime
        self._report_fact(CrashStep, step="Terminate", error=error)
        stages = {
            "CloseTransport": runtime.close_transports,
            "PersistSession": runtime.persist,
            "Terminate": self._run_terminate_stage,
        }
        return await self._run_stages(stages, lambda _: None)

    async def _run_stages(
        self, stages: Mapping[str, Callable[[], Coroutine[Any, Any, None]]], on_stage: Callable[[str], None]
    ) -> tuple[str, ...]:
        """Run every stage within its limit; then raise the first error of any stage."""
        overran: list[str] = []
        failed: list[BaseException] = []
        settings = self._settings
        try:
            for name, stage in stages.items():
                on_stage(name)
                seconds = settings.drain_timeout if name == _DRAIN_STAGE else settings.stage_timeout
                if not await _run_within(seconds, stage(), failed):
                    overran.append(name)
                    self._report_fact(ShutdownOverran, step=name)
            await self._observers.drain(settings.stage_timeout)
        finally:
            if self._task is asyncio.current_task():  # or else a crash has replaced this sequence
                self._task = None
                self._begun = asyncio.Event()
        if failed:
            raise failed[0]
        return tuple(overran)

    async def _run_terminate_stage(self) -> None:
        try:
            for function in reversed(self._callbacks):
                await self._run_callback(function)
            await self._runtime.release_resources()
        finally:
            await self._runtime.close_store()

    async def _run_callback(self, function: Callable[[], Any]) -> None:
        try:
            result = function()
            if isawaitable(result):
                await result
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the other callbacks must still run
            self._report_failure(error, f"on_shutdown {name_of(function)}")

    # --- reports to observers ----------------------------------------------------------------------

    def _report_fact(self, fact: Callable[..., Fact], **members: Any) -> None:
        if self._observers:
            self._observers.on(fact(connection=0, at=_loop_time(), **members))

    def report_loop_failure(self, error: BaseException, incident: str) -> None:
        """Report an exception that only the event loop's exception handler caught."""
        self._report_failure(error, "a callback of the event loop", incident)

    def _report_failure(self, error: BaseException, what: str, reference: str = "-") -> None:
        if self._observers.hear_failures:
            self._observers.on(
                HandlerFailed(
                    connection=0, at=_loop_time(), request=None, method=what, reference=reference, error=error
                )
            )

    def _write_crash_dump(self, error: BaseException) -> str | None:
        """Write a crash dump if `crash_folder` is set; return its path."""
        if self._settings.crash_folder is None:
            return None
        from trunkline.server.crash_dump import write_dump

        folder, most = self._settings.crash_folder, self._settings.crash_dumps
        try:
            try:
                return write_dump(folder, most, error, self._runtime.snapshot())
            except TypeError:  # a declared capability has no JSON form
                return write_dump(folder, most, error, {})
        except Exception as failed:  # noqa: BLE001 - a failing dump must not hide the crash
            self._report_failure(failed, "the crash dump")
            return None


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


async def _run_within(seconds: float | None, work: Coroutine[Any, Any, None], errors: list[BaseException]) -> bool:
    """Run a coroutine; cancel it and return False if it takes longer than `seconds`. Append its error to `errors`."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        in_time = task.done()
        if not in_time:
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_GRACE)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        errors.append(error)
    return in_time
