"""Checks of sampling requests before they are sent: their tools and the order of their messages."""

from collections.abc import Sequence

from trunkline.errors import MisuseError
from trunkline.protocol.tool_messages import find_tool_mismatch
from trunkline.protocol.types import SamplingMessage, Tool
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
    """Raise `MisuseError` if tool uses and tool results in the messages do not match."""
    if (why := find_tool_mismatch(messages)) is not None:
        raise MisuseError(why)
