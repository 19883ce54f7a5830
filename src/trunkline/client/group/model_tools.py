"""Tools for language models: definitions in the shapes of providers, and their tool calls run by a client or a group.

Definitions and replies are plain dictionaries, so no package of a provider is needed.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, NamedTuple, cast

from trunkline.client.client import Client
from trunkline.client.group.group import ClientGroup
from trunkline.client.group.names import alter_name, is_altered
from trunkline.client.results import ToolResult
from trunkline.errors import MisuseError, NotRegistered, ToolBlocked, TrunklineError
from trunkline.protocol.types import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    Tool,
)
from trunkline.wire import codec

__all__ = ["ToolStyle", "run_tool_call", "tools_for"]

ToolStyle = Literal["openai", "openai-responses", "anthropic", "langchain"]
"""Shape of definitions: OpenAI's chat completions or responses, Anthropic's messages, LangChain's `StructuredTool`."""

_decode: Final[Callable[[bytes], Any]] = codec.json_decoder(cast("Any", Any))


class _ToolCall(NamedTuple):
    style: ToolStyle
    id: str
    name: str
    arguments: Any  # a mapping, or its JSON


class _Outcome(NamedTuple):
    is_error: bool
    content: list[ContentBlock]

    @property
    def text(self) -> str:
        return "\n".join(map(_as_text, self.content))


# --- definitions ---------------------------------------------------------------------------------


async def tools_for(source: Client | ClientGroup, style: ToolStyle) -> list[dict[str, Any]]:
    """Return the tools of a client or a group as definitions for a provider.

    Names that providers reject are altered, as those of a group are; `run_tool_call` finds the original. The ones for
    LangChain have a coroutine function, so `StructuredTool(**definition)` makes a tool of each.
    """
    if style not in _DEFINITIONS:
        raise MisuseError(f"style must be one of {', '.join(_DEFINITIONS)}, not {style!r}")
    tools = (await source.list_tools()).tools
    names = [tool.name if isinstance(source, ClientGroup) else alter_name(tool.name) for tool in tools]
    described = [_DEFINITIONS[style](name, tool) for name, tool in zip(names, tools, strict=True)]
    if style == "langchain":
        for name, definition in zip(names, described, strict=True):
            definition["coroutine"] = partial(_run_as_function, source, name)
    return described


def _schema(tool: Tool) -> dict[str, Any]:
    return {"type": "object", "properties": {}, **tool.input_schema}  # OpenAI requires `properties`


def _describe_for_openai(name: str, tool: Tool) -> dict[str, Any]:
    function = {"name": name, "description": tool.description or "", "parameters": _schema(tool)}
    return {"type": "function", "function": function}


def _describe_for_responses(name: str, tool: Tool) -> dict[str, Any]:
    function = {"name": name, "description": tool.description or "", "parameters": _schema(tool)}
    return {"type": "function", **function, "strict": False}  # strict is the default there, and rejects most schemas


def _describe_for_anthropic(name: str, tool: Tool) -> dict[str, Any]:
    return {"name": name, "description": tool.description or "", "input_schema": _schema(tool)}


def _describe_for_langchain(name: str, tool: Tool) -> dict[str, Any]:
    return {"name": name, "description": tool.description or "", "args_schema": _schema(tool)}


_DEFINITIONS: Final[Mapping[str, Callable[[str, Tool], dict[str, Any]]]] = {
    "openai": _describe_for_openai,
    "openai-responses": _describe_for_responses,
    "anthropic": _describe_for_anthropic,
    "langchain": _describe_for_langchain,
}


# --- calls ---------------------------------------------------------------------------------------


async def run_tool_call(source: Client | ClientGroup, call: Any, *, timeout: float | None = None) -> dict[str, Any]:
    """Run the tool call of a model, a dictionary or an object of the provider's package; return the message with its
    result, in the shape of the same provider.

    An error becomes a result that says so, since providers require a result for every call, and models can react to
    it. Raises `MisuseError` for a call in none of the shapes.
    """
    read = _read_call(call)
    return _REPLIES[read.style](read, await _run(source, read, timeout))


