"""Exceptions for the program that uses Trunkline: peer, misuse, transport, store and supervision errors."""

from collections.abc import Iterable
from typing import Any, Final

from trunkline.errors.base import MisuseError, TrunklineError
from trunkline.errors.suggestions import with_suggestion
from trunkline.errors.wire import InternalError

__all__ = [
    "AuthorizationFailed",
    "BadAnswer",
    "ConfigError",
    "Conflict",
    "ConnectionClosed",
    "Degraded",
    "DuplicateEntry",
    "Fenced",
    "HandshakeFailed",
    "InputFailed",
    "MisuseError",
    "NotExecuted",
    "NotRegistered",
    "OutcomeUnknown",
    "PeerError",
    "RegistrationError",
    "RequestCancelled",
    "RetriesExhausted",
    "StoreError",
    "StoreUnavailable",
    "StoreUnusable",
    "SupervisionError",
    "TemplateError",
    "ToolBlocked",
    "ToolError",
    "ToolFailed",
    "TransportError",
]

_SHOWN_LINES: Final = 20  # of a process's standard error

# --- errors of tools and of the peer --------------------------------------------------------


class ToolError(TrunklineError):
    """Raise this in a tool to report a failure to the model; the result contains the message unchanged."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class PeerError(TrunklineError):
    """The peer answered a request of ours with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class ToolFailed(PeerError):
    """A called tool reported a failure; `result` is its whole result."""

    lines = True

    def __init__(self, name: str, text: str, result: Any) -> None:
        super().__init__(0, f"tool {name!r} failed: {text}" if text else f"tool {name!r} failed")
        self.args = (self.message,)  # a tool failure has no code
        self.tool = name
        self.result = result


class RequestCancelled(PeerError):
    """The server cancelled a request of ours and does not answer it. Only servers of a profile do so."""

    def __init__(self, method: str, reason: str | None) -> None:
        why = "" if reason is None else f": {reason}"
        data = {"kind": "request_cancelled", "reason": reason}
        super().__init__(InternalError.code, f"the server cancelled {method}{why}", data)
        self.method = method
        self.reason = reason


class TaskCancelled(PeerError):
    """A task was cancelled and has no result."""

    def __init__(self, task_id: str) -> None:
        super().__init__(InternalError.code, f"task {task_id} was cancelled", {"kind": "task_cancelled"})
        self.task_id = task_id


class ToolBlocked(TrunklineError):
    """A tool is not the one that was trusted, and is blocked until a person approves it. `changes` are lines that
    describe the differences; `message` leaves them out, so that it can be shown to a model."""

    lines = True

    def __init__(self, server: str, tool: str, reason: str, changes: tuple[str, ...] = ()) -> None:
        message = f"tool {tool!r} of {server!r} is blocked: {reason}; a person can approve it with `trunkline pins`"
        super().__init__("\n".join((message, *changes)))
        self.message = message
        self.server = server
        self.tool = tool
        self.reason = reason
        self.changes = changes


class InputFailed(TrunklineError):
    """The peer requests input before it answers, and this side cannot provide it."""


