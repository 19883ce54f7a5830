"""`trunkline top`: the serving processes of this user and their calls, as a view that is updated."""

import argparse
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trunkline.cli.commands import EXIT_OK
from trunkline.cli.processes import Answers, find_sockets, query_states
from trunkline.cli.ps import (
    add_process_options,
    choose_by_store,
    describe_calls,
    describe_children,
    describe_processes,
    describe_queues,
)
from trunkline.cli.terminal import Terminal
from trunkline.server.introspection.process_state import ProcessState

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline top                          # until Ctrl+C
  trunkline top --pid 4711 --interval 5
  trunkline top --count 10 --json        # ten states as lines of JSON
"""

_NONE_FOUND: Final = "no serving process was found"

Show = Callable[[Answers], None]
"""Show the states of processes, and which of them do not answer."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_process_options(parser)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two updates (1)")
    parser.add_argument("--count", type=int, help="stop after this many updates")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    terminal, done = Terminal(), 0
    with contextlib.ExitStack() as stack:
        show = _make_view(terminal, stack, as_json=options.json)
        while True:
            found = query_states(find_sockets(options.place, options.pid), options.timeout)
            show(Answers(choose_by_store(found.states, options.store), found.silent))
            done += 1
            if done == options.count:
                return EXIT_OK
            time.sleep(options.interval)


def _make_view(terminal: Terminal, stack: contextlib.ExitStack, *, as_json: bool) -> Show:
    """Return the function that shows states: as JSON, on the whole screen, or line by line if that is not possible."""
    if as_json:
        return lambda answers: terminal.json(answers.states)
    live = _open_screen(stack) if terminal.shows_results else None
    return live or (lambda answers: _print(terminal, answers))


def _open_screen(stack: contextlib.ExitStack) -> Show | None:
    """Take over the screen until the stack is closed; return None without rich."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return None
    live = stack.enter_context(Live(console=Console(highlight=False), auto_refresh=False, screen=True))
    return lambda answers: live.update(_render(answers), refresh=True)


def _describe(states: list[ProcessState]) -> list[list[list[str]]]:
    """Return the tables of a view: processes, children, queues and calls, as far as there are any."""
    queues = describe_queues(states, used=True)
    tables = (describe_processes(states), describe_children(states), queues, describe_calls(states))
    return [rows for rows in tables if rows]


def _render(answers: Answers) -> "RenderableType":
    from rich.console import Group
    from rich.table import Column, Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for rows in _describe(answers.states):
        *names, last = rows[0]
        table = Table(*(Column(name, no_wrap=True) for name in names), last, box=None, header_style="bold")
        for row in rows[1:]:
            table.add_row(*map(Text, row))
        parts += [table, Text()]
    parts += [Text(line) for line in answers.silent]
    return Group(*(parts or [Text(_NONE_FOUND)]))


def _print(terminal: Terminal, answers: Answers) -> None:
    for rows in _describe(answers.states):
        terminal.columns(rows, indent=0)
    for line in answers.silent or ([] if answers.states else [_NONE_FOUND]):
        terminal.line(line)
