"""Ready-made children for a supervisor: OS processes, and what is opened and closed, such as a connection."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from os import PathLike
from typing import Any, Generic, TypeVar

from trunkline.errors import SupervisionError

__all__ = ["ProcessChild", "ResourceChild"]

T = TypeVar("T")


class ProcessChild:
    """An OS process. It is asked to end with SIGTERM, and killed if it does not within `grace` seconds."""

    kind = "process"

    def __init__(
        self,
        *command: str | PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        grace: float = 5.0,
    ) -> None:
        self._command = command
        self._env = env
        self._cwd = cwd
        self._grace = grace
        self.pid: int | None = None  # while it runs

    async def run(self, started: Callable[[], None], /) -> None:
        """Start the process and wait for its end. An exit code other than 0, or a signal, is a failure."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, env=self._env, cwd=self._cwd
        )
        self.pid = process.pid
        started()
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                await self._end(process)
            self.pid = None
        if code:
            how = f"exited with {code}" if code > 0 else f"was killed by signal {-code}"
            raise SupervisionError(f"{self._command[0]} {how}")

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                async with asyncio.timeout(self._grace):
                    await process.wait()
            except TimeoutError:
                pass
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


class ResourceChild(Generic[T]):
    """Something that is opened, may be lost, and is closed: a connection or a listener."""

    def __init__(
        self,
        kind: str,
        open_: Callable[[], Awaitable[T]],
        wait_lost: Callable[[T], Awaitable[Any]],
        close: Callable[[T], Awaitable[Any]],
    ) -> None:
        """`open_` opens it, at each start anew. `wait_lost` returns when it was closed in good order, and raises when
        it was lost. `close` closes it."""
        self.kind = kind
        self._open = open_
        self._wait_lost = wait_lost
        self._close = close

    async def run(self, started: Callable[[], None], /) -> None:
        """Open the resource, wait until it is closed or lost, and close it."""
        resource = await self._open()
        try:
            started()
            await self._wait_lost(resource)
        finally:
            await self._close(resource)
