"""METHODS: the table of all methods and notifications, one row each.

A row has the receiver, the names of the types of params and result, the required capability, the time limit, and the
revisions that define it. Guards, dispatch and the documentation are derived from this table.
"""

from collections.abc import Iterator
from enum import Enum, auto
from importlib import import_module
from typing import Any, Final

from msgspec import Struct

from trunkline.config import Settings
from trunkline.protocol import types
from trunkline.protocol.lifecycle import Signal
from trunkline.protocol.revisions import HANDSHAKE, Revision

__all__ = [
    "ALIASES",
    "METHODS",
    "PREFIX",
    "Method",
    "Side",
    "TimeLimit",
    "find_method",
    "methods_for",
]


class Side(Enum):
    """The sides of a connection."""

    SERVER = auto()
    CLIENT = auto()
    EITHER = auto()

    @property
    def other(self) -> "Side":
        """The opposite side."""
        return {Side.SERVER: Side.CLIENT, Side.CLIENT: Side.SERVER}.get(self, Side.EITHER)


class TimeLimit(Enum):
    """Classes of time limits for responses."""

    HANDSHAKE = auto()  # the other side may still be starting
    QUICK = auto()  # ping and lists
    WORK = auto()  # may run user code
    PERSON = auto()  # waits for a person
    ENDLESS = auto()  # no limit: the response waits for another event

    def seconds(self, settings: Settings) -> float | None:
        """Return the time limit in seconds, by the settings."""
        match self:
            case TimeLimit.WORK:
                return settings.work_timeout
            case TimeLimit.QUICK:
                return settings.quick_timeout
            case TimeLimit.HANDSHAKE:
                return settings.initialize_timeout
            case TimeLimit.PERSON:
                return settings.person_timeout
            case _:  # ENDLESS
                return None


class Method(Struct, frozen=True):
    """A row of the table: the properties of one method."""

    name: str
    receiver: Side
    params_name: str  # of its type in `protocol.types`, which is imported when the method is first used
    result_name: str | None = None  # None: a notification
    capability: str | None = None  # required capability: the receiver's for a request, the sender's for a notification
    time_limit: TimeLimit = TimeLimit.WORK
    fails_as_result: bool = False  # a failure of user code is a failed result, not an error
    since: Revision = Revision.V2024_11_05
    until: Revision | None = None
    profile: str | None = None  # the profile that defines it, if no revision does
    widened_by: str | None = None  # the profile that extends it to every revision of the handshake era
    custom: bool = False  # outside of the specification, and so not in the table

    @property
    def is_request(self) -> bool:
        """Whether it has a response."""
        return self.result_name is not None

    @property
    def family(self) -> str:
        """The feature that it belongs to, such as "tools" for `tools/call`; the name itself for `ping`."""
        return self.name.removeprefix(PREFIX).partition("/")[0]

    @property
    def params(self) -> type[Any]:
        """The type of its params."""
        return _find_type(self.params_name)

    @property
    def result(self) -> type[Any] | None:
        """The type of its result; None for a notification."""
        return None if self.result_name is None else _find_type(self.result_name)

    @property
    def receive_signal(self) -> Signal:
        """The lifecycle signal of receiving it."""
        return self._signals[0]

    @property
    def send_signal(self) -> Signal:
        """The lifecycle signal of sending it."""
        return self._signals[1]

    @property
    def _signals(self) -> tuple[Signal, Signal]:
        return _SIGNALS.get(self.name) or (_CALL if self.is_request else _NOTICE)

    def exists_in(self, revision: Revision, profile: str | None = None) -> bool:
        """Return whether the revision or the profile defines it."""
        if self.widened_by is not None and self.widened_by == profile and revision in HANDSHAKE:
            return True
        return (
            self.profile in {None, profile}
            and self.since <= revision
            and (self.until is None or revision <= self.until)
        )

    def is_received_by(self, side: Side) -> bool:
        """Return whether that side may receive it."""
        return self.receiver in {side, Side.EITHER}


def _find_type(name: str) -> type[Any]:
    """Import a type of `protocol.types`, or of one of its modules."""
    module, _, name = name.rpartition(".")
    return getattr(import_module(f"{types.__name__}.{module}") if module else types, name)


_CALL: Final = (Signal.RECV_CALL, Signal.SEND_CALL)
_NOTICE: Final = (Signal.RECV_NOTICE, Signal.SEND_NOTICE)
_SIGNALS: Final = {
    "initialize": (Signal.RECV_INITIALIZE, Signal.SEND_INITIALIZE),
    "notifications/initialized": (Signal.RECV_INITIALIZED, Signal.SEND_INITIALIZED),
    "ping": (Signal.RECV_PING, Signal.SEND_PING),
    "shutdown": (Signal.DRAIN, Signal.DRAIN),
    "notifications/shutdown": (Signal.DRAIN, Signal.DRAIN),
}

SERVER, CLIENT, EITHER = Side.SERVER, Side.CLIENT, Side.EITHER
V2025_06_18, V2025_11_25, V2026_07_28 = Revision.V2025_06_18, Revision.V2025_11_25, Revision.V2026_07_28
_LAST: Final = V2025_11_25  # the last revision of the handshake era

