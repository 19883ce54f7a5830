"""A greenhouse that can be asked, read, watched and watered. `make demo` gives a tour of it.

python examples/demo_server.py
"""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from trunkline import Context, ResourceNotFound, Server, ToolError

LOG = "greenhouse://log"
SEASONS = ("spring", "summer", "autumn", "winter")

server = Server("greenhouse", version="1.0", instructions="Water the beds when the log says that they are dry.")
beds = {"tomatoes": 35, "basil": 60, "bell peppers": 20}  # how wet the soil is, in percent
log = ["06:00 lights on"]


@dataclass
class Reading:
    """How a bed is doing."""

    bed: str
    moisture: int
    dry: bool


@dataclass
class Order:
    """What the form asks for."""

    seed: Literal["tomato", "basil", "pepper"]
    packets: Annotated[int, Meta(ge=1, le=20)] = 1


@server.tool
async def survey(ctx: Context) -> list[Reading]:
    """Measures every bed, one after the other."""
    readings: list[Reading] = []
    for done, (bed, moisture) in enumerate(beds.items(), start=1):
        await asyncio.sleep(0.15)  # a slow sensor
        readings.append(Reading(bed, moisture, dry=moisture < 40))
        await ctx.progress(done, total=len(beds), message=bed)
    return readings


@server.tool
def water(bed: str, litres: Annotated[int, Meta(ge=1, le=10)]) -> Reading:
    """Waters a bed and writes it into the log."""
    if bed not in beds:
        raise ToolError(f"there is no bed of {bed}; there are {', '.join(beds)}")
    beds[bed] = min(100, beds[bed] + 10 * litres)
    log.append(f"watered {bed} with {litres} l")
    server.notify_updated(LOG)
    return Reading(bed, beds[bed], dry=beds[bed] < 40)


@server.tool
async def order_seeds(ctx: Context) -> str:
    """Orders seeds, once the user has said which."""
    answer = await ctx.elicit("Which seeds shall be ordered?", Order)
    if answer.data is None:
        return f"nothing ordered: the user chose to {answer.action}"
    return f"ordered {answer.data.packets} packets of {answer.data.seed}"


@server.resource(LOG, mime_type="text/plain")
def read_log() -> str:
    """What happened today."""
    return "\n".join(log)


@server.resource("greenhouse://beds/{bed}")
def read_bed(bed: str) -> Reading:
    """One bed, by its name."""
    if bed not in beds:
        raise ResourceNotFound(f"greenhouse://beds/{bed}")
    return Reading(bed, beds[bed], dry=beds[bed] < 40)


@server.prompt
def planting_plan(bed: str, season: str = "spring") -> str:
    """Asks for a plan of what to plant."""
    return f"Make a planting plan for the bed of {bed} in {season}. It holds {beds.get(bed, 0)} % water now."


@server.completion(prompt="planting_plan", argument="season")
def seasons(text: str) -> list[str]:
    """The seasons that begin like that."""
    return [season for season in SEASONS if season.startswith(text)]


if __name__ == "__main__":
    server.run()
