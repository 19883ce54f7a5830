"""Tools, prompts and resources in one line each, as signatures."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from trunkline.cli.schemas import as_mapping, required_names, resolve

if TYPE_CHECKING:
    from trunkline.protocol.types import Prompt, Tool

__all__ = ["describe_prompt", "describe_schema", "describe_tool", "first_line"]

_MAX_DEPTH: Final = 4
_MAX_CHOICES: Final = 6


def first_line(text: str | None) -> str:
    """Return the first line of a description, without its indentation."""
    return (text or "").strip().partition("\n")[0].strip()


def describe_tool(tool: "Tool") -> str:
    """Return a tool as `name(a: integer, b: string = "x") -> number`."""
    schema = resolve(tool.input_schema, tool.input_schema)
    properties = as_mapping(schema.get("properties"))
    required = required_names(schema)
    ordered = sorted(properties, key=lambda name: name not in required)
    parameters = [_parameter(name, as_mapping(properties[name]), name in required) for name in ordered]
    output = tool.output_schema
    result = "" if output is None else f" -> {describe_schema(_unwrapped(output))}"
    return f"{tool.name}({', '.join(parameters)}){result}"


def describe_prompt(prompt: "Prompt") -> str:
    """Return a prompt as `name(topic, style?)`."""
    arguments = [argument.name + ("" if argument.required else "?") for argument in prompt.arguments or ()]
    return f"{prompt.name}({', '.join(arguments)})"


def _parameter(name: str, schema: Mapping[str, Any], required: bool) -> str:
    kind = describe_schema(schema)
    if required:
        return f"{name}: {kind}"
    default = schema.get("default")
    return f"{name}?: {kind}" if default is None else f"{name}: {kind} = {_literal(default)}"


def describe_schema(schema: Any, depth: int = 0) -> str:
    """Return a JSON Schema as a short type expression."""
    found = as_mapping(schema)
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(choices := found.get("enum"), list):
        listed = [_literal(choice) for choice in cast("list[Any]", choices)]
        return " | ".join([*listed[:_MAX_CHOICES], *(["…"] if len(listed) > _MAX_CHOICES else [])])
    if "const" in found:
        return _literal(found["const"])
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := found.get(key), list):
            return " | ".join(dict.fromkeys(describe_schema(one, depth + 1) for one in cast("list[Any]", branches)))
    kind: Any = found.get("type")
    if isinstance(kind, list):
        return " | ".join(str(one) for one in cast("list[Any]", kind))
    if kind == "array":
        return f"{describe_schema(found.get('items'), depth + 1)}[]"
    if isinstance(reference := found.get("$ref"), str):
        return reference.rpartition("/")[2] or "object"
    return kind if isinstance(kind, str) else "any"


def _unwrapped(schema: Mapping[str, Any]) -> Any:
    """Return the schema of the value itself, where a server wraps it into an object with one member."""
    properties = as_mapping(schema.get("properties"))
    return properties["result"] if [*properties] == ["result"] else schema


def _literal(value: Any) -> str:
    from trunkline.wire import codec

    text = codec.to_json(value).decode()
    return text if len(text) <= 40 else f"{text[:39]}…"  # noqa: PLR2004 - characters of a line
