"""Gateways for the tests of this folder, with pins and manifests in a temporary folder."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.limits import PATIENCE

from trunkline import BackendState, Client, Gateway, PinStore, Server, Settings
from trunkline.client.targets import make_connector
from trunkline.errors import TransportError
from trunkline.transports.channel import Accept, Channel

QUICK = Settings(backoff_first=0.01, backoff_longest=0.05, stop_timeout=0.2, list_changed_interval=0.001)
"""Restarts without long delays."""


def make_gateway(folder: Path, servers: Any, **options: Any) -> Gateway:
    """Return a gateway that touches no file of the user, and waits for slow processes."""
    given: dict[str, Any] = {
        "pins": PinStore(folder / "pins.json"),
        "cache": folder / "manifests",
        "settings": QUICK,
        "list_wait": PATIENCE,
    }
    return Gateway(servers, **{**given, **options})


def make_server(name: str = "weather") -> Server:
    """Return a server with a tool, a prompt and a resource."""
    server = Server(name)

    @server.tool(annotations={"readOnlyHint": True})
    async def forecast(city: str) -> str:
        """Returns the forecast."""
        return f"Sun in {city}."

    @server.prompt
    def advise(city: str) -> str:
        return f"What to wear in {city}?"

    @server.resource("weather://today")
    def today() -> str:
        return "sunny"

    del forecast, advise, today
    return server


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def until_state(gateway: Gateway, name: str, *states: BackendState) -> None:
    """Wait until a backend is in one of some states."""
    await until(lambda: gateway.backends[name].state in states)


async def tool_names(client: Client) -> list[str]:
    """Return the names of all tools, sorted: backends appear in the order in which they start."""
    return sorted(tool.name for tool in (await client.list_tools()).tools)


class Switchable:
    """A connector to a server, which can be switched off."""

    name = "switchable"

    def __init__(self, server: Server, *, on: bool = True) -> None:
        self._connector = make_connector(server, server.settings)
        self._channels: list[Channel] = []
        self.on = on
        self.attempts = 0

    async def connect(self, accept: Accept) -> Channel:
        """Connect, if it is on."""
        self.attempts += 1
        if not self.on:
            raise TransportError("it is switched off: secret-token")
        self._channels.append(await self._connector.connect(accept))
        return self._channels[-1]

    async def cut(self) -> None:
        """Close all connections."""
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.close()
