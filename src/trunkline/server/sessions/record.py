"""Session and stream records as stored, and the migration of older layouts.

A record has a layout number. Older layouts are migrated step by step when they are read. A record with a newer layout
than this version knows is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import UNSET, Struct, UnsetType

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
    """Capabilities of both sides, as negotiated in the handshake."""

    server: dict[str, Any]
    client: dict[str, Any]


class SessionMetadata(Struct, frozen=True, kw_only=True):
    """The client and the state of a session."""

    principal: str = ""  # as text
    revision: str
    ready: bool = True  # the handshake is complete
    client: Implementation | None = None
    profile: str | UnsetType = UNSET  # name of the compatibility profile; few sessions have one
    log_level: str = "info"
    generation: int = 0  # number of processes that held the session before
    stream: int = 0  # highest stream number so far
    event: int = 0  # highest number of a standalone event so far


class SessionRecord(Struct, frozen=True, kw_only=True):
    """A session. Times are in seconds since 1970. Its events and its unanswered requests are stored under keys of their
    own."""

    version: int = LAYOUT
    id: str
    created_at: float
    last_accessed: float  # precise to a tenth of `session_ttl`
    timeout_ms: int | None  # None: it never expires
    metadata: SessionMetadata
    capabilities: RecordedCapabilities
    subscriptions: list[str] = []


class StreamRecord(Struct, frozen=True):
    """An event stream on which some requests are answered."""

    pending: Sequence[RequestId]  # empty once all are answered


RawRecord = dict[str, Any]


def _migrate_founding(old: RawRecord) -> RawRecord:
    """Migrate the layout of the founding documents, which has no number: times in milliseconds, and one map for the
    rest."""
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
"""By layout number, the function that converts a record to the next layout."""

_decode_any: Final = codec.json_decoder(dict[str, Any])
_decode_record: Final = codec.json_decoder(SessionRecord)
_decode_stream: Final = codec.json_decoder(StreamRecord)
_decode_number: Final = codec.json_decoder(int)


def read_record(value: bytes) -> SessionRecord:
    """Decode a session record of any known layout. Raise `StoreUnusable` if it is malformed, or if its layout, revision
    or profile is unknown."""
    try:
        found = _decode_any(value)
        record = _decode_record(value if found.get("version") == LAYOUT else codec.to_json(_migrate(found)))
        Revision(record.metadata.revision)
        LOGGING_LEVELS.index(record.metadata.log_level)
        if record.metadata.profile:
            from trunkline.protocol.profiles import find_profile  # imported here: few sessions have a profile

            find_profile(record.metadata.profile)
    except (codec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreUnusable(f"cannot read a session record: {error}") from error
    return record


def read_stream(value: bytes) -> StreamRecord:
    """Decode a stream record. Raise `StoreUnusable` if it is malformed."""
    return _decode_or_raise(_decode_stream, value)


def read_number(value: bytes) -> int:
    """Decode a number. Raise `StoreUnusable` if it is malformed."""
    return _decode_or_raise(_decode_number, value)


def _decode_or_raise(decode: Callable[[bytes], T], value: bytes) -> T:
    try:
        return decode(value)
    except codec.DecodeError as error:
        raise StoreUnusable(f"cannot read a record of a session's event log: {error}") from error


def _migrate(found: RawRecord) -> RawRecord:
    number: int = found.get("version", 1)
    while number < LAYOUT:
        found = MIGRATIONS[number](found)
        number += 1
    if number > LAYOUT:
        raise StoreUnusable(f"a session record has layout {number}, newer than {LAYOUT}; upgrade Trunkline")
    return found
