"""How a client stands: where its conversation is, with whom, and what is under way."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from trunkline.client.calls import Calls
from trunkline.client.host_callbacks import HostCallbacks
from trunkline.client.notifications import NotificationHandlers
from trunkline.client.reconnect import ConnectionSupervisor
from trunkline.clock import Clock
from trunkline.protocol.extensions import negotiated_settings
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.methods import find_method
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import Implementation, Root

__all__ = ["NOT_OPEN", "Pending", "Standing"]

NOT_OPEN: Final = "the client is not open: `async with client:` or `await client.open()` comes first"

_LISTEN: Final = find_method("subscriptions/listen")


class Pending(Struct, frozen=True):
    """A request that is not answered yet."""

    id: int | str
    method: str
    age: float  # seconds


class Standing(Calls):
    """What a client can tell of itself."""

    _callbacks: HostCallbacks
    _clock: Clock | None
    _extensions: Mapping[str, Any]
    _supervisor: ConnectionSupervisor | None
    _notifications: NotificationHandlers

    def _current_time(self) -> float:
        return 0.0 if self._clock is None else self._clock.now()

    @property
    def phase(self) -> Phase:
        """Where the conversation stands."""
        return Phase.NEW if self._supervisor is None else self._supervisor.phase

    @property
    def _session(self) -> Session | None:
        last = None if self._supervisor is None else self._supervisor.latest
        return None if last is None else last.session

    @property
    def initialized(self) -> bool:
        """Whether calls can be made now."""
        return self.phase is Phase.READY

    @property
    def revision(self) -> Revision | None:
        """The revision that was agreed upon."""
        return None if self._session is None else self._session.revision

    @property
    def server_info(self) -> Implementation | None:
        """Who the server says that it is."""
        return None if self._session is None else self._session.peer

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the server can do."""
        agreed = None if self._session is None else self._session.negotiated
        return {} if agreed is None else agreed.server

    def extension(self, name: str) -> Mapping[str, Any] | None:
        """What the server says of an extension that both sides have; None if one of them has not."""
        return negotiated_settings(name, {"extensions": self._extensions}, self.capabilities)

    @property
    def instructions(self) -> str | None:
        """What the server has to say to a model that uses it."""
        last = None if self._supervisor is None else self._supervisor.latest
        return None if last is None else last.instructions

    @property
    def request_id(self) -> int:
        """The id of the last request on this connection."""
        return 0 if self._session is None else self._session.last_id

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The resources that are subscribed to."""
        return tuple(self._subscriptions)

    @property
    def roots(self) -> tuple[Root, ...]:
        """Where the server may look."""
        return tuple(self._callbacks.roots or ())

    @property
    def notification_handlers(self) -> Mapping[str, tuple[Callable[[Any], Any], ...]]:
        """Who is told of which notifications."""
        return {name: tuple(handlers) for name, handlers in self._notifications.handlers.items()}

    @property
    def losses(self) -> int:
        """How often the line was lost since it was opened."""
        return 0 if self._supervisor is None else self._supervisor.losses

    def pending(self) -> list[Pending]:
        """The requests that are not answered yet, the oldest first. The one that stays open to hear of changes is not
        among them."""
        if self._session is None or self._clock is None:
            return []
        now, asked = self._clock.now(), self._session.outgoing_requests.values()
        return [Pending(one.id, one.method.name, now - one.started) for one in asked if one.method is not _LISTEN]
