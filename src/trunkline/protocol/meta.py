"""Keys of `_meta`.

Up to 2025-11-25 the `_meta` of a request may have a progress token. From 2026-07-28 on it is the envelope: revision,
client info, capabilities and log level of the request. All keys are defined here.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec import UNSET, Raw
from msgspec.structs import replace

__all__ = [
    "BACKENDS",
    "CLIENT_CAPABILITIES",
    "CLIENT_INFO",
    "IDEMPOTENCY",
    "IDEMPOTENCY_KEY",
    "LOG_LEVEL",
    "PROGRESS_TOKEN",
    "PROTOCOL_VERSION",
    "REFUSAL",
    "RELATED_TASK",
    "SERVER_INFO",
    "SHORTEST_ENVELOPE",
    "SUBSCRIPTION_ID",
    "TAGS",
    "TASK_PROGRESS",
    "TASK_SUPPORT",
    "TIMEOUT_MS",
    "TOOL_ERROR",
    "TOOL_MEMBERS",
    "TRACE_KEYS",
    "USAGE",
    "ProgressToken",
    "add_meta",
    "may_have_envelope",
    "progress_token",
    "timeout_seconds",
]

ProgressToken = int | str
_LONGEST_MS: Final = 10**12  # three decades

PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105 - a key, not a secret
_OFFICIAL: Final = "io.modelcontextprotocol/"
PROTOCOL_VERSION: Final = _OFFICIAL + "protocolVersion"
CLIENT_INFO: Final = _OFFICIAL + "clientInfo"
CLIENT_CAPABILITIES: Final = _OFFICIAL + "clientCapabilities"
LOG_LEVEL: Final = _OFFICIAL + "logLevel"
SUBSCRIPTION_ID: Final = _OFFICIAL + "subscriptionId"
SERVER_INFO: Final = _OFFICIAL + "serverInfo"
RELATED_TASK: Final = _OFFICIAL + "related-task"
TRACE_KEYS: Final = ("traceparent", "tracestate", "baggage")  # W3C trace context
REFUSAL: Final = "trunkline/refusal"  # our own keys have our own prefix
TOOL_ERROR: Final = "trunkline/error"  # kind and details of the failure that a result describes
IDEMPOTENCY_KEY: Final = "trunkline/idempotency-key"  # idempotency key of a call
TIMEOUT_MS: Final = "trunkline/timeout-ms"  # milliseconds that the sender waits for the response
TASK_PROGRESS: Final = "trunkline/progress"  # progress of a task, where notifications/progress is not allowed
TASK_SUPPORT: Final = "trunkline/task-support"  # of a tool: `execution.taskSupport`, where tools have no such member
USAGE: Final = "trunkline/usage"  # tokens that a sampled message has used: inputTokens and outputTokens
TAGS: Final = "trunkline/tags"  # tags of an entry, in its definition
BACKENDS: Final = "trunkline/backends"  # states of the backends of a gateway, in its lists
IDEMPOTENCY: Final = "trunkline/idempotency"  # declares that the server honours idempotency keys across crashes

TOOL_MEMBERS: Final[Mapping[str, str]] = {
    name: f"trunkline/{name}" for name in ("version", "deprecated", "experimental", "metadata")
}
"""Options of a tool that the specification has no members for, and their keys in its `_meta`."""


def progress_token(meta: Mapping[str, Any] | None) -> ProgressToken | None:
    """Return the progress token in `_meta`; None for a token of an invalid type."""
    if meta is None:
        return None
    token = meta.get(PROGRESS_TOKEN)
    return token if isinstance(token, int | str) and not isinstance(token, bool) else None


def timeout_seconds(meta: Mapping[str, Any]) -> float | None:
    """Return the seconds that the sender of a request waits; None for an invalid value."""
    value = meta.get(TIMEOUT_MS)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_MS:
        return None
    return value / 1000


def add_meta(params: Any, meta: Mapping[str, Any]) -> Any:
    """Return params with more metadata: a type of the specification, or the plain object of a custom method."""
    if isinstance(params, dict):
        plain = cast("dict[str, Any]", params)
        given: dict[str, Any] = plain.get("_meta") or {}
        return {**plain, "_meta": {**given, **meta}}
    return replace(params, meta={**(params.meta or {}), **meta})


_ENVELOPE_KEY: Final = PROTOCOL_VERSION.encode()
SHORTEST_ENVELOPE: Final = len(b'{"_meta":{"":0}}') + len(_ENVELOPE_KEY)  # bytes of params


def may_have_envelope(params: Any) -> bool:
    """Return whether params seem to have the envelope of the modern era. A fast check, which a string in the params can
    fool."""
    if type(params) is Raw:
        # A look at the length saves most short params a copy; `in` takes four times as long for bytes.
        return len(params) >= SHORTEST_ENVELOPE and bytes(params).find(_ENVELOPE_KEY) >= 0
    if params is UNSET:
        return False
    meta: Any = params.values.get("_meta")
    return isinstance(meta, dict) and PROTOCOL_VERSION in meta
