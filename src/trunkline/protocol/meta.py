"""The keys of `_meta`, and what can be read from them.

Up to 2025-11-25 a request's `_meta` may carry a progress token. From 2026-07-28 on it is the envelope: revision,
client, capabilities and log level of this one request. The keys of both stand here; nothing else spells them.
"""

from collections.abc import Mapping
from typing import Any, Final

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
REFUSAL: Final = "trunkline/refusal"  # our own keys carry our own prefix
IDEMPOTENCY_KEY: Final = "trunkline/idempotency-key"  # of a call that is done once, however often it is made
TASK_PROGRESS: Final = "trunkline/progress"  # of a task, where notifications/progress may not tell of it
IDEMPOTENCY: Final = "trunkline/idempotency"  # what a server declares that minds them, whatever becomes of its process


def progress_token(meta: Mapping[str, Any] | None) -> ProgressToken | None:
    """The token under which the requestor wants to hear of progress. One of another type counts as none."""
    if meta is None:
        return None
    token = meta.get(PROGRESS_TOKEN)
    return token if isinstance(token, int | str) and not isinstance(token, bool) else None
