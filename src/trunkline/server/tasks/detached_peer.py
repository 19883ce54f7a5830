"""Peer of a task's context: a client that may have disconnected since it created the task.

Notifications reach the client through the watchers of the task. Questions are stored until the client fetches them.
"""

import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import UNSET, Raw, UnsetType

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.revisions import Revision
from trunkline.protocol.tasks import TaskCaller
from trunkline.protocol.types import LOGGING_LEVELS
from trunkline.rpc.fact_reporter import FactReporter
from trunkline.server.call_peer import ClientFacts
from trunkline.server.input.ask import Asker

if TYPE_CHECKING:
    from trunkline.server.resilience.circuit_breaker import CircuitBreakers
    from trunkline.server.runtime_services import RuntimeServices

__all__ = ["DetachedPeer"]


class Run(Asker, Protocol):
    """What the peer of a task's context needs of the runner."""

    caller: TaskCaller

    @property
    def checkpoint(self) -> Raw | UnsetType: ...
    async def drain(self) -> None: ...
    def report_progress(self, progress: float, total: float | None, message: str | None) -> None: ...
    async def save_checkpoint(self, checkpoint: Raw) -> None: ...


class DetachedPeer:
    """`CallPeer` for the context of a task."""

    session_id = None  # a task belongs to no session
    transport = ""  # and to no connection

    def __init__(self, shared: "RuntimeServices", runner: Run) -> None:
        self.facts = FactReporter(shared.clock, shared.observers)
        self.catalog = shared.catalog
        self.settings = shared.catalog.settings
        self.threads = shared.threads
        self.loop = shared.threads.loop
        self.local = runner.caller.local
        self.now = shared.clock.now
        self._shared = shared
        self._runner = runner
        self._thread = threading.get_ident()

    @property
    def lifespan(self) -> Any:
        """Value of the server's lifespan."""
        return self._shared.get_lifespan_value()

    @property
    def breakers(self) -> "CircuitBreakers":
        """Circuit breakers of the server."""
        return self._shared.get_breakers()

    def post(self, action: Callable[[], object]) -> bool:
        """Run an action on the loop: now on the loop's thread, soon from another one. Return whether it has run."""
        if threading.get_ident() == self._thread:
            action()
            return True
        self.threads.post(action)
        return False

    def notify(self, name: str, params: Any = UNSET, *, about: IncomingRequest | None = None) -> bool:  # noqa: ARG002
        """Send nothing: a task has only its status notifications."""
        return False

    def log_level_of(self, call: IncomingRequest) -> int:  # noqa: ARG002 - log messages have no receiver
        """Return a level above the highest, since log messages have no receiver."""
        return len(LOGGING_LEVELS)

    def revision_of(self, call: IncomingRequest) -> Revision:  # noqa: ARG002 - there is one call
        """Return the revision in which the task was created."""
        return Revision(self._runner.caller.revision)

    def client_of(self, call: IncomingRequest) -> ClientFacts:  # noqa: ARG002 - there is one call
        """Return the client that created the task."""
        return ClientFacts(self._runner.caller.info, self._runner.caller.capabilities)

    def asker_of(self, call: IncomingRequest) -> Asker:  # noqa: ARG002 - there is one call
        """Return the runner, which stores questions until the client fetches them."""
        return self._runner

    def drain_of(self, call: IncomingRequest) -> Callable[[], Coroutine[Any, Any, None]]:  # noqa: ARG002
        """Return a function that waits while the client reads its notifications too slowly."""
        return self._runner.drain

    def progress(self, call: IncomingRequest, progress: float, total: float | None, message: str | None) -> None:
        """Report progress, which must grow."""
        if call.record_progress(progress, self.now()):
            self._runner.report_progress(progress, total, message)
        else:
            self.facts.report_dropped(f"progress {progress:g} does not grow", "progress_value_invalid")

    def checkpoint_of(self, call: IncomingRequest) -> Raw | UnsetType:  # noqa: ARG002 - there is one call
        """Return the last checkpoint of the task."""
        return self._runner.checkpoint

    async def save_checkpoint(self, call: IncomingRequest, checkpoint: Raw) -> None:  # noqa: ARG002 - there is one call
        """Store a checkpoint."""
        await self._runner.save_checkpoint(checkpoint)

    async def begin_task(self, call: IncomingRequest) -> None:
        """Do nothing: the call is a task already."""
