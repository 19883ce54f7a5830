"""Trust of a gateway in the tools of its backends: pins, hidden characters and names that look alike.

The first contact pins all tools of a backend. A tool that changes, or that is added, is blocked: it is not listed, and
calls are refused. The refusal says nothing of the new definition, which may be meant for the model that reads it; the
log and `trunkline pins diff` show it to people. If the pins cannot be read or written, all tools are blocked.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec import Struct

from trunkline.client.group.concerns import find_concerns
from trunkline.errors import StoreError
from trunkline.errors.text import printable
from trunkline.findings import Finding
from trunkline.protocol.types import Tool
from trunkline.trust.pin_store import PinStore
from trunkline.trust.pins import BlockedTool

__all__ = ["ToolTrust"]

_log: Final = logging.getLogger("trunkline")
_MAX_REPORTED: Final = 1000  # concerns to remember; a backend may change without end
_POLL: Final = 1.0  # seconds between two looks at the pins, while a tool is blocked
_APPROVE: Final = "an operator can compare it with `trunkline pins diff` and approve it with `trunkline pins approve`"


class _Examined(Struct, frozen=True):
    """The tools of one backend, and the result of their comparison with the pins."""

    name: str
    tools: Mapping[str, Tool]
    blocked: Mapping[str, BlockedTool] = {}
    vanished: tuple[str, ...] = ()


class ToolTrust:
    """Examines the tools of all backends."""

    def __init__(self, pins: PinStore | None, on_blocked: Callable[[], object]) -> None:
        """Without `pins` nothing is blocked. `on_blocked` is called when the blocked tools of a backend change."""
        self._pins = pins
        self._on_blocked = on_blocked
        self._examined: dict[str, _Examined] = {}
        self._reported: set[str] = set()  # concerns in the log
        self._some_blocked: asyncio.Event | None = None  # while approvals are watched

    async def examine(self, backend: str, tools: list[Tool]) -> Mapping[str, str]:
        """Compare the tools of a backend with their pins; return the reasons for those to block, by their names."""
        found = _Examined(backend, {tool.name: tool for tool in tools})
        if self._pins is not None:
            found = await asyncio.to_thread(self._compare, self._pins, found)
        before = self._examined.get(backend)
        self._examined[backend] = found
        self._report_concerns()
        if before is None or before.blocked != found.blocked:
            self._update_blocked()
        return {name: f"{blocked.reason}; {_APPROVE}" for name, blocked in found.blocked.items()}

    @staticmethod
    def _compare(pins: PinStore, found: _Examined) -> _Examined:
        try:
            result = pins.examine(found.name, found.tools.values())
        except StoreError as error:
            _log.error("all tools of backend %r are blocked: %s", found.name, error)
            closed = BlockedTool("the pins cannot be used, so no tool is trusted")
            return _Examined(found.name, found.tools, dict.fromkeys(found.tools, closed))
        return _Examined(found.name, found.tools, result.blocked, result.vanished)

    def blocked(self, backend: str) -> tuple[str, ...]:
        """Return the names of the blocked tools of a backend."""
        examined = self._examined.get(backend)
        return () if examined is None else (*examined.blocked,)

    def forget(self, backend: str) -> None:
        """Forget a backend that was removed. Its pins stay."""
        if self._examined.pop(backend, None) is not None:
            self._update_blocked()

    def findings(self) -> list[Finding]:
        """Return concerns about the tools as they were last read."""
        return find_concerns([*self._examined.values()])

    def _update_blocked(self) -> None:
        if self._some_blocked is not None:
            self._signal_blocked(self._some_blocked)
        self._on_blocked()

    def _signal_blocked(self, some_blocked: asyncio.Event) -> None:
        if any(examined.blocked for examined in self._examined.values()):
            some_blocked.set()
        else:
            some_blocked.clear()

    def _report_concerns(self) -> None:
        """Log each concern once."""
        if len(self._reported) > _MAX_REPORTED:
            self._reported.clear()
        for finding in self.findings():
            line = printable(f"{finding.hop}: {finding.seen}", max_length=None)
            if line not in self._reported:
                self._reported.add(line)
                _log.warning("%s", line)

    # --- approvals -----------------------------------------------------------------------------------

    async def watch_approvals(self, examine_again: Callable[[str], Awaitable[None]]) -> None:
        """Examine blocked tools again when the file of the pins changes, for as long as this runs."""
        if self._pins is None:
            return
        seen, some_blocked = None, asyncio.Event()
        self._some_blocked = some_blocked
        self._signal_blocked(some_blocked)
        while True:
            await some_blocked.wait()
            now = await asyncio.to_thread(self._signature, self._pins)
            if now != seen:
                seen = now  # before the comparison, so that a later change counts
                for name in [name for name, examined in self._examined.items() if examined.blocked]:
                    await examine_again(name)
            await asyncio.sleep(_POLL)

    @staticmethod
    def _signature(pins: PinStore) -> tuple[int, ...]:
        try:
            status = os.stat(pins.path)
        except OSError as error:
            return (-(error.errno or 1),)
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
