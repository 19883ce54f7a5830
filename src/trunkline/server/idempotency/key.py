"""Calls with an idempotency key, and the ledger entry that the store has for a key.

An entry has the fingerprint of the call, and its state: in progress, with the process that runs it; succeeded or
failed, with the outcome; or the id of the task that the call became.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final, cast

from msgspec import Raw, Struct

from trunkline.errors import InvalidParams, ProtocolError
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import IDEMPOTENCY_KEY
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import CallToolParams, CallToolResult
from trunkline.rpc.connection import PeerConnection
from trunkline.rpc.run_handler import Work
from trunkline.server.access.owner_id import owner_of
from trunkline.server.input.multi_round import canonical_params
from trunkline.stores.store import Put, key_of
from trunkline.wire import codec

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
"""Returns the work of a call. Its argument is a callback for the moment when the tool itself starts."""


class InvalidIdempotencyKey(InvalidParams):
    """An idempotency key that is not a string of allowed length."""

    kind = "invalid_idempotency_key"

    def __init__(self) -> None:
        super().__init__(f"an idempotency key must be a string of 1 to {_MAX_KEY_LENGTH} characters")


class IdempotencyKeyReused(InvalidParams):
    """A key that was used before for another tool or other arguments."""

    kind = "idempotency_key_reused"

    def __init__(self) -> None:
        super().__init__("this idempotency key was used for another tool or other arguments; use a new one")


class RunOutcomeUnknown(ProtocolError):
    """A run of the call was started, and its outcome is unknown."""

    kind = "outcome_unknown"

    def __init__(self, why: str) -> None:
        super().__init__(f"the call was started, and may or may not have been done: {why}")


# --- ledger entries ------------------------------------------------------------------------------


class InProgress(Struct, tag="begun"):
    """A run is in progress, until its owner departs from the cluster. A run without an owner, or one that a process
    without a cluster finds, has ended at the time `until`. Older releases know no owners: for them it ends then too."""

    asked: str
    by: str  # run id
    until: float
    owner: str = ""  # name of the process in the cluster; empty if there is none, and in entries of older releases


class Succeeded(Struct, tag="gave"):
    """The call returned a result."""

    asked: str
    result: Raw

    def unwrap(self) -> CallToolResult:
        """Return the result."""
        return _decode_result(self.result)


class Failed(Struct, tag="raised"):
    """The call failed with an error."""

    asked: str
    code: int
    message: str
    data: Any

    def unwrap(self) -> CallToolResult:
        """Raise the error."""
        raise ProtocolError.rebuilt(self.message, self.code, self.data)


class BecameTask(Struct, tag="became"):
    """The call became a task of the same owner. The task has the outcome."""

    asked: str
    task_id: str


KeyEntry = InProgress | Succeeded | Failed | BecameTask
decode_entry: Final[Callable[[bytes], KeyEntry]] = codec.decoder(cast("Any", KeyEntry))
_decode_result: Final = codec.decoder(CallToolResult)


# --- calls ----------------------------------------------------------------------------------------


class KeyedCall:
    """A call with an idempotency key: its owner, the store key of its entry, and its fingerprint."""

    __slots__ = ("call", "connection", "fingerprint", "idempotent", "owner", "store_key")

    def __init__(
        self, connection: PeerConnection, call: IncomingRequest, params: CallToolParams, *, idempotent: bool
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

    @property
    def disconnected(self) -> bool:
        """Whether the caller has lost the connection. If a request has a connection of its own (HTTP), a client that
        cancels cannot be distinguished from a lost connection."""
        connection = self.connection
        return connection.close_reason is not None or (connection.channel.info.stateless and self.call.cancelled)


class TaskClaim:
    """The right to record under a key which task the call became, if the entry still has its version."""

    __slots__ = ("_expires", "_version", "keyed_call")

    def __init__(self, keyed_call: KeyedCall, version: int, expires: float) -> None:
        self.keyed_call = keyed_call
        self._version = version
        self._expires = expires

    def write_for(self, record: TaskRecord) -> Put:
        """Return the write that records the task; the entry lives at least as long as the task."""
        expires = None if record.expires_at is None else max(self._expires, record.expires_at)
        entry = BecameTask(self.keyed_call.fingerprint, record.task_id)
        return Put(self.keyed_call.store_key, codec.to_json(entry), expires, self._version)