def _read_call(call: Any) -> _ToolCall:
    members: Any = call.model_dump() if hasattr(call, "model_dump") else call
    match members:
        case {"type": "tool_use", "id": str(ident), "name": str(name), "input": arguments}:
            return _ToolCall("anthropic", ident, name, arguments)
        case {"type": "function_call", "call_id": str(ident), "name": str(name), "arguments": arguments}:
            return _ToolCall("openai-responses", ident, name, arguments)
        case {"id": str(ident), "function": {"name": str(name), "arguments": arguments}}:
            return _ToolCall("openai", ident, name, arguments)
        case {"id": ident, "name": str(name), "args": arguments}:
            return _ToolCall("langchain", str(ident), name, arguments)
        case _:
            raise MisuseError("this is no tool call of OpenAI, Anthropic or LangChain")


async def _run(source: Client | ClientGroup, call: _ToolCall, timeout: float | None) -> _Outcome:
    try:
        arguments = _decode(call.arguments.encode() or b"{}") if isinstance(call.arguments, str) else call.arguments
        result = await _call(source, call.name, arguments, timeout)
    except codec.DecodeError as error:
        return _Outcome(True, [TextContent(f"the arguments are not JSON: {error}")])
    except ToolBlocked as error:  # without the changes: they are what the model must not read
        return _Outcome(True, [TextContent(error.message)])
    except TrunklineError as error:
        return _Outcome(True, [TextContent(str(error))])
    if not result.content and result.has_structured:
        return _Outcome(result.is_error, [TextContent(codec.to_json(result.structured).decode())])
    return _Outcome(result.is_error, result.content)


async def _call(
    source: Client | ClientGroup, name: str, arguments: Any, timeout: float | None = None
) -> ToolResult[Any]:
    if isinstance(source, Client) and is_altered(name):
        tools = (await source.list_tools()).tools
        found = next((tool.name for tool in tools if alter_name(tool.name) == name), None)
        if found is None:
            raise NotRegistered("tool", name)
        name = found
    return await source.call_tool(name, arguments, timeout=timeout, raise_on_error=False)


async def _run_as_function(source: Client | ClientGroup, name: str, /, **arguments: Any) -> str:
    return (await _run(source, _ToolCall("langchain", "", name, arguments), None)).text


# --- replies -------------------------------------------------------------------------------------


def _reply_to_openai(call: _ToolCall, outcome: _Outcome) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": outcome.text}


def _reply_to_responses(call: _ToolCall, outcome: _Outcome) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.id, "output": outcome.text}


def _reply_to_anthropic(call: _ToolCall, outcome: _Outcome) -> dict[str, Any]:
    content = [_as_anthropic(block) for block in outcome.content]
    return {"type": "tool_result", "tool_use_id": call.id, "content": content, "is_error": outcome.is_error}


def _reply_to_langchain(call: _ToolCall, outcome: _Outcome) -> dict[str, Any]:
    status = "error" if outcome.is_error else "success"
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": outcome.text, "status": status}


_REPLIES: Final[Mapping[ToolStyle, Callable[[_ToolCall, _Outcome], dict[str, Any]]]] = {
    "openai": _reply_to_openai,
    "openai-responses": _reply_to_responses,
    "anthropic": _reply_to_anthropic,
    "langchain": _reply_to_langchain,
}


def _as_anthropic(block: ContentBlock) -> dict[str, Any]:
    if isinstance(block, ImageContent):
        source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
        return {"type": "image", "source": source}
    return {"type": "text", "text": _as_text(block)}


def _as_text(block: ContentBlock) -> str:
    """Return the text of a block, or a note about content that is not text."""
    match block:
        case TextContent():
            return block.text
        case EmbeddedResource():
            text = block.resource.text
            return f"[{block.resource.mime_type or 'data'}: {block.resource.uri}]" if text is None else text
        case ResourceLink():
            return f"[{block.name}: {block.uri}]"
        case ImageContent() | AudioContent():
            return f"[{block.mime_type}]"
