"""Request headers of the modern era: `MCP-Protocol-Version`, `Mcp-Method`, `Mcp-Name` and mirrored tool arguments.

They repeat parts of the body, so that an intermediary can route a request without parsing it. The headers of the W3C
trace context do so in every era.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from trunkline.protocol.headers import NAME_MEMBERS, param_headers, routing_headers
from trunkline.protocol.meta import PROTOCOL_VERSION
from trunkline.protocol.trace_context import TRACEPARENT, trace_headers
from trunkline.protocol.types import CallToolParams
from trunkline.transports.channel import MirrorLookup
from trunkline.wire import codec
from trunkline.wire.messages import Notification, Request

__all__ = ["REVISION_HEADER", "build_modern_headers", "build_notification_headers", "build_trace_headers"]

REVISION_HEADER: Final = "MCP-Protocol-Version"

_ATTRIBUTE_NAMES: Final = {"taskId": "task_id"}  # attribute names that differ from the wire names
_read_arguments: Final = codec.decoder(dict[str, Any])


def build_modern_headers(request: Request, mirrors: MirrorLookup) -> dict[str, str] | None:
    """Return the headers of a request; None for one of the handshake era. Raise `InvalidValue` for an argument that
    no header can carry."""
    params: Any = request.params
    meta = _meta_of(params)
    revision = meta.get(PROTOCOL_VERSION)
    if revision is None:
        return None
    repeated = (
        param_headers(mirrors(params.name), _decode_arguments(params)) if isinstance(params, CallToolParams) else {}
    )
    return {
        REVISION_HEADER: revision,
        **routing_headers(request.method, _routing_params(request.method, params)),
        **repeated,
    }


def build_notification_headers(notification: Notification) -> dict[str, str] | None:
    """Return the headers of a notification; None for one without an envelope."""
    revision = _meta_of(notification.params).get(PROTOCOL_VERSION)
    return None if revision is None else {REVISION_HEADER: revision, **routing_headers(notification.method, {})}


def build_trace_headers(request: Request) -> dict[str, str] | None:
    """Return the headers with the trace context of a request; None if it has none."""
    meta = _meta_of(request.params)
    return trace_headers(meta) if TRACEPARENT in meta else None


def _meta_of(params: Any) -> Mapping[str, Any]:
    """Return the metadata of params: of a type of the specification, or of the plain object of a custom method."""
    if isinstance(params, dict):
        return cast("dict[str, Any]", params).get("_meta") or {}
    return getattr(params, "meta", None) or {}


def _routing_params(method: str, params: Any) -> dict[str, Any]:
    """Return the parameter that names the request's target, under its wire name."""
    member = NAME_MEMBERS.get(method)
    return {} if member is None else {member: getattr(params, _ATTRIBUTE_NAMES.get(member, member), None)}


def _decode_arguments(params: CallToolParams) -> dict[str, Any]:
    try:
        return _read_arguments(params.arguments)
    except codec.DecodeError:
        return {}  # the server reports invalid arguments
