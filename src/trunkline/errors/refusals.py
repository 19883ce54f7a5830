"""Refusals: the reasons for which a server declines a request that it has understood, as one table.

1001 to 1010 mean what the founding documents say, 1011 to 1089 follow the table of the project that they come from;
numbers that are missing there mean nothing and cannot be used. Applications add reasons of their own from 1090 up.

A hint is a template. `{name}` stands for the value of that setting when the refusal is sent, so a hint never states a
limit that the server does not have.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from trunkline.errors.base import MisuseError

__all__ = [
    "FIRST_OWN_REFUSAL",
    "FIRST_REFUSAL",
    "REFUSALS",
    "REFUSALS_BY_KIND",
    "RefusalCode",
    "RefusalInfo",
    "RetryAdvice",
    "describe_refusal",
    "find_refusal",
    "format_hint",
    "register_refusal",
]


class RefusalCode(IntEnum):
    """The numbers of the reasons that have a fixed meaning."""

    POLICY_VIOLATION = 1001
    SAFETY_VIOLATION = 1002
    RATE_LIMIT_EXCEEDED = 1003
    RESOURCE_CONSTRAINTS = 1004
    PERMISSION_DENIED = 1005
    INVALID_INPUT = 1006
    UNSUPPORTED_OPERATION = 1007
    TEMPORARILY_UNAVAILABLE = 1008
    DEPENDENCY_FAILED = 1009
    CUSTOM_REFUSAL_REASON = 1010

    AUTHENTICATION_FAILED = 1011
    AUTHENTICATION_EXPIRED = 1012
    INVALID_CREDENTIALS = 1013
    AUTHORIZATION_DENIED = 1014
    AUTHENTICATION_MISSING = 1015
    SESSION_INVALID = 1016

    INVALID_PARAMETERS = 1021
    SCHEMA_VALIDATION_FAILED = 1022
    INVALID_URI = 1023
    INVALID_CONTENT_TYPE = 1024
    INVALID_HEADER = 1025
    INVALID_SESSION_ID = 1026
    UNSUPPORTED_PROTOCOL_VERSION = 1027
    REQUIRED_FIELD_MISSING = 1028
    FIELD_TYPE_MISMATCH = 1029

    PATH_TRAVERSAL_DETECTED = 1036
    INVALID_PATH = 1037
    SYMLINK_TRAVERSAL_DETECTED = 1038
    URI_OUT_OF_BOUNDS = 1039
    CANONICAL_PATH_VIOLATION = 1040

    RESOURCE_NOT_FOUND = 1046
    RESOURCE_ALREADY_EXISTS = 1047
    TOOL_NOT_FOUND = 1048
    TOOL_ALREADY_EXISTS = 1049
    PROMPT_NOT_FOUND = 1050
    PROMPT_ALREADY_EXISTS = 1051
    ENTITY_ALREADY_EXISTS = 1052

    REQUEST_RATE_EXCEEDED = 1056
    RATE_PER_SECOND_EXCEEDED = 1057
    RATE_PER_MINUTE_EXCEEDED = 1058
    QUOTA_EXCEEDED = 1059
    CONCURRENCY_LIMIT_EXCEEDED = 1060

    PROTOCOL_ERROR = 1066
    TRANSPORT_ERROR = 1067
    MESSAGE_TOO_LARGE = 1068
    OPERATION_TIMEOUT = 1069
    UNSUPPORTED_ENCODING = 1070

    SERVER_NOT_INITIALIZED = 1076
    SERVER_SHUTTING_DOWN = 1077
    SERVICE_UNAVAILABLE = 1078
    INTERNAL_ERROR = 1079
    DEPENDENCY_UNAVAILABLE = 1080

    CIRCUIT_BREAKER_OPEN = 1086
    HEALTH_CHECK_FAILED = 1087
    SERVICE_DEGRADED = 1088
    RESOURCES_EXHAUSTED = 1089


class RetryAdvice(Enum):
    """Whether a client should send a refused request again."""

    NEVER = "not unchanged"  # the same request would be refused again
    AFTER_LOGIN = "after authorization"
    AFTER_DELAY = "after `retryAfterMs`"  # the request had no effect


class RefusalInfo(Struct, frozen=True):
    """One reason to refuse a request."""

    code: int
    name: str  # stable; sent as `name` and as `kind`
    http_status: int  # where a request is refused over HTTP before its message is read
    retry: RetryAdvice
    message: str  # for people, if the refusal has none of its own
    hint: str  # a template


FIRST_REFUSAL: Final = 1001
FIRST_OWN_REFUSAL: Final = 1090

_NEVER, _LOGIN, _LATER = RetryAdvice
_C: Final = RefusalCode

_ROWS: Final[tuple[tuple[RefusalCode, int, RetryAdvice, str, str], ...]] = (
    (_C.POLICY_VIOLATION, 403, _NEVER, "the content violates a policy", "change the content of the request"),
    (_C.SAFETY_VIOLATION, 403, _NEVER, "the request violates safety guidelines", "change the content of the request"),
    (
        _C.RATE_LIMIT_EXCEEDED,
        *(429, _LATER, "too many requests"),
        "wait for retryAfterMs; principal: {principal_rate}, session: {session_rate}, server: {server_rate}",
    ),
    (
        _C.RESOURCE_CONSTRAINTS,
        *(503, _LATER, "the server is at the limit of its resources"),
        "send fewer requests at once; a connection runs {max_calls} at a time and queues {max_waiting}",
    ),
    (_C.PERMISSION_DENIED, 403, _NEVER, "permission denied", "ask the operator of the server for access"),
    (_C.INVALID_INPUT, 400, _NEVER, "the input is not acceptable", "change the input of the request"),
    (_C.UNSUPPORTED_OPERATION, 501, _NEVER, "the operation is not supported", "use what the server's lists offer"),
    (_C.TEMPORARILY_UNAVAILABLE, 503, _LATER, "temporarily unavailable", "send the request again later"),
    (
        _C.DEPENDENCY_FAILED,
        *(503, _LATER, "a service that the request depends on is not available"),
        "send the request again after retryAfterMs; until then it is refused without being executed",
    ),
    (_C.CUSTOM_REFUSAL_REASON, 403, _NEVER, "the server refuses the request", "see the message for the reason"),
    (_C.AUTHENTICATION_FAILED, 401, _LOGIN, "authentication failed", "obtain another token"),
    (_C.AUTHENTICATION_EXPIRED, 401, _LOGIN, "the authentication has expired", "refresh the token"),
    (_C.INVALID_CREDENTIALS, 401, _LOGIN, "the credentials are not valid", "check the token or the API key"),
    (_C.AUTHORIZATION_DENIED, 403, _LOGIN, "authorization denied", "obtain a token with the required scopes"),
    (_C.AUTHENTICATION_MISSING, 401, _LOGIN, "authentication is required", "send a token in the Authorization header"),
    (
        _C.SESSION_INVALID,
        *(401, _NEVER, "the session is not valid"),
        "initialize again; seconds after which an idle session expires: {session_ttl}",
    ),
    (_C.INVALID_PARAMETERS, 400, _NEVER, "the parameters are not valid", "compare them with the schema of the method"),
    (_C.SCHEMA_VALIDATION_FAILED, 400, _NEVER, "the value violates its schema", "correct the values under data.errors"),
    (
        _C.INVALID_URI,
        *(400, _NEVER, "the URI is not valid"),
        "use an absolute URI of at most {max_uri} characters",
    ),
    (_C.INVALID_CONTENT_TYPE, 415, _NEVER, "the content type is not supported", "send application/json"),
    (_C.INVALID_HEADER, 400, _NEVER, "a header is missing or not valid", "send the headers that the message names"),
    (_C.INVALID_SESSION_ID, 400, _NEVER, "the session id is malformed", "send the Mcp-Session-Id that the server gave"),
    (
        _C.UNSUPPORTED_PROTOCOL_VERSION,
        *(400, _NEVER, "the protocol version is not supported"),
        "use a version that the server supports",
    ),
    (_C.REQUIRED_FIELD_MISSING, 400, _NEVER, "a required field is missing", "send every required field"),
    (_C.FIELD_TYPE_MISMATCH, 400, _NEVER, "a field has the wrong type", "compare its type with the schema"),
    (_C.PATH_TRAVERSAL_DETECTED, 400, _NEVER, "the path leaves its folder", "use a path without `..`"),
    (_C.INVALID_PATH, 400, _NEVER, "the path is not valid", "use a path that the server lists"),
    (_C.SYMLINK_TRAVERSAL_DETECTED, 400, _NEVER, "a symbolic link leaves the folder", "use the path of the file"),
    (_C.URI_OUT_OF_BOUNDS, 400, _NEVER, "the URI lies outside of the allowed roots", "use a URI below a root"),
    (_C.CANONICAL_PATH_VIOLATION, 400, _NEVER, "the path is not canonical", "use a path without `.` and `..`"),
    (_C.RESOURCE_NOT_FOUND, 404, _NEVER, "there is no such resource", "use a URI of resources/list"),
    (_C.RESOURCE_ALREADY_EXISTS, 409, _NEVER, "the resource exists already", "use another URI"),
    (_C.TOOL_NOT_FOUND, 404, _NEVER, "there is no such tool", "use a name of tools/list"),
    (_C.TOOL_ALREADY_EXISTS, 409, _NEVER, "the tool exists already", "use another name"),
    (_C.PROMPT_NOT_FOUND, 404, _NEVER, "there is no such prompt", "use a name of prompts/list"),
    (_C.PROMPT_ALREADY_EXISTS, 409, _NEVER, "the prompt exists already", "use another name"),
    (_C.ENTITY_ALREADY_EXISTS, 409, _NEVER, "it exists already", "use another name"),
    (_C.REQUEST_RATE_EXCEEDED, 429, _LATER, "the rate limit is exceeded", "send fewer requests"),
    (_C.RATE_PER_SECOND_EXCEEDED, 429, _LATER, "too many requests per second", "send fewer requests"),
    (_C.RATE_PER_MINUTE_EXCEEDED, 429, _LATER, "too many requests per minute", "send fewer requests"),
    (_C.QUOTA_EXCEEDED, 429, _LATER, "the quota is used up", "wait until the quota is renewed"),
    (
        _C.CONCURRENCY_LIMIT_EXCEEDED,
        *(429, _LATER, "too many connections"),
        "close unused connections; a listener accepts {max_connections}",
    ),
    (_C.PROTOCOL_ERROR, 400, _NEVER, "the message violates the protocol", "correct the message"),
    (_C.TRANSPORT_ERROR, 503, _NEVER, "the transport failed", "check the connection"),
    (
        _C.MESSAGE_TOO_LARGE,
        *(413, _NEVER, "the message is too large"),
        "send less; the limit is {http_body_size_limit} bytes over HTTP and {stdio_message_size_limit} on stdio",
    ),
    (
        _C.OPERATION_TIMEOUT,
        *(503, _NEVER, "the operation took too long"),
        "request less; seconds that a call may take: {work_timeout} without progress, and {longest_call} in all",
    ),
    (_C.UNSUPPORTED_ENCODING, 415, _NEVER, "the encoding is not supported", "send UTF-8"),
    (_C.SERVER_NOT_INITIALIZED, 503, _NEVER, "the session is not initialized", "send initialize first"),
    (_C.SERVER_SHUTTING_DOWN, 503, _LATER, "the server is shutting down", "connect again"),
    (_C.SERVICE_UNAVAILABLE, 503, _LATER, "the service is unavailable", "send the request again later"),
    (_C.INTERNAL_ERROR, 503, _NEVER, "an internal error", "ask the operator of the server; its log has the details"),
    (_C.DEPENDENCY_UNAVAILABLE, 503, _LATER, "an external service is unavailable", "send the request again later"),
    (_C.CIRCUIT_BREAKER_OPEN, 503, _LATER, "the circuit breaker is open", "send the request again after retryAfterMs"),
    (_C.HEALTH_CHECK_FAILED, 503, _LATER, "a health check fails", "send the request again later"),
    (_C.SERVICE_DEGRADED, 503, _LATER, "the service is degraded", "use other features, or wait"),
    (_C.RESOURCES_EXHAUSTED, 503, _LATER, "the server has run out of a resource", "send fewer requests at once"),
)

_by_code: Final[dict[int, RefusalInfo]] = {
    int(code): RefusalInfo(int(code), code.name.lower(), status, retry, message, hint)
    for code, status, retry, message, hint in _ROWS
}

REFUSALS: Final[Mapping[int, RefusalInfo]] = MappingProxyType(_by_code)
"""All reasons by number: those with a fixed meaning, then the registered ones."""


REFUSALS_BY_KIND: Final[Mapping[str, RefusalCode]] = MappingProxyType(
    {
        "rate_limit_exceeded": _C.RATE_LIMIT_EXCEEDED,
        # limits of concurrency, queues and sessions
        "maximum_concurrent_tools_exceeded": _C.RESOURCE_CONSTRAINTS,
        "maximum_concurrent_tasks_exceeded": _C.RESOURCE_CONSTRAINTS,
        "maximum_subscriptions_exceeded": _C.RESOURCE_CONSTRAINTS,
        "too_many_sessions": _C.RESOURCE_CONSTRAINTS,
        # access rules
        "tool_not_allowed": _C.PERMISSION_DENIED,
        "insufficient_permissions": _C.PERMISSION_DENIED,
        "authorization_failed": _C.AUTHORIZATION_DENIED,
        "unauthorized_operation": _C.PERMISSION_DENIED,
        "access_denied": _C.PERMISSION_DENIED,
        "resource_access_denied": _C.PERMISSION_DENIED,
        # features that are off
        "capability_not_supported": _C.UNSUPPORTED_OPERATION,
        "tool_is_disabled": _C.UNSUPPORTED_OPERATION,
        # pauses and shutdowns, before a message is read
        "temporarily_unavailable": _C.TEMPORARILY_UNAVAILABLE,
        # health checks
        "tool_dependency_failed": _C.DEPENDENCY_FAILED,
    }
)
"""The reasons of errors that are refusals, too, but have a code of the specification. `data.refusal` has the number."""


def find_refusal(code: Any) -> RefusalInfo | None:
    """Return the reason with a number; None for an application's number that is not registered. Raise `MisuseError` for
    a number that no refusal can have."""
    if type(code) is not int and not isinstance(code, RefusalCode):
        info = None
    else:
        info = _by_code.get(code)
        if info is not None or code >= FIRST_OWN_REFUSAL:
            return info
    unused = isinstance(code, int) and FIRST_REFUSAL <= code < FIRST_OWN_REFUSAL and not isinstance(code, bool)
    why = ", and this number has no meaning" if unused else ""
    raise MisuseError(
        f"a refusal cannot have the code {code!r}: it is an integer from {FIRST_REFUSAL} up, and from "
        f"{FIRST_OWN_REFUSAL} up for a reason of your own{why}"
    )


def register_refusal(
    code: int,
    name: str,
    *,
    message: str,
    hint: str = "see the message for the reason",
    http_status: int = 403,
    retry: RetryAdvice = RetryAdvice.NEVER,
) -> RefusalInfo:
    """Register a reason of an application, from 1090 up, so that `Refusal(code)` has its name, message and hint. Raise
    `MisuseError` for a number or a name that another reason has."""
    if find_refusal(code) is not None or code < FIRST_OWN_REFUSAL:
        raise MisuseError(f"refusal {code} has a meaning already: {_by_code[code].name}; choose another number")
    if not isinstance(name, str) or not name.isidentifier():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MisuseError(f"the name of refusal {code} is an identifier such as 'closed_on_sundays', not {name!r}")
    if any(info.name == name for info in _by_code.values()):
        raise MisuseError(f"another refusal has the name {name!r}")
    info = _by_code[code] = RefusalInfo(code, name, http_status, retry, message, hint)
    return info


def format_hint(code: int, settings: object) -> str | None:
    """Return the hint of a reason with the values of the settings; None for an application's reason without one."""
    info = _by_code.get(code)
    return None if info is None else info.hint.format_map(_Values(settings))


def describe_refusal(kind: str | None, settings: object = None) -> dict[str, Any] | None:
    """Return the number, name and hint of the reason for which an error of a kind refuses a request; None if it does
    not. A hint that states settings needs them."""
    reason = REFUSALS_BY_KIND.get(kind or "")
    if reason is None:
        return None
    info = _by_code[reason]
    described: dict[str, Any] = {"code": info.code, "name": info.name}
    if settings is not None or "{" not in info.hint:
        described["hint"] = format_hint(reason, settings)
    return described


class _Values:
    """The settings by name, as a hint shows them."""

    def __init__(self, settings: object) -> None:
        self._settings = settings

    def __getitem__(self, name: str) -> str:
        value = getattr(self._settings, name)
        return "no limit" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
