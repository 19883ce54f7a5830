"""The seam to who keeps sessions, so that a client can go on with one though the process that held it is gone.

What a session is about is known above; who holds its id, when it was used and what was sent in it is known here. So the
two meet: the transport says when a session is opened, used and ended, and has back what it is asked for.
"""

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from trunkline.transports.http.session.event_store import EventStore

__all__ = ["EXPIRED", "Expired", "HeldElsewhere", "RestoredStreams", "SessionBackend", "StoredSession"]


class Expired(Enum):
    """What is said of a session that was not used for too long."""

    EXPIRED = auto()


EXPIRED: Final = Expired.EXPIRED


class HeldElsewhere(Struct, frozen=True):
    """Another process holds a session."""

    holder: str


class RestoredStreams(Struct, frozen=True):
    """What is known of the streams of a session that goes on."""

    streams: Sequence[int]  # that can be read on; nothing more comes on them
    newest_stream: int  # the highest number that a stream has had
    delivered: int  # up to where the stream of what belongs to no request was given to somebody


class StoredSession(Protocol):
    """A session that is kept. All raise `StoreError` if it cannot be."""

    @property
    def events(self) -> EventStore:
        """What is sent in it."""
        ...

    async def claim_quota(self, principal: Any) -> bool:
        """Counts a new one among the sessions of a principal, in all processes together; False if it would be one too
        many."""
        ...

    async def restore(self, principal: Any) -> RestoredStreams | None:
        """Makes its conversation what it was, on the channel that was opened for it. Once, and not of a new one. None
        if it cannot be told any more what it was."""
        ...

    def touch(self) -> None:
        """It was used now."""
        ...

    async def confirm_lease(self) -> bool:
        """Whether this process still holds it."""
        ...

    def on_taken_over(self, callback: Callable[[], None]) -> None:
        """Names who is told when another process has taken it: nothing that is done here counts any more."""
        ...

    @property
    def pending_writes(self) -> "asyncio.Future[None] | None":
        """What is done when all that has changed about it is kept; None if it is."""
        ...

    async def delete(self) -> None:
        """Keeps nothing of it any more: it was ended."""
        ...

    async def release(self) -> None:
        """Leaves one that was found to whoever finds it next: it is not gone on with here."""
        ...


class SessionBackend(Protocol):
    """Keeps the sessions of an endpoint."""

    def create(self, ident: str) -> StoredSession:
        """A session that a client is about to open. Nothing is kept of it before its handshake is made."""
        ...

    @property
    def lease_valid_until(self) -> float:
        """Until when, by the loop's time, no other process can have taken what this one holds. From then on a session
        has to be confirmed before it is used."""
        ...

    def delete_later(self, stored: StoredSession) -> None:
        """A session has ended by itself. Soon nothing of it is kept any more."""
        ...

    async def acquire(
        self, ident: str, principal: Any
    ) -> StoredSession | Literal[Expired.EXPIRED] | HeldElsewhere | None:
        """A session of that principal's, which this process holds from now on; or who holds it. None if there is none.
        Raises `StoreError` if that cannot be found out."""
        ...
