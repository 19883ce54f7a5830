"""Resources: a fixed text, changing weather, and the weather of any city.

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
    """The temperatures of all cities."""
    return temperatures


@server.resource("weather://city/{name}")
async def weather_in(name: str) -> str:
    """The temperature of one city."""
    if name not in temperatures:
        raise ResourceNotFound(f"weather://city/{name}")
    return f"{temperatures[name]} degrees in {name} at {datetime.now(UTC):%H:%M}"


@server.tool
async def measure(city: str, degrees: int) -> None:
    """Records a temperature, and notifies subscribers."""
    temperatures[city] = degrees
    server.notify_updated("weather://city")
    server.notify_updated(f"weather://city/{city}")


if __name__ == "__main__":
    server.run()
