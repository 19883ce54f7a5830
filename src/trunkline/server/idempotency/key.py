"""Calls that carry an idempotency key, and what is kept of one: what was asked under it, and then one of three things.
That it is being done, by somebody who says every few seconds that it still is; what came of it; or the task that it is.
"""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Raw, Struct

from trunkline.errors import InvalidParams, ProtocolError
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import IDEMPOTENCY_KEY
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import CallToolParams, CallToolResult
from trunkline.rpc.run_handler import Work
from trunkline.server.access.owner_id import owner_of
from trunkline.server.input.multi_round import canonical_params
from trunkline.stores.store import Put, key_of
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = [
    "BecameTask",
    "Failed",
    "IdempotencyKeyReused",
    "InProgress",
    "KeyEntry",
    "KeyedCall",
    "RunOutcomeUnknown",
    "StartTool",
    "Succeeded",
    "TaskClaim",
    "decode_entry",
]

_MAX_KEY_LENGTH: Final = 255  # characters of a key
StartTool = Callable[[Callable[[], None]], Work]
"""Gives the work of a call. It is given what is to be called when the tool itself begins."""


class InvalidIdempotencyKey(InvalidParams):
    """An idempotency key that is none."""

    kind = "invalid_idempotency_key"

    def __init__(self) -> None:
        super().__init__(f"an idempotency key is a text of 1 to {_MAX_KEY_LENGTH} characters")


class IdempotencyKeyReused(InvalidParams):
    """A key under which something else has been asked before."""

    kind = "idempotency_key_reused"

    def __init__(self) -> None:
        super().__init__("this idempotency key was used for another tool or other arguments; use a new one")


class RunOutcomeUnknown(ProtocolError):
    """A call that was begun, and of which nobody knows how it ended."""

    kind = "outcome_unknown"

    def __init__(self, why: str) -> None:
        super().__init__(f"it was begun, and may or may not have been done: {why}")


# --- what is kept ---------------------------------------------------------------------------------


class InProgress(Struct, tag="begun"):
    """It is being done; after `until`, whoever did it is taken for dead."""

    asked: str
    by: str  # the name of the run
    until: float


class Succeeded(Struct, tag="gave"):
    """It came to a result."""

    asked: str
    result: Raw

    def unwrap(self) -> CallToolResult:
        """The result."""
        return _decode_result(self.result)


class Failed(Struct, tag="raised"):
    """It came to an error."""

    asked: str
    code: int
    message: str
    data: Any

    def unwrap(self) -> CallToolResult:
        """Raises the error."""
        raise ProtocolError.rebuilt(self.message, self.code, self.data)


class BecameTask(Struct, tag="became"):
    """It became a task, which has the same owner; what became of that is the task's own business."""

    asked: str
    task_id: str


KeyEntry = InProgress | Succeeded | Failed | BecameTask
decode_entry: Final[Callable[[bytes], KeyEntry]] = codec.decoder(cast("Any", KeyEntry))
_decode_result: Final = codec.decoder(CallToolResult)


# --- calls ----------------------------------------------------------------------------------------


class KeyedCall:
    """A call that carries a key: whose it is, where that is kept, and what it asks."""

    __slots__ = ("call", "connection", "fingerprint", "idempotent", "owner", "store_key")

    def __init__(
        self, connection: "Connection", call: IncomingRequest, params: CallToolParams, *, idempotent: bool
    ) -> None:
        key = (params.meta or {}).get(IDEMPOTENCY_KEY)
        if not isinstance(key, str) or not 1 <= len(key) <= _MAX_KEY_LENGTH:
            raise InvalidIdempotencyKey
        digest = hashlib.sha256(key.encode()).hexdigest()
        self.connection = connection
        self.call = call
        self.owner = owner_of(call.origin.principal)
        self.store_key = key_of("owner", self.owner, "once", digest)
        self.fingerprint = hashlib.sha256(canonical_params(params)).hexdigest()
        self.idempotent = idempotent

    async def find_task(self, task_id: str) -> TaskRecord | None:
        """A task of whoever makes the call."""
        kept = await self.connection.shared.tasks.repository.find(self.owner, task_id)
        return None if kept is None else kept.record

    @property
    def disconnected(self) -> bool:
        """Whether nobody waits for the answer because the line has gone. A request that had a line of its own says no
        more when its client gives up than when it is lost."""
        connection = self.connection
        return connection.close_reason is not None or (connection.channel.info.shared and self.call.cancelled)


class TaskClaim:
    """The right to say which task a call became, under its key: unless somebody else says something first."""

    __slots__ = ("_expires", "_version", "keyed_call")

    def __init__(self, keyed_call: KeyedCall, version: int, expires: float) -> None:
        self.keyed_call = keyed_call
        self._version = version
        self._expires = expires

    def write_for(self, record: TaskRecord) -> Put:
        """What is kept together with the task, and at least as long."""
        lasts = None if record.expires_at is None else max(self._expires, record.expires_at)
        entry = BecameTask(self.keyed_call.fingerprint, record.task_id)
        return Put(self.keyed_call.store_key, codec.to_json(entry), lasts, self._version)