METHODS: Final = (
    Method("initialize", SERVER, "InitializeParams", "InitializeResult", time_limit=TimeLimit.HANDSHAKE, until=_LAST),
    Method("notifications/initialized", SERVER, "Empty", until=_LAST),
    Method("ping", EITHER, "Empty", "Empty", time_limit=TimeLimit.QUICK, until=_LAST),
    Method("shutdown", SERVER, "Empty", "Empty", time_limit=TimeLimit.ENDLESS, until=_LAST, profile="erlmcp"),
    Method("notifications/shutdown", SERVER, "Empty", until=_LAST, profile="erlmcp"),  # also accepted by its bare name
    Method("notifications/cancelled", EITHER, "CancelledParams"),
    Method("notifications/progress", EITHER, "ProgressParams"),
    Method("server/discover", SERVER, "Empty", "DiscoverResult", time_limit=TimeLimit.QUICK, since=V2026_07_28),
    # tools
    Method("tools/list", SERVER, "PaginatedParams", "ListToolsResult", "tools", TimeLimit.QUICK),
    Method("tools/call", SERVER, "CallToolParams", "CallToolResult", "tools", fails_as_result=True),
    Method("notifications/tools/list_changed", CLIENT, "Empty", capability="tools.listChanged"),
    # resources
    Method("resources/list", SERVER, "PaginatedParams", "ListResourcesResult", "resources", TimeLimit.QUICK),
    Method("resources/templates/list", SERVER, "PaginatedParams", "ListResourceTemplatesResult", "resources",
           TimeLimit.QUICK),
    Method("resources/read", SERVER, "ReadResourceParams", "ReadResourceResult", "resources"),
    Method("resources/subscribe", SERVER, "SubscribeParams", "Empty", "resources.subscribe", until=_LAST),
    Method("resources/unsubscribe", SERVER, "UnsubscribeParams", "Empty", "resources.subscribe", until=_LAST),
    Method("notifications/resources/list_changed", CLIENT, "Empty", capability="resources.listChanged"),
    Method("notifications/resources/updated", CLIENT, "ResourceUpdatedParams", capability="resources.subscribe"),
    # prompts
    Method("prompts/list", SERVER, "PaginatedParams", "ListPromptsResult", "prompts", TimeLimit.QUICK),
    Method("prompts/get", SERVER, "GetPromptParams", "GetPromptResult", "prompts"),
    Method("notifications/prompts/list_changed", CLIENT, "Empty", capability="prompts.listChanged"),
    # subscriptions
    Method("subscriptions/listen", SERVER, "ListenParams", "Empty", time_limit=TimeLimit.ENDLESS, since=V2026_07_28),
    Method("notifications/subscriptions/acknowledged", CLIENT, "SubscriptionsAcknowledgedParams", since=V2026_07_28),
    # completion and logging
    Method("completion/complete", SERVER, "CompleteParams", "CompleteResult", "completions"),
    Method("logging/setLevel", SERVER, "SetLevelParams", "Empty", "logging", until=_LAST),
    Method("notifications/message", CLIENT, "LoggingMessageParams", capability="logging"),
    # requests of a server to a client
    Method("sampling/createMessage", CLIENT, "CreateMessageParams", "CreateMessageResult", "sampling", until=_LAST),
    Method("roots/list", CLIENT, "Empty", "ListRootsResult", "roots", TimeLimit.QUICK, until=_LAST),
    Method("notifications/roots/list_changed", SERVER, "Empty", capability="roots.listChanged", until=_LAST),
    Method(
        "elicitation/create", CLIENT, "ElicitParams", "ElicitResult", "elicitation", TimeLimit.PERSON,
        since=V2025_06_18, until=_LAST,
    ),
    Method(
        "notifications/elicitation/complete", CLIENT, "ElicitationCompleteParams",
        since=V2025_11_25, until=_LAST,
    ),
    # tasks of 2025-11-25; later an extension, which has some methods of the same name
    Method("tasks/get", EITHER, "GetTaskParams", "AnyTaskResult", "tasks", since=V2025_11_25, widened_by="erlmcp"),
    Method("tasks/result", EITHER, "GetTaskPayloadParams", "GetTaskPayloadResult", "tasks", TimeLimit.ENDLESS,
           since=V2025_11_25, until=_LAST, widened_by="erlmcp"),
    Method("tasks/list", EITHER, "PaginatedParams", "ListTasksResult", "tasks.list", TimeLimit.QUICK,
           since=V2025_11_25, until=_LAST, widened_by="erlmcp"),
    Method("tasks/cancel", EITHER, "CancelTaskParams", "AnyTaskResult", "tasks.cancel", since=V2025_11_25,
           widened_by="erlmcp"),
    Method("tasks/create", SERVER, "tasks_founding.CreateFoundingTaskParams",
           "tasks_founding.CreateFoundingTaskResult", "tasks",
           until=_LAST, profile="erlmcp"),
    Method("tasks/update", SERVER, "tasks_extension.UpdateTaskParams", "Empty", "tasks", since=V2026_07_28),
    Method("notifications/tasks", CLIENT, "tasks_extension.DetailedTask", since=V2026_07_28),
    Method("notifications/tasks/status", EITHER, "TaskStatusParams", capability="tasks", since=V2025_11_25, until=_LAST,
           widened_by="erlmcp"),
)  # fmt: skip

PREFIX: Final = "notifications/"
"""The prefix of notification names."""
ALIASES: Final = {row.name.removeprefix(PREFIX): row.name for row in METHODS if row.name.startswith(PREFIX)}
"""Notification names without prefix, which some peers send. They are always accepted; only a profile sends them."""

_BY_NAME: Final = {row.name: row for row in METHODS}


def find_method(name: str) -> Method | None:
    """Return the row of a method, in any revision; None if it is unknown."""
    return _BY_NAME.get(name)


def methods_for(revision: Revision, receiver: Side, profile: str | None = None) -> Iterator[Method]:
    """Yield the rows that a revision or profile defines, and that this side may receive."""
    return (row for row in METHODS if row.exists_in(revision, profile) and row.is_received_by(receiver))
