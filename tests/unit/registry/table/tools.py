"""Tools for a single type, and their handling of values."""

from typing import Any

import jsonschema_rs
import msgspec

from trunkline.config import Settings
from trunkline.registry.handlers import read_handler
from trunkline.registry.tools import ToolEntry, make_tool
from trunkline.wire import codec

__all__ = ["answered", "given", "returning", "taking", "tool"]


class Context:
    """Stands for the context of a call."""


def tool(function: Any, **options: Any) -> ToolEntry:
    return make_tool(read_handler(function, Context), Settings(), **options)


def taking(kind: Any, **default: Any) -> ToolEntry:
    """A tool with one argument of a type."""

    def take(value: Any = None) -> Any:
        return value

    take.__annotations__ = {"value": kind}
    take.__defaults__ = (default["default"],) if default else None
    return tool(take)


def returning(kind: Any) -> ToolEntry:
    """A tool that returns a type."""

    def give() -> Any: ...

    give.__annotations__ = {"return": kind}
    return tool(give)


def given(entry: ToolEntry, value: Any) -> Any:
    """The argument that the function of a tool gets for a value in JSON."""
    raw = msgspec.json.encode({"value": value})
    try:
        arguments = entry.decode(raw)
    except codec.DecodeError as error:
        arguments = entry.decode_leniently(raw, error)
    return arguments.value


def answered(kind: Any, value: Any) -> Any:
    """The structured result of a tool that returns a type, which fits its schema; the text is equal."""
    output = returning(kind).output
    result = msgspec.json.decode(msgspec.json.encode(output.convert(value, None)))
    schema = output.wrapped_schema()
    assert schema is not None
    jsonschema_rs.validate(schema, result["structuredContent"])
    (block,) = result["content"]
    structured = result["structuredContent"]
    value = structured["result"] if output.wraps else structured
    assert block["text"] == value or msgspec.json.decode(block["text"]) == value
    return value
