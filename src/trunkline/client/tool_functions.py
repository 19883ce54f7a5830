"""The tools of a server as functions: `await client.tools.add(a=1, b=2)`.

`client.tools` is callable as well, and yields the tools' definitions. The names of tools are attributes, so this class
has no public ones of its own. `trunkline stubs` writes subclasses with a typed method for each tool of a server.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, Protocol, cast

from msgspec import UNSET

from trunkline.client.rebuild import WRAPPED
from trunkline.protocol.types import Tool
from trunkline.protocol.types.tools import ToolResult

__all__ = ["ToolCaller", "ToolFunction", "ToolFunctions"]


class ToolCaller(Protocol):
    """The part of a client that calls tools."""

    def iterate_tools(self) -> AsyncIterator[Tool]:
        """Yield all tools."""
        ...

    def call_tool(self, name: str, arguments: Mapping[str, Any], /) -> Awaitable[ToolResult[Any]]:
        """Call a tool."""
        ...


class ToolFunction(Protocol):
    """A tool: takes its arguments by keyword, and returns the data of its result."""

    def __call__(self, **arguments: Any) -> Awaitable[Any]: ...


class ToolFunctions:
    """The tools of a server, each an attribute; `tools["read-file"]` is for names that are no identifiers."""

    def __init__(self, client: ToolCaller) -> None:
        self._client = client

    def __call__(self) -> AsyncIterator[Tool]:
        """Yield the definitions of all tools, one page at a time."""
        return self._client.iterate_tools()

    def __getitem__(self, name: str) -> ToolFunction:
        """Return the tool of that name. The server is not asked whether it has one."""

        async def call(**arguments: Any) -> Any:
            return (await self._client.call_tool(name, arguments)).data

        return call

    def __getattr__(self, name: str) -> ToolFunction:
        if name.startswith("_"):  # protocols of Python, such as copying, look for attributes that are no tools
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self[name]

    # --- for the methods that `trunkline stubs` writes -------------------------------------------

    async def _result(self, name: str, arguments: Mapping[str, Any]) -> ToolResult[Any]:
        """Call a tool with the arguments that are set, and return its result."""
        given = {key: value for key, value in arguments.items() if value is not UNSET}
        return await self._client.call_tool(name, given)

    async def _value(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool with the arguments that are set, and return its structured content as JSON values."""
        structured = (await self._result(name, arguments)).structured
        if isinstance(structured, dict) and [*cast("dict[str, Any]", structured)] == [WRAPPED]:
            return cast("dict[str, Any]", structured)[WRAPPED]
        return cast("Any", structured)
