"""Errors that are sent to the peer as JSON-RPC errors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from trunkline.errors.base import MisuseError, TrunklineError, again
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
    "ModelNotAvailable",
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
    "SamplingFailed",
    "SamplingRateLimited",
    "SamplingTimeout",
    "TimeoutReconnecting",
    "ToolNotFound",
    "UnsupportedVersion",
    "UrlElicitationRequired",
    "WrongPhase",
]


_EXTENSIONS: Final = "extensions."
_RESERVED: Final = range(-32768, -31999)  # by JSON-RPC
_SPECIFIED: Final = frozenset({-32700, -32600, -32601, -32602, -32603, -32002, -32020, -32021, -32022, -32042})
_UNNAMED_REFUSAL: Final = "custom_refusal_reason"


class ProtocolError(TrunklineError):
    """An error that is sent to the peer as a JSON-RPC error.

    Raise it in a handler to answer with an error of your own. `data` is any JSON value and is sent unchanged; to an
    object, `kind` is added. A `code` of your own lies outside of -32768 to -32000.
    """

    code: int = -32603
    kind: ClassVar[str] = "internal_error"

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the code of an error class; raise `MisuseError` for one that neither MCP nor JSON-RPC allows."""
        super().__init_subclass__(**options)
        if cls.code not in _SPECIFIED:
            _check_code(cls.code)

    @classmethod
    def rebuilt(cls, message: str, code: int, data: Any = None) -> "ProtocolError":
        """Rebuild a stored or received error with its original code."""
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
    """The bytes are not valid JSON."""

    code = -32700
    kind = "parse_error"


class InvalidRequest(ProtocolError):
    """A JSON value that is not a valid message here."""

    code = -32600
    kind = "invalid_request"


class WrongPhase(InvalidRequest):
    """A message that is illegal in the current phase of the session."""

    kind = "server_not_initialized"

    def __init__(self, what: str, phase: str, *, kind: str | None = None) -> None:
        super().__init__(f"{what} is not allowed while the session is {phase}", data={"phase": phase})
        if kind is not None:
            self.data["kind"] = kind


class MessageTooLarge(InvalidRequest):
    """A message over the size limit of its transport."""

    kind = "message_size_exceeds_maximum"

    def __init__(self, limit: int) -> None:
        data = {"maxSize": limit, "unit": "bytes", "maxSizeReadable": _format_size(limit)}
        super().__init__(f"message is larger than the limit of {limit} bytes", data=data)


class RequestIdConflict(InvalidRequest):
    """A request id that a running request uses already."""

    kind = "request_id_conflict"

    def __init__(self, request_id: int | str) -> None:
        super().__init__(f"request id {request_id!r} is already in use", data={"id": request_id})


class HeaderMismatch(InvalidRequest):
    """An HTTP header that must repeat a value of the request is missing, malformed or different."""

    code = -32020
    kind = "header_mismatch"


class MissingCapability(InvalidRequest):
    """A request that needs client capabilities, such as `sampling.tools`."""

    code = -32021
    kind = "missing_client_capability"

    def __init__(self, *paths: str) -> None:
        required: dict[str, Any] = {}
        for path in paths:
            inner = required
            extension = path.removeprefix(_EXTENSIONS)  # the name of an extension may contain dots
            names = path.split(".") if extension == path else [_EXTENSIONS[:-1], extension]
            for name in names:
                inner = inner.setdefault(name, {})
        super().__init__(f"the client must declare {', '.join(paths)}", data={"requiredCapabilities": required})


class UnsupportedVersion(InvalidRequest):
    """A request of an unsupported protocol revision."""

    code = -32022
    kind = "unsupported_protocol_version"

    def __init__(self, requested: str, supported: Sequence[str]) -> None:
        data = {"supported": list(supported), "requested": requested}
        super().__init__(f"protocol version {requested[:40]!r} is not supported", data=data)


class InsufficientScope(InvalidRequest):
    """The caller's token lacks a scope. Over HTTP the response is status 403 with a challenge."""

    kind = "authorization_failed"

    def __init__(self, what: str, scopes: Sequence[str]) -> None:
        super().__init__(f"{what} needs the scope {' '.join(scopes)!r}", data={"scopes": list(scopes)})


class NotPermitted(InvalidRequest):
    """The caller is not authorized for this request."""

    kind = "insufficient_permissions"

    def __init__(self, what: str) -> None:
        super().__init__(f"access denied: the caller is not authorized for {what}")


