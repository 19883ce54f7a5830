"""Tools and a prompt that ask in so many rounds, under names that the suite knows."""

import asyncio
from dataclasses import dataclass

from everything.server import server
from trunkline import Context, TextContent


@dataclass
class Name:
    """What the user is called."""

    name: str


@dataclass
class Confirmation:
    """Whether the user agrees."""

    ok: bool


@dataclass
class Color:
    """What the user likes."""

    color: str


@dataclass
class Circumstances:
    """What the user is about to do."""

    context: str


@server.tool(structured=False)
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Asks the user for a name."""
    answer = await ctx.elicit("What is your name?", Name, key="user_name")
    return f"Hello, {answer.data.name}!" if answer.data else "Hello, stranger!"


@server.tool(structured=False)
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Asks the client's model a question."""
    reply = await ctx.sample("What is the capital of France?", max_tokens=100, key="capital_question")
    return f"The model said: {reply.content.text if isinstance(reply.content, TextContent) else reply.content}"


@server.tool(structured=False)
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """Asks where it may look."""
    roots = await ctx.roots(key="client_roots")
    return f"Roots: {', '.join(root.uri for root in roots)}"


@server.tool(structured=False)
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Asks, and remembers that it did."""
    answer = await ctx.elicit("Please confirm", Confirmation, key="confirm")
    return f"state-ok: {answer.action}"


@server.tool(structured=False)
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Asks three things at once."""
    answer, reply, roots = await asyncio.gather(
        ctx.elicit("What is your name?", Name, key="user_name"),
        ctx.sample("Generate a greeting", max_tokens=50, key="greeting"),
        ctx.roots(key="client_roots"),
    )
    return f"{answer.action}, {reply.model}, {len(roots)} roots"


@server.tool(structured=False)
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Asks one thing after another."""
    name = await ctx.elicit("Step 1: What is your name?", Name, key="step1")
    color = await ctx.elicit("Step 2: What is your favorite color?", Color, key="step2")
    return f"{name.action}, {color.action}"


@server.tool(structured=False)
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Asks, and takes back only what it remembers itself."""
    answer = await ctx.elicit("Please confirm", Confirmation, key="confirm")
    return f"Confirmed: {answer.action}"


@server.tool(structured=False)
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Asks what this client can be asked."""
    told: list[str] = []
    if "elicitation" in ctx.client.capabilities:
        told.append((await ctx.elicit("What is your name?", Name, key="user_name")).action)
    if "sampling" in ctx.client.capabilities:
        told.append((await ctx.sample("Say hello", max_tokens=50, key="greeting")).model)
    return f"Asked: {told}"


@server.tool(structured=False)
async def test_streaming_elicitation(ctx: Context) -> str:
    """Tells of progress, and then asks."""
    await ctx.progress(1, total=2)
    answer = await ctx.elicit("Please confirm", Confirmation, key="confirm")
    return f"Elicitation: {answer.action}"


@server.tool(asks=("sampling",), structured=False)
async def test_missing_capability(ctx: Context) -> str:
    """Is of no use to clients without a model."""
    reply = await ctx.sample("Say hello", max_tokens=50)
    return f"The model {reply.model} answered"


@server.prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that asks before it is made."""
    answer = await ctx.elicit("What context should the prompt use?", Circumstances, key="user_context")
    return f"Use this context: {answer.data.context if answer.data else 'none'}"
