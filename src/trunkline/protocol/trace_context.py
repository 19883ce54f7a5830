"""W3C trace context in requests: `traceparent`, `tracestate` and `baggage`, in `_meta` and in HTTP headers."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import UNSET, Raw, Struct, field

from trunkline.protocol.meta import TRACE_KEYS, add_meta
from trunkline.protocol.types import Empty
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.protocol.inflight import IncomingRequest

__all__ = ["TRACEPARENT", "add_trace", "pick_trace", "read_trace", "stated_trace", "trace_headers"]

TRACEPARENT: Final = "traceparent"
_MAX_LENGTH: Final = 8192  # characters: that of a valid baggage
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]+")
_IN_JSON: Final = b'"traceparent"'


class _EncodedParams(Struct):
    meta: dict[str, Any] | None = field(name="_meta", default=None)


_read_meta: Final = codec.json_decoder(_EncodedParams)
_read_object: Final = codec.json_decoder(dict[str, Any])


def pick_trace(members: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the trace context among metadata or headers; empty without a `traceparent`."""
    if members is None or TRACEPARENT not in members:
        return {}
    return {name: value for name in TRACE_KEYS if isinstance(value := members.get(name), str)}


def read_trace(params: Any) -> dict[str, str]:
    """Return the trace context in the metadata of params: decoded ones, a plain object, or still encoded ones."""
    if type(params) is Raw:
        if bytes(params).find(_IN_JSON) < 0:
            return {}
        try:
            return pick_trace(_read_meta(params).meta)
        except (codec.DecodeError, RecursionError):
            return {}
    meta: Any = cast("dict[str, Any]", params).get("_meta") if isinstance(params, dict) else getattr(params, "meta", {})
    return pick_trace(cast("dict[str, Any]", meta)) if isinstance(meta, dict) else {}


def stated_trace(call: "IncomingRequest") -> Mapping[str, str]:
    """Return the trace context that the sender of a request has stated in its envelope or its HTTP headers."""
    stated: Mapping[str, str] = {} if call.envelope is None else call.envelope.trace
    return stated or pick_trace(None if call.origin is None else call.origin.headers)


def add_trace(params: Any, trace: Mapping[str, str]) -> Any:
    """Return params with a trace context in their metadata. Params that cannot have metadata stay as they are: the peer
    will refuse them, which is not the business of a trace."""
    if params is UNSET:
        return Empty(meta=dict(trace))
    try:
        opened = _read_object(params) if type(params) is Raw else params
    except (codec.DecodeError, RecursionError):
        return params
    meta: Any = cast("dict[str, Any]", opened).get("_meta") if isinstance(opened, dict) else opened.meta
    return add_meta(opened, trace) if meta is None or isinstance(meta, dict) else params


def trace_headers(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the HTTP headers that repeat a trace context. Values that no header can carry are left out: a proxy passes
    on those of its clients."""
    trace = pick_trace(meta)
    return {
        name: value for name, value in trace.items() if len(value) <= _MAX_LENGTH and _HEADER_VALUE.fullmatch(value)
    }
