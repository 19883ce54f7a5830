"""What a program that uses Trunkline is told: by the peer, of its own mistakes, of the line, and of what is kept."""

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
    "NotRegistered",
    "OutcomeUnknown",
    "PeerError",
    "RegistrationError",
    "RetriesExhausted",
    "StoreError",
    "StoreUnavailable",
    "StoreUnusable",
    "SupervisionError",
    "TemplateError",
    "ToolError",
    "ToolFailed",
    "TransportError",
]

_SHOWN_LINES: Final = 20  # of what a process wrote to standard error

# --- a tool failed, or the peer told us --------------------------------------------------------


class ToolError(TrunklineError):
    """Raise this in a tool to tell the model what went wrong: its text is passed on as it stands."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class PeerError(TrunklineError):
    """The peer answered one of our requests with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class ToolFailed(PeerError):
    """A tool that was called says that it failed; its result holds all it said."""

    lines = True

    def __init__(self, name: str, text: str, result: Any) -> None:
        super().__init__(0, f"tool {name!r} failed: {text}" if text else f"tool {name!r} failed")
        self.args = (self.message,)  # there is no code to show
        self.tool = name
        self.result = result


class TaskCancelled(PeerError):
    """A task has no result, since it was cancelled."""

    def __init__(self, task_id: str) -> None:
        super().__init__(InternalError.code, f"task {task_id} was cancelled", {"kind": "task_cancelled"})
        self.task_id = task_id


class InputFailed(TrunklineError):
    """The peer needs something before it can answer, and that is not to be had here."""


class BadAnswer(PeerError):
    """The peer answered with something that its method's type, or its tool's schema, does not allow."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(InternalError.code, f"the answer to {what} is not what it should be: {why}")


# --- our caller got it wrong -------------------------------------------------------------------


class RegistrationError(MisuseError, ValueError):
    """A tool, resource, prompt or completion that cannot be offered, and why."""

    def __init__(self, message: str, *, kind: str = "registration_error") -> None:
        super().__init__(message, kind=kind)


class DuplicateEntry(RegistrationError):
    """A second entry under a name that is taken."""

    def __init__(self, what: str, key: str) -> None:
        advice = "remove it first, or make the server with settings=Settings(on_duplicate='replace'), or 'warn'"
        super().__init__(f"{what} {key!r} is registered already; {advice}", kind=f"{what}_already_exists")


class NotRegistered(MisuseError, KeyError):
    """A change to an entry that is not there."""

    def __init__(self, what: str, key: str, known: Iterable[str] = ()) -> None:
        super().__init__(with_suggestion(f"{what} {key!r} is not registered", key, known), kind=f"{what}_not_found")

    def __str__(self) -> str:  # KeyError would show the repr of the sentence
        return str(self.args[0])


class TemplateError(RegistrationError):
    """A URI template that cannot be parsed, or could not be matched without guessing."""

    def __init__(self, template: str, why: str, *, kind: str = "invalid_uri_template") -> None:
        super().__init__(f"URI template {template!r}: {why}", kind=kind)


class ConfigError(MisuseError, ValueError):
    """A setting outside of what it may be."""


# --- the line broke ----------------------------------------------------------------------------


class TransportError(TrunklineError, ConnectionError):
    """The line to the peer failed; on the way to a conversation, `step` says where. Also a `ConnectionError`."""

    step: str | None = None


class HandshakeFailed(TransportError):
    """The line was there, but no conversation came about."""


class ConnectionClosed(TransportError):
    """The line to the peer is closed. Of a peer that was a process of ours it is known how that ended."""

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
        self.status = status  # what the process ended with; of a signal, its number below zero
        self.last_words = last_words  # the end of what the process wrote to standard error
        self.reached = reached  # whether what was asked may have reached the peer
        self.too_large = too_large  # an answer over the limit closed it: asking again would do the same


class OutcomeUnknown(ConnectionClosed):
    """What was asked may have been done, or not: the line closed before the answer came, or the server cannot tell."""


class AuthorizationFailed(TransportError, PermissionError):
    """The server wants to know who calls, and that could not be settled. Also a `PermissionError`.

    `hop` is where it failed, a stable name such as `resource-metadata`; `clause` is the rule that was broken there;
    `passing` says that it may fare better later."""

    def __init__(self, message: str, *, hop: str, clause: str = "", passing: bool = False) -> None:
        super().__init__(message)
        self.hop = hop
        self.clause = clause
        self.passing = passing


# --- what we keep and run ----------------------------------------------------------------------


class StoreError(TrunklineError):
    """What should be kept could not be kept or read."""


class Conflict(StoreError):
    """A write that was meant for another version of its item. Nothing of its commit was kept.
    0 is the version of what is not there."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        is_at = f"is at version {found}" if found else "is not there"
        super().__init__(f"{key!r} {is_at}, and should {f'be at {expected}' if expected else 'not be there'}")
        self.key = key
        self.expected = expected
        self.found = found


class Fenced(StoreError):
    """A lease that has run out, was given back or is somebody else's by now. Nothing of its commit was kept."""

    def __init__(self, name: str, token: int) -> None:
        super().__init__(f"the lease {name!r} is no longer held under token {token}")
        self.name = name
        self.token = token


class StoreUnavailable(StoreError):
    """A store that cannot be reached or does not answer now. Whether a commit that ended so was kept is not known."""


class StoreUnusable(StoreError):
    """What a store should work with is broken, or not its own; trying again does not help."""


class SupervisionError(TrunklineError, ConnectionError):
    """What should run could not be kept running. Also a `ConnectionError`."""


class Degraded(SupervisionError):
    """A peer that died too often in too short a time; nobody tries to reach it any more."""


class RetriesExhausted(SupervisionError):
    """A peer that could not be reached again, however often that was tried."""
