"""Subscriptions: a request that stays open, for what a client wants to hear of."""

from msgspec.structs import replace

from trunkline.conversation.dispatch import Feature
from trunkline.errors import InternalError
from trunkline.protocol.inflight import Running
from trunkline.protocol.types import ListenParams, SubscriptionFilter
from trunkline.registry.resources import check_uri
from trunkline.server.admission import may_have
from trunkline.server.connection import Connection
from trunkline.server.listening import Listening, honoured

__all__ = ["FEATURE"]


class TooManyListens(InternalError):
    """A subscription on a line that has as many as it may."""

    kind = "maximum_subscriptions_exceeded"

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} subscriptions are open on this connection, which is the most", data={"maximum": most})


async def _listen(connection: Connection, call: Running, params: ListenParams) -> None:
    wanted = await _permitted(connection, call, honoured(params.notifications, connection.offer.capabilities()))
    listening = Listening(connection, call, wanted)
    shared = connection.shared
    if not connection.channel.info.shared and shared.listeners.of(connection) >= connection.settings.max_calls:
        raise TooManyListens(connection.settings.max_calls)
    connection.rest(1)  # it waits for nothing in particular, and shall keep nobody from being answered
    try:
        for uri in wanted.resource_subscriptions or ():
            await shared.watchers.started(check_uri(uri, connection.settings), listening)
        listening.acknowledge()
        shared.listeners.add(listening)
        await connection.loop.create_future()  # until it is ended, or called off
    finally:
        shared.listeners.discard(listening)
        connection.rest(-1)
        await shared.watchers.ended(shared.watchers.subscriptions.drop(listening))


async def _permitted(connection: Connection, call: Running, wanted: SubscriptionFilter) -> SubscriptionFilter:
    """What a client may hear of, of what it wants to: no resources that it may not read."""
    uris: list[str] = []
    for uri in wanted.resource_subscriptions or ():
        access = connection.offer.rule_of(uri)
        if access is None or await may_have(connection, call, access):
            uris.append(uri)
    return replace(wanted, resource_subscriptions=uris or None)


FEATURE = Feature("subscriptions", {"subscriptions/listen": _listen})
