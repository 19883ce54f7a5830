"""Metric families: the name, type, help and labels of every metric, in one table.

The values of all labels are bounded: they are names that the specification or this package defines, or names that the
program has registered. Names that a client has made up become `unknown`, and registered ones above a limit `other`.
"""

from typing import Final, Literal

from msgspec import Struct

__all__ = [
    "BREAKERS",
    "BREAKER_CHANGES",
    "CALLS",
    "CALLS_IN_PROGRESS",
    "CALL_SECONDS",
    "CALL_WAIT_SECONDS",
    "CLUSTER_CHANGES",
    "CLUSTER_PEERS",
    "CONNECTIONS",
    "CONNECTIONS_OPENED",
    "CONNECTION_FAILURES",
    "CPU_SECONDS",
    "DROPPED",
    "FACTS_DROPPED",
    "FAMILIES",
    "HANDLER_FAILURES",
    "HTTP_REFUSED",
    "INFO",
    "LEASES",
    "LISTEN_STREAMS",
    "LOOP_LAG_SECONDS",
    "MEMORY_BYTES",
    "OBSERVER_BLOCKED",
    "OBSERVER_FAILURES",
    "PROCESSES_BUSY",
    "QUEUED_CALLS",
    "QUEUED_FACTS",
    "QUEUED_JOBS",
    "QUEUED_PROCESS_JOBS",
    "QUEUED_RECEIPTS",
    "RATE_EXCEEDED",
    "RESTARTS",
    "SERIES_OMITTED",
    "SESSIONS",
    "STORE_CALL_SECONDS",
    "STORE_UP",
    "STREAMS",
    "STREAMS_OPENED",
    "TASKS",
    "TASKS_ENDED",
    "THREADS_BUSY",
    "TOOL_CALLS",
    "TOOL_CALL_SECONDS",
    "UNREADABLE_MESSAGES",
    "UPTIME_SECONDS",
    "Family",
    "Kind",
]

Kind = Literal["counter", "gauge", "histogram"]

