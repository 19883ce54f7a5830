"""Subscriptions: the `subscriptions/listen` request, which stays open and delivers notifications."""

from functools import partial

from msgspec.structs import replace

from trunkline.errors import InternalError, NotNow, StoreUnavailable
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.task_dialects import Dialect, to_detailed_task
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import ListenParams, SubscriptionFilter
from trunkline.registry.resources import check_uri
from trunkline.rpc.dispatch import Feature
from trunkline.server.access.enforcement import is_permitted
from trunkline.server.access.owner_id import owner_of
from trunkline.server.connection import Connection
from trunkline.server.notifications.listen import ListenStream, supported_filter
from trunkline.server.notifications.subscriptions import TooManySubscriptions
from trunkline.server.tasks.create import require_extension
from trunkline.server.tasks.repository import StoredTask

__all__ = ["FEATURE"]


class TooManyListens(InternalError):
    """A connection has its maximum of open `subscriptions/listen` requests."""

    kind = "maximum_subscriptions_exceeded"

    def __init__(self, maximum: int) -> None:
        super().__init__(
            f"{maximum} subscriptions are open on this connection, which is the most", data={"maximum": maximum}
        )


def _check_subscription_limit(connection: Connection, requested: SubscriptionFilter) -> None:
    """Raise `TooManySubscriptions` if a request names more resources and tasks than a client may subscribe to. On a
    connection of one client, its other open requests count as well."""
    most = connection.settings.max_subscriptions
    named = len(requested.resource_subscriptions or ()) + len(requested.task_ids or ())
    if not connection.channel.info.stateless:
        named += connection.shared.listen_streams.target_count_for(connection)
    if named > most:
        raise TooManySubscriptions(most, f"{named} resources and tasks were named, and {most} is the most")


async def _listen(connection: Connection, call: IncomingRequest, params: ListenParams) -> None:
    _check_subscription_limit(connection, params.notifications)
    wanted = await _filter_permitted(
        connection, call, supported_filter(params.notifications, connection.catalog.capabilities())
    )
    followed = await _find_own_tasks(connection, call, wanted)
    wanted = replace(wanted, task_ids=[kept.record.task_id for kept in followed] or None)
    listening = ListenStream(connection, call, wanted)
    shared = connection.shared
    if (
        not connection.channel.info.stateless
        and shared.listen_streams.count_for(connection) >= connection.settings.max_calls
    ):
        raise TooManyListens(connection.settings.max_calls)
    tell = partial(_notify_task, listening)
    unfollow = [shared.tasks.watchers.follow(kept, Dialect.EXTENSION, tell) for kept in followed]
    connection.adjust_call_limit(1)  # it stays open: it must not use up the call limit
    try:
        for uri in wanted.resource_subscriptions or ():
            await shared.subscription_hooks.subscribe(check_uri(uri, connection.settings), listening)
        _check_subscription_limit(connection, wanted)  # concurrent requests may have subscribed meanwhile
        listening.acknowledge()
        shared.listen_streams.add(listening)
        await connection.loop.create_future()  # until the server ends it or the client cancels
    finally:
        for end in unfollow:
            end()
        shared.listen_streams.discard(listening)
        connection.adjust_call_limit(-1)
        await shared.subscription_hooks.release_unused(shared.subscription_hooks.subscriptions.drop(listening))


async def _filter_permitted(
    connection: Connection, call: IncomingRequest, requested: SubscriptionFilter
) -> SubscriptionFilter:
    """Return the filter without resources that the caller may not read."""
    uris: list[str] = []
    for uri in requested.resource_subscriptions or ():
        access = connection.catalog.access_rule_of(uri)
        if access is None or await is_permitted(connection, call, access):
            uris.append(uri)
    return replace(requested, resource_subscriptions=uris or None)


async def _find_own_tasks(
    connection: Connection, call: IncomingRequest, requested: SubscriptionFilter
) -> list[StoredTask]:
    """Return the requested tasks that exist and belong to the caller."""
    if requested.task_ids is None:
        return []
    require_extension(connection, call)
    owner, find = owner_of(call.origin.principal), connection.shared.tasks.repository.find
    try:
        found = [await find(owner, task_id) for task_id in dict.fromkeys(requested.task_ids)]
    except StoreUnavailable as error:
        raise NotNow("the task store is unavailable; try again later") from error
    return [kept for kept in found if kept is not None]


def _notify_task(listening: ListenStream, record: TaskRecord) -> bool:
    listening.notify("notifications/tasks", to_detailed_task(record))
    return True


FEATURE = Feature("subscriptions", {"subscriptions/listen": _listen})
