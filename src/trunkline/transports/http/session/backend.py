"""Session backend protocol: durable sessions, which a client can continue after its process is gone.

The transport knows who holds a session id, when the session was used and which events were sent; the server above knows
what the session negotiated. The transport reports when a session is created, used and ended, and the backend stores and
restores it.
"""

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from trunkline.transports.http.session.event_store import EventStore

__all__ = ["EXPIRED", "Expired", "HeldElsewhere", "RestoredStreams", "SessionBackend", "StoredSession"]


class Expired(Enum):
    """Result of `acquire` for a session that expired."""

    EXPIRED = auto()


EXPIRED: Final = Expired.EXPIRED


class HeldElsewhere(Struct, frozen=True):
    """Another process holds the session's lease."""

    holder: str


class RestoredStreams(Struct, frozen=True):
    """Streams of a restored session."""

    streams: Sequence[int]  # numbers of the ended streams that a client can resume
    newest_stream: int  # the highest number of a stream
    delivered: int  # number of the last event of the standalone stream that a reader took


class StoredSession(Protocol):
    """One durable session. Methods raise `StoreError` if the store fails."""

    @property
    def events(self) -> EventStore:
        """The event store of its streams."""
        ...

    async def claim_quota(self, principal: Any) -> bool:
        """Count a new session against its principal's quota across all processes; return False if the quota is used
        up."""
        ...

    async def restore(self, principal: Any) -> RestoredStreams | None:
        """Restore the negotiated state on the channel that was opened for the session. Called once, and not for a new
        session. Return None if the record cannot be read."""
        ...

    def touch(self) -> None:
        """Note that the session is in use, which extends its lifetime."""
        ...

    async def confirm_lease(self) -> bool:
        """Return whether this process still holds the lease."""
        ...

    def on_taken_over(self, callback: Callable[[], None]) -> None:
        """Call a function when another process has taken the lease: from then on, writes of this process are fenced."""
        ...

    @property
    def pending_writes(self) -> "asyncio.Future[None] | None":
        """A future that is done when every change was written; None if there is nothing to write."""
        ...

    async def delete(self) -> None:
        """Delete the session from the store: it has ended."""
        ...

    async def release(self) -> None:
        """Release the lease of an acquired session that is not continued here."""
        ...


class ProcessLease(Protocol):
    """Lease of this process."""

    valid_until: float
    """Time, on the loop's clock, until which no other process can have taken a session of this one. After it, a
    session's lease must be confirmed before use."""


class LeaseHolder(Protocol):
    """Holder of the current lease of this process."""

    @property
    def lease(self) -> ProcessLease: ...


class SessionBackend(Protocol):
    """Creates, finds and deletes the durable sessions of an endpoint."""

    def create(self, ident: str) -> StoredSession:
        """Return a new session. Nothing is stored before its handshake is complete."""
        ...

    @property
    def membership(self) -> LeaseHolder | None:
        """Holder of the lease under which this process has its sessions; None if no other process can take them."""
        ...

    def delete_later(self, stored: StoredSession) -> None:
        """Delete a session that ended by itself, in the background."""
        ...

    async def acquire(
        self, ident: str, principal: Any
    ) -> StoredSession | Literal[Expired.EXPIRED] | HeldElsewhere | None:
        """Acquire a session of that principal for this process; return its holder if another process has it, None if
        there is no such session. Raise `StoreError` if the store fails."""
        ...
