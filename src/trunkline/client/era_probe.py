"""Detection of a server's era from its response to `server/discover` (versioning, "Detecting the server's era").

No single error code decides, since servers of the handshake era refuse unknown requests in every possible way. The
errors that only the modern era has, and the revisions that they name, decide.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from enum import Enum, auto
from threading import Lock
from typing import Any, Final, cast

from trunkline.errors import HandshakeFailed, HeaderMismatch, MissingCapability, PeerError, UnsupportedVersion
from trunkline.protocol.revisions import Era, Revision
from trunkline.protocol.types import DiscoverResult

__all__ = [
    "HANDSHAKE_ONLY",
    "EraVerdict",
    "FingerprintSet",
    "classify_error",
    "classify_result",
    "describe_error",
    "supported_revisions",
]

_MODERN_ERROR_CODES: Final = frozenset({HeaderMismatch.code, MissingCapability.code})
_CALLER_STATUSES: Final = frozenset({401, 403, 407, 429})  # these HTTP statuses are about the caller, not the server
_HTTP_ERROR_KIND: Final = "http_error"
_NOT_IMPLEMENTED: Final = 501  # 500 and 501 may mean an unknown method; those above come from gateways and overload


class EraVerdict(Enum):
    """The era that a response implies."""

    MODERN = auto()
    HANDSHAKE = auto()
    RETRY = auto()  # modern, but refused: the error names a modern revision that we have


class FingerprintSet:
    """A bounded set of program fingerprints, shared by all event loops of the process. The least recently used is
    dropped first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._fingerprints: OrderedDict[bytes, None] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, fingerprint: bytes | None) -> bool:
        with self._lock:
            known = fingerprint is not None and fingerprint in self._fingerprints
            if fingerprint is not None and known:
                self._fingerprints.move_to_end(fingerprint)
            return known

    def add(self, fingerprint: bytes) -> None:
        """Add a program."""
        with self._lock:
            self._fingerprints[fingerprint] = None
            if len(self._fingerprints) > self._capacity:
                self._fingerprints.popitem(last=False)

    def discard(self, fingerprint: bytes) -> None:
        """Remove a program, if present."""
        with self._lock:
            self._fingerprints.pop(fingerprint, None)


HANDSHAKE_ONLY: Final = FingerprintSet(256)
"""Programs that exited at `server/discover`, and ran without it."""


def classify_result(answer: DiscoverResult, ours: Iterable[Revision]) -> EraVerdict:
    """Return the era of a server that lists its revisions. Raises `HandshakeFailed` if there is no common revision."""
    mutual = _mutual_revisions(answer.supported_versions, ours)
    return EraVerdict.MODERN if any(one.era is Era.MODERN for one in mutual) else EraVerdict.HANDSHAKE


def classify_error(error: PeerError, ours: Iterable[Revision]) -> EraVerdict:
    """Return the era of a server that refuses. Raises `HandshakeFailed` without a common revision, for a modern server
    that refuses for good, and for HTTP statuses that say nothing about the server."""
    status = _http_status(error)
    if status in _CALLER_STATUSES or status > _NOT_IMPLEMENTED:
        raise HandshakeFailed(f"the server refused the connection: {describe_error(error)}")
    if error.code in _MODERN_ERROR_CODES:
        raise HandshakeFailed(f"the server supports {Revision.V2026_07_28}, and refuses server/discover: {error}")
    if error.code != UnsupportedVersion.code:
        return EraVerdict.HANDSHAKE
    mutual = _mutual_revisions(supported_revisions(error), ours)
    return EraVerdict.RETRY if any(one.era is Era.MODERN for one in mutual) else EraVerdict.HANDSHAKE


def supported_revisions(error: PeerError) -> set[str]:
    """Return the revisions that an error names as supported."""
    named = _error_data(error.data).get("supported")
    return {one for one in cast("list[Any]", named) if isinstance(one, str)} if isinstance(named, list) else set()


def describe_error(error: PeerError) -> str:
    """Return the text of an error; without its code if it stands for an HTTP status."""
    return error.message if _error_data(error.data).get("kind") == _HTTP_ERROR_KIND else str(error)


def _mutual_revisions(theirs: Collection[str], ours: Iterable[Revision]) -> list[Revision]:
    """Return the common revisions. Raises `HandshakeFailed` if the server names only others; it may name none."""
    ours = list(ours)
    mutual = [revision for revision in ours if revision.value in theirs]
    if theirs and not mutual:
        raise HandshakeFailed(
            f"the server supports {', '.join(sorted(theirs))}, and the client supports {', '.join(ours)}"
        )
    return mutual


def _http_status(error: PeerError) -> int:
    """Return the HTTP status that an error stands for; 0 if it is a JSON-RPC error."""
    data = _error_data(error.data)
    status = data.get("status") if data.get("kind") == _HTTP_ERROR_KIND else None
    return status if isinstance(status, int) else 0


def _error_data(data: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}
