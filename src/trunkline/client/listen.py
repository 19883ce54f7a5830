"""The `subscriptions/listen` request of a client in the modern era: kept open, and replaced when the filter changes."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

from trunkline.client.connection import ClientConnection
from trunkline.client.retry import backoff_delay, is_passing
from trunkline.errors import CapabilityNotSupported, ConnectionClosed, PeerError, ProtocolError, RequestTimeout
from trunkline.protocol.capabilities import is_declared
from trunkline.protocol.inflight import OutgoingRequest
from trunkline.protocol.meta import SUBSCRIPTION_ID
from trunkline.protocol.methods import Side
from trunkline.protocol.types import ListenParams, SubscriptionFilter, SubscriptionsAcknowledgedParams

__all__ = ["ListenSubscription", "build_filter"]

_KINDS: Final = ("tools", "prompts", "resources")


def build_filter(
    capabilities: Mapping[str, Any], uris: Iterable[str], tasks: Iterable[str] = ()
) -> SubscriptionFilter | None:
    """Return the filter for all notifications that a server offers; None if there are none."""
    wanted: Any = {f"{kind}_list_changed": True for kind in _KINDS if is_declared(capabilities, f"{kind}.listChanged")}
    if watched := list(uris):
        wanted["resource_subscriptions"] = watched
    if followed := list(tasks):
        wanted["task_ids"] = followed
    return SubscriptionFilter(**wanted) if wanted else None


class ListenSubscription:
    """The listen request on one connection."""

    def __init__(
        self,
        connection: ClientConnection,
        resource_uris: Callable[[], Iterable[str]],
        on_missed: Callable[[], None],
        task_ids: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`resource_uris` returns the subscribed resources, `task_ids` the tasks that are waited for. `on_missed` is
        called when notifications may have been lost."""
        self._lock = asyncio.Lock()  # one change at a time, or one would overwrite the other
        self._connection = connection
        self._resource_uris = resource_uris
        self._on_missed = on_missed
        self._task_ids = task_ids
        self._requested_tasks: frozenset[str] | None = frozenset()  # None: the server sends none
        self._current_request: OutgoingRequest | None = None
        self._acknowledgements: dict[Any, asyncio.Future[SubscriptionFilter]] = {}
        self._reopen_needed = asyncio.Event()  # the request has ended

    def on_acknowledged(self, params: SubscriptionsAcknowledgedParams) -> None:
        """Take the filter that the server has granted."""
        waiting = self._acknowledgements.pop((params.meta or {}).get(SUBSCRIPTION_ID), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(params.notifications)

    async def open(self) -> None:
        """Send the first listen request."""
        async with self._lock:
            await self._replace_request(self._resource_uris(), self._connection.settings.quick_timeout)

    async def update_resource(self, uri: str, timeout: float | None, *, subscribe: bool) -> None:
        """Add or remove one resource. Raises `CapabilityNotSupported` if the server does not send its updates."""
        refused = CapabilityNotSupported("resources/subscribe", "resources.subscribe")
        if not self._connection.session.has_capability(Side.SERVER, "resources.subscribe"):
            raise refused
        async with self._lock:
            uris = {one: None for one in (*self._resource_uris(), uri) if subscribe or one != uri}
            granted = await self._replace_request(uris, timeout or self._connection.settings.quick_timeout)
        if subscribe and uri not in (granted.resource_subscriptions or ()):
            raise refused

    async def include_tasks(self) -> None:
        """Add the tasks that are waited for. A server that refuses is not asked again."""
        async with self._lock:
            if self._requested_tasks is None or self._requested_tasks.issuperset(self._task_ids()):
                return
            try:
                granted = await self._replace_request(self._resource_uris(), self._connection.settings.quick_timeout)
            except ConnectionClosed:
                return
            except (PeerError, ProtocolError) as error:
                if not is_passing(error):
                    self._requested_tasks = None
            else:
                if not granted.task_ids:
                    self._requested_tasks = None

    async def _replace_request(self, uris: Iterable[str], timeout: float | None) -> SubscriptionFilter:
        """Send a listen request in place of the current one; return the granted filter."""
        negotiated = self._connection.session.negotiated
        tasks = () if self._requested_tasks is None else tuple(self._task_ids())
        requested = None if negotiated is None else build_filter(negotiated.server, uris, tasks)
        former = self._current_request
        if requested is None:
            self._current_request = None
            granted = SubscriptionFilter()
        else:
            granted = await self._open_request(requested, timeout)
            if self._requested_tasks is not None:
                self._requested_tasks = frozenset(tasks)
        if former is not None:
            self._connection.cancel_request(former)
        return granted

    async def _open_request(self, requested: SubscriptionFilter, timeout: float | None) -> SubscriptionFilter:
        request = self._connection.send_request("subscriptions/listen", ListenParams(requested))
        request.waiter.add_done_callback(partial(self._on_request_ended, request))
        try:
            granted = await self._wait_acknowledged(request, timeout)
        except (ConnectionClosed, PeerError, RequestTimeout) as error:
            if self._current_request is None and (isinstance(error, ConnectionClosed) or is_passing(error)):
                self._reopen_needed.set()
            raise
        finally:
            self._acknowledgements.pop(request.id, None)
            if self._current_request is not request:
                self._connection.cancel_request(request)
        return granted

    async def _wait_acknowledged(self, request: OutgoingRequest, timeout: float | None) -> SubscriptionFilter:
        granted = self._acknowledgements[request.id] = self._connection.loop.create_future()
        await asyncio.wait([granted, request.waiter], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not granted.done():
            if not request.waiter.done():
                raise RequestTimeout("subscriptions/listen", timeout or 0.0)
            request.waiter.result()  # raises the error
            raise ConnectionClosed("the server ended subscriptions/listen before acknowledging it")
        self._current_request = request
        self._reopen_needed.clear()
        if request.waiter.done():
            self._on_request_ended(request, request.waiter)
        return granted.result()

    def _on_request_ended(self, request: OutgoingRequest, waiter: "asyncio.Future[Any]") -> None:
        """Note that the request has ended or its response was lost. In either case it is sent again."""
        if not waiter.cancelled():
            waiter.exception()
        if request is self._current_request:
            self._current_request = None
            self._reopen_needed.set()
            self._on_missed()

    async def keep_open(self) -> None:
        """Send the request again whenever it ends, until the connection closes."""
        failures = 0
        while await self._wait_while_connected(self._reopen_needed.wait()):
            if not await self._wait_while_connected(
                asyncio.sleep(backoff_delay(self._connection.settings, failures), True)
            ):
                return
            failures = 0 if await self._reopen() else failures + 1

    async def _wait_while_connected(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Wait for a coroutine; return False if the connection closed first."""
        disconnected, task = self._connection.disconnected, asyncio.ensure_future(work)
        try:
            await asyncio.wait([disconnected, task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
        return not disconnected.done()

    async def _reopen(self) -> bool:
        async with self._lock:
            self._reopen_needed.clear()
            if self._current_request is not None:
                return True  # another caller was faster
            try:
                await self._replace_request(self._resource_uris(), self._connection.settings.quick_timeout)
            except (ConnectionClosed, PeerError, ProtocolError) as error:
                if isinstance(error, PeerError) and not is_passing(error):
                    self._requested_tasks = None  # the tasks may be the reason
                self._connection.facts.report_dropped(f"cannot listen to notifications: {error}", "not_renewed")
                self._reopen_needed.set()
                return False
        self._on_missed()
        return True
