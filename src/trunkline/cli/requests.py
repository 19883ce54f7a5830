"""`trunkline read`, `prompt`, `complete` and `ping`: single requests to a server."""

import argparse
import base64
import time
from typing import TYPE_CHECKING, Any, Final

from trunkline.cli.arguments import parse_arguments
from trunkline.cli.commands import EXIT_OK
from trunkline.cli.connection import TARGET_HELP, add_target_options, positive_int, run_with_client
from trunkline.cli.content import ContentPrinter
from trunkline.cli.terminal import Terminal, escape
from trunkline.errors import BadAnswer, MisuseError
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.client.client import Client

__all__ = [
    "add_complete_arguments",
    "add_ping_arguments",
    "add_prompt_arguments",
    "add_read_arguments",
    "complete",
    "configure_complete",
    "configure_ping",
    "configure_prompt",
    "configure_read",
    "ping",
    "prompt",
    "read",
]

_READ_EXAMPLES: Final = """\
examples:
  trunkline read server.py docs://readme
  trunkline read https://example.org/mcp file:///logo.png --output logo.png
"""
_PROMPT_EXAMPLES: Final = """\
examples:
  trunkline prompt server.py review code=@main.py style=short
"""
_COMPLETE_EXAMPLES: Final = """\
examples:
  trunkline complete server.py review style sh          # an argument of a prompt
  trunkline complete server.py docs://{name} name re    # a variable of a resource template
"""
_PING_EXAMPLES: Final = """\
examples:
  trunkline ping https://example.org/mcp --count 5
"""


# --- read ----------------------------------------------------------------------------------------


def configure_read(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trunkline read`."""
    add_target_options(parser)
    add_read_arguments(parser)
    parser.epilog = f"{_READ_EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=run_with_client(read))


def add_read_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trunkline read` besides those of the connection."""
    parser.add_argument("uri", metavar="URI", help="the resource's URI")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the content to a file, or as it is for -")


async def read(client: "Client", options: argparse.Namespace, terminal: Terminal) -> int:
    """Read a resource and print it."""
    contents = await client.read_resource(options.uri, timeout=options.timeout)
    if options.json:
        terminal.json({"contents": contents})
    elif options.output is not None:
        _write(b"".join(_content(one) for one in contents), options.output, terminal)
    else:
        printer = ContentPrinter(terminal)
        for one in contents:
            printer.print_contents(one)
    return EXIT_OK


def _content(contents: Any) -> bytes:
    if contents.text is not None:
        return contents.text.encode()
    try:
        return base64.b64decode(contents.blob or "", validate=True)
    except ValueError as error:
        raise BadAnswer("resources/read", f"the blob is not base64: {error}") from None


def _write(data: bytes, path: str, terminal: Terminal) -> None:
    if path == "-":
        terminal.raw(data)
        return
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise MisuseError(f"cannot write {path}: {error.strerror}") from error
    terminal.note(f"{len(data)} bytes written to {path}")


# --- prompt --------------------------------------------------------------------------------------


def configure_prompt(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trunkline prompt`."""
    add_target_options(parser)
    add_prompt_arguments(parser)
    parser.epilog = f"{_PROMPT_EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=run_with_client(prompt))


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trunkline prompt` besides those of the connection."""
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt's name")
    parser.add_argument(
        "arguments", metavar="ARGUMENT", nargs="*", default=[], help="key=value, key=@file, @file or a JSON object"
    )


async def prompt(client: "Client", options: argparse.Namespace, terminal: Terminal) -> int:
    """Get a prompt and print its messages."""
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    parsed = parse_arguments(options.arguments, {**texts, "properties": _text_properties(options.arguments)})
    arguments = {
        name: value if isinstance(value, str) else codec.to_json(value).decode() for name, value in parsed.items()
    }
    result = await client.get_prompt(options.prompt, arguments, timeout=options.timeout)
    if options.json:
        terminal.json(result)
        return EXIT_OK
    printer = ContentPrinter(terminal)
    for message in result.messages:
        terminal.line(terminal.styled(f"{message.role}:", "title"))
        printer.print_blocks([message.content])
    return EXIT_OK


def _text_properties(words: list[str]) -> dict[str, Any]:
    """Return the schema of a prompt's arguments, which are always text."""
    return {
        word.partition("=")[0].removesuffix(":"): {"type": "string"} for word in words if word[:1] not in {"{", "@"}
    }


# --- complete ------------------------------------------------------------------------------------


def configure_complete(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trunkline complete`."""
    add_target_options(parser)
    add_complete_arguments(parser)
    parser.epilog = f"{_COMPLETE_EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=run_with_client(complete))


def add_complete_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trunkline complete` besides those of the connection."""
    parser.add_argument("name", metavar="PROMPT-OR-TEMPLATE", help="name of a prompt, or URI template of a resource")
    parser.add_argument("argument", metavar="ARGUMENT", help="the argument to complete")
    parser.add_argument("value", metavar="TEXT", nargs="?", default="", help="the text so far")
    parser.add_argument(
        "--with", dest="context", metavar="NAME=VALUE", action="append", default=[], help="another argument"
    )


async def complete(client: "Client", options: argparse.Namespace, terminal: Terminal) -> int:
    """Complete an argument and print the proposed values."""
    context = {name: text for name, _, text in (word.partition("=") for word in options.context)}
    completion = await client.complete(
        "resource" if "://" in options.name else "prompt",
        options.name,
        options.argument,
        options.value,
        context=context or None,
        timeout=options.timeout,
    )
    if options.json:
        terminal.json(completion)
        return EXIT_OK
    for value in completion.values:
        terminal.line(escape(value))
    if completion.has_more:
        total = "" if completion.total is None else f" of {completion.total}"
        terminal.note(f"the first {len(completion.values)}{total}")
    return EXIT_OK


# --- ping ----------------------------------------------------------------------------------------


def configure_ping(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trunkline ping`."""
    add_target_options(parser)
    add_ping_arguments(parser)
    parser.epilog = f"{_PING_EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=run_with_client(ping))


def add_ping_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trunkline ping` besides those of the connection."""
    parser.add_argument("--count", type=positive_int, default=1, help="number of pings (1)")


async def ping(client: "Client", options: argparse.Namespace, terminal: Terminal) -> int:
    """Ping the server and print the times."""
    times: list[float] = []
    for _ in range(options.count):
        began = time.perf_counter()
        await client.ping(timeout=options.timeout)
        times.append((time.perf_counter() - began) * 1000)
        if not options.json:
            terminal.line(f"{times[-1]:.2f} ms")
    info = client.server_info
    if options.json:
        terminal.json({"revision": client.revision, "server": info, "milliseconds": [round(one, 3) for one in times]})
    elif info is not None:
        terminal.note(f"{escape(info.name)} {escape(info.version)}, revision {client.revision}")
    return EXIT_OK
