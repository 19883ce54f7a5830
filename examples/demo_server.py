"""A greenhouse with tools, resources, subscriptions and prompts. `make demo` gives a tour of it.

python examples/demo_server.py
"""

import asyncio
import os
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from trunkline import Context, ResourceNotFound, Server, ToolAnnotations, ToolError

LOG = "greenhouse://log"
SEASONS = ("spring", "summer", "autumn", "winter")

server = Server("greenhouse", version="1.0", instructions="Water the beds when the log says that they are dry.")
beds = {"tomatoes": 35, "basil": 60, "bell peppers": 20}  # how wet the soil is, in percent
log = ["06:00 lights on"]


@dataclass
class Reading:
    """The state of a bed."""

    bed: str
    moisture: int
    dry: bool


@dataclass
class Order:
    """The fields of the form."""

    seed: Literal["tomato", "basil", "pepper"]
    packets: Annotated[int, Meta(ge=1, le=20)] = 1


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def survey(ctx: Context) -> list[Reading]:
    """Measures all beds, one after the other."""
    readings: list[Reading] = []
    for done, (bed, moisture) in enumerate(beds.items(), start=1):
        await asyncio.sleep(0.15)  # a slow sensor
        readings.append(Reading(bed, moisture, dry=moisture < 40))
        await ctx.progress(done, total=len(beds), message=bed)
        if moisture < 40:
            ctx.log("warning", f"the bed of {bed} is dry", logger="sensors")
    return readings


@server.tool
async def water(bed: str, litres: Annotated[int, Meta(ge=1, le=10)], ctx: Context) -> Reading:
    """Waters a bed and logs it."""
    if bed not in beds:
        raise ToolError(f"there is no bed of {bed}; there are {', '.join(beds)}")
    await ctx.progress(1, total=2, message="the valve opens")
    await asyncio.sleep(0.15)
    beds[bed] = min(100, beds[bed] + 10 * litres)
    log.append(f"watered {bed} with {litres} l")
    server.notify_updated(LOG)
    return Reading(bed, beds[bed], dry=beds[bed] < 40)


@server.tool
async def order_seeds(ctx: Context) -> str:
    """Orders seeds that the user chooses in a form."""
    answer = await ctx.elicit("Which seeds shall be ordered?", Order)
    if not answer.accepted:
        return f"nothing ordered: the user chose to {answer.action}"
    return f"ordered {answer.data.packets} packets of {answer.data.seed}"


@server.resource(LOG, mime_type="text/plain")
def read_log() -> str:
    """The events of today."""
    return "\n".join(log)


@server.resource("greenhouse://process", mime_type="text/plain")
def read_process() -> str:
    """The pid of this server."""
    return str(os.getpid())


@server.resource("greenhouse://beds/{bed}")
def read_bed(bed: str) -> Reading:
    """One bed, by its name."""
    if bed not in beds:
        raise ResourceNotFound(f"greenhouse://beds/{bed}")
    return Reading(bed, beds[bed], dry=beds[bed] < 40)


@server.prompt
def planting_plan(bed: str, season: str = "spring") -> str:
    """A prompt for a planting plan."""
    return f"Make a planting plan for the bed of {bed} in {season}. It holds {beds.get(bed, 0)} % water now."


@server.completion(prompt="planting_plan", argument="season")
def seasons(text: str) -> list[str]:
    """The seasons with a prefix."""
    return [season for season in SEASONS if season.startswith(text)]


if __name__ == "__main__":
    server.run()
