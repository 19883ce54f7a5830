"""Server side of the envelope: the `_meta` of a request of the modern era.

There is no handshake. Each request contains its revision and the client's capabilities, independent of earlier
requests. A request without these two belongs to the handshake era, or is invalid.

Most clients send the same bytes with every request, so valid envelopes are remembered by their bytes.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

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

__all__ = ["ENVELOPE_KEY", "Envelope", "InvalidEnvelope", "ModernParams", "has_envelope", "read_params"]

ENVELOPE_KEY: Final = PROTOCOL_VERSION.encode()
"""The member that every envelope has, as it is in JSON."""

_NO_VERSION: Final = "(none)"  # recognized by its identity, since a peer may send any text
_CACHED: Final = 1024  # bytes; longer envelopes and capabilities are not worth remembering
_REMEMBERED: Final = 256  # envelopes
_UNIQUE: Final = (
    b'"progressToken"',
    b'"traceparent"',
    b'"trunkline/timeout-ms"',
)  # members that differ from request to request


class Envelope(Struct, frozen=True):
    """The envelope of a request. Few handlers ask for what it contains, so most of that is decoded when it is read."""

    version: str = field(name=PROTOCOL_VERSION, default=_NO_VERSION)
    encoded_capabilities: Raw | UnsetType = field(name=CLIENT_CAPABILITIES, default=UNSET)
    encoded_info: Raw | UnsetType = field(name=CLIENT_INFO, default=UNSET)
    log_level: LoggingLevel | None = field(name=LOG_LEVEL, default=None)
    traceparent: Any = None
    tracestate: Any = None
    baggage: Any = None

    @classmethod
    def build(cls, version: str, capabilities: Capabilities, info: Implementation | None) -> "Envelope":
        """Return the envelope of a client that is known from elsewhere."""
        return cls(version, codec.to_raw(capabilities), UNSET if info is None else codec.to_raw(info))

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the client, including unknown members."""
        return {} if self.encoded_capabilities is UNSET else _read_object(self.encoded_capabilities)

    @property
    def info(self) -> Implementation | None:
        """The client info; None if it is missing or invalid, since it is optional."""
        try:
            return None if self.encoded_info is UNSET else _read_info(self.encoded_info)
        except codec.DecodeError:
            return None

    @property
    def trace(self) -> Mapping[str, str]:
        """The W3C trace context."""
        return {name: value for name in TRACE_KEYS if isinstance(value := getattr(self, name), str)}


class InvalidEnvelope(InvalidParams):
    """A request of the modern era with a missing or invalid envelope."""

    kind = "invalid_envelope"


class ModernParams(Struct):
    """What every request of the modern era has in its params: the envelope, and the members that a header repeats."""

    meta: Any = field(name="_meta", default=UNSET)
    name: Any = None
    uri: Any = None
    taskId: Any = None  # noqa: N815 - as it is on the wire


class _DecodedParams(ModernParams):
    meta: Envelope | UnsetType = field(name="_meta", default=UNSET)


class _UndecodedParams(ModernParams):
    meta: Raw | UnsetType = field(name="_meta", default=UNSET)


class _Keys(Struct):
    meta: dict[str, Raw] = field(name="_meta", default_factory=dict[str, Raw])


_read_params: Final = codec.decoder(_DecodedParams)
_read_undecoded: Final = codec.json_decoder(_UndecodedParams)
_read_envelope: Final = codec.json_decoder(Envelope)
_read_keys: Final = codec.decoder(_Keys)
_read_info: Final = codec.decoder(Implementation)
_read_capabilities: Final = codec.json_decoder(ClientCapabilities)
_read_object: Final = codec.json_decoder(dict[str, Any])


def has_envelope(params: Any) -> bool:
    """Return whether params have an envelope, valid or not."""
    if not may_have_envelope(params):
        return False
    try:
        return PROTOCOL_VERSION in _read_keys(params).meta
    except (codec.DecodeError, RecursionError):
        return False


def read_params(params: Any, *, expected: bool) -> tuple[Envelope | None, ModernParams]:
    """Return the envelope in the params of any request, and the members that headers repeat. Without an envelope, the
    request is of the handshake era, unless an envelope is expected. Raise `InvalidEnvelope`."""
    if type(params) is Raw:
        try:
            undecoded = _read_undecoded(params)
            if undecoded.meta is not UNSET:
                encoded = bytes(undecoded.meta)
                return _remembered.get(encoded) or _read_valid_envelope(encoded), undecoded
        except (codec.DecodeError, RecursionError, InvalidEnvelope):
            pass  # decoding all of the params gives a better explanation
    try:
        decoded = _DecodedParams() if params is UNSET else _read_params(params)
    except (codec.DecodeError, RecursionError) as error:
        raise InvalidEnvelope(f"the _meta of the request: {error}") from None
    if decoded.meta is UNSET or decoded.meta.version is _NO_VERSION:
        if expected:
            raise InvalidEnvelope(f"_meta must have {PROTOCOL_VERSION}")
        return None, decoded
    _validate_capabilities(decoded.meta)
    return decoded.meta, decoded


_remembered: Final[dict[bytes, Envelope]] = {}


def _read_valid_envelope(encoded: bytes) -> Envelope:
    """Return an envelope that is complete and valid, and remember it if the client may send it again."""
    envelope = _read_envelope(encoded)
    if envelope.version is _NO_VERSION:
        raise InvalidEnvelope("not an envelope")
    _validate_capabilities(envelope)
    if len(encoded) <= _CACHED and all(encoded.find(member) < 0 for member in _UNIQUE):
        if len(_remembered) >= _REMEMBERED:
            _remembered.clear()
        _remembered[encoded] = envelope
    return envelope


def _validate_capabilities(envelope: Envelope) -> None:
    """Raise `InvalidEnvelope` for an envelope without valid capabilities."""
    if envelope.encoded_capabilities is UNSET:
        raise InvalidEnvelope(f"_meta must have {CLIENT_CAPABILITIES}; an empty object means none")
    encoded = bytes(envelope.encoded_capabilities)
    why = (_capabilities_fault if len(encoded) <= _CACHED else _capabilities_fault.__wrapped__)(encoded)
    if why is not None:
        raise InvalidEnvelope(f"client capabilities are malformed: {why}")


@lru_cache(maxsize=256)
def _capabilities_fault(encoded: bytes) -> str | None:
    """Return why capabilities are invalid; None if they are valid."""
    try:
        _read_capabilities(encoded)
        _read_object(encoded)
    except (codec.DecodeError, RecursionError) as error:
        return str(error)
    return None
