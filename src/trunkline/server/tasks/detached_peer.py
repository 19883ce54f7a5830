"""The line of a task: to a client that asked for it and may have gone since. What it is told it is told through whoever
follows the task; what it is asked is kept until somebody fetches it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw, UnsetType

from trunkline.config import Settings
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.revisions import Revision
from trunkline.protocol.tasks import TaskCaller
from trunkline.protocol.types import LOGGING_LEVELS
from trunkline.rpc.fact_reporter import FactReporter
from trunkline.server.access.principal_codec import decode_principal, encode_principal
from trunkline.server.call_peer import CallPeer, ClientFacts
from trunkline.server.catalog import ServerCatalog
from trunkline.server.input.ask import Asker

if TYPE_CHECKING:
    from trunkline.server.connection import Connection, SharedServices
    from trunkline.server.tasks.runner import TaskRunner

__all__ = ["DetachedPeer", "caller_of", "principal_of"]


class DetachedPeer(CallPeer):
    """What the context of a task talks to."""

    def __init__(self, shared: "SharedServices", runner: "TaskRunner") -> None:
        self.facts = FactReporter(shared.clock, shared.observers)
        self._shared = shared
        self._runner = runner
        self._thread = threading.get_ident()

    @property
    def settings(self) -> Settings:
        """The server's."""
        return self._shared.catalog.settings

    @property
    def catalog(self) -> ServerCatalog:
        """What the server offers."""
        return self._shared.catalog

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that all of it happens on."""
        return self._shared.threads.loop

    @property
    def session_id(self) -> int | None:
        """A task belongs to no conversation."""
        return None

    @property
    def local(self) -> bool:
        """Whether its client is somebody who has not to say who it is."""
        return self._runner.caller.local

    @property
    def lifespan(self) -> Any:
        """What the server holds while it serves."""
        return self._shared.get_lifespan_value()

    def now(self) -> float:
        """The time on the server's clock."""
        return self._shared.clock.now()

    def post(self, action: Callable[[], object]) -> bool:
        """Does something on the loop: now if this is its thread, soon if not. Returns whether it is done."""
        if threading.get_ident() == self._thread:
            action()
            return True
        self._shared.threads.post(action)
        return False

    def notify(self, name: str, params: Any = UNSET, *, about: IncomingRequest | None = None) -> bool:  # noqa: ARG002
        """A task tells how it stands, and nothing else."""
        return False

    def log_level_of(self, call: IncomingRequest) -> int:  # noqa: ARG002 - nobody hears of any
        """Above the highest: there is nobody who hears it."""
        return len(LOGGING_LEVELS)

    def revision_of(self, call: IncomingRequest) -> Revision:  # noqa: ARG002 - there is one call
        """The revision that the task was asked for in."""
        return Revision(self._runner.caller.revision)

    def client_of(self, call: IncomingRequest) -> ClientFacts:  # noqa: ARG002 - there is one call
        """Who asked for the task."""
        return ClientFacts(self._runner.caller.info, self._runner.caller.capabilities)

    def asker_of(self, call: IncomingRequest) -> Asker:  # noqa: ARG002 - there is one call
        """Who keeps its questions until they are fetched."""
        return self._runner

    def drain_of(self, call: IncomingRequest) -> Callable[[], Coroutine[Any, Any, None]]:  # noqa: ARG002
        """Wait while the client that is told of the task reads too slowly."""
        return self._runner.drain

    def progress(self, call: IncomingRequest, progress: float, total: float | None, message: str | None) -> None:
        """Says how far the task has come; it must grow."""
        if call.record_progress(progress, self.now()):
            self._runner.report_progress(progress, total, message)
        else:
            self.facts.report_dropped(f"progress {progress:g} does not grow", "progress_value_invalid")

    def checkpoint_of(self, call: IncomingRequest) -> Raw | UnsetType:  # noqa: ARG002 - there is one call
        """What an earlier run of the task has kept."""
        return self._runner.checkpoint

    async def save_checkpoint(self, call: IncomingRequest, checkpoint: Raw) -> None:  # noqa: ARG002 - there is one call
        """Keeps what the task needs to go on from here."""
        await self._runner.save_checkpoint(checkpoint)

    async def begin_task(self, call: IncomingRequest) -> None:
        """It is one."""


# --- who asked ----------------------------------------------------------------------------------------


def caller_of(connection: "Connection", call: IncomingRequest) -> TaskCaller:
    """What is kept of whoever asks for a task."""
    facts = connection.client_of(call)
    return TaskCaller(
        revision=connection.revision_of(call).value,
        capabilities=dict(facts.capabilities),
        info=facts.info,
        modern=call.envelope is not None,
        local=connection.local,
        session=connection.shared.tasks.session_of(connection),
        principal=encode_principal(call.origin.principal),
    )


def principal_of(caller: TaskCaller) -> Any:
    """The principal that was written."""
    return None if caller.principal is UNSET else decode_principal(caller.principal)
