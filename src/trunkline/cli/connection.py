"""The client of a command: options that name a target, and the connection to it."""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trunkline.cli.commands import EXIT_FAILURE, EXIT_UNREACHABLE
from trunkline.cli.loading import NoServer, is_python_file, load_server, split_object
from trunkline.cli.questions import TerminalAnswers
from trunkline.cli.terminal import Terminal, escape, escape_lines
from trunkline.cli.tokens import read_token
from trunkline.errors import (
    ConnectionClosed,
    MissingCapability,
    MisuseError,
    PeerError,
    TransportError,
    TrunklineError,
)
from trunkline.event_loop import run as run_loop
from trunkline.server.run.importing import Overrides

if TYPE_CHECKING:
    from trunkline.client.client import Client
    from trunkline.client.server_config import ServerEntry
    from trunkline.config import Settings
    from trunkline.protocol.types import LoggingMessageParams

__all__ = [
    "TARGET_HELP",
    "Command",
    "add_options",
    "add_target_options",
    "connect",
    "ends_with_command",
    "find_entry",
    "make_target",
    "names_python",
    "positive_int",
    "read_auth",
    "read_headers",
    "read_variables",
    "run_to_exit_code",
    "run_with_client",
    "set_variables",
    "split_config",
    "split_pairs",
]

TARGET_HELP: Final = """\
A TARGET is one of
  server.py, server.py:app         a Python file with a trunkline.Server, loaded into this process
  package.module:app               the same in a module
  https://…, wss://…, tcp://…      the address of a server
  mcp.json:NAME                    an entry of a configuration file, as Claude Desktop, Cursor and VS Code have it
  "npx -y some-server /folder"     a command, as one word; so are scripts that are no trunkline.Server
"""

_DEFAULT_TIMEOUT: Final = 60.0  # seconds
_IN_PROCESS: Final = Overrides({"drain_timeout": 0.2})  # seconds: nothing waits for what still runs at the end


def add_target_options(parser: argparse.ArgumentParser, *, dest: str = "target") -> None:
    """Add the argument TARGET and the options that belong to a connection."""
    if dest:
        parser.add_argument(dest, metavar="TARGET", help="the server; see below")
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[], help="set a variable of a command or Python file"
    )
    group.add_argument(
        "--header", metavar="NAME:VALUE", action="append", default=[], help="send a header with requests"
    )
    group.add_argument(
        "--token", metavar="FROM", help="bearer token: the environment variable that holds it, or - for standard input"
    )
    group.add_argument("--login", action="store_true", help="sign in with OAuth, in the browser")
    group.add_argument("--revision", metavar="DATE", help="newest protocol revision to use")
    group.add_argument(
        "--timeout", metavar="SECONDS", type=_read_seconds, default=_DEFAULT_TIMEOUT, help="for each request (60)"
    )
    group.add_argument("--log-level", metavar="LEVEL", help="show the server's log messages from this level on")
    group.add_argument("--stderr", action="store_true", help="show the standard error of a command as it comes")
    group.add_argument("--root", metavar="FOLDER", action="append", default=[], help="a root to offer to the server")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _read_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return seconds


def positive_int(text: str) -> int:
    """Read a number of at least 1 from the command line."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return number


def make_target(text: str, options: argparse.Namespace, terminal: Terminal) -> Any:
    """Return the target of a client for the word on the command line."""
    from trunkline.config import Settings

    headers, auth = read_headers(options), read_auth(options)
    if "://" in text:
        if not headers:
            return text
        if not text.startswith(("http://", "https://")):
            raise MisuseError(f"--header is for http:// and https:// addresses, not {text!r}")
        from trunkline.transports.http.client.connector import HttpConnector

        return HttpConnector(text, headers=headers, auth=auth)
    place, name = split_config(text)
    if place is not None:
        entry = add_options(find_entry(place, name), options)
        return entry.connector(Settings(), auth=auth, on_stderr=_stderr_printer(options, terminal))
    variables = read_variables(options)
    if names_python(text):
        set_variables(options)
        try:
            with terminal.reserved():
                return load_server(text, _IN_PROCESS)
        except NoServer:
            if not is_python_file(text):
                raise
            # A script without a server of ours is started as a program.
    from trunkline.transports.stdio.client import Command

    command = [sys.executable, text] if is_python_file(text) else text
    return Command(command, env={**os.environ, **variables}, on_stderr=_stderr_printer(options, terminal))


def names_python(text: str) -> bool:
    """Return whether a target is a Python file or an object of a module."""
    if "://" in text or split_config(text)[0] is not None:
        return False
    return is_python_file(text) or (split_object(text)[1] is not None and " " not in text)


def _stderr_printer(options: argparse.Namespace, terminal: Terminal) -> Callable[[str], None] | None:
    return (lambda line: terminal.note(escape(line))) if options.stderr else None


def split_config(text: str) -> tuple[Path | None, str | None]:
    """Split `mcp.json:NAME`; the path is None if the text names no configuration file."""
    place, colon, name = text.partition(".json:")
    if colon:
        return Path(f"{place}.json"), name
    return (Path(text), None) if text.endswith(".json") else (None, None)


def find_entry(path: Path, name: str | None) -> "ServerEntry":
    """Return an entry of a configuration file; its only one if there is no name. Raises `MisuseError` if there is no
    such entry."""
    from trunkline.client.server_config import load_server_entries

    entries = load_server_entries(path)
    if name is None and len(entries) == 1:
        return next(iter(entries.values()))
    if name not in entries:
        known = ", ".join(f"{path}:{escape(one)}" for one in entries) or "none"
        raise MisuseError(
            f"choose a server of {path}: {known}" if name is None else f"{path} has no {name!r}, but {known}"
        )
    return entries[name]


def ends_with_command(text: str) -> bool:
    """Return whether the server of a target ends with the command that uses it: a Python file or a process."""
    place, name = split_config(text)
    return "://" not in text and (place is None or find_entry(place, name).url is None)


def add_options(entry: "ServerEntry", options: argparse.Namespace) -> "ServerEntry":
    """Return an entry of a configuration file with the variables and headers of the command line."""
    from msgspec.structs import replace

    return replace(
        entry, env={**entry.env, **read_variables(options)}, headers={**entry.headers, **read_headers(options)}
    )


def read_variables(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables of the command line."""
    return dict(split_pairs(options.env, "=", "--env NAME=VALUE"))


