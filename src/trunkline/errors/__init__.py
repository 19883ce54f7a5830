"""Every exception of Trunkline, as one tree, split first by the side that is at fault.

    TrunklineError
    ├── ProtocolError            the peer is at fault: sent to it, with a code and a kind
    │   ├── ParseError               -32700
    │   ├── InvalidRequest           -32600
    │   │   ├── WrongPhase               illegal now: not initialized, initialized already, closed
    │   │   ├── MessageTooLarge, RequestIdConflict
    │   │   ├── InsufficientScope, NotPermitted          authenticated, but not authorized
    │   │   └── HeaderMismatch, MissingCapability, UnsupportedVersion     -32020 to -32022, from 2026-07-28 on
    │   ├── MethodNotFound           -32601
    │   │   └── CapabilityNotSupported
    │   ├── InvalidParams            -32602
    │   │   ├── ToolNotFound, PromptNotFound, CompletionNotFound
    │   │   ├── InvalidArguments         values that break the schema of a tool or prompt
    │   │   ├── InvalidCursor, CursorExpired, InvalidPageSize, PageSizeTooLarge
    │   │   └── InvalidUri, ResourceAccessDenied, ContentTooLarge
    │   ├── ResourceNotFound         -32002 up to 2025-11-25, -32602 after it
    │   ├── UrlElicitationRequired   -32042, in 2025-11-25 only
    │   ├── InternalError            -32603: our own fault, without details
    │   │   ├── Interrupted              its handler was interrupted, and may have completed
    │   │   ├── SamplingFailed           a language model, or its provider, produced no message
    │   │   │   └── SamplingTimeout, ModelNotAvailable, SamplingRateLimited
    │   │   └── RequestTimeout
    │   │       └── ConnectionTimeout, TimeoutReconnecting     the peer does not answer a ping either
    │   └── Refusal                  1001 and up: understood, but declined
    │       └── NotNow                   1008: declined for now, without any effect
    ├── ToolError                a tool failed, with a message for the model
    ├── PeerError                an error of the peer: its code, message and data
    │   ├── ToolFailed               a tool call returned a result with isError
    │   ├── TaskCancelled            a task was cancelled and has no result
    │   ├── RequestCancelled         the server cancelled a request of ours; under a profile only
    │   └── BadAnswer                a response that violates its method's type or its tool's schema
    ├── ToolBlocked              a tool is not the one that was pinned, and waits for approval
    ├── InputFailed              the peer requests input that is not available here
    ├── MisuseError              the program that uses Trunkline is at fault
    │   └── RegistrationError, DuplicateEntry, NameClash, NotRegistered, TemplateError, ConfigError
    ├── TransportError           the connection failed
    │   ├── HandshakeFailed          the handshake failed
    │   ├── AuthorizationFailed      the server requires authorization, and obtaining it failed
    │   └── ConnectionClosed         the connection is closed; with the exit status of a child process
    │       └── OutcomeUnknown           and the request may or may not have been executed
    ├── StoreError               reading or writing stored data failed
    │   ├── Conflict                 another writer changed the item meanwhile
    │   ├── Fenced                   the lease of the writer is lost
    │   ├── StoreUnavailable         the store does not respond; a commit may or may not have happened
    │   │   └── NotExecuted              the store refused an operation, or never received it
    │   └── StoreUnusable            its file is damaged, or belongs to another program
    └── SupervisionError         a supervised peer could not be kept running
        ├── Degraded                 it failed too often in a short time
        └── RetriesExhausted         reconnecting failed

Some are exceptions of Python as well, so that the usual `except` works: `RequestTimeout` is a `TimeoutError`,
`TransportError` and `SupervisionError` are `ConnectionError`s, `AuthorizationFailed` is also a `PermissionError`,
`NotRegistered` a `KeyError`, `RegistrationError` and `ConfigError` are `ValueError`s. The first three of these are
`OSError`s: code that catches `OSError` around calls that may raise our own errors re-raises ours first. `TaskCancelled`
is not a `CancelledError`: a task of the server was cancelled, not an asyncio task.

`code` is the default wire code; the tables in `trunkline.protocol` list revisions with another code.
`kind` is a stable name, the same in every revision, and is sent as `data.kind`.
"""

