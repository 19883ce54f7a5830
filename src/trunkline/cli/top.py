"""`trunkline top`: the serving processes of this user and their calls, as a view that is updated."""

import argparse
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trunkline.cli.commands import EXIT_OK
from trunkline.cli.processes import find_sockets, query_states
from trunkline.cli.ps import add_process_options, choose_by_store, describe_calls, describe_processes
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

Show = Callable[[list[ProcessState]], None]
"""Show the states of processes."""


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
            states = query_states(find_sockets(options.place, options.pid))
            show(choose_by_store(states, options.store))
            done += 1
            if done == options.count:
                return EXIT_OK
            time.sleep(options.interval)


def _make_view(terminal: Terminal, stack: contextlib.ExitStack, *, as_json: bool) -> Show:
    """Return the function that shows states: as JSON, on the whole screen, or line by line if that is not possible."""
    if as_json:
        return terminal.json
    live = _open_screen(stack) if terminal.shows_results else None
    return live or (lambda states: _print(terminal, states))


def _open_screen(stack: contextlib.ExitStack) -> Show | None:
    """Take over the screen until the stack is closed; return None without rich."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return None
    live = stack.enter_context(Live(console=Console(highlight=False), auto_refresh=False, screen=True))
    return lambda states: live.update(_render(states), refresh=True)


def _render(states: list[ProcessState]) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for rows in (describe_processes(states), *map(describe_calls, states)):
        if rows:
            table = Table(*rows[0], box=None, header_style="bold")
            for row in rows[1:]:
                table.add_row(*map(Text, row))
            parts += [table, Text()]
    return Group(*(parts or [Text("no serving process was found")]))


def _print(terminal: Terminal, states: list[ProcessState]) -> None:
    terminal.columns(describe_processes(states), indent=0)
    for state in states:
        terminal.columns(describe_calls(state))
    if not states:
        terminal.line("no serving process was found")
