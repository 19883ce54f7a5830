"""Results and metadata that pass from one era to the other, without decoding what they contain.

Between two peers of one era nothing changes. From the handshake era to the modern one, a result gets its type, the
server info and a cache lifetime; on the way back it loses them, and structured content that is no object is wrapped.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field

from trunkline.client.results import decode_result
from trunkline.errors import PeerError
from trunkline.protocol.meta import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION,
    RELATED_TASK,
    SERVER_INFO,
    TIMEOUT_MS,
)
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import NEWEST_HANDSHAKE, Revision
from trunkline.protocol.types import INPUT_REQUIRED
from trunkline.wire import codec

__all__ = [
    "ENVELOPE_KEYS",
    "HOP_KEYS",
    "input_required",
    "make_checkpoint",
    "read_checkpoint",
    "related_task",
    "to_handshake",
    "to_modern",
    "without_keys",
    "without_related_task",
]

HOP_KEYS: Final = frozenset({PROGRESS_TOKEN, TIMEOUT_MS})
"""Metadata of one hop: the proxy sends its own to the server behind it."""

ENVELOPE_KEYS: Final = frozenset({PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL})
"""Metadata of the modern era, which the handshake era does not have."""

_MODERN_MEMBERS: Final = ("resultType", "ttlMs", "cacheScope")
_WRAPPED: Final = "structuredContent"
_OPENING_BRACE: Final = ord("{")
_RELATED: Final = RELATED_TASK.encode()
_decode_members: Final = codec.json_decoder(dict[str, Raw])


class _InputRequired(Struct, rename="camel"):
    result_type: str
    input_requests: Mapping[str, Any]
    request_state: str | UnsetType


def without_keys(meta: dict[str, Any] | None, keys: frozenset[str]) -> dict[str, Any] | None:
    """Return metadata without some keys; the same object if it has none of them."""
    if meta is None or keys.isdisjoint(meta):
        return meta
    return {key: value for key, value in meta.items() if key not in keys} or None


class _Task(Struct, rename="camel"):
    task_id: str | None = None


class _Meta(Struct):
    related: _Task = field(name=RELATED_TASK, default_factory=_Task)


class _Related(Struct):
    meta: _Meta = field(name="_meta", default_factory=_Meta)


_decode_related: Final = codec.json_decoder(_Related)


def related_task(params: Raw) -> str | None:
    """Return the id of the task that a request belongs to, if its metadata names one."""
    if bytes(params).find(_RELATED) < 0:
        return None
    try:
        return _decode_related(params).meta.related.task_id
    except codec.DecodeError:
        return None


def without_related_task(value: Raw) -> Raw:
    """Return params or a result without the task that they belong to: on the next hop it is another one."""
    if bytes(value).find(_RELATED) < 0:
        return value
    members = _decode_members(value)
    meta = {key: one for key, one in _decode_members(members.pop("_meta", Raw(b"{}"))).items() if key != RELATED_TASK}
    return codec.to_raw({**members, "_meta": meta} if meta else members)


def make_checkpoint(task_id: str) -> Raw:
    """Return the checkpoint of a task that follows one of the server behind."""
    return codec.to_raw(_Task(task_id))


def read_checkpoint(checkpoint: Any) -> str | None:
    """Return the id of the task behind; None if there is no checkpoint."""
    return None if checkpoint is None else checkpoint["taskId"]


def to_modern(method: str, result: Raw, server_info: Raw) -> Raw:
    """Return a result of the handshake era in the form of the modern era. It names the proxy as its server unless it
    has metadata of its own."""
    members = _decode_members(result)
    made: dict[str, Any] = {"resultType": "complete", "_meta": {SERVER_INFO: server_info}, **members}
    if method == "resources/read":
        made = {**made, "ttlMs": 0, "cacheScope": "private"}
    return codec.to_raw(made)


def to_handshake(method: str, result: Raw, revision: Revision) -> Raw:
    """Return a result of the modern era in the form of a revision of the handshake era. For an older revision it is
    decoded; a result with content that we do not know passes as it is."""
    members = _decode_members(result)
    for name in _MODERN_MEMBERS:
        members.pop(name, None)
    if (meta := members.pop("_meta", None)) is not None:
        kept = {key: value for key, value in _decode_members(meta).items() if key != SERVER_INFO}
        if kept:
            members["_meta"] = codec.to_raw(kept)
    structured = members.get(_WRAPPED)
    if structured is not None and memoryview(structured)[0] != _OPENING_BRACE:
        members[_WRAPPED] = codec.to_raw({"result": structured})
    made = codec.to_raw(members)
    if revision is NEWEST_HANDSHAKE:
        return made
    try:
        return codec.to_raw(project(decode_result(method, made), revision))
    except PeerError:
        return made


def input_required(questions: Mapping[str, Any], state: str | UnsetType = UNSET) -> Raw:
    """Return the result of the modern era that asks questions, each with its method and params."""
    return codec.to_raw(_InputRequired(INPUT_REQUIRED, questions, state))
