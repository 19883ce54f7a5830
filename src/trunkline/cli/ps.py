"""`trunkline ps`: the serving processes of this user, and what they are doing."""

import argparse
import os
from collections.abc import Iterable
from typing import Final

from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK
from trunkline.cli.durations import format_age, format_bytes
from trunkline.cli.processes import TIMEOUT, find_sockets, query_stacks, query_states
from trunkline.cli.terminal import Terminal, escape
from trunkline.errors import MisuseError
from trunkline.server.introspection.process_state import CallStack, ChildSummary, ProcessState, ServerState, TaskSummary

__all__ = [
    "add_process_options",
    "choose_by_store",
    "configure",
    "describe_calls",
    "describe_children",
    "describe_processes",
    "describe_queues",
]

_EXAMPLES: Final = """\
examples:
  trunkline ps                       # the processes of this user that listen for clients
  trunkline ps --pid 4711            # one of them, with its connections, calls, queues and children
  trunkline ps --pid 4711 --stacks   # where its calls are
  trunkline ps /run/app/control      # those with `control_folder = "/run/app/control"`
"""

_CALL_QUEUES: Final = frozenset({"calls", "threads", "processes"})  # those in which calls wait


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
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help=f"seconds to wait for an answer ({TIMEOUT:g})")


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
        return _print_stacks(terminal, query_stacks(paths[0], options.timeout) or [], as_json=options.json)
    found, silent = query_states(paths, options.timeout)
    states = choose_by_store(found, options.store)
    if options.json:
        for state in states:
            terminal.json(state)
    elif options.pid is not None and states:
        _print_details(terminal, states[0])
    else:
        terminal.columns(describe_processes(states), indent=0)
    for problem in silent:
        terminal.note(problem)
    if not states and not silent:
        terminal.note("no serving process was found; servers on stdio have no control socket unless they set a folder")
    return EXIT_OK if states and not silent else EXIT_FAILURE


def describe_processes(states: list[ProcessState]) -> list[list[str]]:
    """Return a table of processes, with its head."""
    head = ["PID", "SERVER", "UP", "MEMORY", "LAG", "CONNECTIONS", "CALLS", "QUEUED", "TASKS", "RESTARTS", "ADDRESS"]
    return _table(head, map(_describe_process, states))


def _describe_process(state: ProcessState) -> list[str]:
    server = state.server
    number = "" if server.worker is None else f" #{server.worker}"
    paused = " (paused)" if server.paused else ""
    queued = sum(queue.waiting for queue in server.queues if queue.name in _CALL_QUEUES)
    return [
        str(state.pid),
        escape(server.name) + number + paused,
        format_age(state.uptime),
        format_bytes(state.memory),
        format_age(state.loop_lag),
        str(len(server.connections)),
        str(len(server.calls)),
        str(queued),
        str(len(server.tasks)),
        str(_count_restarts(server)),
        escape(" ".join(server.addresses)),
    ]


def _count_restarts(server: ServerState) -> int:
    """Return how often the children of a process were restarted, and the process itself if it is a worker."""
    own = [child for child in server.workers if child.name == f"worker:{server.worker}"]
    return sum(child.restarts for child in (*own, *server.children))


def describe_queues(states: list[ProcessState], *, used: bool = False) -> list[list[str]]:
    """Return a table of the queues of processes, with its head; only of those in use, if `used`."""
    rows = [
        [str(state.pid), each.name, str(each.waiting), str(each.running), str(each.dropped)]
        for state in states
        for each in state.server.queues
        if not used or each.waiting or each.running or each.dropped
    ]
    return _table(["PID", "QUEUE", "WAITING", "RUNNING", "DROPPED"], rows)


def describe_children(states: list[ProcessState]) -> list[list[str]]:
    """Return a table of the children of processes, with its head. The workers of one supervisor describe its children
    alike, so these are listed once."""
    found = {(state.parent, child.name): child for state in states for child in state.server.workers}
    found |= {(state.pid, child.name): child for state in states for child in state.server.children}
    rows = [[str(parent), *_describe_child(child)] for (parent, _), child in found.items()]
    return _table(["PARENT", "CHILD", "KIND", "STATE", "SINCE", "RESTARTS", "PID", "LAST FAILURE"], rows)


def _describe_child(child: ChildSummary) -> list[str]:
    return [
        escape(child.name),
        escape(child.kind),
        child.state,
        format_age(child.age),
        str(child.restarts),
        "" if child.pid is None else str(child.pid),
        escape(child.last_failure),
    ]


def describe_calls(states: list[ProcessState]) -> list[list[str]]:
    """Return a table of the calls of processes, with its head."""
    rows = [
        [
            str(state.pid),
            format_age(call.age),
            escape(call.method),
            escape(call.target),
            escape(call.principal),
            str(call.connection),
            "queued" if call.queued else "",
        ]
        for state in states
        for call in state.server.calls
    ]
    return _table(["PID", "AGE", "METHOD", "TARGET", "PRINCIPAL", "CONNECTION", ""], rows)


def _print_details(terminal: Terminal, state: ProcessState) -> None:
    server = state.server
    terminal.columns(describe_processes([state]), indent=0)
    terminal.line(f"Trunkline {state.trunkline}, Python {state.python}, parent {state.parent}")
    if server.store:
        terminal.line(f"store {escape(server.store)}, process {escape(server.cluster)}, {server.peers} peers")
    for rows in (
        _describe_connections(server),
        describe_calls([state]),
        describe_queues([state]),
        describe_children([state]),
        _table(["TASK", "TOOL", "STATE", "AGE"], map(_describe_task, server.tasks)),
        _table(["BREAKER", "STATE"], ([escape(each.name), each.state] for each in server.breakers)),
    ):
        if rows:
            terminal.line()
            terminal.columns(rows, indent=0)


def _describe_connections(server: ServerState) -> list[list[str]]:
    rows = [
        [
            str(each.number),
            each.transport,
            escape(each.peer),
            each.revision or each.phase,
            escape(each.session),
            escape(each.client),
            str(each.calls),
            str(each.subscriptions),
        ]
        for each in server.connections
    ]
    return _table(["CONNECTION", "TRANSPORT", "PEER", "REVISION", "SESSION", "CLIENT", "CALLS", "SUBSCRIPTIONS"], rows)


def _describe_task(task: TaskSummary) -> list[str]:
    return [task.id, escape(task.tool), task.status, format_age(task.age)]


def _table(head: list[str], rows: Iterable[list[str]]) -> list[list[str]]:
    """Return a table with its head; nothing without rows."""
    found = [*rows]
    return [head, *found] if found else []


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
