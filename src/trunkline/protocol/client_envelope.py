"""The modern era, a client's side: what goes with every request, and what kind of an answer came."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from trunkline.protocol.capabilities import Capabilities, without_newer
from trunkline.protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION, SERVER_INFO
from trunkline.protocol.methods import METHODS
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import Empty, Implementation, LoggingLevel
from trunkline.wire import codec

__all__ = ["DISCOVER", "PROBE", "Head", "Stamp", "head_of", "introduced"]

DISCOVER: Final = next(row for row in METHODS if row.name == "server/discover")
PROBE: Final = "probe"
"""The id of the question whether a server speaks the modern era; requests of the conversation are numbered."""


class Stamp:
    """Puts the envelope on requests: who we are, what we can do, and what we want to hear."""

    def __init__(self, info: Implementation, capabilities: Capabilities, revision: Revision) -> None:
        self._said: dict[str, Any] = {
            PROTOCOL_VERSION: revision.value,
            CLIENT_INFO: codec.to_raw(project(info, revision)),
            CLIENT_CAPABILITIES: codec.to_raw(without_newer(capabilities, revision)),
        }

    def log_from(self, level: LoggingLevel | None) -> None:
        """From now on log messages of that level and above are wanted; None: none at all."""
        self._said.pop(LOG_LEVEL, None)
        if level is not None:
            self._said[LOG_LEVEL] = level

    def put_on(self, params: Any) -> Any:
        """The params of a request, with an envelope."""
        if params is UNSET:
            return Empty(meta=dict(self._said))
        return replace(params, meta={**(params.meta or {}), **self._said})


class Head(Struct, rename="camel"):
    """What a result says about itself."""

    result_type: Any = "complete"  # what older servers do not say is complete
    ttl_ms: Any = 0

    @property
    def fresh_for(self) -> float:
        """Seconds that it may be used again; none, if it says that in no good way."""
        return min(self.ttl_ms, _LONGEST) / 1000 if type(self.ttl_ms) is int and self.ttl_ms > 0 else 0.0


_LONGEST: Final = 2**53  # milliseconds
_read: Final = codec.decoder(Head)
_COMPLETE: Final = Head()


def head_of(result: Raw) -> Head:
    """What a result says about itself; one that is no object is left to whoever knows what it should be."""
    try:
        return _read(result)
    except (codec.DecodeError, RecursionError):
        return _COMPLETE


def introduced(meta: Mapping[str, Any] | None) -> Implementation | None:
    """Who a server says that it is, in the metadata of a result."""
    try:
        return msgspec.convert((meta or {}).get(SERVER_INFO), Implementation)
    except msgspec.ValidationError:
        return None
