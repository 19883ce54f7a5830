"""Kinds of stored items, by the shape of their keys: how each is decoded, and which parts are secret.

`docs/design/stores.md` describes the kinds, their expiry and their limits.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from trunkline.protocol.tasks import TaskRecord
from trunkline.server.access.owner_id import owner_from_name
from trunkline.server.idempotency.key import decode_entry
from trunkline.server.resilience.breaker_states import BreakerRecord
from trunkline.server.sessions.record import LAYOUT, SessionRecord, read_number, read_record, read_stream
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.store import Item
from trunkline.wire import codec

__all__ = ["KINDS", "UNKNOWN", "Kind", "created_at", "has_older_layout", "kind_of", "mask", "mask_key", "owner_of_item"]

_ANY: Final = None
_decode_json: Final = codec.json_decoder(dict[str, Any])


class Kind(NamedTuple):
    """One kind of item."""

    name: str
    shape: Sequence[str | None]  # parts of the key; None: any
    decode: Callable[[bytes], Any]  # raises an exception for a malformed value
    secret: bool = False  # the value is a key, or contains one
    session: int | None = None  # index of the part of the key that is a session id


def _decode_text(value: bytes) -> str:
    return value.decode()


KINDS: Final = (
    Kind("store identity", ["store", "identity"], codec.json_decoder(StoreIdentity), secret=True),
    Kind("state keys", ["server", _ANY, "seal-keys"], codec.json_decoder(list[dict[str, Any]]), secret=True),
    Kind("server secret", ["server", _ANY, _ANY], bytes, secret=True),
    Kind("session", ["session", _ANY, "record"], read_record, session=1),
    Kind("session stream", ["session", _ANY, "streams", _ANY], read_stream, session=1),
    Kind("session event", ["session", _ANY, "events", _ANY, _ANY], codec.json_decoder(dict[str, Any]), session=1),
    Kind("session position", ["session", _ANY, "position"], read_number, session=1),
    Kind("session quota", ["owner", _ANY, "open", _ANY], bytes, session=3),
    Kind("task", ["owner", _ANY, "tasks", _ANY], codec.decoder(TaskRecord)),
    Kind("task of session", ["owner", _ANY, "sessions", _ANY, _ANY], bytes, session=3),
    Kind("task slot", ["owner", _ANY, "places", _ANY], bytes),
    Kind("task mark", ["working", _ANY], _decode_text),
    Kind("task audit", ["recovery", "audit"], bytes),
    Kind("idempotency entry", ["owner", _ANY, "once", _ANY], decode_entry),
    Kind("tool permit", ["tool", _ANY, "slots", _ANY], _decode_text),
    Kind("tool ticket", ["tool", _ANY, "waiting", _ANY], bytes),
    Kind("DPoP proof", ["proofs", _ANY, _ANY], bytes),
    Kind("rate bucket", ["rate", _ANY], float),
    Kind("circuit breaker", ["breaker", _ANY], codec.json_decoder(BreakerRecord)),
    Kind("server name", ["name", _ANY], codec.json_decoder(dict[str, str])),
)
"""All kinds; the first one whose shape fits counts."""
UNKNOWN: Final = Kind("unknown", [], bytes, secret=True)  # it may be anything


def kind_of(key: str) -> Kind:
    """Return the kind of an item, or `UNKNOWN`."""
    parts = key.split("/")
    for kind in KINDS:
        if len(kind.shape) == len(parts) and all(
            wanted in (None, part) for wanted, part in zip(kind.shape, parts, strict=True)
        ):
            return kind
    return UNKNOWN


def mask(ident: str) -> str:
    """Return a name for a session id that does not reveal it: the id alone may grant access to the session."""
    return f"~{hashlib.sha256(ident.encode()).hexdigest()[:16]}"


def mask_key(key: str) -> str:
    """Return the key of an item or the name of a lease, with the session id in it masked."""
    parts = key.split("/")
    at = 1 if parts[0] == "session" else kind_of(key).session
    if at is not None and at < len(parts):
        parts[at] = mask(parts[at])
    return "/".join(parts)


def owner_of_item(key: str, record: Any) -> str | None:
    """Return the owner id of an item; None if it belongs to none."""
    if isinstance(record, SessionRecord):
        return owner_from_name(record.metadata.principal) if record.metadata.principal else None
    parts = key.split("/")
    return parts[1] if parts[0] == "owner" else None


def created_at(record: Any) -> float | None:
    """Return when a record was created; None if it does not say."""
    match record:
        case SessionRecord() | TaskRecord():
            return record.created_at
        case StoreIdentity():
            return record.created
        case _:
            return None


def has_older_layout(item: Item) -> bool:
    """Return whether a session record has the layout of an older release."""
    return kind_of(item.key).name == "session" and _decode_json(item.value).get("version", 1) != LAYOUT
