"""Server side of the envelope: the `_meta` of a request of the modern era.

There is no handshake. Each request contains its revision and the client's capabilities, independent of earlier
requests. A request without these two belongs to the handshake era, or is invalid.
"""

from collections.abc import Mapping
from typing import Any, Final

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


_read: Final = codec.decoder(_Params)
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
    try:
        meta = UNSET if params is UNSET else _read(params).meta
    except (codec.DecodeError, RecursionError) as error:
        raise InvalidEnvelope(f"the _meta of the request: {error}") from None
    if meta is UNSET or meta.version is UNSET:
        if expected:
            raise InvalidEnvelope(f"_meta must have {PROTOCOL_VERSION}")
        return None
    if meta.capabilities is UNSET:
        raise InvalidEnvelope(f"_meta must have {CLIENT_CAPABILITIES}; an empty object means none")
    _check_capabilities(meta.capabilities)
    trace = {name: value for name in TRACE_KEYS if isinstance(value := getattr(meta, name), str)}
    return Envelope(meta.version, meta.capabilities, _info(meta.info), meta.log_level, trace)


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
