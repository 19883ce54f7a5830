"""State of a serving process, as its control socket reports it.

The state has names, ages and counts, and no contents of messages. `describe_process` is called on the loop of the
server.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.types import Implementation
from trunkline.server.introspection.stacks import stack_of_call
from trunkline.version import __version__

if TYPE_CHECKING:
    from trunkline.facts import Observers
    from trunkline.receipts.writer import ReceiptWriter
    from trunkline.rpc.threads import ThreadPool
    from trunkline.server.cluster.cluster import Cluster
    from trunkline.server.connection import Connection
    from trunkline.server.connections import ConnectionSet
    from trunkline.server.processes.pool import ProcessPool
    from trunkline.server.resilience.circuit_breaker import CircuitBreaker
    from trunkline.server.tasks.runner import TaskRunner
    from trunkline.supervision.supervisor import ChildStatus
    from trunkline.supervision.worker_channel import WorkerChannel

__all__ = [
    "BreakerSummary",
    "CallStack",
    "CallSummary",
    "ChildSummary",
    "ConnectionSummary",
    "ProcessState",
    "QueueSummary",
    "ServerState",
    "TaskSummary",
    "describe_process",
    "describe_server",
    "describe_stacks",
    "resident_bytes",
]

_SHOWN_SESSION: Final = 8  # characters of a session id, which is a secret


class ConnectionSummary(Struct, frozen=True):
    """A connection, or a session of HTTP."""

    number: int
    transport: str
    peer: str  # its address
    phase: str
    revision: str | None
    session: str  # the beginning of its id
    client: str  # the name and version that the client has sent
    calls: int
    subscriptions: int


class CallSummary(Struct, frozen=True):
    """A call in flight."""

    connection: int
    method: str
    target: str  # the name of the tool or prompt, or the URI of the resource
    principal: str
    age: float  # seconds
    queued: bool  # its handler has not started


class TaskSummary(Struct, frozen=True):
    """A task that this process runs."""

    id: str
    tool: str
    status: str
    age: float  # seconds


class BreakerSummary(Struct, frozen=True):
    """A circuit breaker."""

    name: str
    state: str


class ChildSummary(Struct, frozen=True):
    """A child in the supervision tree: a listener, a worker, a backend, a child of the program."""

    name: str  # the path from the root of the tree
    kind: str
    state: str
    restarts: int
    last_failure: str
    age: float  # seconds in that state
    pid: int | None  # of an OS process that runs


class QueueSummary(Struct, frozen=True):
    """A queue, and its consumers."""

    name: str
    waiting: int
    running: int = 0
    dropped: int = 0  # since the start, because the queue was full


class ServerState(Struct, frozen=True, kw_only=True):
    """The server of a process."""

    name: str
    version: str
    addresses: Sequence[str]
    paused: bool
    store: str
    cluster: str  # the name of the process in the cluster
    peers: int  # other processes in the cluster
    worker: int | None  # the number of this process, if it is a worker
    queues: Sequence[QueueSummary]
    workers: Sequence[ChildSummary]  # all workers and their listeners, if this process is a worker
    children: Sequence[ChildSummary]  # in the supervision tree of this process
    connections: Sequence[ConnectionSummary]
    calls: Sequence[CallSummary]
    tasks: Sequence[TaskSummary]
    breakers: Sequence[BreakerSummary]


class CallStack(Struct, frozen=True):
    """A call that runs, and where its coroutine or thread is."""

    call: CallSummary
    stack: Sequence[str]  # the outermost place first


class ProcessState(Struct, frozen=True, kw_only=True):
    """A process and its server."""

    pid: int
    parent: int
    trunkline: str
    python: str
    uptime: float  # seconds
    memory: int  # resident bytes; 0 if the system does not tell
    loop_lag: float  # seconds that the event loop was late, at most, in the last moments
    server: ServerState


def describe_process(server: ServerState, *, uptime: float, loop_lag: float) -> ProcessState:
    """Return the state of this process."""
    return ProcessState(
        pid=os.getpid(),
        parent=os.getppid(),
        trunkline=__version__,
        python=sys.version.split()[0],
        uptime=uptime,
        memory=resident_bytes(),
        loop_lag=loop_lag,
        server=server,
    )


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def describe_server(
    info: Implementation,
    addresses: Sequence[str],
    connections: "ConnectionSet",
    *,
    store: object,
    cluster: "Cluster | None",
    worker: "WorkerChannel | None",
    tree: "ChildStatus | None",
    now: float,
    observers: "Observers",
    threads: "ThreadPool | None",
    processes: "ProcessPool | None",
    receipts: "ReceiptWriter | None",
    tasks: "Iterable[TaskRunner]",
    breakers: "Iterable[CircuitBreaker]",
    subscriptions: "Callable[[Connection], int]",
) -> ServerState:
    """Return the state of a server from its parts. `tree` is its supervision tree, `now` the time of its clock;
    `subscriptions` counts those of a connection."""
    calls, wall_time = _describe_calls(connections), time.time()
    queued = sum(call.queued for call in calls)
    queues = [QueueSummary("calls", queued, len(calls) - queued)]
    if threads is not None:
        queues.append(QueueSummary("threads", threads.queued, threads.busy))
    if processes is not None:
        queues.append(QueueSummary("processes", processes.queued, processes.busy))
    if receipts is not None:
        queues.append(QueueSummary("receipts", receipts.queued, dropped=receipts.lost))
    queues.append(QueueSummary("facts", observers.queued, dropped=observers.dropped))
    children = () if tree is None else [each for each in tree.walk() if each is not tree]
    workers = () if worker is None else worker.children
    return ServerState(
        name=info.name,
        version=info.version,
        addresses=addresses,
        paused=connections.paused,
        store="" if store is None else repr(store),
        cluster="" if cluster is None else cluster.name,
        peers=0 if cluster is None else len(cluster.peers),
        worker=None if worker is None else worker.number,
        queues=queues,
        workers=[_describe_child(each, time.monotonic()) for each in workers],
        children=[_describe_child(each, now) for each in children],
        connections=[_describe_connection(each, subscriptions(each)) for each in connections],
        calls=calls,
        tasks=[_describe_task(runner, wall_time) for runner in tasks],
        breakers=[BreakerSummary(breaker.name, breaker.state.value) for breaker in breakers],
    )


def _describe_child(child: "ChildStatus", now: float) -> ChildSummary:
    return ChildSummary(
        child.name, child.kind, child.state.value, child.restarts, child.last_failure, now - child.since, child.pid
    )


def _describe_connection(connection: "Connection", subscriptions: int) -> ConnectionSummary:
    """Summarize a connection."""
    session, info = connection.session, connection.channel.info
    revision = session.revision
    return ConnectionSummary(
        number=connection.number,
        transport=info.transport,
        peer=info.peer,
        phase="stateless" if info.stateless else session.phase.name.lower(),
        revision=info.revision if revision is None else revision.value,
        session=(info.session or "")[:_SHOWN_SESSION],
        client="" if session.peer is None else f"{session.peer.name} {session.peer.version}",
        calls=len(session.incoming_requests),
        subscriptions=subscriptions,
    )


def _describe_calls(connections: "Iterable[Connection]") -> list[CallSummary]:
    """Summarize the calls of all connections, the oldest first."""
    found = [
        _describe_call(connection, call, connection.now())
        for connection in connections
        for call in connection.session.incoming_requests.values()
    ]
    return sorted(found, key=lambda call: -call.age)


def describe_stacks(connections: "Iterable[Connection]") -> list[CallStack]:
    """Return the calls that run, with their stacks, the oldest first."""
    found = [
        CallStack(_describe_call(connection, call, connection.now()), stack_of_call(call.work))
        for connection in connections
        for call in connection.session.incoming_requests.values()
        if not call.queued
    ]
    return sorted(found, key=lambda each: -each.call.age)


def _describe_call(connection: "Connection", call: IncomingRequest, now: float) -> CallSummary:
    principal: Any = getattr(call.origin, "principal", None)
    return CallSummary(
        connection=connection.number,
        method=call.method.name,
        target=call.target or "",
        principal=getattr(principal, "subject", ""),
        age=now - call.started,
        queued=call.queued,
    )


def _describe_task(runner: "TaskRunner", now: float) -> TaskSummary:
    """Summarize a task; `now` is the time of the wall clock."""
    record = runner.record
    return TaskSummary(record.task_id, runner.tool_name, record.state.name.lower(), now - record.created_at)
