"""Prompts, with and without arguments, and what is proposed for one."""

from everything.server import RED_DOT, server
from trunkline import EmbeddedResource, Image, PromptMessage, ResourceContents, TextContent


@server.prompt
async def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments.

    Args:
        arg1: First test argument
        arg2: Second test argument
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[PromptMessage]:  # noqa: N803 - the suite's name
    """A prompt that has a resource in it.

    Args:
        resourceUri: URI of the resource to embed
    """
    embedded = ResourceContents(resourceUri, "text/plain", text="Embedded resource content for testing.")
    return [
        PromptMessage("user", EmbeddedResource(embedded)),
        PromptMessage("user", TextContent("Please process the embedded resource above.")),
    ]


@server.prompt
async def test_prompt_with_image() -> list[PromptMessage]:
    """A prompt that has a picture in it."""
    return [
        PromptMessage("user", Image(RED_DOT).block()),
        PromptMessage("user", TextContent("Please analyze the image above.")),
    ]


server.add_completion(["paris", "park", "party"], prompt="test_prompt_with_arguments", argument="arg1")
