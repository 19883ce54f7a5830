"""Server side of the envelope: the `_meta` of a request of the modern era.

There is no handshake. Each request contains its revision and the client's capabilities, independent of earlier
requests. A request without these two belongs to the handshake era, or is invalid.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from trunkline.errors import InvalidParams
from trunkline.protocol.capabilities import Capabilities
from trunkline.protocol.meta import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    TRACE_KEYS,
    may_have_envelope,
)
from trunkline.protocol.types import ClientCapabilities, Implementation, LoggingLevel
from trunkline.wire import codec

__all__ = ["Envelope", "InvalidEnvelope", "has_envelope", "read_envelope"]


class Envelope(Struct, frozen=True):
    """The envelope of a request."""

    version: str
    capabilities: Capabilities  # of the client, including unknown members
    info: Implementation | None = None
    log_level: LoggingLevel | None = None
    trace: Mapping[str, str] = {}  # W3C trace context


class InvalidEnvelope(InvalidParams):
    """A request of the modern era with a missing or invalid envelope."""

    kind = "invalid_envelope"


class _Meta(Struct):
    version: str | UnsetType = field(name=PROTOCOL_VERSION, default=UNSET)
    capabilities: dict[str, Any] | UnsetType = field(name=CLIENT_CAPABILITIES, default=UNSET)
    info: Raw | UnsetType = field(name=CLIENT_INFO, default=UNSET)
    log_level: LoggingLevel | None = field(name=LOG_LEVEL, default=None)
    traceparent: Any = None
    tracestate: Any = None
    baggage: Any = None


class _Keys(Struct):
    meta: dict[str, Raw] = field(name="_meta", default_factory=dict[str, Raw])


class _Params(Struct):
    meta: _Meta | UnsetType = field(name="_meta", default=UNSET)


class _RawParams(Struct):
    meta: Raw | UnsetType = field(name="_meta", default=UNSET)


_MAX_CACHED: Final = 2048  # bytes of a `_meta` whose envelope is cached
_read: Final = codec.decoder(_Params)
_read_raw: Final = codec.json_decoder(_RawParams)
_read_meta: Final = codec.json_decoder(_Meta)
_read_keys: Final = codec.decoder(_Keys)
_read_info: Final = codec.decoder(Implementation)


def has_envelope(params: Any) -> bool:
    """Return whether params have an envelope, valid or not."""
    if not may_have_envelope(params):
        return False
    try:
        return PROTOCOL_VERSION in _read_keys(params).meta
    except (codec.DecodeError, RecursionError):
        return False


def read_envelope(params: Any, *, expected: bool = False) -> Envelope | None:
    """Return the envelope in params; None for the handshake era, unless an envelope is expected. Raise
    `InvalidEnvelope` for an invalid one."""
    envelope = _read_short(params) if type(params) is Raw else None
    if envelope is not None:
        return envelope
    try:
        meta = UNSET if params is UNSET else _read(params).meta
    except (codec.DecodeError, RecursionError) as error:
        raise InvalidEnvelope(f"the _meta of the request: {error}") from None
    if meta is UNSET or meta.version is UNSET:
        if expected:
            raise InvalidEnvelope(f"_meta must have {PROTOCOL_VERSION}")
        return None
    return _build(meta)


def _read_short(params: Raw) -> Envelope | None:
    """Return the envelope in a short `_meta`; None for a long or invalid one, and for the handshake era. Most requests
    of a client have the same `_meta`."""
    try:
        meta = _read_raw(params).meta
        return None if meta is UNSET or len(memoryview(meta)) > _MAX_CACHED else _build_cached(bytes(meta))
    except (codec.DecodeError, RecursionError):
        return None


@lru_cache(maxsize=256)
def _build_cached(json: bytes) -> Envelope | None:
    meta = _read_meta(json)
    return None if meta.version is UNSET else _build(meta)


def _build(meta: _Meta) -> Envelope:
    """Return the envelope in a `_meta` that has a version; raise `InvalidEnvelope` for an invalid one."""
    version = cast("str", meta.version)
    if meta.capabilities is UNSET:
        raise InvalidEnvelope(f"_meta must have {CLIENT_CAPABILITIES}; an empty object means none")
    _check_capabilities(meta.capabilities)
    trace = {name: value for name in TRACE_KEYS if isinstance(value := getattr(meta, name), str)}
    return Envelope(version, meta.capabilities, _info(meta.info), meta.log_level, trace)


def _check_capabilities(capabilities: Capabilities) -> None:
    try:
        msgspec.convert(capabilities, ClientCapabilities)
    except msgspec.ValidationError as error:
        raise InvalidEnvelope(f"client capabilities are malformed: {error}") from None


def _info(raw: Raw | UnsetType) -> Implementation | None:
    """Return the client info if it is valid; it is optional."""
    try:
        return None if raw is UNSET else _read_info(raw)
    except codec.DecodeError:
        return None
