"""Tools that ask the client: its model, and its user."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from everything.server import server
from trunkline import Context, EnumNames, TextContent, Titles


@server.tool(structured=False)
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Has the client's model answer.

    Args:
        prompt: What to ask the model
    """
    reply = await ctx.sample(prompt, max_tokens=100)
    said = reply.content.text if isinstance(reply.content, TextContent) else reply.content
    return f"LLM response: {said}"


@dataclass
class Person:
    """Who the user is."""

    username: Annotated[str, Meta(description="User's response")]
    email: Annotated[str, Meta(description="User's email address", extra_json_schema={"format": "email"})]


@server.tool(structured=False)
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the user who they are.

    Args:
        message: What the user is shown
    """
    answer = await ctx.elicit(message, Person)
    return f"User response: {told(answer)}"


@dataclass
class Defaults:
    """A field of every kind, filled in."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


@server.tool(structured=False)
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with a form whose fields have defaults."""
    answer = await ctx.elicit("Please review and update the form fields with defaults", Defaults)
    return f"Elicitation completed: {told(answer)}"


class Choices(Struct, rename="camel"):
    """A choice of every kind: of one value or several, with titles or without."""

    untitled_single: Literal["option1", "option2", "option3"]
    titled_single: Annotated[
        Literal["value1", "value2", "value3"],
        Titles(value1="First Option", value2="Second Option", value3="Third Option"),
    ]
    legacy_enum: Annotated[
        Literal["opt1", "opt2", "opt3"], EnumNames(opt1="Option One", opt2="Option Two", opt3="Option Three")
    ]
    untitled_multi: list[Literal["option1", "option2", "option3"]]
    titled_multi: Annotated[
        list[Literal["value1", "value2", "value3"]],
        Titles(value1="First Choice", value2="Second Choice", value3="Third Choice"),
    ]


@server.tool(structured=False)
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks with a form of choices."""
    answer = await ctx.elicit("Please select options from the enum fields", Choices)
    return f"Elicitation completed: {told(answer)}"


def told(answer: Any) -> str:
    """What the user did, as the suite documents it."""
    return f"action={answer.action}, content={answer.data}"
