"""`trunkline inspect`: everything that a server says about itself, as a table, JSON or Markdown."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from trunkline.cli import markdown
from trunkline.cli.commands import EXIT_OK
from trunkline.cli.connection import TARGET_HELP, add_target_options, run_to_exit_code
from trunkline.cli.description import ServerDescription, fetch_description
from trunkline.cli.schemas import Schema, as_mapping, required_names, resolve
from trunkline.cli.signatures import describe_prompt, describe_schema, describe_tool, first_line
from trunkline.cli.terminal import Terminal, escape, escape_json, escape_lines
from trunkline.protocol.types import Tool
from trunkline.wire import codec

__all__ = ["configure", "render_markdown"]

_EXAMPLES: Final = """\
examples:
  trunkline inspect calculator.py
  trunkline inspect https://example.org/mcp --format markdown > TOOLS.md
  trunkline inspect calculator.py --format json > catalog.json     # for `trunkline diff`

exit codes: 0 success, 1 the server reported an error, 2 wrong usage, 3 the server cannot be reached
"""

_FORMATS: Final = ("table", "json", "markdown")
_HINTS: Final = {
    "read_only_hint": "read-only",
    "destructive_hint": "destructive",
    "idempotent_hint": "idempotent",
    "open_world_hint": "open world",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_target_options(parser)
    parser.add_argument("--format", choices=_FORMATS, default="table", help="of the output (table)")
    parser.epilog = f"{_EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    terminal = Terminal()

    async def main() -> int:
        description = await fetch_description(options.target, options, terminal)
        if options.json:
            terminal.json(description)
        elif options.format == "json":
            terminal.line(escape_json(codec.to_readable_json(description).decode()))
        elif options.format == "markdown":
            terminal.line(render_markdown(description).rstrip("\n"))
        else:
            _print(description, terminal)
        return EXIT_OK

    return run_to_exit_code(main(), terminal)


class _Argument(NamedTuple):
    """An argument of a tool: as its schema describes it."""

    name: str
    type: str
    default: str  # "required", the default as JSON, or nothing
    description: str


def _arguments(schema: Schema) -> Iterator[_Argument]:
    target = resolve(schema, schema)
    required = required_names(target)
    properties = as_mapping(target.get("properties"))
    for name in sorted(properties, key=lambda name: name not in required):
        member = as_mapping(properties[name])
        default = "required" if name in required else ""
        if not default and "default" in member:
            default = f"= {codec.to_json(member['default']).decode()}"
        about: Any = member.get("description")
        yield _Argument(name, describe_schema(member), default, about if isinstance(about, str) else "")


def _hints(tool: Tool) -> list[str]:
    """Return the annotations of a tool that are set, in words."""
    notes = tool.annotations
    found = {} if notes is None else {label: getattr(notes, name) for name, label in _HINTS.items()}
    hints = [label if value else f"not {label}" for label, value in found.items() if value is not None]
    if tool.execution is not None and tool.execution.task_support not in {None, "forbidden"}:
        hints.append(f"task {tool.execution.task_support}")
    return hints


def _heading(description: ServerDescription) -> str:
    server = description.server
    return "unknown server" if server is None else f"{server.title or server.name} {server.version}"


def _capabilities(description: ServerDescription) -> list[str]:
    """Return the capabilities with their settings, as `tools (listChanged)`."""
    lines: list[str] = []
    for name, value in description.capabilities.items():
        flags = [key for key, enabled in as_mapping(value).items() if enabled or enabled == {}]
        lines.append(f"{name} ({', '.join(flags)})" if flags else name)
    return lines


# --- table ---------------------------------------------------------------------------------------


def _print(description: ServerDescription, terminal: Terminal) -> None:
    terminal.line(terminal.styled(escape(_heading(description)), "title"))
    capabilities = ", ".join(map(escape, _capabilities(description)))
    facts = [("revision", escape(description.revision or "unknown")), ("capabilities", capabilities or "none")]
    terminal.columns(facts)
    if description.instructions:
        terminal.line(f"\n{terminal.styled('Instructions', 'title')}")
        _print_text(description.instructions, terminal, 2)
    if description.tools:
        terminal.line(f"\n{terminal.styled('Tools', 'title')}")
    for tool in description.tools:
        _print_tool(tool, terminal)
    resources = [
        (one.uri, one.mime_type or "", one.title or one.description or one.name) for one in description.resources
    ]
    templates = [
        (one.uri_template, one.mime_type or "", one.title or one.description or one.name)
        for one in description.resource_templates
    ]
    prompts = [(describe_prompt(one), one.description or one.title or "") for one in description.prompts]
    _print_rows("Resources", resources, terminal)
    _print_rows("Resource templates", templates, terminal)
    _print_rows("Prompts", prompts, terminal)


def _print_tool(tool: Tool, terminal: Terminal) -> None:
    hints = _hints(tool)
    about = f"  [{', '.join(hints)}]" if hints else ""
    terminal.line(f"  {terminal.styled(escape(describe_tool(tool)), 'name')}{about}")
    if tool.description or tool.title:
        _print_text(tool.description or tool.title or "", terminal, 4)
    rows = [
        tuple(escape(first_line(cell) if cell is one.description else cell) for cell in one)
        for one in _arguments(tool.input_schema)
    ]
    terminal.columns(rows, indent=6)


def _print_text(text: str, terminal: Terminal, indent: int) -> None:
    for line in escape_lines(text.strip()).splitlines():
        terminal.line(f"{' ' * indent}{line.strip()}".rstrip())


def _print_rows(title: str, rows: Sequence[Sequence[str]], terminal: Terminal) -> None:
    if rows:
        terminal.line(f"\n{terminal.styled(title, 'title')}")
        terminal.columns([[escape(first_line(cell)) for cell in row] for row in rows])


# --- Markdown ------------------------------------------------------------------------------------


def render_markdown(description: ServerDescription) -> str:
    """Return a description as a section of a README."""
    parts = [f"# {markdown.one_line(_heading(description))}"]
    facts: list[str] = []
    if description.revision:
        facts.append(f"Protocol revision {markdown.one_line(description.revision)}.")
    if description.capabilities:
        facts.append(f"Capabilities: {', '.join(map(markdown.code_span, _capabilities(description)))}.")
    parts += [" ".join(facts)] if facts else []
    if description.instructions:
        parts.append(markdown.paragraphs(description.instructions))
    if description.tools:
        parts.append("## Tools")
        parts += [part for tool in description.tools for part in _tool_markdown(tool)]
    resources = [(one.uri, one.mime_type, one.description or one.title or one.name) for one in description.resources]
    templates = [
        (one.uri_template, one.mime_type, one.description or one.title or one.name)
        for one in description.resource_templates
    ]
    parts += _resources_markdown("Resources", "URI", resources)
    parts += _resources_markdown("Resource templates", "URI template", templates)
    if description.prompts:
        parts.append("## Prompts")
        rows = [
            (markdown.code_span(describe_prompt(one)), markdown.one_line(one.description or one.title or ""))
            for one in description.prompts
        ]
        parts.append(markdown.table(["prompt", "description"], rows))
    return "\n\n".join(parts) + "\n"


def _tool_markdown(tool: Tool) -> Iterator[str]:
    yield f"### {markdown.code_span(tool.name)}"
    if tool.description or tool.title:
        yield markdown.paragraphs(tool.description or tool.title or "")
    if hints := _hints(tool):
        yield f"Hints: {', '.join(map(markdown.one_line, hints))}."
    rows = [
        (
            markdown.code_span(one.name),
            markdown.code_span(one.type),
            markdown.code_span(one.default[2:]) if one.default.startswith("= ") else one.default,
            markdown.one_line(one.description),
        )
        for one in _arguments(tool.input_schema)
    ]
    if rows:
        yield markdown.table(["argument", "type", "default", "description"], rows)
    if tool.output_schema is not None:
        yield f"Returns {markdown.code_span(describe_tool(tool).rpartition(' -> ')[2])}."


def _resources_markdown(title: str, key: str, entries: Sequence[tuple[str, str | None, str]]) -> Iterator[str]:
    if entries:
        yield f"## {title}"
        rows = [
            (markdown.code_span(uri), markdown.one_line(kind or ""), markdown.one_line(about))
            for uri, kind, about in entries
        ]
        yield markdown.table([key, "MIME type", "description"], rows)
