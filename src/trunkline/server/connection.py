"""One client, served: what a server keeps for it, beside what every connection has."""

from collections.abc import Awaitable, Callable
from typing import Any

from trunkline.conversation import connection
from trunkline.protocol.inflight import Running
from trunkline.protocol.methods import Side
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import LOGGING_LEVELS
from trunkline.server.current import CURRENT, Current
from trunkline.server.offer import Offer
from trunkline.server.watchers import Watchers
from trunkline.transports.channel import Channel

__all__ = ["Connection", "Shared"]


class Shared(connection.Shared, frozen=True, kw_only=True):
    """What the connections of a server have in common."""

    offer: Offer
    watchers: "Watchers[Connection]"
    on_roots_changed: "list[Callable[[Any], Awaitable[None]]]"
    departed: "Callable[[Connection], None]"
    lifespan: Any = None  # what the server holds while it serves


class Connection(connection.Connection):
    """One client on the line."""

    __slots__ = ("log_level", "offer", "shared")

    def __init__(self, shared: Shared, channel: Channel) -> None:
        offer = shared.offer
        session = Session(
            Side.SERVER,
            info=offer.info,
            capabilities=offer.capabilities(),
            instructions=offer.instructions,
            settings=offer.settings,
        )
        super().__init__(shared, session, channel)
        self.shared = shared
        self.offer = offer
        self.log_level = LOGGING_LEVELS.index("info")
        if channel.info.revision is not None:
            session.assume(Revision(channel.info.revision))
        if offer.marks_calls:
            self.mark_calls()

    def mark_calls(self) -> None:
        """From now on the call that is being answered can be found without its context, see `CURRENT`."""
        self._start = self._start_marked

    def _start_marked(self, call: Running, params: Any) -> None:
        mark = CURRENT.set(Current(self, call))
        try:
            self._start_call(call, params)
        finally:
            CURRENT.reset(mark)

    def departed(self) -> None:
        """The client has gone, and its subscriptions go with it."""
        self.shared.departed(self)