class MethodNotFound(ProtocolError):
    """The method does not exist in this direction at this revision."""

    code = -32601
    kind = "method_not_found"

    def __init__(self, method: str, *, message: str | None = None, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message or f"method {method!r} does not exist here", data={"method": method, **(data or {})})


class CapabilityNotSupported(MethodNotFound):
    """A method whose capability was not negotiated."""

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
    """A call of an unknown tool."""

    kind = "tool_not_found"

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        """`known` are the tools that the caller may see, for a suggestion."""
        super().__init__(with_suggestion(f"there is no tool named {name!r}", name, known), data={"toolId": name})


class PromptNotFound(InvalidParams):
    """An unknown prompt."""

    kind = "prompt_not_found"

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        """`known` are the prompts that the caller may see, for a suggestion."""
        super().__init__(with_suggestion(f"there is no prompt named {name!r}", name, known), data={"name": name})


class CompletionNotFound(InvalidParams):
    """A completion reference to an unknown entry."""

    kind = "completion_not_found"

    def __init__(self, reference: str) -> None:
        super().__init__(f"there is nothing to complete at {reference!r}", data={"ref": reference})


class InvalidArguments(InvalidParams):
    """Arguments that violate the schema of their tool or prompt."""

    kind = "invalid_tool_arguments"


class InvalidCursor(InvalidParams):
    """A cursor that this server did not issue."""

    kind = "invalid_cursor"

    def __init__(self) -> None:
        super().__init__("this server did not issue the cursor; list again without a cursor")


class CursorExpired(InvalidParams):
    """A cursor that has expired."""

    kind = "cursor_expired"

    def __init__(self, lifetime: float) -> None:
        super().__init__(f"the cursor expired after {lifetime:g} s; list again without a cursor")


class InvalidPageSize(InvalidParams):
    """A `limit` that is not a positive integer."""

    kind = "invalid_page_size"

    def __init__(self, limit: object) -> None:
        super().__init__(f"limit must be an integer of 1 or more, not {limit!r}")


class PageSizeTooLarge(InvalidParams):
    """A `limit` above the maximum page size."""

    kind = "page_size_too_large"

    def __init__(self, limit: int, maximum: int) -> None:
        super().__init__(f"limit {limit} is above the maximum page size of {maximum}", data={"maximum": maximum})


class InvalidUri(InvalidParams):
    """A string that is not an absolute URI, or is too long."""

    kind = "invalid_uri"

    def __init__(self, uri: str, why: str, *, kind: str = "invalid_uri") -> None:
        super().__init__(f"not a usable URI: {why}", data={"uri": uri[:200], "kind": kind})


class ResourceAccessDenied(InvalidParams):
    """A URI that leaves the scope of its resource template."""

    kind = "resource_access_denied"

    def __init__(self, uri: str) -> None:
        super().__init__("access denied: the URI leaves the scope of its resource", data={"uri": uri[:200]})


class ContentTooLarge(InvalidParams):
    """Content over a limit: the file of a resource, or the value that a handler returned."""

    kind = "content_too_large"

    def __init__(self, size: int, limit: int, *, setting: str, unit: str = "bytes", kind: str | None = None) -> None:
        data: dict[str, Any] = {"size": size, "maxSize": limit, "unit": unit}
        if kind is not None:
            data["kind"] = kind
        super().__init__(f"content of {size} {unit} is above the limit of {limit} ({setting})", data=data)


class ResourceNotFound(ProtocolError):
    """An unknown resource."""

    code = -32002
    kind = "resource_not_found"

    def __init__(self, uri: str, known: Iterable[str] = ()) -> None:
        """`known` are the resources that the caller may see, for a suggestion."""
        super().__init__(with_suggestion(f"there is no resource at {uri!r}", uri, known), data={"uri": uri})


class UrlElicitationRequired(ProtocolError):
    """Raised by a handler that cannot continue until the user has visited some URLs."""

    code = -32042
    kind = "url_elicitation_required"

    def __init__(self, elicitations: Sequence[Mapping[str, Any]], message: str | None = None) -> None:
        data = {"elicitations": [dict(e) for e in elicitations]}
        super().__init__(message or "the user must complete a step in a browser first", data=data)

    @classmethod
    def of(cls, *steps: tuple[str, str], message: str | None = None) -> "UrlElicitationRequired":
        """Build the error from pairs of a message to the user and a URL; each gets an id in `data["elicitations"]`."""
        import secrets  # imported on use: slow, and rarely needed

        elicitations = [
            {"mode": "url", "message": text, "url": url, "elicitationId": secrets.token_urlsafe(16)}
            for text, url in steps
        ]
        return cls(elicitations, message)