class BadAnswer(PeerError):
    """The response of the peer violates its method's type or its tool's output schema."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(InternalError.code, f"the response to {what} is not valid: {why}")


# --- misuse by the caller -------------------------------------------------------------------


class RegistrationError(MisuseError, ValueError):
    """A tool, resource, prompt or completion that cannot be registered."""

    def __init__(self, message: str, *, kind: str = "registration_error") -> None:
        super().__init__(message, kind=kind)


class DuplicateEntry(RegistrationError):
    """A second entry with the key of a registered one."""

    def __init__(self, what: str, key: str) -> None:
        advice = "remove it first, or make the server with settings=Settings(on_duplicate='replace'), or 'warn'"
        super().__init__(f"{what} {key!r} is already registered; {advice}", kind=f"{what}_already_exists")


class NameClash(RegistrationError):
    """Two entries of composed servers with the same key."""

    def __init__(self, what: str, key: str, one: str, other: str) -> None:
        advice = "mount with a prefix=, rename one of them with transform=, or leave one out with where="
        super().__init__(
            f"{what} {key!r} of {one} clashes with that of {other}; {advice}", kind=f"{what}_already_exists"
        )


class NotRegistered(MisuseError, KeyError):
    """A change to an entry that does not exist."""

    def __init__(self, what: str, key: str, known: Iterable[str] = ()) -> None:
        super().__init__(with_suggestion(f"{what} {key!r} is not registered", key, known), kind=f"{what}_not_found")

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0])


class TemplateError(RegistrationError):
    """A URI template that is malformed, or that cannot be matched unambiguously."""

    def __init__(self, template: str, why: str, *, kind: str = "invalid_uri_template") -> None:
        super().__init__(f"URI template {template!r}: {why}", kind=kind)


class ConfigError(MisuseError, ValueError):
    """An invalid setting."""


# --- transport ----------------------------------------------------------------------------


class TransportError(TrunklineError, ConnectionError):
    """The connection to the peer failed; while connecting, `step` names the failed step. Also a `ConnectionError`."""

    step: str | None = None


class HandshakeFailed(TransportError):
    """The connection was established, but the handshake failed."""


class ConnectionClosed(TransportError):
    """The connection to the peer is closed. For a child process, `status` and `last_words` describe its end."""

    lines = True

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        last_words: str = "",
        reached: bool = True,
        too_large: bool = False,
    ) -> None:
        shown = "\n".join(last_words.split("\n")[-_SHOWN_LINES:])
        super().__init__(f"{message}\nThe end of its standard error:\n{shown}" if shown else message)
        self.message = message
        self.status = status  # exit status of the process; negative for a signal
        self.last_words = last_words  # the end of the process's standard error
        self.reached = reached  # whether the request may have reached the peer
        self.too_large = too_large  # a response over the size limit closed it: a retry would fail again


class OutcomeUnknown(ConnectionClosed):
    """The request may or may not have been executed: the connection closed before the response, or the server does not
    know."""


class AuthorizationFailed(TransportError, PermissionError):
    """The server requires authorization, and obtaining it failed. Also a `PermissionError`.

    `hop` is a stable name of the step that failed, such as `resource-metadata`; `clause` is the violated rule;
    `passing` says that a later attempt may succeed.
    """

    def __init__(self, message: str, *, hop: str, clause: str = "", passing: bool = False) -> None:
        super().__init__(message)
        self.hop = hop
        self.clause = clause
        self.passing = passing


# --- stores and supervision ----------------------------------------------------------------------


class StoreError(TrunklineError):
    """Reading or writing stored data failed."""


class Conflict(StoreError):
    """A write expected another version of its item. Its commit had no effect. Version 0 means that the item does not
    exist."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        is_at = f"is at version {found}" if found else "does not exist"
        super().__init__(f"{key!r} {is_at}, but should {f'be at {expected}' if expected else 'not exist'}")
        self.key = key
        self.expected = expected
        self.found = found


class Fenced(StoreError):
    """The lease of a writer has expired, was released or belongs to another holder. Its commit had no effect."""

    def __init__(self, name: str, token: int) -> None:
        super().__init__(f"the lease {name!r} is no longer held under token {token}")
        self.name = name
        self.token = token


class StoreUnavailable(StoreError):
    """The store is unreachable or does not respond. An interrupted commit may or may not have taken effect."""


class NotExecuted(StoreUnavailable):
    """The store refused an operation, or never received it. It had no effect."""


class StoreUnusable(StoreError):
    """The data of a store is damaged or belongs to another program; a retry does not help."""


class SupervisionError(TrunklineError, ConnectionError):
    """A supervised peer could not be kept running. Also a `ConnectionError`."""


class Degraded(SupervisionError):
    """A peer failed too often in too short a time; reconnection has stopped."""


class RetriesExhausted(SupervisionError):
    """A peer could not be reached within the allowed number of attempts."""
