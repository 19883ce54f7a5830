"""`trunkline shell`: an interactive prompt for one server, with completion from its catalog.

The main thread reads lines. The connection lives on an event loop of its own thread, so it stays alive while the prompt
waits: notifications are handled, and a lost connection is restored.
"""

import argparse
import contextlib
import shlex
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from trunkline.cli import call, catalog, requests
from trunkline.cli.catalog import Catalog, fetch_catalog
from trunkline.cli.commands import EXIT_OK
from trunkline.cli.connection import TARGET_HELP, Command, add_target_options, connect
from trunkline.cli.terminal import Terminal, escape, escape_lines
from trunkline.client.loop_thread import LoopThread
from trunkline.errors import MisuseError, TrunklineError
from trunkline.errors.suggestions import with_suggestion

if TYPE_CHECKING:
    from trunkline.client.client import Client

__all__ = ["complete_line", "configure"]

T = TypeVar("T")

_CANCEL_TIMEOUT: Final = 10.0  # seconds that a cancelled command has to clean up

_EXAMPLES: Final = """\
examples:
  trunkline shell calculator.py
  trunkline shell https://example.org/mcp --login
"""
_HELP: Final = """\
  list [KIND …]               what the server offers
  TOOL key=value …            call a tool (also: call TOOL …)
  read URI                    read a resource
  prompt NAME key=value …     get a prompt
  complete NAME ARGUMENT …    complete an argument
  ping                        check that the server responds
  help, quit                  or Ctrl+D
Tab completes names, arguments and URIs. Every command takes --json."""
_COMMANDS: Final[dict[str, tuple[Callable[[argparse.ArgumentParser], None], Command]]] = {
    "list": (catalog.add_arguments, catalog.list_catalog),
    "call": (call.add_arguments, call.call),
    "read": (requests.add_read_arguments, requests.read),
    "prompt": (requests.add_prompt_arguments, requests.prompt),
    "complete": (requests.add_complete_arguments, requests.complete),
    "ping": (requests.add_ping_arguments, requests.ping),
}
_WORDS: Final = (*_COMMANDS, "help", "quit")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_target_options(parser)
    parser.epilog = f"{_EXAMPLES}\ncommands of the shell:\n{_HELP}\n\n{TARGET_HELP}"
    parser.set_defaults(run=_run)


class _Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._thread = LoopThread("shell")
        self._thread.start()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], on_interrupt: Callable[[], None] = lambda: None) -> T:
        """Run a coroutine to its end. Ctrl+C cancels it, and is raised once it has ended."""
        return self._thread.wait(work, on_interrupt=on_interrupt, grace=_CANCEL_TIMEOUT)

    def close(self) -> None:
        """Cancel the remaining work and stop the loop."""
        self._thread.stop(_do_nothing)


async def _do_nothing() -> None:
    """The last work of a loop that has nothing left to close."""


def _run(options: argparse.Namespace) -> int:
    terminal, loop = Terminal(), _Loop()
    connection = connect(options, terminal, reserved=False)  # Python edits lines on the real output only
    try:
        client = loop.run(connection.__aenter__)
        try:
            shell = _Shell(client, terminal, loop, options)
            shell.run()
        finally:
            loop.run(partial(connection.__aexit__, None, None, None))
    finally:
        loop.close()
    return EXIT_OK


