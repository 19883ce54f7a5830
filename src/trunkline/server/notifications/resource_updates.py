"""`notifications/resources/updated` to subscribers that may read the resource now.

Access is checked at every update: the scopes of a subscriber may have shrunk since it subscribed.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trunkline.protocol import types as t
from trunkline.registry.access import Access
from trunkline.server.catalog import ServerCatalog
from trunkline.server.notifications.update_relay import UpdateRelay
from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Notification

if TYPE_CHECKING:
    from trunkline.server.connection import Connection
    from trunkline.server.notifications.listen import ListenStream
    from trunkline.server.notifications.subscriptions import Subscriptions

__all__ = ["ResourceUpdates"]

_UPDATED: Final = "notifications/resources/updated"
_decode_meta: Final = codec.json_decoder(dict[str, Any])


class ResourceUpdates:
    """Sends update notifications to subscribers. Use it on the event loop only."""

    def __init__(
        self, catalog: ServerCatalog, subscriptions: "Subscriptions[Connection | ListenStream | UpdateRelay]"
    ) -> None:
        self._catalog = catalog
        self._subscriptions = subscriptions
        self._access_checks: set[asyncio.Task[None]] = set()

    def send(self, uri: str, meta: bytes | None = None) -> None:
        """Notify the subscribers of a resource. `meta` is a JSON object, the metadata of this update."""
        subscribers = self._subscriptions.subscribers(uri)
        if subscribers:
            params = t.ResourceUpdatedParams(uri=uri)
            if meta is not None:
                params.meta = _decode_meta(meta)
            frame, access = Encoded(codec.encode(Notification(_UPDATED, params))), self._catalog.access_rule_of(uri)
            for subscriber in subscribers:
                sent = frame if meta is None else _frame_for(subscriber, frame, params)
                if access is None:
                    subscriber.broadcast(_UPDATED, sent, params)
                else:
                    notify = partial(subscriber.broadcast, _UPDATED, sent, params)
                    self._notify_if_permitted(uri, access, subscriber, notify)

    def _notify_if_permitted(
        self,
        uri: str,
        access: Access,
        subscriber: "Connection | ListenStream | UpdateRelay",
        notify: Callable[[], None],
    ) -> None:
        from trunkline.server.access.enforcement import has_scopes, is_permitted  # imported here: few are restricted

        if isinstance(subscriber, UpdateRelay):  # the parent checks the access of its own subscribers
            notify()
            return
        connection, call = subscriber.authorizing_call
        if call is None or not has_scopes(connection, call, access):
            return
        if access.allow is None:
            notify()
            return

        async def notify_after_check() -> None:
            # The subscription may end while the predicate runs.
            if await is_permitted(connection, call, access) and subscriber in self._subscriptions.subscribers(uri):
                notify()

        task = connection.loop.create_task(notify_after_check())
        self._access_checks.add(task)
        task.add_done_callback(self._access_checks.discard)

    def close(self) -> None:
        """Cancel pending access checks."""
        for task in self._access_checks:
            task.cancel()


def _frame_for(
    subscriber: "Connection | ListenStream | UpdateRelay", frame: Encoded, params: "t.ResourceUpdatedParams"
) -> Encoded:
    """Return the notification for a subscriber. Under a profile the metadata is a member of its own."""
    from trunkline.server.connection import Connection  # imported here: few updates have metadata

    if not isinstance(subscriber, Connection) or subscriber.session.profile is None:
        return frame
    return Encoded(codec.encode(Notification(_UPDATED, t.ResourceUpdatedParams(uri=params.uri, metadata=params.meta))))
