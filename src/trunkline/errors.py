"""Every exception of Trunkline, one tree. Split first by whose fault it is.

    TrunklineError
    ├── ProtocolError            the peer got it wrong, and is told: has a code and a kind
    │   ├── ParseError               -32700
    │   ├── InvalidRequest           -32600
    │   │   ├── WrongPhase               not now: not initialized, initialized already, closed
    │   │   ├── MessageTooLarge, RequestIdConflict
    │   │   └── HeaderMismatch, MissingCapability, UnsupportedVersion     -32020 to -32022, from 2026-07-28 on
    │   ├── MethodNotFound           -32601
    │   │   └── CapabilityNotSupported
    │   ├── InvalidParams            -32602
    │   │   ├── ToolNotFound, PromptNotFound, CompletionNotFound
    │   │   ├── InvalidArguments         values that break the schema of a tool or prompt
    │   │   ├── InvalidCursor, CursorExpired, InvalidPageSize, PageSizeTooLarge
    │   │   └── InvalidUri, ResourceAccessDenied
    │   ├── ResourceNotFound         -32002 up to 2025-11-25, -32602 after it
    │   ├── UrlElicitationRequired   -32042, in 2025-11-25 only
    │   ├── InternalError            -32603: our own fault, said without details
    │   │   └── RequestTimeout
    │   │       └── ConnectionTimeout, TimeoutReconnecting     and no ping is answered either
    │   └── Refusal                  1001 and up: understood, and declined
    ├── ToolError                a tool failed and wants the model to read why
    ├── PeerError                the peer told us: its code, message and data
    │   ├── ToolFailed               a tool that was called says that it failed
    │   └── BadAnswer                an answer that breaks its method's type, or its tool's schema
    ├── InputFailed              the peer needs to know something first, and we cannot tell
    ├── MisuseError              our caller got it wrong
    │   └── RegistrationError, DuplicateEntry, NotRegistered, TemplateError, ConfigError
    ├── TransportError           the line broke
    │   ├── HandshakeFailed          no conversation came about, and why
    │   └── ConnectionClosed         the line is closed; what is known of the peer's end
    │       └── OutcomeUnknown           and nobody can tell whether what was asked has been done
    ├── StoreError               what we keep could not be kept or read
    └── SupervisionError         what we run could not be kept running
        ├── Degraded                 it died too often in a short time
        └── RetriesExhausted         it could not be reached again

`code` is the default wire code; the tables in `trunkline.protocol` say where a revision wants another.
`kind` is a stable name, the same in every revision; it travels as `data.kind`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "BadAnswer", "CapabilityNotSupported", "CompletionNotFound", "ConfigError", "ConnectionClosed", "ConnectionTimeout",
    "CursorExpired", "Degraded", "DuplicateEntry", "HandshakeFailed", "HeaderMismatch", "InputFailed", "InternalError",
    "InvalidArguments", "InvalidCursor", "InvalidPageSize", "InvalidParams", "InvalidRequest", "InvalidUri",
    "MessageTooLarge", "MethodNotFound", "MissingCapability", "MisuseError", "NotRegistered", "OutcomeUnknown",
    "PageSizeTooLarge", "ParseError", "PeerError", "PromptNotFound", "ProtocolError", "Refusal", "RegistrationError",
    "RequestIdConflict", "RequestTimeout", "ResourceAccessDenied", "ResourceNotFound", "RetriesExhausted", "StoreError",
    "SupervisionError", "TemplateError", "TimeoutReconnecting", "ToolError", "ToolFailed", "ToolNotFound",
    "TransportError", "TrunklineError", "UnsupportedVersion", "UrlElicitationRequired", "WrongPhase",
]  # fmt: skip


class TrunklineError(Exception):
    """Anything that Trunkline raises on purpose."""


# --- the peer got it wrong ---------------------------------------------------------------------


class ProtocolError(TrunklineError):
    """A fault that the peer is told about, as a JSON-RPC error.

    Raise it in a handler to answer with an error of your own: `data` is any JSON and travels as it is, with `kind`
    beside the members of an object; `code` is one of your own, outside of -32768 to -32000.
    """

    code: int = -32603
    kind: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, code: int | None = None, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.data: Any = {"kind": self.kind, **(data or {})} if data is None or isinstance(data, Mapping) else data
        if code is not None:
            self.code = code


class ParseError(ProtocolError):
    """The bytes are not JSON."""

    code = -32700
    kind = "parse_error"


class InvalidRequest(ProtocolError):
    """JSON, but not a message that may stand here."""

    code = -32600
    kind = "invalid_request"


class WrongPhase(InvalidRequest):
    """A message that is not allowed at this point of the conversation."""

    kind = "server_not_initialized"

    def __init__(self, what: str, phase: str, *, kind: str | None = None) -> None:
        super().__init__(f"{what} is not allowed while the session is {phase}", data={"phase": phase})
        if kind is not None:
            self.data["kind"] = kind


class MessageTooLarge(InvalidRequest):
    """A message over the limit of its transport."""

    kind = "message_size_exceeds_maximum"

    def __init__(self, limit: int) -> None:
        data = {"maxSize": limit, "unit": "bytes", "maxSizeReadable": _readable(limit)}
        super().__init__(f"message is larger than the limit of {limit} bytes", data=data)


class RequestIdConflict(InvalidRequest):
    """A request id whose earlier request is still being worked on."""

    kind = "request_id_conflict"

    def __init__(self, request_id: int | str) -> None:
        super().__init__(f"request id {request_id!r} is already in use", data={"id": request_id})


class HeaderMismatch(InvalidRequest):
    """An HTTP header that should repeat what the request says, and is missing, broken or different."""

    code = -32020
    kind = "header_mismatch"


class MissingCapability(InvalidRequest):
    """A request that cannot be done without capabilities of its client, such as `sampling.tools`."""

    code = -32021
    kind = "missing_client_capability"

    def __init__(self, *paths: str) -> None:
        required: dict[str, Any] = {}
        for path in paths:
            inner = required
            for name in path.split("."):
                inner = inner.setdefault(name, {})
        super().__init__(f"the client must declare {', '.join(paths)}", data={"requiredCapabilities": required})


class UnsupportedVersion(InvalidRequest):
    """A request of a revision that is not spoken here."""

    code = -32022
    kind = "unsupported_protocol_version"

    def __init__(self, requested: str, supported: Sequence[str]) -> None:
        data = {"supported": list(supported), "requested": requested}
        super().__init__(f"protocol version {requested[:40]!r} is not supported", data=data)


class MethodNotFound(ProtocolError):
    """No such method, in this direction, at this revision."""

    code = -32601
    kind = "method_not_found"

    def __init__(self, method: str, *, message: str | None = None, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message or f"method {method!r} does not exist here", data={"method": method, **(data or {})})


class CapabilityNotSupported(MethodNotFound):
    """A method whose capability was not agreed upon."""

    kind = "capability_not_supported"

    def __init__(self, method: str, capability: str) -> None:
        message = f"method {method!r} needs the capability {capability!r}, which was not negotiated"
        super().__init__(method, message=message, data={"capability": capability})


class InvalidParams(ProtocolError):
    """Params that do not fit their method."""

    code = -32602
    kind = "invalid_params"

    def __init__(
        self, message: str, *, errors: Sequence[Mapping[str, Any]] = (), data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, data={**({"errors": list(errors)} if errors else {}), **(data or {})})


class ToolNotFound(InvalidParams):
    """A call of a tool that is not there."""

    kind = "tool_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no tool named {name!r}", data={"toolId": name})


class PromptNotFound(InvalidParams):
    """A prompt that is not there."""

    kind = "prompt_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no prompt named {name!r}", data={"name": name})


class CompletionNotFound(InvalidParams):
    """A completion reference to something that is not there."""

    kind = "completion_not_found"

    def __init__(self, reference: str) -> None:
        super().__init__(f"there is nothing to complete at {reference!r}", data={"ref": reference})


class InvalidArguments(InvalidParams):
    """Argument values that break the schema of their tool or prompt."""

    kind = "invalid_tool_arguments"


class InvalidCursor(InvalidParams):
    """A cursor that this server did not hand out."""

    kind = "invalid_cursor"

    def __init__(self) -> None:
        super().__init__("the cursor is not one that this server gave; start again without a cursor")


class CursorExpired(InvalidParams):
    """A cursor that this server gave too long ago."""

    kind = "cursor_expired"

    def __init__(self, lifetime: float) -> None:
        super().__init__(f"the cursor was good for {lifetime:g} s; start again without a cursor")


class InvalidPageSize(InvalidParams):
    """A `limit` that is not a positive whole number."""

    kind = "invalid_page_size"

    def __init__(self, limit: object) -> None:
        super().__init__(f"limit must be a whole number of 1 or more, not {limit!r}")


class PageSizeTooLarge(InvalidParams):
    """A `limit` above the largest page."""

    kind = "page_size_too_large"

    def __init__(self, limit: int, maximum: int) -> None:
        super().__init__(f"limit {limit} is above the largest page of {maximum}", data={"maximum": maximum})


class InvalidUri(InvalidParams):
    """A text that is no absolute URI, or too long a one."""

    kind = "invalid_uri"

    def __init__(self, uri: str, why: str, *, kind: str = "invalid_uri") -> None:
        super().__init__(f"not a usable URI: {why}", data={"uri": uri[:200], "kind": kind})


class ResourceAccessDenied(InvalidParams):
    """A URI that reaches out of what its resource covers."""

    kind = "resource_access_denied"

    def __init__(self, uri: str) -> None:
        super().__init__("that URI reaches outside of what is offered", data={"uri": uri[:200]})


class ResourceNotFound(ProtocolError):
    """A resource that is not there."""

    code = -32002
    kind = "resource_not_found"

    def __init__(self, uri: str) -> None:
        super().__init__(f"there is no resource at {uri!r}", data={"uri": uri})


class UrlElicitationRequired(ProtocolError):
    """Raised by a handler that cannot go on until the user has visited the given URLs."""

    code = -32042
    kind = "url_elicitation_required"

    def __init__(self, elicitations: Sequence[Mapping[str, Any]], message: str | None = None) -> None:
        data = {"elicitations": [dict(e) for e in elicitations]}
        super().__init__(message or "the user must complete a step in a browser first", data=data)

    @classmethod
    def of(cls, *steps: tuple[str, str], message: str | None = None) -> "UrlElicitationRequired":
        """The error for pairs of a message to the user and a URL; each gets an id, under `data["elicitations"]`."""
        import secrets  # seldom needed, and dear to import

        given = [
            {"mode": "url", "message": said, "url": url, "elicitationId": secrets.token_urlsafe(16)}
            for said, url in steps
        ]
        return cls(given, message)


class InternalError(ProtocolError):
    """Our own fault. The peer gets a sentence and an id; the operator finds the rest under that id."""


class RequestTimeout(InternalError):
    """A request that was not done when its time was up."""

    kind = "request_timeout"

    def __init__(self, method: str, elapsed: float) -> None:
        details: dict[str, Any] = {"method": method, "elapsed": elapsed}
        if method == "sampling/createMessage":
            details["kind"] = "sampling_timeout"
        super().__init__(f"{method} was not done after {elapsed:g} s", data=details)
        self.method = method
        self.elapsed = elapsed


class ConnectionTimeout(RequestTimeout):
    """A request that was not answered in time, of a peer that does not answer a ping either: the line is given up."""

    kind = "connection_timeout"


class TimeoutReconnecting(ConnectionTimeout):
    """The same, where the line is being made again."""

    kind = "timeout_reconnecting"


class Refusal(ProtocolError):
    """Understood, and declined: a positive code that is legal in every revision."""

    kind = "refused"

    def __init__(
        self,
        code: int,
        message: str,
        *,
        name: str = "custom_refusal_reason",
        hint: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        details: dict[str, Any] = {"kind": name, "name": name}
        if hint is not None:
            details["hint"] = hint
        if retry_after is not None:
            details["retryAfterMs"] = round(retry_after * 1000)
        super().__init__(message, data=details)
        self.refusal_code = code


# --- a tool failed, or the peer told us --------------------------------------------------------


class ToolError(TrunklineError):
    """Raise this in a tool to tell the model what went wrong: its text is passed on as it stands."""


class PeerError(TrunklineError):
    """The peer answered one of our requests with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class ToolFailed(PeerError):
    """A tool that was called says that it failed; its result holds all it said."""

    def __init__(self, name: str, text: str, result: Any) -> None:
        super().__init__(0, f"tool {name!r} failed: {text}" if text else f"tool {name!r} failed")
        self.args = (self.message,)  # there is no code to show
        self.tool = name
        self.result = result


