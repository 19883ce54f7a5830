"""The end of a server, whoever asks for it: a signal, the end of its input, or the program itself.

It has five stages, one after another, and each has a time. What is not done by then is cut off, and the next stage
begins, so a server ends in bounded time whatever its tools and peers do. A process that was run by `run()` ends with 0,
or with the code of the first stage that took too long:

    UnsubscribeResources   81   nobody new is taken, and nobody hears of changes any more
    DrainPendingRequests   82   what is under way is finished, what is new is refused; this one has `drain_timeout`
    CloseTransport         83   streams end and lines are closed
    PersistSession         84   what outlives the process is written down
    Terminate              85   cleanup, the lifespan, the store

A crash, which is an error of our own or what `abort()` is told, has three: it is logged, a dump is written if there is
a folder for it, and what there is is closed without waiting for anybody. The process ends with 1 and a traceback.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, Final, TypeVar

from trunkline.facts import CrashStep, Fact, HandlerFailed, Observers, ShutdownOverran, ShutdownStep
from trunkline.registry.signatures import name_of
from trunkline.server.registration import Registrar
from trunkline.server.runtime import ServerComponents, ServerRuntime
from trunkline.server.server_options import check_callback

__all__ = ["EXIT_CODES", "Shutdown"]

F = TypeVar("F", bound=Callable[[], Any])

EXIT_CODES: Final[Mapping[str, int]] = {
    "UnsubscribeResources": 81,
    "DrainPendingRequests": 82,
    "CloseTransport": 83,
    "PersistSession": 84,
    "Terminate": 85,
}
"""What a process ends with if a stage of its end took too long, by the stage."""

_DRAIN_STAGE: Final = "DrainPendingRequests"
_CANCEL_GRACE: Final = 0.5  # seconds, for what is cut off to let go


class Shutdown(Registrar):
    """A server, as far as its end is concerned."""

    def __init__(self, components: ServerComponents) -> None:
        super().__init__(components.catalog, components.health)
        self._observers = components.observers
        self._runtime = ServerRuntime(components, self._begin_shutdown)
        self._shutdown_callbacks: list[Callable[[], Any]] = []
        self._shutdown_task: asyncio.Task[tuple[str, ...]] | None = None
        self._shutdown_begun = asyncio.Event()  # an end
        self.crash: BaseException | None = None

    @property
    def observers(self) -> Observers:
        """The observers, which are told what happens."""
        return self._observers

    def on_shutdown(self, function: F) -> F:
        """Calls a function, plain or async, when the server ends and every line is closed. The last that was added is
        the first; what one raises is reported, and keeps no other from being called."""
        check_callback("on_shutdown", function)
        self._shutdown_callbacks.append(function)
        return function

    async def shutdown(self) -> tuple[str, ...]:
        """Ends in good order: takes nothing new, lets what is under way finish, closes every line, writes down what is
        to outlive the process, and lets go of everything. Gives the stages that took too long. Whoever asks while it
        ends waits for the same end. `run()` returns then; a server that has ended can serve again."""
        return await asyncio.shield(self._begin_shutdown())  # it goes on, whoever stops waiting for it

    async def aclose(self) -> None:
        """Ends in good order, as `shutdown()` does."""
        await self.shutdown()

    def abort(self, error: BaseException) -> None:
        """Ends at once, for a reason that leaves no other way: logs the error, writes a crash dump if there is a folder
        for it, and closes everything without waiting. `run()` raises the error then. Callable from any thread."""
        self._runtime.post(partial(self._abort, error))

    def _abort(self, error: BaseException) -> None:
        if self.crash is not None:
            return  # one is enough
        self.crash = error
        self._report_fact(CrashStep, step="LogError", error=error)
        self._report_failure(error, "the server")
        dump = self._write_crash_dump(error)
        self._report_fact(CrashStep, step="PersistCrashDump", error=error, file=dump)
        if self._shutdown_task is not None:
            self._shutdown_task.cancel()
        self._create_shutdown_task(self._run_crash_shutdown(error))

    def _readiness(self) -> str:
        """How the server stands, in a word, for whoever sends requests to it."""
        if self._shutdown_task is not None or self.crash is not None:
            return "draining"
        return "paused" if self._runtime.connections.paused else "ready"

    async def stopping(self) -> None:
        """Waits until an end has begun."""
        await self._shutdown_begun.wait()

    def _begin_shutdown(self) -> "asyncio.Task[tuple[str, ...]]":
        """The end that is under way on the running loop, or else one that begins now."""
        ending = self._shutdown_task
        if ending is None or ending.get_loop() is not asyncio.get_running_loop():
            ending = self._create_shutdown_task(self._run_shutdown())
        return ending

    def _create_shutdown_task(self, shutdown: Coroutine[Any, Any, tuple[str, ...]]) -> "asyncio.Task[tuple[str, ...]]":
        loop = asyncio.get_running_loop()
        ending = self._shutdown_task = loop.create_task(shutdown)
        loop.call_soon_threadsafe(self._shutdown_begun.set)  # and wakes the loop, if this is inside a signal
        return ending

    async def _run_shutdown(self) -> tuple[str, ...]:
        serving = self._runtime
        return await self._run_stages(
            {
                "UnsubscribeResources": serving.unsubscribe_resources,
                _DRAIN_STAGE: serving.drain,
                "CloseTransport": serving.close_transports,
                "PersistSession": serving.persist,
                "Terminate": self._run_terminate_stage,
            },
            lambda stage: self._report_fact(ShutdownStep, step=stage),
        )

    async def _run_crash_shutdown(self, error: BaseException) -> tuple[str, ...]:
        serving = self._runtime
        self._report_fact(CrashStep, step="Terminate", error=error)
        stages = {
            "CloseTransport": serving.close_transports,
            "PersistSession": serving.persist,
            "Terminate": self._run_terminate_stage,
        }
        return await self._run_stages(stages, lambda _: None)

    async def _run_stages(
        self, stages: Mapping[str, Callable[[], Coroutine[Any, Any, None]]], on_stage: Callable[[str], None]
    ) -> tuple[str, ...]:
        """Goes through stages, each in its time. Raises what was raised first, once all are done."""
        overran: list[str] = []
        failed: list[BaseException] = []
        settings = self.settings
        try:
            for name, stage in stages.items():
                on_stage(name)
                seconds = settings.drain_timeout if name == _DRAIN_STAGE else settings.stage_timeout
                if not await _run_within(seconds, stage(), failed):
                    overran.append(name)
                    self._report_fact(ShutdownOverran, step=name)
            await self._observers.drain(settings.stage_timeout)
        finally:
            if self._shutdown_task is asyncio.current_task():  # and not one that ends faster
                self._shutdown_task = None
                self._shutdown_begun = asyncio.Event()
        if failed:
            raise failed[0]
        return tuple(overran)

    async def _run_terminate_stage(self) -> None:
        try:
            for function in reversed(self._shutdown_callbacks):
                await self._run_shutdown_callback(function)
            await self._runtime.release_resources()
        finally:
            await self._runtime.close_store()

    async def _run_shutdown_callback(self, function: Callable[[], Any]) -> None:
        try:
            waiting = function()
            if isawaitable(waiting):
                await waiting
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the others have to clean up all the same
            self._report_failure(error, f"on_shutdown {name_of(function)}")

    # --- telling -----------------------------------------------------------------------------------

    def _report_fact(self, fact: Callable[..., Fact], **members: Any) -> None:
        if self._observers:
            self._observers.on(fact(connection=0, at=_loop_time(), **members))

    def loop_failed(self, error: BaseException, incident: str) -> None:
        """Report an exception that was caught by the event loop alone."""
        self._report_failure(error, "a callback of the event loop", incident)

    def _report_failure(self, error: BaseException, what: str, reference: str = "-") -> None:
        if self._observers.hear_failures:
            self._observers.on(
                HandlerFailed(
                    connection=0, at=_loop_time(), request=None, method=what, reference=reference, error=error
                )
            )

    def _write_crash_dump(self, error: BaseException) -> str | None:
        """Writes a crash dump, if there is a folder for it; gives its path."""
        if self.settings.crash_folder is None:
            return None
        from trunkline.server.crash_dump import write_dump

        folder, most = self.settings.crash_folder, self.settings.crash_dumps
        try:
            try:
                return write_dump(folder, most, error, self._runtime.snapshot())
            except TypeError:  # something that is declared has no JSON
                return write_dump(folder, most, error, {})
        except Exception as failed:  # noqa: BLE001 - what is wrong with the dump must not hide what is wrong
            self._report_failure(failed, "the crash dump")
            return None


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


async def _run_within(seconds: float | None, work: Coroutine[Any, Any, None], errors: list[BaseException]) -> bool:
    """Does something in so many seconds; False if it took longer, and was cut off. What it raises is noted."""
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
