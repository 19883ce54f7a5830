"""Keys of `_meta`.

Up to 2025-11-25 the `_meta` of a request may have a progress token. From 2026-07-28 on it is the envelope: revision,
client info, capabilities and log level of the request. All keys are defined here.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET, Raw

__all__ = [
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
    "SUBSCRIPTION_ID",
    "TASK_PROGRESS",
    "TRACE_KEYS",
    "ProgressToken",
    "may_have_envelope",
    "progress_token",
]

ProgressToken = int | str

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
IDEMPOTENCY_KEY: Final = "trunkline/idempotency-key"  # idempotency key of a call
TASK_PROGRESS: Final = "trunkline/progress"  # progress of a task, where notifications/progress is not allowed
IDEMPOTENCY: Final = "trunkline/idempotency"  # declares that the server honours idempotency keys across crashes


def progress_token(meta: Mapping[str, Any] | None) -> ProgressToken | None:
    """Return the progress token in `_meta`; None for a token of an invalid type."""
    if meta is None:
        return None
    token = meta.get(PROGRESS_TOKEN)
    return token if isinstance(token, int | str) and not isinstance(token, bool) else None


_ENVELOPE_KEY: Final = PROTOCOL_VERSION.encode()


def may_have_envelope(params: Any) -> bool:
    """Return whether params seem to have the envelope of the modern era. A fast check, which a string in the params can
    fool."""
    if type(params) is Raw:
        return bytes(params).find(_ENVELOPE_KEY) >= 0  # `in` takes four times as long for bytes
    if params is UNSET:
        return False
    meta: Any = params.values.get("_meta")
    return isinstance(meta, dict) and PROTOCOL_VERSION in meta