class InternalError(ProtocolError):
    """An error of our own. The peer gets a sentence and a reference id; the log has the details under that id."""


class Interrupted(InternalError):
    """The connection, session or process of a request ended after its handler had started.

    `data.interrupted` distinguishes it from the final `outcome_unknown` of an idempotency key or a task: the client may
    retry the request if it is idempotent or has an idempotency key.
    """

    kind = "outcome_unknown"

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; the request may or may not have been executed", data={"interrupted": True})


class RequestTimeout(InternalError, TimeoutError):
    """A request that exceeded its time limit. Also a `TimeoutError`."""

    kind = "request_timeout"

    def __init__(self, method: str, elapsed: float) -> None:
        details: dict[str, Any] = {"method": method, "elapsed": elapsed}
        if method == "sampling/createMessage":
            details["kind"] = "sampling_timeout"
        super().__init__(f"{method} was not done after {elapsed:g} s", data=details)
        self.method = method
        self.elapsed = elapsed


class ConnectionTimeout(RequestTimeout):
    """A request timed out, and the peer does not answer a ping either: the connection is abandoned."""

    kind = "connection_timeout"


class TimeoutReconnecting(ConnectionTimeout):
    """A `ConnectionTimeout` after which the client reconnects."""

    kind = "timeout_reconnecting"


class SamplingFailed(InternalError):
    """A language model, or its provider, produced no message. `detail` is the provider's explanation, which the peer
    does not get: it may name accounts and limits."""

    kind = "sampling_failed"

    def __init__(self, message: str, *, detail: str = "", data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, data=data)
        self.detail = detail


class SamplingTimeout(SamplingFailed, TimeoutError):
    """A language model took too long. Also a `TimeoutError`."""

    kind = "sampling_timeout"


class ModelNotAvailable(SamplingFailed):
    """The provider does not have the language model."""

    kind = "model_not_available"


class SamplingRateLimited(SamplingFailed):
    """The provider of a language model refuses further requests for now; `retry_after` are seconds, if it gives a
    time."""

    kind = "sampling_rate_limited"

    def __init__(self, message: str, *, detail: str = "", retry_after: float | None = None) -> None:
        data = None if retry_after is None else {"retryAfterMs": round(retry_after * 1000)}
        super().__init__(message, detail=detail, data=data)
        self.retry_after = retry_after


class Refusal(ProtocolError):
    """The request was understood but declined, with a code from 1001 up, which is legal in every revision.

    Codes 1001 to 1089 have a fixed meaning, listed in `trunkline.errors.REFUSALS`; your own codes start at 1090. The
    name and the message default to those of the code, and the hint is made from the server's settings when the refusal
    is sent.
    """

    kind = "refused"

    def __init__(
        self,
        code: int,
        message: str | None = None,
        *,
        name: str | None = None,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        """`details` are further members of the error's data. `retry_after` is in seconds: with it, the client may
        repeat the request, which must have had no effect."""
        from trunkline.errors.refusals import find_refusal  # imported here: most requests are not refused

        info = find_refusal(code)
        name = name or (_UNNAMED_REFUSAL if info is None else info.name)
        data: dict[str, Any] = {**(details or {}), "kind": name, "name": name}
        if hint is not None:
            data["hint"] = hint
        if retry_after is not None:
            data["retryAfterMs"] = round(retry_after * 1000)
        super().__init__(message or (name if info is None else info.message), data=data)
        self.refusal_code = int(code)

    def with_hint(self, settings: object) -> "Refusal":
        """Return the refusal with a hint: its own, or that of its code with the values of the settings."""
        from trunkline.errors.refusals import format_hint

        if "hint" in self.data or (hint := format_hint(self.refusal_code, settings)) is None:
            return self
        hinted = again(self)
        hinted.data = {**self.data, "hint": hint}
        return hinted


class NotNow(Refusal):
    """Declined for now: the request had no effect, and the client may retry it soon."""

    def __init__(self, message: str, *, retry_after: float | None = 1.0) -> None:
        from trunkline.errors.refusals import RefusalCode

        super().__init__(RefusalCode.TEMPORARILY_UNAVAILABLE, message, retry_after=retry_after)


def _format_size(size: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} bytes"
