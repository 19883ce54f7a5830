"""Changes that a mounted server reports: updates of its resources, lists that changed, and subscriptions to them."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trunkline.registry.prefixes import Prefix
from trunkline.server.notifications.update_relay import UpdateRelay

if TYPE_CHECKING:
    from trunkline.server.runtime import ServerRuntime

__all__ = ["MountedUpdates"]

_SUBSCRIBING: Final = "the subscriptions to a mounted server"


class MountedUpdates:
    """Subscribes to a mounted server on behalf of the parent's clients, and passes its changes on to the parent."""

    def __init__(
        self,
        prefix: Prefix,
        parent: "ServerRuntime",
        child: "ServerRuntime",
        parent_uri: Callable[[str], str | None],
        enter: Callable[[Any], Any],
    ) -> None:
        """`parent_uri` returns the URI in the parent of a resource of the mounted server; None if the parent does not
        offer it. `enter` converts the context of a call."""
        self._prefix = prefix
        self._parent = parent
        self._child = child
        self._parent_uri = parent_uri
        self._enter = enter
        self._relay = UpdateRelay(self._send)

    def connect(self) -> None:
        """Begin to pass on changes."""
        hooks = self._parent.subscription_hooks
        hooks.on_first.append(self._subscribe)
        hooks.on_last.append(self._unsubscribe)
        self._parent.on_roots_changed.append(self._roots_changed)
        self._child.forwarders.append(self)
        if uris := hooks.subscriptions.subscribed_uris():
            self._parent.run_in_background(partial(self._subscribe_all, uris), _SUBSCRIBING)

    def disconnect(self) -> None:
        """Stop passing on changes."""
        hooks = self._parent.subscription_hooks
        hooks.on_first.remove(self._subscribe)
        hooks.on_last.remove(self._unsubscribe)
        self._parent.on_roots_changed.remove(self._roots_changed)
        self._child.forwarders.remove(self)
        mounted = self._child.subscription_hooks
        if unused := mounted.subscriptions.drop(self._relay):
            self._parent.run_in_background(partial(mounted.release_unused, unused), _SUBSCRIBING)

    async def _subscribe_all(self, uris: Iterable[str]) -> None:
        """Subscribe to resources that the parent's clients have subscribed to before."""
        for uri in uris:
            await self._subscribe(uri)

    async def _subscribe(self, uri: str) -> None:
        own = self._prefix.strip_uri(uri)
        if own is not None:
            await self._child.subscription_hooks.subscribe(own, self._relay)

    async def _unsubscribe(self, uri: str) -> None:
        own = self._prefix.strip_uri(uri)
        if own is not None:
            await self._child.subscription_hooks.unsubscribe(own, self._relay)

    async def _roots_changed(self, context: Any) -> None:
        for function in list(self._child.on_roots_changed):
            await function(self._enter(context))

    def _send(self, uri: str, meta: bytes | None) -> None:
        """Notify the subscribers of the parent in this process."""
        if (shown := self._parent_uri(uri)) is not None:
            self._parent.post(partial(self._parent.resource_updates.send, shown, meta))

    def publish_update(self, uri: str, meta: bytes | None) -> None:
        """Publish to the parent's other processes that a resource has changed."""
        if (shown := self._parent_uri(uri)) is not None:
            self._parent.post(partial(self._parent.publish_update, shown, meta))

    def relist(self, name: str, *, everywhere: bool) -> None:
        """Announce to the parent's clients that a list has changed although no entry has."""
        self._parent.relist(name, everywhere=everywhere)