class _Shell:
    """The loop of reading and running lines."""

    def __init__(self, client: "Client", terminal: Terminal, loop: _Loop, options: argparse.Namespace) -> None:
        self._client = client
        self._terminal = terminal
        self._loop = loop
        self._options = options
        self._catalog = Catalog([], [], [], [])

    def run(self) -> None:
        """Read lines until the end of input."""
        info = self._client.server_info
        name = "server" if info is None else info.name
        self._terminal.note(f"{escape(name)}, revision {self._client.revision}; `help` lists commands")
        self._refresh()
        prompt = f"{escape(name)}> " if self._terminal.interactive else ""
        with _completion(lambda text, line: complete_line(line, text, self._catalog)):
            while True:
                try:
                    line = input(prompt)
                except EOFError:
                    if prompt:
                        self._terminal.note("")
                    return
                except KeyboardInterrupt:
                    self._terminal.note("")
                    continue
                if not self._run_line(line.strip()):
                    return

    def _refresh(self) -> None:
        with contextlib.suppress(TrunklineError):
            self._catalog = self._loop.run(partial(fetch_catalog, self._client))

    def _run_line(self, line: str) -> bool:
        """Run a line; return False at the end."""
        if line in {"quit", "exit"}:
            return False
        if line in {"help", "?"}:
            self._terminal.line(_HELP)
            return True
        try:
            words = shlex.split(line)
            if words:
                self._run_words(words)
        except KeyboardInterrupt:
            self._terminal.note("cancelled")
        except ValueError as error:  # of shlex
            self._terminal.note(f"{error}")
        except TrunklineError as error:
            self._terminal.note(escape_lines(str(error)))
        except SystemExit:  # argparse has explained it
            pass
        return True

    def _run_words(self, words: Sequence[str]) -> None:
        if words[0] not in _COMMANDS:
            if words[0] not in {tool.name for tool in self._catalog.tools}:
                self._refresh()
                tools = [tool.name for tool in self._catalog.tools]
                if words[0] not in tools:
                    message = f"there is no command and no tool {words[0]!r}; `help` lists commands"
                    raise MisuseError(with_suggestion(message, words[0], [*_COMMANDS, *tools]))
            words = ["call", *words]
        add_arguments, command = _COMMANDS[words[0]]
        parser = argparse.ArgumentParser(prog=words[0], add_help=False)
        parser.add_argument("--json", action="store_true")
        add_arguments(parser)
        options = parser.parse_intermixed_args(words[1:])
        options.timeout = self._options.timeout
        self._terminal.resume_asking()
        self._loop.run(partial(command, self._client, options, self._terminal), self._terminal.stop_asking)
        if words[0] == "list":
            self._refresh()


def complete_line(line: str, text: str, known: Catalog) -> list[str]:
    """Return the completions of the last word of a line. `text` is the part of that word that will be replaced."""
    before = line[: len(line) - len(text)].split()
    tools = {tool.name: tool for tool in known.tools}
    prompts = {prompt.name: prompt for prompt in known.prompts}
    if before[:1] == ["call"] and len(before) > 1:
        before = before[1:]
    candidates: Sequence[str] = ()
    if not before:
        candidates = [*_WORDS, *tools]
    elif before == ["call"]:
        candidates = [*tools]
    elif before[0] == "read":
        candidates = [resource.uri for resource in known.resources]
    elif before == ["prompt"]:
        candidates = [*prompts]
    elif before[0] == "prompt" and before[1] in prompts:
        candidates = [f"{argument.name}=" for argument in prompts[before[1]].arguments or ()]
    elif before[0] == "list":
        candidates = ["tools", "resources", "templates", "prompts"]
    elif before[0] in tools:
        properties: Any = tools[before[0]].input_schema.get("properties")
        names = cast("dict[str, Any]", properties) if isinstance(properties, dict) else ()
        candidates = [f"{name}=" for name in names]
    given = {word.partition("=")[0] for word in before if "=" in word}
    return [
        word
        for word in candidates
        if word.startswith(text) and word.removesuffix("=") not in given and word.isprintable()
    ]


@contextlib.contextmanager
def _completion(complete: Callable[[str, str], list[str]]) -> Generator[None]:
    """Let Tab complete the line, if this Python can edit lines."""
    try:
        import readline
    except ImportError:
        yield
        return

    def choose(text: str, state: int) -> str | None:
        found = complete(text, readline.get_line_buffer()[: readline.get_endidx()])
        if state >= len(found):
            return None
        return found[state] if found[state].endswith("=") else f"{found[state]} "

    previous, delimiters = readline.get_completer(), readline.get_completer_delims()
    readline.set_completer(choose)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in str(readline.__doc__) else "tab: complete")
    try:
        yield
    finally:
        readline.set_completer(previous)
        readline.set_completer_delims(delimiters)
        sys.stdout.flush()