from typing import TYPE_CHECKING, Any, Final

from trunkline.errors.base import TrunklineError, again
from trunkline.errors.local import (
    AuthorizationFailed,
    BadAnswer,
    ConfigError,
    Conflict,
    ConnectionClosed,
    Degraded,
    DuplicateEntry,
    Fenced,
    HandshakeFailed,
    InputFailed,
    MisuseError,
    NameClash,
    NotExecuted,
    NotRegistered,
    OutcomeUnknown,
    PeerError,
    RegistrationError,
    RequestCancelled,
    RetriesExhausted,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    SupervisionError,
    TaskCancelled,
    TemplateError,
    ToolBlocked,
    ToolError,
    ToolFailed,
    TransportError,
)
from trunkline.errors.wire import (
    CapabilityNotSupported,
    CompletionNotFound,
    ConnectionTimeout,
    ContentTooLarge,
    CursorExpired,
    HeaderMismatch,
    InsufficientScope,
    InternalError,
    Interrupted,
    InvalidArguments,
    InvalidCursor,
    InvalidPageSize,
    InvalidParams,
    InvalidRequest,
    InvalidUri,
    MessageTooLarge,
    MethodNotFound,
    MissingCapability,
    ModelNotAvailable,
    NotNow,
    NotPermitted,
    PageSizeTooLarge,
    ParseError,
    PromptNotFound,
    ProtocolError,
    Refusal,
    RequestIdConflict,
    RequestTimeout,
    ResourceAccessDenied,
    ResourceNotFound,
    SamplingFailed,
    SamplingRateLimited,
    SamplingTimeout,
    TimeoutReconnecting,
    ToolNotFound,
    UnsupportedVersion,
    UrlElicitationRequired,
    WrongPhase,
)

if TYPE_CHECKING:
    from trunkline.errors.refusals import REFUSALS, RefusalCode, RefusalInfo, RetryAdvice, register_refusal

__all__ = [
    "REFUSALS",
    "AuthorizationFailed", "BadAnswer", "CapabilityNotSupported", "CompletionNotFound", "ConfigError", "Conflict",
    "ConnectionClosed", "ConnectionTimeout", "ContentTooLarge", "CursorExpired", "Degraded", "DuplicateEntry", "Fenced",
    "HandshakeFailed", "HeaderMismatch", "InputFailed", "InsufficientScope", "InternalError", "Interrupted",
    "InvalidArguments", "InvalidCursor", "InvalidPageSize", "InvalidParams", "InvalidRequest", "InvalidUri",
    "MessageTooLarge", "MethodNotFound", "MissingCapability", "MisuseError", "ModelNotAvailable", "NameClash",
    "NotExecuted", "NotNow", "NotPermitted", "NotRegistered", "OutcomeUnknown", "PageSizeTooLarge", "ParseError",
    "PeerError", "PromptNotFound", "ProtocolError", "Refusal", "RefusalCode", "RefusalInfo", "RegistrationError",
    "RequestCancelled", "RequestIdConflict", "RequestTimeout", "ResourceAccessDenied", "ResourceNotFound",
    "RetriesExhausted", "RetryAdvice", "SamplingFailed", "SamplingRateLimited", "SamplingTimeout", "StoreError",
    "StoreUnavailable", "StoreUnusable", "SupervisionError", "TaskCancelled",
    "TemplateError", "TimeoutReconnecting", "ToolBlocked", "ToolError", "ToolFailed", "ToolNotFound",
    "TransportError", "TrunklineError", "UnsupportedVersion", "UrlElicitationRequired", "WrongPhase",
    "again", "register_refusal",
]  # fmt: skip

_LAZY: Final = frozenset({"REFUSALS", "RefusalCode", "RefusalInfo", "RetryAdvice", "register_refusal"})


def __getattr__(name: str) -> Any:
    """Import the table of refusals on first use: most programs refuse nothing."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trunkline.errors import refusals

    return getattr(refusals, name)
