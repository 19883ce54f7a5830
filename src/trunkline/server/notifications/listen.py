"""Open `subscriptions/listen` requests of modern clients, and the notifications on them.

Clients of the handshake era receive the same events through their sessions. Here every notification carries the id of
its subscription, and a client receives only what its filter selects.
"""

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from trunkline.protocol import types as t
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import SUBSCRIPTION_ID
from trunkline.wire.messages import Encoded, Notification, RequestId

if TYPE_CHECKING:
    from trunkline.server.call_peer import ConnectedPeer

__all__ = ["ListenStream", "ListenStreams", "supported_filter"]

_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_CANCELLED: Final = "notifications/cancelled"
_FILTER_FIELDS: Final = {
    "notifications/tools/list_changed": "tools_list_changed",
    "notifications/prompts/list_changed": "prompts_list_changed",
    "notifications/resources/list_changed": "resources_list_changed",
}


class ListenStream:
    """One open `subscriptions/listen` request."""

    def __init__(
        self, connection: "ConnectedPeer", call: IncomingRequest, subscription_filter: "t.SubscriptionFilter"
    ) -> None:
        self._call = call
        self.connection = connection
        self.subscription_filter = subscription_filter
        # Notifications that precede the acknowledgement; None once it was sent.
        self._backlog: list[tuple[str, t.Params | t.DetailedTask]] | None = []

    @property
    def subscription_id(self) -> RequestId:
        """The request id that the client chose."""
        named = self._call.origin.original_id
        return self._call.id if named is None else named

    @property
    def target_count(self) -> int:
        """The number of resources and tasks in the filter."""
        return len(self.subscription_filter.resource_subscriptions or ()) + len(self.subscription_filter.task_ids or ())

    @property
    def authorizing_call(self) -> "tuple[ConnectedPeer, IncomingRequest | None]":
        """The connection and the request whose sender must have access to what is sent."""
        return self.connection, self._call

    def acknowledge(self) -> None:
        """Send the acknowledgement with the effective filter, then the notifications that arrived before it."""
        backlog, self._backlog = self._backlog or [], None
        self.notify(_ACKNOWLEDGED, t.SubscriptionsAcknowledgedParams(self.subscription_filter))
        for name, params in backlog:
            self.notify(name, params)

    def notify(self, name: str, params: "t.Params | t.DetailedTask") -> None:
        """Send a notification with the subscription id; before the acknowledgement, queue it."""
        if self._backlog is not None:
            self._backlog.append((name, params))
        else:
            self.connection.notify(
                name, replace(params, meta={**(params.meta or {}), **self._subscription_meta()}), about=self._call
            )

    def _subscription_meta(self) -> dict[str, Any]:
        return {SUBSCRIPTION_ID: self.subscription_id}

    def broadcast(self, name: str, frame: Encoded, params: "t.Params") -> None:  # noqa: ARG002 - the shared frame lacks the subscription id
        """Send a notification that goes to many subscribers."""
        self.notify(name, params)

    def end(self) -> None:
        """Answer the request, which ends its handler. On a connection that stays open, also send
        `notifications/cancelled` (cancellation, "Cancellation Flow")."""
        self.connection.reply_now(self._call, t.Empty(meta=self._subscription_meta()))
        if not self.connection.channel.info.stateless:
            cancelled = t.CancelledParams(request_id=self.subscription_id, reason="the server ends the subscription")
            self.connection.channel.send(Notification(_CANCELLED, cancelled))


class ListenStreams:
    """All open `subscriptions/listen` requests of a server."""

    def __init__(self) -> None:
        self._open: dict[ListenStream, None] = {}

    @property
    def count(self) -> int:
        """The number of open streams."""
        return len(self._open)

    def count_for(self, connection: "ConnectedPeer") -> int:
        """Return the number of streams of a connection."""
        return sum(stream.connection is connection for stream in self._open)

    def target_count_for(self, connection: "ConnectedPeer") -> int:
        """Return the number of resources and tasks that the streams of a connection name."""
        return sum(stream.target_count for stream in self._open if stream.connection is connection)

    def add(self, stream: ListenStream) -> None:
        self._open[stream] = None

    def discard(self, stream: ListenStream) -> None:
        """Remove a stream, if present."""
        self._open.pop(stream, None)

    def notify_list_changed(self, name: str) -> None:
        """Send a `list_changed` notification to the streams that select it."""
        for stream in list(self._open):
            if getattr(stream.subscription_filter, _FILTER_FIELDS[name]):
                stream.notify(name, t.Empty())

    def end(self, connection: "ConnectedPeer | None" = None) -> None:
        """End the streams of a connection, or all streams."""
        for stream in list(self._open):
            if connection is None or stream.connection is connection:
                self.discard(stream)
                stream.end()


def supported_filter(requested: "t.SubscriptionFilter", capabilities: Any) -> "t.SubscriptionFilter":
    """Return the part of a requested filter that the server's capabilities support."""

    def supported(selected: bool | None, feature: str) -> bool | None:
        return True if selected and capabilities.get(feature, {}).get("listChanged") else None

    subscribe = capabilities.get("resources", {}).get("subscribe")
    return t.SubscriptionFilter(
        tools_list_changed=supported(requested.tools_list_changed, "tools"),
        prompts_list_changed=supported(requested.prompts_list_changed, "prompts"),
        resources_list_changed=supported(requested.resources_list_changed, "resources"),
        resource_subscriptions=requested.resource_subscriptions if subscribe else None,
        task_ids=requested.task_ids,
    )
