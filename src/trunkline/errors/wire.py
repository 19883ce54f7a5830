"""Faults of the peer that it is told about, as JSON-RPC errors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from trunkline.errors.base import MisuseError, TrunklineError
from trunkline.errors.suggestions import with_suggestion

__all__ = [
    "CapabilityNotSupported",
    "CompletionNotFound",
    "ConnectionTimeout",
    "ContentTooLarge",
    "CursorExpired",
    "HeaderMismatch",
    "InsufficientScope",
    "InternalError",
    "Interrupted",
    "InvalidArguments",
    "InvalidCursor",
    "InvalidPageSize",
    "InvalidParams",
    "InvalidRequest",
    "InvalidUri",
    "MessageTooLarge",
    "MethodNotFound",
    "MissingCapability",
    "NotNow",
    "NotPermitted",
    "PageSizeTooLarge",
    "ParseError",
    "PromptNotFound",
    "ProtocolError",
    "Refusal",
    "RequestIdConflict",
    "RequestTimeout",
    "ResourceAccessDenied",
    "ResourceNotFound",
    "TimeoutReconnecting",
    "ToolNotFound",
    "UnsupportedVersion",
    "UrlElicitationRequired",
    "WrongPhase",
]


_EXTENSIONS: Final = "extensions."
_RESERVED: Final = range(-32768, -31999)  # by JSON-RPC
_SPECIFIED: Final = frozenset({-32700, -32600, -32601, -32602, -32603, -32002, -32020, -32021, -32022, -32042})
_FIRST_REFUSAL: Final = 1001
_FIRST_OWN_REFUSAL: Final = 1090


class ProtocolError(TrunklineError):
    """A fault that the peer is told about, as a JSON-RPC error.

    Raise it in a handler to answer with an error of your own: `data` is any JSON and travels as it is, with `kind`
    beside the members of an object; `code` is one of your own, outside of -32768 to -32000.
    """

    code: int = -32603
    kind: ClassVar[str] = "internal_error"

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the code of a class of errors. Raise `MisuseError` for one that neither MCP nor JSON-RPC allows."""
        super().__init_subclass__(**options)
        if cls.code not in _SPECIFIED:
            _check_code(cls.code)

    @classmethod
    def rebuilt(cls, message: str, code: int, data: Any = None) -> "ProtocolError":
        """Rebuild an error that was stored or received, with whatever code it had."""
        error = ProtocolError(message, data=data)
        error.code = code
        return error

    def __init__(self, message: str, *, code: int | None = None, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.data: Any = {"kind": self.kind, **(data or {})} if data is None or isinstance(data, Mapping) else data
        if code is not None:
            _check_code(code)
            self.code = code


def _check_code(code: Any) -> None:
    """Raise `MisuseError` for a code that an application may not choose."""
    if not isinstance(code, int) or isinstance(code, bool) or code in _RESERVED:
        raise MisuseError(
            f"an error cannot have the code {code!r}: JSON-RPC reserves {_RESERVED[0]} to {_RESERVED[-1]}; choose an "
            "integer outside of that range, or raise the error that stands for a reserved code, such as InvalidParams"
        )


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
        data = {"maxSize": limit, "unit": "bytes", "maxSizeReadable": _format_size(limit)}
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
            extension = path.removeprefix(_EXTENSIONS)  # whose name may have points
            names = path.split(".") if extension == path else [_EXTENSIONS[:-1], extension]
            for name in names:
                inner = inner.setdefault(name, {})
        super().__init__(f"the client must declare {', '.join(paths)}", data={"requiredCapabilities": required})


class UnsupportedVersion(InvalidRequest):
    """A request of a revision that is not spoken here."""

    code = -32022
    kind = "unsupported_protocol_version"

    def __init__(self, requested: str, supported: Sequence[str]) -> None:
        data = {"supported": list(supported), "requested": requested}
        super().__init__(f"protocol version {requested[:40]!r} is not supported", data=data)


class InsufficientScope(InvalidRequest):
    """A request of somebody known, whose token does not cover it. Over HTTP that is status 403 and a challenge."""

    kind = "authorization_failed"

    def __init__(self, what: str, scopes: Sequence[str]) -> None:
        super().__init__(f"{what} needs the scope {' '.join(scopes)!r}", data={"scopes": list(scopes)})


class NotPermitted(InvalidRequest):
    """A request for something that whoever asks may not have."""

    kind = "insufficient_permissions"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not for you")


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

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        """`known` are the tools that the caller may see, for a suggestion."""
        super().__init__(with_suggestion(f"there is no tool named {name!r}", name, known), data={"toolId": name})


class PromptNotFound(InvalidParams):
    """A prompt that is not there."""

    kind = "prompt_not_found"

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        """`known` are the prompts that the caller may see, for a suggestion."""
        super().__init__(with_suggestion(f"there is no prompt named {name!r}", name, known), data={"name": name})


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


class ContentTooLarge(InvalidParams):
    """Content over a limit: the file of a resource, or what a handler returned."""

    kind = "content_too_large"

    def __init__(self, size: int, limit: int, *, setting: str, unit: str = "bytes", kind: str | None = None) -> None:
        data: dict[str, Any] = {"size": size, "maxSize": limit, "unit": unit}
        if kind is not None:
            data["kind"] = kind
        super().__init__(f"content of {size} {unit} is above the limit of {limit} ({setting})", data=data)


class ResourceNotFound(ProtocolError):
    """A resource that is not there."""

    code = -32002
    kind = "resource_not_found"

    def __init__(self, uri: str, known: Iterable[str] = ()) -> None:
        """`known` are the resources that the caller may see, for a suggestion."""
        super().__init__(with_suggestion(f"there is no resource at {uri!r}", uri, known), data={"uri": uri})


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


class Interrupted(InternalError):
    """A request whose handler had been started when its connection, session or process ended.

    `data.interrupted` tells it apart from the final `outcome_unknown` of an idempotency key or a task: the same request
    may be sent again if it is idempotent, or carries a key.
    """

    kind = "outcome_unknown"

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; whether this request was done is not known", data={"interrupted": True})


class RequestTimeout(InternalError, TimeoutError):
    """A request that was not done when its time was up. Also a `TimeoutError`."""

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
    """Understood, and declined: a code from 1001 up, which is legal in every revision.

    1001 to 1089 have a meaning that is the same everywhere; codes of your own start at 1090.
    """

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
        if type(code) is not int or code < _FIRST_REFUSAL:
            raise MisuseError(
                f"a refusal cannot have the code {code!r}: it is an integer from {_FIRST_REFUSAL} up, and from "
                f"{_FIRST_OWN_REFUSAL} up for a reason of your own"
            )
        details: dict[str, Any] = {"kind": name, "name": name}
        if hint is not None:
            details["hint"] = hint
        if retry_after is not None:
            details["retryAfterMs"] = round(retry_after * 1000)
        super().__init__(message, data=details)
        self.refusal_code = code


class NotNow(Refusal):
    """Declined for now: nothing of it was done, and it may be asked again in a moment."""

    def __init__(self, message: str, *, retry_after: float | None = 1.0) -> None:
        super().__init__(1008, message, name="temporarily_unavailable", retry_after=retry_after)


def _format_size(size: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} bytes"