class InputFailed(TrunklineError):
    """The peer needs something before it can answer, and that is not to be had here."""


class BadAnswer(PeerError):
    """The peer answered with something that its method's type, or its tool's schema, does not allow."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(InternalError.code, f"the answer to {what} is not what it should be: {why}")


# --- our caller got it wrong -------------------------------------------------------------------


class MisuseError(TrunklineError):
    """A mistake in the program that uses Trunkline. Its `kind` is a stable name."""

    def __init__(self, message: str, *, kind: str = "misuse") -> None:
        super().__init__(message)
        self.kind = kind


class RegistrationError(MisuseError, ValueError):
    """A tool, resource, prompt or completion that cannot be offered, and why."""

    def __init__(self, message: str, *, kind: str = "registration_error") -> None:
        super().__init__(message, kind=kind)


class DuplicateEntry(RegistrationError):
    """A second entry under a name that is taken."""

    def __init__(self, what: str, key: str) -> None:
        advice = "remove it first, or construct the server with on_duplicate='replace' or 'warn'"
        super().__init__(f"{what} {key!r} is registered already; {advice}", kind=f"{what}_already_exists")


class NotRegistered(MisuseError, KeyError):
    """A change to an entry that is not there."""

    def __init__(self, what: str, key: str) -> None:
        super().__init__(f"{what} {key!r} is not registered", kind=f"{what}_not_found")

    def __str__(self) -> str:  # KeyError would show the repr of the sentence
        return str(self.args[0])


class TemplateError(RegistrationError):
    """A URI template that cannot be parsed, or could not be matched without guessing."""

    def __init__(self, template: str, why: str, *, kind: str = "invalid_uri_template") -> None:
        super().__init__(f"URI template {template!r}: {why}", kind=kind)


class ConfigError(MisuseError, ValueError):
    """A setting outside of what it may be."""


# --- the line broke ----------------------------------------------------------------------------


class TransportError(TrunklineError):
    """The line to the peer failed; on the way to a conversation, `step` says at which step."""

    step: str | None = None


class HandshakeFailed(TransportError):
    """The line was there, but no conversation came about."""


class ConnectionClosed(TransportError):
    """The line to the peer is closed. Of a peer that was a process of ours it is known how that ended."""

    def __init__(self, message: str, *, status: int | None = None, last_words: str = "", reached: bool = True) -> None:
        super().__init__(f"{message}\nIts last words:\n{last_words}" if last_words else message)
        self.message = message
        self.status = status  # what the process ended with; of a signal, its number below zero
        self.last_words = last_words  # the end of what the process wrote to standard error
        self.reached = reached  # whether what was asked may have reached the peer


class OutcomeUnknown(ConnectionClosed):
    """The line closed before the answer came: what was asked may have been done, or not. It was not asked again."""


# --- what we keep and run ----------------------------------------------------------------------


class StoreError(TrunklineError):
    """What should be kept could not be kept or read."""


class SupervisionError(TrunklineError):
    """What should run could not be kept running."""


class Degraded(SupervisionError):
    """A peer that died too often in too short a time; nobody tries to reach it any more."""


class RetriesExhausted(SupervisionError):
    """A peer that could not be reached again, however often that was tried."""


def _readable(size: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} bytes"
