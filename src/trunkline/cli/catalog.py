"""`trunkline list`: what a server offers."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.cli.commands import EXIT_OK
from trunkline.cli.connection import TARGET_HELP, add_target_options, run_with_client
from trunkline.cli.signatures import describe_prompt, describe_tool, first_line
from trunkline.cli.terminal import Terminal, escape

if TYPE_CHECKING:
    from trunkline.client.client import Client
    from trunkline.protocol.types import Prompt, Resource, ResourceTemplate, Tool

__all__ = ["Catalog", "add_arguments", "configure", "fetch_catalog", "list_catalog"]

EXAMPLES: Final = """\
examples:
  trunkline list calculator.py
  trunkline list https://example.org/mcp tools --json
  trunkline list "npx -y @modelcontextprotocol/server-everything" prompts
"""

_KINDS: Final = ("tools", "resources", "templates", "prompts")


class Catalog(NamedTuple):
    """Everything that a server offers."""

    tools: "list[Tool]"
    resources: "list[Resource]"
    templates: "list[ResourceTemplate]"
    prompts: "list[Prompt]"


async def fetch_catalog(client: "Client", kinds: Sequence[str] = _KINDS) -> Catalog:
    """Return what a server offers; an empty list for what it does not support."""

    def wants(kind: str, capability: str) -> bool:
        return kind in kinds and capability in client.capabilities

    # Whole lists, not iterators: their length is limited, so a server cannot keep a command busy with endless pages.
    return Catalog(
        (await client.list_tools()).tools if wants("tools", "tools") else [],
        (await client.list_resources()).resources if wants("resources", "resources") else [],
        (await client.list_resource_templates()).resource_templates if wants("templates", "resources") else [],
        (await client.list_prompts()).prompts if wants("prompts", "prompts") else [],
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_target_options(parser)
    add_arguments(parser)
    parser.epilog = f"{EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=run_with_client(list_catalog))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments besides those of the connection."""
    parser.add_argument(
        "kinds", metavar="KIND", nargs="*", type=_read_kind, default=[], help=f"one or more of {', '.join(_KINDS)}"
    )


def _read_kind(text: str) -> str:
    if text not in _KINDS:  # `choices` would reject the empty list, which is the default
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(_KINDS)}, not {text!r}")
    return text


async def list_catalog(client: "Client", options: argparse.Namespace, terminal: Terminal) -> int:
    """Print what the server offers."""
    catalog = await fetch_catalog(client, options.kinds or _KINDS)
    if options.json:
        names = {"tools": "tools", "resources": "resources", "templates": "resourceTemplates", "prompts": "prompts"}
        terminal.json({names[kind]: getattr(catalog, kind) for kind in options.kinds or _KINDS})
        return EXIT_OK
    sections = {
        "Tools": [(describe_tool(tool), first_line(tool.description or tool.title)) for tool in catalog.tools],
        "Resources": [(one.uri, first_line(one.title or one.description or one.name)) for one in catalog.resources],
        "Resource templates": [
            (one.uri_template, first_line(one.title or one.description or one.name)) for one in catalog.templates
        ],
        "Prompts": [(describe_prompt(one), first_line(one.description or one.title)) for one in catalog.prompts],
    }
    printed = False
    for title, rows in sections.items():
        if rows:
            if printed:
                terminal.line()
            terminal.line(terminal.styled(title, "title"))
            terminal.columns([(escape(name), escape(about)) for name, about in rows])
            printed = True
    if not printed:
        terminal.note("the server offers nothing")
    return EXIT_OK
