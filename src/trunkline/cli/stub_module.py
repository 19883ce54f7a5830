"""A typed Python module for a server: a client whose `tools` have one method for each tool.

The text of a server appears in the module only inside of string literals and docstrings, where everything is escaped
that could end them.
"""

import ast
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from typing import Any, Final, NamedTuple

from trunkline.cli.description import ServerDescription
from trunkline.cli.schemas import Schema, as_mapping, required_names, resolve
from trunkline.cli.stub_types import RESERVED, TypeWriter, class_name, identifier, unique
from trunkline.errors.text import printable
from trunkline.protocol.types import Tool

__all__ = ["StubModule", "write_stubs"]

_MAX_DESCRIPTION: Final = 4_000  # characters of a docstring
_IMPORTS: Final = {
    "typing": ("TYPE_CHECKING", "Any", "Literal", "Never", "NotRequired", "TypedDict"),
    "msgspec": ("UNSET", "UnsetType"),
    "trunkline": ("Client", "ToolFunctions", "ToolResult"),
}
_FOOTER: Final = '''\
    if TYPE_CHECKING:  # other names are errors

        def __getattr__(self, name: Never) -> Never: ...  # pyright: ignore[reportIncompatibleMethodOverride]


class {client}(Client):
    """A client of this server."""

    @property
    def tools(self) -> {tools}:
        """The tools of this server."""
        return {tools}(self)
'''


class StubModule(NamedTuple):
    """The source of a module, and the methods in it by the names of their tools."""

    source: str
    methods: dict[str, str]
    client: str  # the name of the client class


def write_stubs(description: ServerDescription) -> StubModule:
    """Return the module for a server."""
    server = description.server
    base = class_name("Server" if server is None else server.name)
    methods = _name_methods(description.tools)
    taken = {*methods.values(), *RESERVED}
    client = unique(f"{base}Client", taken)
    tools = unique(f"{base}Tools", {*taken, client})
    writer = TypeWriter({*taken, client, tools})
    bodies = [_write_method(tool, methods[tool.name], writer) for tool in _by_name(description.tools)]
    name = "a server" if server is None else f"{server.name} {server.version}"
    docstring = _docstring(
        f"Typed client of {name}. Written by `trunkline stubs`: write it again instead of editing.", 0
    )
    parts = [
        *(f"\n{one}\n" for one in writer.classes),
        "\n".join(["", f"class {tools}(ToolFunctions):", _docstring("The tools of this server.", 4), ""]),
        *(f"{body}\n" for body in bodies),
        _FOOTER.format(client=client, tools=tools),
    ]
    code = "\n".join(parts)
    return StubModule("\n".join(["# pyright: strict", docstring, "", *_import_lines(code), "", code]), methods, client)


def _import_lines(code: str) -> Iterator[str]:
    """Yield the imports of the names that a module uses."""
    tree = ast.parse(code)
    used = set(_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "TypedDict":
            for one in ast.walk(node):  # types inside of a call are strings
                if isinstance(one, ast.Dict):
                    types = [value.value for value in one.values if isinstance(value, ast.Constant)]
                    used.update(name for text in types for name in _names(ast.parse(str(text), mode="eval")))
    yield "from __future__ import annotations"
    yield ""
    if "builtins" in used:
        yield "import builtins"
    for at, (module, names) in enumerate(_IMPORTS.items()):
        if found := [name for name in names if name in used]:
            yield f"from {module} import {', '.join(found)}"
        if at == 0:
            yield ""


def _names(tree: ast.AST) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def _by_name(tools: Sequence[Tool]) -> list[Tool]:
    """Return the tools without duplicates; the last of a name stays, as in a client."""
    return list({tool.name: tool for tool in tools}.values())


def _name_methods(tools: Sequence[Tool]) -> dict[str, str]:
    """Return the names of the methods. A tool whose name is an identifier keeps it."""
    names = [tool.name for tool in _by_name(tools)]
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: identifier(name, "tool") != name):
        found[name] = unique(identifier(name, "tool"), {*found.values(), *RESERVED})
    return {name: found[name] for name in names}


class _Parameter(NamedTuple):
    """A parameter of a method, for an argument of a tool."""

    argument: str
    name: str
    type: str
    required: bool
    description: str


def _parameters(tool: Tool, writer: TypeWriter) -> Iterator[_Parameter]:
    schema: Schema = tool.input_schema
    target = resolve(schema, schema)
    properties, required = as_mapping(target.get("properties")), required_names(target)
    taken = {"self"}
    for argument in sorted(properties, key=lambda name: name not in required):
        name = unique(identifier(argument, "argument"), taken)
        taken.add(name)
        written = writer.write(properties[argument], schema, tool.name, argument)
        about: Any = as_mapping(properties[argument]).get("description")
        yield _Parameter(argument, name, written, argument in required, about if isinstance(about, str) else "")


def _write_method(tool: Tool, method: str, writer: TypeWriter) -> str:
    parameters = list(_parameters(tool, writer))
    result = "ToolResult"
    if tool.output_schema is not None:
        result = writer.write(_unwrapped(tool.output_schema), tool.output_schema, tool.name, "result")
    lines = [f"    async def {method}("]
    signature = [
        f"{one.name}: {one.type}" if one.required else f"{one.name}: {one.type} | UnsetType = UNSET"
        for one in parameters
    ]
    lines += ["        self,", *(["        *,"] if signature else []), *(f"        {one}," for one in signature)]
    lines.append(f"    ) -> {result}:")
    lines.append(_docstring(_describe(tool, parameters), 8))
    arguments = "".join(f"            {one.argument!a}: {one.name},\n" for one in parameters)
    written = f"{{\n{arguments}        }}" if arguments else "{}"
    kind = "_result" if tool.output_schema is None else "_value"
    lines.append(f"        return await self.{kind}({tool.name!a}, {written})")
    return "\n".join(lines)


def _unwrapped(schema: Schema) -> Any:
    """Return the schema of the value itself, where a server wraps it into an object with one member."""
    properties = as_mapping(schema.get("properties"))
    return properties["result"] if [*properties] == ["result"] else schema


def _describe(tool: Tool, parameters: Sequence[_Parameter]) -> str:
    text = cleandoc(tool.description or tool.title or f"Call the tool {tool.name}.")
    described = [f"    {one.name}: {' '.join(one.description.split())}" for one in parameters if one.description]
    return "\n".join([text, "", "Args:", *described]) if described and "Args:" not in text else text


def _docstring(text: str, indent: int) -> str:
    """Return a text as an indented docstring."""
    shown = printable(text.expandtabs().strip() or "No description.", max_length=_MAX_DESCRIPTION, multiline=True)
    escaped = shown.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    if escaped.endswith('"'):
        escaped = f'{escaped[:-1]}\\"'
    space = " " * indent
    first, *others = escaped.split("\n")
    if not others:
        return f'{space}"""{first}"""'
    body = "\n".join(f"{space}{line}".rstrip() for line in others)
    return f'{space}"""{first}\n{body}\n{space}"""'