def set_variables(options: argparse.Namespace) -> None:
    """Set the environment variables of the command line for a Python file, which is loaded into this process."""
    os.environ.update(read_variables(options))


def split_pairs(words: list[str], separator: str, form: str) -> list[tuple[str, str]]:
    """Split words into names and values. Raises `MisuseError` for a word that is not of that form."""
    pairs: list[tuple[str, str]] = []
    for word in words:
        name, found, value = word.partition(separator)
        if not found or not name:
            raise MisuseError(f"{word!r} is not of the form {form}")
        pairs.append((name.strip(), value.strip() if separator == ":" else value))
    return pairs


def read_headers(options: argparse.Namespace) -> dict[str, str]:
    """Return the headers to send."""
    return dict(split_pairs(options.header, ":", "--header NAME:VALUE"))


def read_auth(options: argparse.Namespace) -> Any:
    """Return the token or the provider of tokens; None without one. It is the same for all connections of a command,
    since standard input is read once."""
    if not hasattr(options, "credentials"):
        options.credentials = _make_credentials(options)
    return options.credentials


def _make_credentials(options: argparse.Namespace) -> Any:
    if options.login:
        from trunkline.auth import OAuth

        return OAuth()
    return read_token(options.token)


@asynccontextmanager
async def connect(
    options: argparse.Namespace,
    terminal: Terminal,
    target: Any = None,
    *,
    settings: "Settings | None" = None,
    asks: bool = True,
    reserved: bool = True,
) -> "AsyncGenerator[Client]":
    """Connect to the target of a command, or to the one that is passed: a text or a target of a client. Questions of
    the server are asked at the terminal, if the command `asks` and a person is there. Standard output is `reserved` for
    the command; what a server in this process prints goes to standard error."""
    from trunkline.client.client import Client

    def on_log(message: "LoggingMessageParams") -> None:
        text = message.data if isinstance(message.data, str) else repr(message.data)
        terminal.note(f"[{escape(str(message.level))}] {escape_lines(text)}")

    given = options.target if target is None else target
    made = make_target(given, options, terminal) if isinstance(given, str) else given
    answers = TerminalAnswers(terminal, lambda: _server_name(client))
    asked = asks and terminal.interactive
    client = Client(
        made,
        auth=read_auth(options) if isinstance(made, str) else None,
        name="trunkline-cli",
        settings=settings,
        revision=options.revision,
        sampling=answers.sample if asked else None,
        elicitation=answers.elicit if asked else None,
        open_url=answers.open_url if asked else None,
        roots=[_read_root(root) for root in options.root] or None,
        on_log=on_log if options.log_level else None,
        log_level=options.log_level,
    )
    with terminal.reserved() if reserved else contextlib.nullcontext():
        try:
            async with client:
                yield client
        finally:
            if isinstance(given, str) and names_python(given):
                await _close_server(made)


async def _close_server(target: Any) -> None:
    """Close the server of a Python file, which has no other clients. Its tasks end with it."""
    from trunkline.server.server import Server

    if isinstance(target, Server):
        await target.aclose()


def _read_root(text: str) -> str | Path:
    if text.startswith("file:"):
        return text
    path = Path(text).expanduser()
    if not path.exists():
        raise MisuseError(f"--root takes a folder or a file: URI; there is no {text!r}")
    return path


def _server_name(client: "Client") -> str:
    info = client.server_info
    return "the server" if info is None else info.title or info.name


Command = Callable[["Client", argparse.Namespace, Terminal], Coroutine[Any, Any, int]]
"""Runs a command with an open client and returns the exit code."""


def run_with_client(command: Command) -> Callable[[argparse.Namespace], int]:
    """Return the function that connects to the target of a command and runs it."""

    def run(options: argparse.Namespace) -> int:
        terminal = Terminal()

        async def main() -> int:
            async with connect(options, terminal) as client:
                work = asyncio.ensure_future(command(client, options, terminal))
                try:
                    return await asyncio.shield(work)
                except asyncio.CancelledError:
                    terminal.stop_asking()  # before the work ends: it waits for the answer
                    work.cancel()
                    await asyncio.wait([work])
                    raise

        return run_to_exit_code(main(), terminal)

    return run


def run_to_exit_code(main: Coroutine[Any, Any, int], terminal: Terminal) -> int:
    """Run a coroutine that talks to servers; return its exit code, or the one of its error."""
    try:
        return run_loop(main)
    except (ConnectionClosed, TransportError) as error:
        terminal.note(f"trunkline: {escape_lines(str(error))}")
        return EXIT_UNREACHABLE
    except MisuseError:
        raise
    except TrunklineError as error:
        terminal.note(f"trunkline: {escape_lines(str(error))}")
        if isinstance(error, PeerError) and error.code == MissingCapability.code and not terminal.interactive:
            terminal.note("the server asks its user or a model; run the command at a terminal to answer")
        return EXIT_FAILURE
    finally:
        with contextlib.suppress(OSError):
            terminal.clear_status()
