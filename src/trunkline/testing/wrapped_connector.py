"""A connector whose channels are wrapped, to record messages or to inject faults."""

from collections.abc import Callable
from typing import Protocol

from trunkline.transports.channel import Accept, Channel, Connector, Receiver, ReleasableConnector

__all__ = ["WrappedChannel", "WrappedConnector"]


class WrappedChannel(Channel, Receiver, Protocol):
    """A channel for a client that is also the receiver of the channel that it wraps."""


class WrappedConnector:
    """Opens the channels of another connector and wraps each of them."""

    def __init__(
        self,
        connector: Connector,
        wrap: Callable[[Channel, Accept], WrappedChannel],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` is called before each attempt to connect, and may raise `TransportError`."""
        self._connector = connector
        self._wrap = wrap
        self._before = before

    @property
    def name(self) -> str:
        """The name of the peer."""
        return self._connector.name

    async def connect(self, accept: Accept) -> Channel:
        """Open a connection."""
        self._before()
        made: list[WrappedChannel] = []

        def take(channel: Channel) -> Receiver:
            made.append(self._wrap(channel, accept))
            return made[0]

        await self._connector.connect(take)
        return made[0]

    async def release(self) -> None:
        """Release resources that the connector shares between connections."""
        if isinstance(self._connector, ReleasableConnector):
            await self._connector.release()
