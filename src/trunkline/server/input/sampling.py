"""Sampling, before it is sent: which tools are offered, and whether the messages may stand in that order."""

from collections.abc import Sequence

from trunkline.errors import MisuseError
from trunkline.protocol.types import SamplingMessage, Tool, ToolResultContent, ToolUseContent
from trunkline.registry.registry import Registry
from trunkline.registry.tools import ToolEntry

__all__ = ["check_messages", "resolve_tools"]


def resolve_tools(tools: Sequence[Tool | str], registered: Registry[ToolEntry]) -> list[Tool]:
    """Tools as they are told to a model: as given, or by the name under which the server has them."""
    return [_tool_definition(tool, registered) if isinstance(tool, str) else tool for tool in tools]


def _tool_definition(name: str, registered: Registry[ToolEntry]) -> Tool:
    entry = registered.get(name)
    if entry is None:
        raise MisuseError(f"there is no tool named {name!r} to sample with; register it, or give a Tool")
    return entry.definition


def check_messages(messages: Sequence[SamplingMessage]) -> None:
    """Raises `MisuseError` for messages in which the use of tools and its results do not fit together.

    sampling, "Tool Use": an assistant's message that uses tools is followed by a user's message that has the result of
    each use, and nothing else.
    """
    open_uses: set[str] = set()
    for number, message in enumerate(messages, 1):
        results = {block.tool_use_id for block in message.blocks if isinstance(block, ToolResultContent)}
        uses = {block.id for block in message.blocks if isinstance(block, ToolUseContent)}
        if results:
            _check_results(message, number, results - open_uses)
        if missing := open_uses - results:
            raise MisuseError(
                f"message {number} must answer the tool use {min(missing)!r} before anything else is said"
            )
        if uses and message.role != "assistant":
            raise MisuseError(f"message {number} is the user's and uses a tool, which only the assistant does")
        open_uses = uses
    if open_uses:
        raise MisuseError(f"the tool use {min(open_uses)!r} is not answered; put a message with its result at the end")


def _check_results(message: SamplingMessage, number: int, unexpected: set[str]) -> None:
    if message.role != "user":
        raise MisuseError(f"message {number} is the assistant's and has tool results, which only the user gives")
    if not all(isinstance(block, ToolResultContent) for block in message.blocks):
        raise MisuseError(f"message {number} has tool results and other content; a message with results has only those")
    if unexpected:
        raise MisuseError(
            f"message {number} answers the tool use {min(unexpected)!r}, which was not asked for just before"
        )
