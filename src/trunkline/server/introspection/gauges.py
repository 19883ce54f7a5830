"""Gauges of a server: what its parts hold at the moment, as metrics. Called on the loop of the server."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.metrics import families as f
from trunkline.protocol.tasks import TERMINAL, TaskState
from trunkline.server.resilience.breaker_states import BreakerState
from trunkline.version import __version__

if TYPE_CHECKING:
    from trunkline.facts import Observers
    from trunkline.receipts.writer import ReceiptWriter
    from trunkline.rpc.threads import ThreadPool
    from trunkline.server.cluster.cluster import Cluster
    from trunkline.server.connections import ConnectionSet
    from trunkline.server.processes.pool import ProcessPool
    from trunkline.server.resilience.circuit_breaker import CircuitBreaker
    from trunkline.server.sessions.durable import DurableSessions
    from trunkline.server.tasks.runner import TaskRunner

__all__ = ["Reading", "read_gauges", "read_totals"]

_PYTHON: Final = sys.version.split()[0]
_RUNNING: Final = tuple(state for state in TaskState if state not in TERMINAL)


class Reading(NamedTuple):
    """The value of a series at the moment."""

    family: f.Family
    labels: tuple[str, ...]
    value: float


def read_gauges(
    connections: "ConnectionSet",
    *,
    observers: "Observers",
    cluster: "Cluster | None",
    threads: "ThreadPool | None",
    processes: "ProcessPool | None",
    receipts: "ReceiptWriter | None",
    tasks: "Iterable[TaskRunner]",
    breakers: "Iterable[CircuitBreaker]",
    durable_sessions: "DurableSessions | None",
    listen_streams: int,
) -> Iterator[Reading]:
    """Yield the gauges of a server from its parts."""
    yield Reading(f.INFO, (__version__, _PYTHON), 1)
    yield from _read_connections(connections)
    yield Reading(f.LISTEN_STREAMS, (), listen_streams)
    yield Reading(f.QUEUED_JOBS, (), 0 if threads is None else threads.queued)
    yield Reading(f.THREADS_BUSY, (), 0 if threads is None else threads.busy)
    if processes is not None:
        yield Reading(f.QUEUED_PROCESS_JOBS, (), processes.queued)
        yield Reading(f.PROCESSES_BUSY, (), processes.busy)
    if receipts is not None:
        yield Reading(f.QUEUED_RECEIPTS, (), receipts.queued)
    yield Reading(f.QUEUED_FACTS, (), observers.queued)
    states = Counter(runner.record.state for runner in tasks)
    for state in _RUNNING:
        yield Reading(f.TASKS, (state.value,), states[state])
    for breaker in breakers:
        for each in BreakerState:
            yield Reading(f.BREAKERS, (breaker.name, each.value), breaker.state is each)
    if cluster is not None:
        yield Reading(f.CLUSTER_PEERS, (), len(cluster.peers))
        yield Reading(f.LEASES, ("process",), cluster.lease_valid)
        yield Reading(f.LEASES, ("session",), 0 if durable_sessions is None else durable_sessions.held_count)
        yield Reading(f.LEASES, ("task",), states.total())


def _read_connections(connections: "ConnectionSet") -> Iterator[Reading]:
    open_connections, sessions, queued = Counter[str](), 0, 0
    for connection in connections:
        info = connection.channel.info
        queued += connection.queued_count
        if info.session_id is not None:
            sessions += 1
        elif not info.stateless:
            open_connections[info.transport] += 1
    for transport, count in open_connections.items():
        yield Reading(f.CONNECTIONS, (transport,), count)
    yield Reading(f.SESSIONS, (), sessions)
    yield Reading(f.QUEUED_CALLS, (), queued)


def read_totals(observers: "Observers") -> Iterator[Reading]:
    """Yield the counters that observers keep of themselves."""
    yield Reading(f.FACTS_DROPPED, (), observers.dropped)
    yield Reading(f.OBSERVER_FAILURES, (), observers.failures)
    yield Reading(f.OBSERVER_BLOCKED, (), observers.blocked)
