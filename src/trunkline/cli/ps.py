"""`trunkline ps`: the serving processes of this user, and what they are doing."""

import argparse
import os
from typing import Final

from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK
from trunkline.cli.durations import format_age, format_bytes
from trunkline.cli.processes import find_sockets, query_stacks, query_states
from trunkline.cli.terminal import Terminal, escape
from trunkline.errors import MisuseError
from trunkline.server.introspection.process_state import CallStack, ProcessState

__all__ = ["add_process_options", "choose_by_store", "configure", "describe_calls", "describe_processes"]

_EXAMPLES: Final = """\
examples:
  trunkline ps                       # the processes of this user that listen for clients
  trunkline ps --pid 4711            # one of them, with its connections, calls and tasks
  trunkline ps --pid 4711 --stacks   # where its calls are
  trunkline ps /run/app/control      # those with `control_folder = "/run/app/control"`
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_process_options(parser)
    parser.add_argument("--stacks", action="store_true", help="print the stacks of the calls of a process")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run)


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose processes."""
    parser.add_argument("place", metavar="PLACE", nargs="?", help="a control socket, or a folder with some")
    parser.add_argument("--pid", type=int, help="the id of a process")
    parser.add_argument(
        "--store", metavar="STORE", help="only processes with this store: the path of its file, or its host"
    )


def choose_by_store(states: list[ProcessState], store: str | None) -> list[ProcessState]:
    """Return the processes with a store, named by a part of its address; all of them if it is None."""
    if store is None:
        return states
    names = (store, os.path.abspath(store))
    return [state for state in states if any(name in state.server.store for name in names)]


def _run(options: argparse.Namespace) -> int:
    terminal, paths = Terminal(), find_sockets(options.place, options.pid)
    if options.stacks:
        if len(paths) != 1:
            raise MisuseError(f"--stacks is for one process, and there are {len(paths)}: choose one with --pid")
        return _print_stacks(terminal, query_stacks(paths[0]) or [], as_json=options.json)
    states = choose_by_store(query_states(paths), options.store)
    if options.json:
        for state in states:
            terminal.json(state)
    elif options.pid is not None and states:
        _print_details(terminal, states[0])
    else:
        terminal.columns(describe_processes(states), indent=0)
    if not states:
        terminal.note("no serving process was found; servers on stdio have no control socket unless they set a folder")
        return EXIT_FAILURE
    return EXIT_OK


def describe_processes(states: list[ProcessState]) -> list[list[str]]:
    """Return a table of processes, with its head."""
    head = ["PID", "SERVER", "UP", "MEMORY", "LAG", "CONNECTIONS", "CALLS", "TASKS", "ADDRESS"]
    return [head, *map(_describe_process, states)] if states else []


def _describe_process(state: ProcessState) -> list[str]:
    server = state.server
    paused = " (paused)" if server.paused else ""
    return [
        str(state.pid),
        escape(server.name) + paused,
        format_age(state.uptime),
        format_bytes(state.memory),
        format_age(state.loop_lag),
        str(len(server.connections)),
        str(len(server.calls)),
        str(len(server.tasks)),
        escape(" ".join(server.addresses)),
    ]


def describe_calls(state: ProcessState) -> list[list[str]]:
    """Return a table of the calls of a process, with its head."""
    rows = [
        [
            format_age(call.age),
            escape(call.method),
            escape(call.target),
            escape(call.principal),
            f"connection {call.connection}",
            "queued" if call.queued else "",
        ]
        for call in state.server.calls
    ]
    return [["AGE", "METHOD", "TARGET", "PRINCIPAL", "CONNECTION", ""], *rows] if rows else []


def _print_details(terminal: Terminal, state: ProcessState) -> None:
    server = state.server
    terminal.columns(describe_processes([state]), indent=0)
    terminal.line(f"Trunkline {state.trunkline}, Python {state.python}, parent {state.parent}")
    if server.store:
        terminal.line(f"store {escape(server.store)}, process {escape(server.cluster)}, {server.peers} peers")
    terminal.line(f"{server.threads} threads run handlers, {server.queued_jobs} more wait for a thread")
    connections = [
        [
            str(each.number),
            each.transport,
            escape(each.peer),
            each.revision or each.phase,
            escape(each.session),
            escape(each.client),
            f"{each.calls} calls",
            f"{each.subscriptions} subscriptions",
        ]
        for each in server.connections
    ]
    tasks = [[each.id, escape(each.tool), each.status, format_age(each.age)] for each in server.tasks]
    breakers = [[escape(each.name), each.state] for each in server.breakers]
    for title, rows in (
        ("connections", connections),
        ("calls", describe_calls(state)),
        ("tasks", tasks),
        ("circuit breakers", breakers),
    ):
        if rows:
            terminal.line(terminal.styled(title, "title"))
            terminal.columns(rows)


def _print_stacks(terminal: Terminal, stacks: list[CallStack], *, as_json: bool) -> int:
    for each in stacks:
        if as_json:
            terminal.json(each)
            continue
        call = each.call
        title = f"{escape(call.method)} {escape(call.target)} for {format_age(call.age)}"
        terminal.line(terminal.styled(title, "title"))
        for place in each.stack:
            terminal.line(f"  {escape(place)}")
    return EXIT_OK
