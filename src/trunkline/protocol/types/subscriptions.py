"""Subscriptions: a request that stays open to receive notifications (from 2026-07-28 on)."""

from trunkline.protocol.types.base import Params, Wire

__all__ = ["ListenParams", "SubscriptionFilter", "SubscriptionsAcknowledgedParams"]


class SubscriptionFilter(Wire):
    """The requested notifications."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None
    task_ids: list[str] | None = None  # of the tasks extension


class ListenParams(Params):
    """Params of `subscriptions/listen`."""

    notifications: SubscriptionFilter


class SubscriptionsAcknowledgedParams(Params):
    """Params of the acknowledgement: the notifications that the server will send."""

    notifications: SubscriptionFilter
