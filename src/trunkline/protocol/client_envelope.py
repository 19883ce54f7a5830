"""Client side of the modern era: the envelope of requests, and the headers of results."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from trunkline.protocol.capabilities import Capabilities, restrict_to_revision
from trunkline.protocol.meta import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    SERVER_INFO,
    add_meta,
)
from trunkline.protocol.methods import METHODS
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import Empty, Implementation, LoggingLevel
from trunkline.wire import codec

__all__ = ["DISCOVER", "PROBE_ID", "ClientEnvelope", "ResultHeader", "read_result_header", "read_server_info"]

DISCOVER: Final = next(row for row in METHODS if row.name == "server/discover")
PROBE_ID: Final = "probe"
"""The id of the era probe; other requests have numbers."""


class ClientEnvelope:
    """Adds the `_meta` envelope to requests: client info, capabilities and log level."""

    def __init__(self, info: Implementation, capabilities: Capabilities, revision: Revision) -> None:
        self.keeps_given = False  # params that have an envelope keep it: they are forwarded for another client
        self._meta: dict[str, Any] = {
            PROTOCOL_VERSION: revision.value,
            CLIENT_INFO: codec.to_raw(project(info, revision)),
            CLIENT_CAPABILITIES: codec.to_raw(restrict_to_revision(capabilities, revision)),
        }

    def set_log_level(self, level: LoggingLevel | None) -> None:
        """Request log messages of this level and above; None: no log messages."""
        self._meta.pop(LOG_LEVEL, None)
        if level is not None:
            self._meta[LOG_LEVEL] = level

    def add_to(self, params: Any) -> Any:
        """Return params with the envelope."""
        if params is UNSET:
            return Empty(meta=dict(self._meta))
        if self.keeps_given and params.meta is not None and PROTOCOL_VERSION in params.meta:
            return params
        return add_meta(params, self._meta)


class ResultHeader(Struct, rename="camel"):
    """The result type and cache lifetime of a result."""

    result_type: Any = "complete"  # older servers omit it
    ttl_ms: Any = 0

    @property
    def fresh_for(self) -> float:
        """Seconds that a cache may store the result; 0 if the value is invalid."""
        return min(self.ttl_ms, _MAX_TTL_MS) / 1000 if type(self.ttl_ms) is int and self.ttl_ms > 0 else 0.0


_MAX_TTL_MS: Final = 2**53  # milliseconds
_read: Final = codec.json_decoder(ResultHeader)
_COMPLETE: Final = ResultHeader()


def read_result_header(result: Raw) -> ResultHeader:
    """Read the header of a result; the default for one that is not an object, which the typed decoder rejects."""
    try:
        return _read(result)
    except (codec.DecodeError, RecursionError):
        return _COMPLETE


def read_server_info(meta: Mapping[str, Any] | None) -> Implementation | None:
    """Return the server info in the metadata of a result, if it is valid."""
    try:
        return msgspec.convert((meta or {}).get(SERVER_INFO), Implementation)
    except msgspec.ValidationError:
        return None
