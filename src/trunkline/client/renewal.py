"""Renewal of a client's state on a new connection: its log level and its subscriptions.

In the handshake era each of them is a request. A server may refuse it for now, for example because its store is
unavailable. Then the request is sent again, with a growing delay, until the server accepts it or refuses it for good,
or the connection ends; the next connection begins anew. Only the first attempt delays the use of the connection.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from trunkline.client.connection import ClientConnection
from trunkline.client.reconnect import ConnectionSupervisor
from trunkline.client.retry import backoff_delay, is_passing, requested_delay
from trunkline.errors import ConnectionClosed, TrunklineError

__all__ = ["StateRequest", "renew"]


class StateRequest(Struct, frozen=True):
    """A request that makes a part of the client's state known to the server."""

    name: str
    params: Any
    still_needed: Callable[[], bool]  # whether the client still has that state
    on_late: Callable[[], None]  # called if the server accepts the request after it has refused it for now


async def renew(request: StateRequest, connection: ClientConnection, supervisor: ConnectionSupervisor | None) -> None:
    """Send a request; if the server refuses it for now, continue in the background. Raise `ConnectionClosed` if the
    response is lost."""
    delay = await _send(request, connection, 0)
    if delay is not None and supervisor is not None:
        supervisor.run_in_background(_send_again(request, connection, supervisor, delay))


async def _send(request: StateRequest, connection: ClientConnection, failures: int) -> float | None:
    """Send a request. Return the delay before the next attempt; None if the server has accepted it, or has refused it
    for good."""
    try:
        await connection.request(request.name, request.params)
    except ConnectionClosed:
        raise
    except TrunklineError as error:
        connection.facts.report_dropped(f"not renewed: {error}", "not_renewed")
        return max(backoff_delay(connection.settings, failures), requested_delay(error)) if is_passing(error) else None
    if failures:
        request.on_late()
    return None


async def _send_again(
    request: StateRequest, connection: ClientConnection, supervisor: ConnectionSupervisor, delay: float | None
) -> None:
    failures = 0
    while delay is not None:
        await supervisor.wait_for([connection.disconnected], connection.now() + delay)
        if connection.disconnected.done() or not request.still_needed():
            return
        failures += 1
        try:
            delay = await _send(request, connection, failures)
        except ConnectionClosed:  # the connection may be open, and only the response lost
            delay = backoff_delay(connection.settings, failures)
