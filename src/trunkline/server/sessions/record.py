"""What is written down of a session, and how what an older Trunkline wrote down is read.

The layout has a number. What is read is first brought up to the newest layout, one step at a time; what was written by
a newer Trunkline than this one is not guessed at.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

from trunkline.errors import StoreUnusable
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import LOGGING_LEVELS, Implementation
from trunkline.wire import codec
from trunkline.wire.messages import RequestId

__all__ = [
    "LAYOUT",
    "MIGRATIONS",
    "RecordedCapabilities",
    "SessionMetadata",
    "SessionRecord",
    "StreamRecord",
    "read_number",
    "read_record",
    "read_stream",
]

T = TypeVar("T")

LAYOUT: Final = 2
_MS: Final = 1000


class RecordedCapabilities(Struct, frozen=True):
    """What both sides have declared, as it was agreed upon in the handshake."""

    server: dict[str, Any]
    client: dict[str, Any]


class SessionMetadata(Struct, frozen=True, kw_only=True):
    """Who the session is with, and how it stands."""

    principal: str = ""  # in letters
    revision: str
    ready: bool = True  # whether the handshake is complete
    client: Implementation | None = None
    log_level: str = "info"
    generation: int = 0  # how many processes have held it before
    stream: int = 0  # the highest number that a stream has had by then
    event: int = 0  # and of an event that belongs to no request


class SessionRecord(Struct, frozen=True, kw_only=True):
    """A session. Times are seconds since 1970. What was sent in it, and what is being answered, is kept beside it."""

    version: int = LAYOUT
    id: str
    created_at: float
    last_accessed: float  # by a tenth of the time that it may be unused
    timeout_ms: int | None  # None: it never expires
    metadata: SessionMetadata
    capabilities: RecordedCapabilities
    subscriptions: list[str] = []


class StreamRecord(Struct, frozen=True):
    """A stream of events, on which some requests are answered."""

    pending: Sequence[RequestId]  # empty: they have been


RawRecord = dict[str, Any]


def _migrate_founding(old: RawRecord) -> RawRecord:
    """The layout of the founding documents, which has no number: times in milliseconds, and one map for the rest."""
    rest: RawRecord = old.get("metadata") or {}
    timeout = old.get("timeout_ms")
    return {
        "version": 2,
        "id": old["id"],
        "created_at": old["created_at"] / _MS,
        "last_accessed": old["last_accessed"] / _MS,
        "timeout_ms": None if timeout == "infinity" else timeout,
        "metadata": {
            "principal": rest.get("principal", ""),
            "revision": rest["protocol_version"],
            "client": rest.get("client_info"),
            "log_level": rest.get("log_level", "info"),
        },
        "capabilities": {
            "server": rest.get("server_capabilities") or {},
            "client": rest.get("client_capabilities") or {},
        },
        "subscriptions": rest.get("subscriptions") or [],
    }


MIGRATIONS: Final[Mapping[int, Callable[[RawRecord], RawRecord]]] = {1: _migrate_founding}
"""By the number of a layout, how it becomes the next one."""

_decode_any: Final = codec.json_decoder(dict[str, Any])
_decode_record: Final = codec.json_decoder(SessionRecord)
_decode_stream: Final = codec.json_decoder(StreamRecord)
_decode_number: Final = codec.json_decoder(int)


def read_record(value: bytes) -> SessionRecord:
    """A session as it was written down, whenever that was. Raises `StoreUnusable` for what is none, or is in a layout
    or about a revision that this Trunkline does not know."""
    try:
        found = _decode_any(value)
        record = _decode_record(value if found.get("version") == LAYOUT else codec.to_json(_migrate(found)))
        Revision(record.metadata.revision)
        LOGGING_LEVELS.index(record.metadata.log_level)
    except (codec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreUnusable(f"what is kept of a session cannot be read: {error}") from error
    return record


def read_stream(value: bytes) -> StreamRecord:
    """A stream as it was written down. Raises `StoreUnusable` for what is none."""
    return _decode_or_raise(_decode_stream, value)


def read_number(value: bytes) -> int:
    """A number as it was written down. Raises `StoreUnusable` for what is none."""
    return _decode_or_raise(_decode_number, value)


def _decode_or_raise(decode: Callable[[bytes], T], value: bytes) -> T:
    try:
        return decode(value)
    except codec.DecodeError as error:
        raise StoreUnusable(f"what is kept of a stream cannot be read: {error}") from error


def _migrate(found: RawRecord) -> RawRecord:
    number: int = found.get("version", 1)
    while number < LAYOUT:
        found = MIGRATIONS[number](found)
        number += 1
    if number > LAYOUT:
        raise StoreUnusable(f"a session is kept in layout {number}, and this Trunkline knows up to {LAYOUT}")
    return found
