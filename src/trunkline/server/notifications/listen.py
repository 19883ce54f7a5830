"""Requests that stay open, for clients of the modern era: what each wants to hear of, and telling it.

The same events reach clients of the handshake era through their sessions; here each is marked with the request that it
belongs to, and nothing is told that was not asked for.
"""

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import SUBSCRIPTION_ID
from trunkline.protocol.types import (
    CancelledParams,
    Empty,
    Params,
    SubscriptionFilter,
    SubscriptionsAcknowledgedParams,
)
from trunkline.protocol.types.tasks_extension import DetailedTask
from trunkline.wire.messages import Encoded, Notification, RequestId

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = ["ListenStream", "ListenStreams", "supported_filter"]

_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_CANCELLED: Final = "notifications/cancelled"
_FILTER_FIELDS: Final = {
    "notifications/tools/list_changed": "tools_list_changed",
    "notifications/prompts/list_changed": "prompts_list_changed",
    "notifications/resources/list_changed": "resources_list_changed",
}


class ListenStream:
    """One such request."""

    def __init__(
        self, connection: "Connection", call: IncomingRequest, subscription_filter: SubscriptionFilter
    ) -> None:
        self._call = call
        self.connection = connection
        self.subscription_filter = subscription_filter
        self._backlog: (
            list[tuple[str, Params | DetailedTask]] | None
        ) = []  # what happened before the client knows what it will hear

    @property
    def subscription_id(self) -> RequestId:
        """The id of the request, as the client knows it."""
        named = self._call.origin.named
        return self._call.id if named is None else named

    @property
    def target_count(self) -> int:
        """How many resources and tasks it names."""
        return len(self.subscription_filter.resource_subscriptions or ()) + len(self.subscription_filter.task_ids or ())

    @property
    def authorizing_call(self) -> "tuple[Connection, IncomingRequest | None]":
        """Who it is that listens: the sender of the request."""
        return self.connection, self._call

    def acknowledge(self) -> None:
        """Tells the client what it will be told of; and then what has happened meanwhile."""
        early, self._backlog = self._backlog or [], None
        self.notify(_ACKNOWLEDGED, SubscriptionsAcknowledgedParams(self.subscription_filter))
        for name, params in early:
            self.notify(name, params)

    def notify(self, name: str, params: Params | DetailedTask) -> None:
        """Tells the client something, marked as belonging to this request."""
        if self._backlog is not None:
            self._backlog.append((name, params))
        else:
            self.connection.notify(
                name, replace(params, meta={**(params.meta or {}), **self._subscription_meta()}), about=self._call
            )

    def _subscription_meta(self) -> dict[str, Any]:
        return {SUBSCRIPTION_ID: self.subscription_id}

    def broadcast(self, name: str, frame: Encoded, params: Params) -> None:  # noqa: ARG002 - each is marked otherwise
        """Tells what many are told."""
        self.notify(name, params)

    def end(self) -> None:
        """Nothing more will be told: the request is answered, and whoever holds it open is stopped. On a pipe, which
        stays open, that is said in a second way (cancellation, "Cancellation Flow")."""
        self.connection.reply_now(self._call, Empty(meta=self._subscription_meta()))
        if not self.connection.channel.info.shared:
            gone = CancelledParams(request_id=self.subscription_id, reason="the server ends the subscription")
            self.connection.channel.send(Notification(_CANCELLED, gone))


class ListenStreams:
    """All of them."""

    def __init__(self) -> None:
        self._open: dict[ListenStream, None] = {}

    def count_for(self, connection: "Connection") -> int:
        """How many one connection has."""
        return sum(listening.connection is connection for listening in self._open)

    def target_count_for(self, connection: "Connection") -> int:
        """How many resources and tasks the requests of one connection name."""
        return sum(listening.target_count for listening in self._open if listening.connection is connection)

    def add(self, stream: ListenStream) -> None:
        """One more."""
        self._open[stream] = None

    def discard(self, stream: ListenStream) -> None:
        """It has ended."""
        self._open.pop(stream, None)

    def notify_list_changed(self, name: str) -> None:
        """A list has changed."""
        for listening in list(self._open):
            if getattr(listening.subscription_filter, _FILTER_FIELDS[name]):
                listening.notify(name, Empty())

    def end(self, connection: "Connection | None" = None) -> None:
        """Ends those of a connection in good order, or all of them."""
        for listening in list(self._open):
            if connection is None or listening.connection is connection:
                self.discard(listening)
                listening.end()


def supported_filter(requested: SubscriptionFilter, capabilities: Any) -> SubscriptionFilter:
    """What a client will be told of what it wants to hear: what the server declares."""

    def told(asked: bool | None, feature: str) -> bool | None:
        return True if asked and capabilities.get(feature, {}).get("listChanged") else None

    watched = capabilities.get("resources", {}).get("subscribe")
    return SubscriptionFilter(
        tools_list_changed=told(requested.tools_list_changed, "tools"),
        prompts_list_changed=told(requested.prompts_list_changed, "prompts"),
        resources_list_changed=told(requested.resources_list_changed, "resources"),
        resource_subscriptions=requested.resource_subscriptions if watched else None,
        task_ids=requested.task_ids,
    )