# From a trivial tool on a quiet machine to the default `work_timeout`.
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Family(Struct, frozen=True):
    """A metric: all series of one name."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram, without +Inf
    per_worker: bool = False  # a label `worker` has its number; otherwise the values of all workers are added up

    @property
    def size(self) -> int:
        """Number of values of one series: a histogram has its buckets, +Inf and the sum."""
        return len(self.buckets) + 2 if self.kind == "histogram" else 1


def _counter(name: str, text: str, *labels: str, per_worker: bool = False) -> Family:
    return Family(f"trunkline_{name}_total", "counter", text, labels, per_worker=per_worker)


def _gauge(name: str, text: str, *labels: str, per_worker: bool = False) -> Family:
    return Family(f"trunkline_{name}", "gauge", text, labels, per_worker=per_worker)


def _histogram(name: str, text: str, *labels: str) -> Family:
    return Family(f"trunkline_{name}_seconds", "histogram", text, labels, _SECONDS)


# Calls.
CALLS: Final = _counter(
    "calls",
    "Requests of clients that ended. The outcome of a call that a killed worker left is `lost`.",
    *("method", "transport", "outcome"),
)
CALL_SECONDS: Final = _histogram(
    "call_duration", "Time from the receipt of a request to its response.", "method", "transport", "outcome"
)
CALL_WAIT_SECONDS: Final = _histogram(
    "call_wait", "Time from the receipt of a request to the start of its handler.", "transport"
)
CALLS_IN_PROGRESS: Final = _gauge("calls_in_progress", "Requests whose handlers run.", "method", "transport")
TOOL_CALLS: Final = _counter("tool_calls", "Calls of tools that ended.", "tool", "outcome")
TOOL_CALL_SECONDS: Final = _histogram("tool_call_duration", "Duration of the calls of a tool.", "tool")
HANDLER_FAILURES: Final = _counter("handler_failures", "Unexpected exceptions of handlers.")

# Connections, sessions and streams.
CONNECTIONS: Final = _gauge("connections", "Open connections, without HTTP sessions.", "transport")
CONNECTIONS_OPENED: Final = _counter("connections_opened", "Connections and HTTP sessions opened.", "transport")
CONNECTION_FAILURES: Final = _counter("connection_failures", "Connections closed by an internal error.")
SESSIONS: Final = _gauge("sessions", "Open HTTP sessions.")
STREAMS: Final = _gauge("streams", "Open event streams of HTTP responses.")
STREAMS_OPENED: Final = _counter("streams_opened", "Event streams opened.")
LISTEN_STREAMS: Final = _gauge("listen_streams", "Open `subscriptions/listen` requests.")

# Refusals.
HTTP_REFUSED: Final = _counter(
    "http_refused", "HTTP requests refused before a message in them became a request.", "status", "kind"
)
RATE_EXCEEDED: Final = _counter("rate_exceeded", "Requests refused because of a rate limit.", "scope")
UNREADABLE_MESSAGES: Final = _counter("unreadable_messages", "Messages that could not be decoded or matched.")
DROPPED: Final = _counter("dropped", "Messages and reports of progress that were discarded.", "kind")

# Tasks.
TASKS: Final = _gauge("tasks", "Tasks that run in these processes.", "state")
TASKS_ENDED: Final = _counter("tasks_ended", "Tasks that ended.", "state")

# Queues.
QUEUED_CALLS: Final = _gauge("queued_calls", "Requests that wait for their handler to start.")
QUEUED_JOBS: Final = _gauge("queued_jobs", "Plain functions that wait for a thread.")
THREADS_BUSY: Final = _gauge("threads_busy", "Threads that run plain functions.")
QUEUED_PROCESS_JOBS: Final = _gauge("queued_process_jobs", "Calls of tools that wait for a process.")
PROCESSES_BUSY: Final = _gauge("processes_busy", "Processes that run tools.")
QUEUED_RECEIPTS: Final = _gauge("queued_receipts", "Receipts that wait to be written.")
QUEUED_FACTS: Final = _gauge("queued_facts", "Facts that wait for an observer.")

# Store and cluster.
STORE_UP: Final = _gauge(
    "store_up", "Whether the last small write, one every two seconds, reached the store.", per_worker=True
)
STORE_CALL_SECONDS: Final = _histogram("store_call", "Duration of the calls of the store.", "operation", "outcome")
LEASES: Final = _gauge("leases", "Leases held: of the process, of sessions and of tasks.", "kind")
CLUSTER_PEERS: Final = _gauge(
    "cluster_peers", "Other processes that share the store, as each worker sees them.", per_worker=True
)
CLUSTER_CHANGES: Final = _counter("cluster_changes", "Changes of cluster membership.", "step")

# Supervision.
BREAKERS: Final = _gauge(
    "breaker_state", "1 for the current state of a circuit breaker.", "breaker", "state", per_worker=True
)
BREAKER_CHANGES: Final = _counter("breaker_changes", "Circuit breakers that changed to a state.", "breaker", "state")
RESTARTS: Final = _counter("restarts", "Restarts of workers, listeners and other children.", "kind")

# Processes.
INFO: Final = _gauge("info", "1; the labels have the versions.", "version", "python", per_worker=True)
UPTIME_SECONDS: Final = _gauge("uptime_seconds", "Time since the worker started to serve.", per_worker=True)
MEMORY_BYTES: Final = _gauge("resident_memory_bytes", "Resident memory.", per_worker=True)
CPU_SECONDS: Final = _counter("cpu_seconds", "CPU time of the worker and those before it.", per_worker=True)
LOOP_LAG_SECONDS: Final = _gauge(
    "event_loop_lag_seconds", "Largest delay of a timer in the last ten seconds.", per_worker=True
)

# Observers.
FACTS_DROPPED: Final = _counter("facts_dropped", "Facts dropped because an observer was too slow.")
OBSERVER_FAILURES: Final = _counter("observer_failures", "Exceptions of observers.")
OBSERVER_BLOCKED: Final = _counter("observer_blocked", "Times that an immediate observer took more than 0.1 s.")
SERIES_OMITTED: Final = _counter("series_omitted", "Series that were not created, since the memory for them is full.")

FAMILIES: Final = {each.name: each for each in tuple(globals().values()) if isinstance(each, Family)}
"""All families by name, in the order of this module."""
