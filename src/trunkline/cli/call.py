"""`trunkline call`: call a tool of a server."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trunkline.cli.arguments import parse_arguments
from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK
from trunkline.cli.connection import TARGET_HELP, add_target_options, ends_with_command, run_with_client
from trunkline.cli.content import ContentPrinter
from trunkline.cli.progress import ProgressLine
from trunkline.cli.signatures import describe_tool
from trunkline.cli.terminal import Terminal, escape, escape_lines
from trunkline.errors import MisuseError
from trunkline.errors.suggestions import did_you_mean
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.client.client import Client
    from trunkline.protocol.types import Tool
    from trunkline.protocol.types.tools import ToolResult

__all__ = ["add_arguments", "call", "configure", "find_tool", "print_result"]

EXAMPLES: Final = """\
examples:
  trunkline call calculator.py add a=5 b=3
  trunkline call https://example.org/mcp search query="two words" limit=5
  trunkline call server.py import rows:='[1, 2]' text=@notes.txt
  trunkline call server.py report '{"from": 1, "to": 2}' --json
  trunkline call server.py import_all --task     # as a task; prints its id
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_target_options(parser)
    add_arguments(parser)
    parser.epilog = f"{EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=run_with_client(_call_once))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments besides those of the connection."""
    parser.add_argument("tool", metavar="TOOL", help="the tool's name")
    parser.add_argument(
        "arguments",
        metavar="ARGUMENT",
        nargs="*",
        default=[],
        help="key=value, key:=JSON, key=@file, @file or a JSON object",
    )
    parser.add_argument("--save", metavar="FOLDER", help="folder for images and other binary results")
    parser.add_argument("--task", action="store_true", help="start the call as a task and print the task's id")
    parser.add_argument("--key", metavar="KEY", help="idempotency key: calls with the same key run once")


async def _call_once(client: "Client", options: argparse.Namespace, terminal: Terminal) -> int:
    if options.task and ends_with_command(options.target):
        terminal.note("the server ends with this command, and the task too unless the server has a store")
    return await call(client, options, terminal)


async def call(client: "Client", options: argparse.Namespace, terminal: Terminal) -> int:
    """Call the tool and print its result."""
    tool = await find_tool(client, options.tool)
    try:
        arguments = parse_arguments(options.arguments, tool.input_schema)
    except MisuseError as error:
        raise MisuseError(f"{error}\nusage: {escape(describe_tool(tool))}") from None
    progress = ProgressLine(terminal, tool.name)
    if options.task:
        task = await client.start_tool(
            tool.name, arguments, timeout=options.timeout, on_progress=progress.update, idempotency_key=options.key
        )
        if task.id:
            if options.json:
                terminal.json({"taskId": task.id, "status": task.status})
            else:
                terminal.line(escape(task.id))
            return EXIT_OK
        result = await task.result(raise_on_error=False)
    else:
        result = await client.call_tool(
            tool.name,
            arguments,
            timeout=options.timeout,
            on_progress=progress.update,
            raise_on_error=False,
            idempotency_key=options.key,
        )
    return print_result(result, options, terminal)


async def find_tool(client: "Client", name: str) -> "Tool":
    """Return a tool by its name. Raises `MisuseError` with a suggestion if there is none."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    if name not in tools:
        raise MisuseError(f"the server has no tool {name!r}.{did_you_mean(name, tools)}")
    return tools[name]


def print_result(result: "ToolResult", options: argparse.Namespace, terminal: Terminal) -> int:
    """Print the result of a tool; return the exit code. A failure goes to standard error."""
    if options.json:
        terminal.json(result.as_sent())
    elif result.is_error:
        terminal.note(escape_lines(result.text or "the tool failed without a message"))
    elif result.has_structured and not result.content:
        terminal.line(escape_lines(codec.to_json(result.structured).decode()))
    else:
        folder = None if options.save is None else Path(options.save)
        ContentPrinter(terminal, folder).print_blocks(result.content)
    return EXIT_FAILURE if result.is_error else EXIT_OK
