"""Checks of sampling requests before they are sent: their tools and the order of their messages."""

from collections.abc import Sequence

from trunkline.errors import MisuseError
from trunkline.protocol.types import SamplingMessage, Tool, ToolResultContent, ToolUseContent
from trunkline.registry.registry import Registry
from trunkline.registry.tools import ToolEntry

__all__ = ["check_messages", "resolve_tools"]


def resolve_tools(tools: Sequence[Tool | str], registered: Registry[ToolEntry]) -> list[Tool]:
    """Return the definitions of tools; a name stands for a tool of this server."""
    return [_tool_definition(tool, registered) if isinstance(tool, str) else tool for tool in tools]


def _tool_definition(name: str, registered: Registry[ToolEntry]) -> Tool:
    entry = registered.get(name)
    if entry is None:
        raise MisuseError(f"there is no tool named {name!r} to sample with; register it, or pass a Tool")
    return entry.definition


def check_messages(messages: Sequence[SamplingMessage]) -> None:
    """Raise `MisuseError` if tool uses and tool results in the messages do not match.

    sampling, "Tool Use": an assistant message with tool uses must be followed by a user message that consists of the
    result of each use.
    """
    open_uses: set[str] = set()
    for number, message in enumerate(messages, 1):
        results = {block.tool_use_id for block in message.blocks if isinstance(block, ToolResultContent)}
        uses = {block.id for block in message.blocks if isinstance(block, ToolUseContent)}
        if results:
            _check_results(message, number, results - open_uses)
        if missing := open_uses - results:
            raise MisuseError(f"message {number} must contain the result of the tool use {min(missing)!r}")
        if uses and message.role != "assistant":
            raise MisuseError(f"message {number} has the role user and uses a tool; only the assistant may")
        open_uses = uses
    if open_uses:
        raise MisuseError(f"the tool use {min(open_uses)!r} has no result; append a message with its result")


def _check_results(message: SamplingMessage, number: int, unexpected: set[str]) -> None:
    if message.role != "user":
        raise MisuseError(f"message {number} has the role assistant and contains tool results; only the user may")
    if not all(isinstance(block, ToolResultContent) for block in message.blocks):
        raise MisuseError(
            f"message {number} has tool results and other content; a message with results must have only those"
        )
    if unexpected:
        raise MisuseError(
            f"message {number} has a result of the tool use {min(unexpected)!r}, which is not in the message before"
        )
