"""Documents to be read: a text that is always the same, weather that is not, and the weather of any city.

python examples/documents.py
"""

from datetime import UTC, datetime

from trunkline import ResourceNotFound, Server

server = Server("documents", version="1.0")
temperatures = {"Berlin": 21, "Oslo": 14}

server.add_resource(
    "doc://readme", "# Read me\n\nEverything else is here too.\n", name="readme", mime_type="text/markdown"
)


@server.resource("weather://city", mime_type="application/json")
async def weather() -> dict[str, int]:
    """How warm it is, in every city."""
    return temperatures


@server.resource("weather://city/{name}")
async def weather_in(name: str) -> str:
    """How warm it is in one city."""
    if name not in temperatures:
        raise ResourceNotFound(f"weather://city/{name}")
    return f"{temperatures[name]} degrees in {name} at {datetime.now(UTC):%H:%M}"


@server.tool
async def measure(city: str, degrees: int) -> None:
    """Notes a temperature, and tells whoever has subscribed."""
    temperatures[city] = degrees
    server.notify_updated("weather://city")
    server.notify_updated(f"weather://city/{city}")


if __name__ == "__main__":
    server.run()
