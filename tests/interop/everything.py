"""A server that uses every feature of the protocol, for the probes in tests/interop/peers.

    python tests/interop/everything.py [http [WORKERS | redis://…]]

Over HTTP it listens on any free port, and prints it. Processes on the same Redis are one server. It uses the public
API only, as any user's server does. Tools return text, JSON where there is more to say.
"""

import asyncio
import json
import os
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Literal

from trunkline import Context, RedisStore, Server, Settings, ToolError
from trunkline.errors import RequestTimeout

Kind = Literal["tools", "resources", "prompts"]
SPARE = {"tools": "spare", "resources": "test://spare", "prompts": "spare"}  # hidden and shown again
FORM_URL, FORM_ID = "https://example.com/form", "form-1"

store = RedisStore(sys.argv[-1]) if sys.argv[-1].startswith("redis:") else None
server = Server("everything", version="1.0", instructions="Try everything.", store=store, settings=Settings.load())
events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)  # events, by name


@dataclass
class Person:
    """The fields of the form."""

    name: str
    age: int


# --- tools -------------------------------------------------------------------------------------


@server.tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool
def fail() -> str:
    """Fails, and says why."""
    raise ToolError("failed on purpose")


@server.tool(name="spare")
def spare_tool() -> str:
    """Can be hidden."""
    return "spare"


@server.tool
async def count(steps: int, ctx: Context) -> str:
    """Reports progress at every step."""
    for step in range(1, steps + 1):
        await ctx.progress(step, total=steps, message=f"step {step}")
    return "done"


@server.tool
async def count_in_step(steps: int, ctx: Context) -> str:
    """Reports progress at every step, and goes on when the client has read it."""
    for step in range(1, steps + 1):
        await ctx.progress(step, total=steps, message=f"step {step}")
        await happened("step read")
    return "done"


@server.tool
def go_on() -> str:
    """Confirm that a step has been read."""
    events["step read"].set()
    return "going on"


@server.tool
async def hang(ctx: Context) -> str:
    """Reports that it has started, and never ends by itself."""
    await ctx.progress(1)
    try:
        await asyncio.Event().wait()
    finally:
        events["hang cancelled"].set()
    return "never"


@server.tool
async def happened(event: str) -> str:
    """Return once the event has happened. Each event is reported once."""
    await events[event].wait()
    del events[event]
    return event


@server.tool
def log(
    level: Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"],
    text: str,
    ctx: Context,
) -> str:
    """Logs a message to the client."""
    ctx.log(level, {"text": text}, logger="everything")
    return "logged"


@server.tool
def touch(uri: str) -> str:
    """Notify the subscribers of a resource."""
    server.notify_updated(uri)
    return "touched"


@server.tool
def served_by() -> str:
    """The process that answers."""
    return str(os.getpid())


@server.tool
def hide(kind: Kind) -> str:
    """Hide the spare entry of a kind."""
    getattr(server, kind).disable(SPARE[kind])
    return "hidden"


@server.tool
def show(kind: Kind) -> str:
    """Show the spare entry of a kind again."""
    getattr(server, kind).enable(SPARE[kind])
    return "shown"


# --- tools that send requests to the client ----------------------------------------------------


@server.tool
async def ping_client(ctx: Context) -> str:
    """Ping the client."""
    await ctx.ping()
    return "pong"


@server.tool
def client_capabilities(ctx: Context) -> str:
    """What the client declared, as JSON."""
    return json.dumps(ctx.client.capabilities)


@server.tool
async def sample(prompt: str, ctx: Context) -> str:
    """Sample with the client's model."""
    reply = await ctx.sample(prompt, max_tokens=100, timeout=60.0)
    return json.dumps({"text": reply.content.text, "model": reply.model})


@server.tool
async def sample_attentively(prompt: str, ctx: Context) -> str:
    """Sample with the client's model, and return the progress that the client reported meanwhile."""
    heard: list[float] = []
    await ctx.sample(prompt, max_tokens=100, timeout=60.0, on_progress=lambda report: heard.append(report.progress))
    return json.dumps(heard)


@server.tool
async def sample_impatiently(prompt: str, ctx: Context) -> str:
    """Sample, and cancel the request when the client's model takes long."""
    try:
        await ctx.sample(prompt, max_tokens=100, timeout=0.3)
    except RequestTimeout:
        return "gave up"
    return "answered in time"


@server.tool
async def elicit(message: str, ctx: Context) -> str:
    """Asks the user to fill in a form."""
    answer = await ctx.elicit(message, Person)
    return json.dumps({"action": answer.action, **(asdict(answer.data) if answer.action == "accept" else {})})


@server.tool
async def elicit_url(message: str, ctx: Context) -> str:
    """Sends the user to a page."""
    answer = await ctx.elicit_url(message, FORM_URL, elicitation_id=FORM_ID)
    return answer.action


@server.tool
def finish_elicitation(ctx: Context) -> str:
    """Report that the user is done with the page."""
    ctx.elicitation_complete(FORM_ID)
    return "finished"


@server.tool
async def list_roots(ctx: Context) -> str:
    """The roots of the client."""
    return json.dumps([[root.uri, root.name] for root in await ctx.roots()])


@server.on_roots_changed
async def roots_changed(_: object) -> None:
    events["roots changed"].set()


# --- resources, prompts, completion ------------------------------------------------------------


@server.resource("test://static", mime_type="text/plain")
def static() -> str:
    """Always the same text."""
    return "static text"


@server.resource("test://binary", mime_type="application/octet-stream")
def binary() -> bytes:
    """Three bytes."""
    return bytes([0, 1, 2])


@server.resource("test://spare")
def spare_resource() -> str:
    """Can be hidden."""
    return "spare"


@server.resource("test://item/{id}")
def item(id: str) -> str:
    """One of any number of items."""
    return f"item {id}"


@server.prompt
def greet(who: str) -> str:
    """Greets somebody."""
    return f"Say hello to {who}."


@server.prompt(name="spare")
def spare_prompt() -> str:
    """Can be hidden."""
    return "spare"


@server.completion(prompt="greet", argument="who")
def names(value: str) -> list[str]:
    """The people who can be greeted."""
    return [name for name in ("Ada", "Alan", "Grace") if name.startswith(value)]


if __name__ == "__main__":
    if "http" in sys.argv:
        server.run("http", port=0, workers=int(sys.argv[-1]) if sys.argv[-1].isdigit() else None)
    else:
        server.run()
