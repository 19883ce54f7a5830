"""Tells subscribers that resources have changed: those who may read them now. Whoever was let in when it subscribed may
have come back with less since."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from trunkline.protocol.types import ResourceUpdatedParams
from trunkline.registry.access import Access
from trunkline.server.access.enforcement import covered, may_have
from trunkline.server.catalog import Offer
from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Notification

if TYPE_CHECKING:
    from trunkline.server.connection import Connection
    from trunkline.server.notifications.listen import Listening
    from trunkline.server.notifications.subscriptions import Subscriptions

__all__ = ["Updates"]

_UPDATED: Final = "notifications/resources/updated"


class Updates:
    """Sends them, on the loop."""

    def __init__(self, offer: Offer, subscriptions: "Subscriptions[Connection | Listening]") -> None:
        self._offer = offer
        self._subscriptions = subscriptions
        self._asking: set[asyncio.Task[None]] = set()

    def send(self, uri: str) -> None:
        """A resource has changed."""
        subscribers = self._subscriptions.subscribers(uri)
        if subscribers:
            params = ResourceUpdatedParams(uri=uri)
            frame, access = Encoded(codec.encode(Notification(_UPDATED, params))), self._offer.rule_of(uri)
            for subscriber in subscribers:
                tell = partial(subscriber.broadcast, _UPDATED, frame, params)
                if access is None:
                    tell()
                else:
                    self._tell_if_allowed(uri, access, subscriber, tell)

    def _tell_if_allowed(
        self, uri: str, access: Access, subscriber: "Connection | Listening", tell: Callable[[], None]
    ) -> None:
        connection, call = subscriber.standing
        if call is None or not covered(connection, call, access):
            return
        if access.allow is None:
            tell()
            return

        async def ask() -> None:
            """Takes its time: who has gone meanwhile is told nothing."""
            if await may_have(connection, call, access) and subscriber in self._subscriptions.subscribers(uri):
                tell()

        task = connection.loop.create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def close(self) -> None:
        """Nobody is there to be told any more."""
        for task in self._asking:
            task.cancel()
