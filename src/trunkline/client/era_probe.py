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

__all__ = ["HANDSHAKE_ONLY", "Programs", "Verdict", "named_by", "of_error", "of_result", "told_by"]

_ONLY_MODERN: Final = frozenset({HeaderMismatch.code, MissingCapability.code})
_NOT_THE_SERVER: Final = frozenset({401, 403, 407, 429})  # the status of HTTP is about who asks, or how often
_HTTP: Final = "http_error"
_NOT_IMPLEMENTED: Final = 501  # this and 500 may mean an unknown method; above are gateways and overload


class Verdict(Enum):
    """What an answer means."""

    MODERN = auto()
    HANDSHAKE = auto()
    AGAIN = auto()  # modern, but refused: it names a revision of that era that we have


class Programs:
    """A bounded set of programs by their fingerprints, shared by all event loops of the process; the least recently
    used is dropped first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, fingerprint: bytes | None) -> bool:
        with self._lock:
            known = fingerprint is not None and fingerprint in self._known
            if fingerprint is not None and known:
                self._known.move_to_end(fingerprint)
            return known

    def add(self, fingerprint: bytes) -> None:
        """Add a program."""
        with self._lock:
            self._known[fingerprint] = None
            if len(self._known) > self._most:
                self._known.popitem(last=False)

    def discard(self, fingerprint: bytes) -> None:
        """Remove a program, if it is there."""
        with self._lock:
            self._known.pop(fingerprint, None)


HANDSHAKE_ONLY: Final = Programs(256)
"""Servers that ended when they were sent `server/discover`, and started again without it."""


def of_result(answer: DiscoverResult, ours: Iterable[Revision]) -> Verdict:
    """What a server means that tells what it speaks. Raises `HandshakeFailed` if that is nothing of ours."""
    mutual = _mutual(answer.supported_versions, ours)
    return Verdict.MODERN if any(one.era is Era.MODERN for one in mutual) else Verdict.HANDSHAKE


def of_error(error: PeerError, ours: Iterable[Revision]) -> Verdict:
    """What a server means that refuses. Raises `HandshakeFailed` if it speaks nothing of ours, if it is a modern one
    that refuses for good, or if nothing can be told from what came."""
    status = _status(error)
    if status in _NOT_THE_SERVER or status > _NOT_IMPLEMENTED:
        raise HandshakeFailed(f"the server refused the connection: {told_by(error)}")
    if error.code in _ONLY_MODERN:
        raise HandshakeFailed(f"the server speaks {Revision.V2026_07_28}, and refuses server/discover: {error}")
    if error.code != UnsupportedVersion.code:
        return Verdict.HANDSHAKE
    mutual = _mutual(named_by(error), ours)
    return Verdict.AGAIN if any(one.era is Era.MODERN for one in mutual) else Verdict.HANDSHAKE


def named_by(error: PeerError) -> set[str]:
    """The revisions that an error names as spoken by the server."""
    named = _members(error.data).get("supported")
    return {one for one in cast("list[Any]", named) if isinstance(one, str)} if isinstance(named, list) else set()


def told_by(error: PeerError) -> str:
    """What an error says, without its code if that is one of ours for what HTTP told."""
    return error.message if _members(error.data).get("kind") == _HTTP else str(error)


def _mutual(theirs: Collection[str], ours: Iterable[Revision]) -> list[Revision]:
    """What both speak. A server that names nothing at all has not said that it is nothing."""
    ours = list(ours)
    mutual = [revision for revision in ours if revision.value in theirs]
    if theirs and not mutual:
        raise HandshakeFailed(f"the server speaks {', '.join(sorted(theirs))}, and we speak {', '.join(ours)}")
    return mutual


def _status(error: PeerError) -> int:
    """The status of HTTP, if that is all that came; 0 otherwise."""
    told = _members(error.data)
    status = told.get("status") if told.get("kind") == _HTTP else None
    return status if isinstance(status, int) else 0


def _members(data: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}
