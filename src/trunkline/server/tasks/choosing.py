"""Whether a call runs as a task: what its tool allows, what its client wants and what both can do."""

from typing import Final

from trunkline.errors import MissingCapability
from trunkline.protocol.capabilities import declared
from trunkline.protocol.extensions import agreed
from trunkline.protocol.inflight import Running
from trunkline.protocol.revisions import Revision
from trunkline.protocol.task_dialects import Dialect
from trunkline.protocol.types import CallToolParams
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION
from trunkline.registry.tools import ToolEntry
from trunkline.server.connection import Connection
from trunkline.server.tasks.errors import TaskSupportMismatch

__all__ = ["has_extension", "require_extension", "runs_as"]

_PATH: Final = f"extensions.{TASKS_EXTENSION}"


def runs_as(entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams) -> Dialect | None:
    """How a call is told of its task; None if it is answered with its result. Raises if its tool cannot be called like
    that."""
    if call.envelope is not None:
        return _by_extension(entry, connection, call)
    policy = entry.task
    if params.task is not None and _augments(connection):
        if policy is None:
            raise TaskSupportMismatch(entry.name, "forbidden")
        return Dialect.AUGMENTED
    if policy is not None and policy.support == "required":
        raise TaskSupportMismatch(entry.name, "required")
    return None


def _augments(connection: Connection) -> bool:
    """Whether requests may ask to run as a task, in this conversation; if not, nobody looks at what they ask."""
    session = connection.session
    spoken = session.revision is Revision.V2025_11_25 and session.negotiated is not None
    return spoken and declared(session.negotiated.server if session.negotiated else {}, "tasks.requests.tools.call")


def _by_extension(entry: ToolEntry, connection: Connection, call: Running) -> Dialect | None:
    if entry.task is None:
        return None
    if has_extension(connection, call):
        return Dialect.EXTENSION
    if entry.task.support == "required":
        raise MissingCapability(_PATH)
    return None


def has_extension(connection: Connection, call: Running) -> bool:
    """Whether whoever sent a request of the modern era knows of tasks, as that very request says."""
    said = call.envelope
    return said is not None and agreed(TASKS_EXTENSION, connection.offer.capabilities(), said.capabilities) is not None


def require_extension(connection: Connection, call: Running) -> None:
    """Raises `MissingCapability` if it does not."""
    if not has_extension(connection, call):
        raise MissingCapability(_PATH)
