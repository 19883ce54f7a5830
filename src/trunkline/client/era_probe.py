"""Which era a server speaks, from what it answers to the question (versioning, "Detecting the server's era").

No single code decides, since servers of the handshake era refuse what they do not know in every possible way. What
decides are the errors that only the modern era has, and what they name.
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
_CALLER_STATUSES: Final = frozenset({401, 403, 407, 429})  # the status of HTTP is about who asks, or how often
_HTTP_ERROR_KIND: Final = "http_error"
_NOT_IMPLEMENTED: Final = 501  # this and 500 may mean an unknown method; above are gateways and overload


class EraVerdict(Enum):
    """What an answer means."""

    MODERN = auto()
    HANDSHAKE = auto()
    RETRY = auto()  # modern, but refused: it names a revision of that era that we have


class FingerprintSet:
    """A bounded set of programs by their fingerprints, shared by all event loops of the process; the least recently
    used is dropped first."""

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
        """Remove a program, if it is there."""
        with self._lock:
            self._fingerprints.pop(fingerprint, None)


HANDSHAKE_ONLY: Final = FingerprintSet(256)
"""Servers that ended when they were sent `server/discover`, and started again without it."""


def classify_result(answer: DiscoverResult, ours: Iterable[Revision]) -> EraVerdict:
    """What a server means that tells what it speaks. Raises `HandshakeFailed` if that is nothing of ours."""
    mutual = _mutual_revisions(answer.supported_versions, ours)
    return EraVerdict.MODERN if any(one.era is Era.MODERN for one in mutual) else EraVerdict.HANDSHAKE


def classify_error(error: PeerError, ours: Iterable[Revision]) -> EraVerdict:
    """What a server means that refuses. Raises `HandshakeFailed` if it speaks nothing of ours, if it is a modern one
    that refuses for good, or if nothing can be told from what came."""
    status = _http_status(error)
    if status in _CALLER_STATUSES or status > _NOT_IMPLEMENTED:
        raise HandshakeFailed(f"the server refused the connection: {describe_error(error)}")
    if error.code in _MODERN_ERROR_CODES:
        raise HandshakeFailed(f"the server speaks {Revision.V2026_07_28}, and refuses server/discover: {error}")
    if error.code != UnsupportedVersion.code:
        return EraVerdict.HANDSHAKE
    mutual = _mutual_revisions(supported_revisions(error), ours)
    return EraVerdict.RETRY if any(one.era is Era.MODERN for one in mutual) else EraVerdict.HANDSHAKE


def supported_revisions(error: PeerError) -> set[str]:
    """The revisions that an error names as spoken by the server."""
    named = _error_data(error.data).get("supported")
    return {one for one in cast("list[Any]", named) if isinstance(one, str)} if isinstance(named, list) else set()


def describe_error(error: PeerError) -> str:
    """What an error says, without its code if that is one of ours for what HTTP told."""
    return error.message if _error_data(error.data).get("kind") == _HTTP_ERROR_KIND else str(error)


def _mutual_revisions(theirs: Collection[str], ours: Iterable[Revision]) -> list[Revision]:
    """What both speak. A server that names nothing at all has not said that it is nothing."""
    ours = list(ours)
    mutual = [revision for revision in ours if revision.value in theirs]
    if theirs and not mutual:
        raise HandshakeFailed(f"the server speaks {', '.join(sorted(theirs))}, and we speak {', '.join(ours)}")
    return mutual


def _http_status(error: PeerError) -> int:
    """The status of HTTP, if that is all that came; 0 otherwise."""
    told = _error_data(error.data)
    status = told.get("status") if told.get("kind") == _HTTP_ERROR_KIND else None
    return status if isinstance(status, int) else 0


def _error_data(data: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}
