"""Subscriptions: a request that stays open, for what a client wants to hear of (from 2026-07-28 on)."""

from trunkline.protocol.types.base import Params, Wire

__all__ = ["ListenParams", "SubscriptionFilter", "SubscriptionsAcknowledgedParams"]


class SubscriptionFilter(Wire):
    """What is to be heard of."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None
    task_ids: list[str] | None = None  # by the extension for tasks


class ListenParams(Params):
    """Asks to be told of something from now on."""

    notifications: SubscriptionFilter


class SubscriptionsAcknowledgedParams(Params):
    """What a server will tell of."""

    notifications: SubscriptionFilter
