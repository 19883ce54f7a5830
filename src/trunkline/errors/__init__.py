"""Every exception of Trunkline, one tree. Split first by whose fault it is.

    TrunklineError
    ├── ProtocolError            the peer got it wrong, and is told: has a code and a kind
    │   ├── ParseError               -32700
    │   ├── InvalidRequest           -32600
    │   │   ├── WrongPhase               not now: not initialized, initialized already, closed
    │   │   ├── MessageTooLarge, RequestIdConflict
    │   │   ├── InsufficientScope, NotPermitted          known, and not allowed
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
    │   ├── InternalError            -32603: our own fault, said without details
    │   │   ├── Interrupted              its work was cut off, and may have been done
    │   │   └── RequestTimeout
    │   │       └── ConnectionTimeout, TimeoutReconnecting     and no ping is answered either
    │   └── Refusal                  1001 and up: understood, and declined
    │       └── NotNow                   1008: declined for now, and nothing of it was done
    ├── ToolError                a tool failed and wants the model to read why
    ├── PeerError                the peer told us: its code, message and data
    │   ├── ToolFailed               a tool that was called says that it failed
    │   ├── TaskCancelled            a task that has no result, since it was cancelled
    │   └── BadAnswer                an answer that breaks its method's type, or its tool's schema
    ├── InputFailed              the peer needs to know something first, and we cannot tell
    ├── MisuseError              our caller got it wrong
    │   └── RegistrationError, DuplicateEntry, NotRegistered, TemplateError, ConfigError
    ├── TransportError           the line broke
    │   ├── HandshakeFailed          no conversation came about, and why
    │   ├── AuthorizationFailed      the server asks who we are, and that could not be settled
    │   └── ConnectionClosed         the line is closed; what is known of the peer's end
    │       └── OutcomeUnknown           and nobody can tell whether what was asked has been done
    ├── StoreError               what we keep could not be kept or read
    │   ├── Conflict                 somebody else has changed it meanwhile
    │   ├── Fenced                   the lease it was done under is lost
    │   ├── StoreUnavailable         the store does not answer; whether something was kept is not known
    │   └── StoreUnusable            its file is broken, or not its own
    └── SupervisionError         what we run could not be kept running
        ├── Degraded                 it died too often in a short time
        └── RetriesExhausted         it could not be reached again

Some are exceptions of Python as well, so that the usual `except` works: `RequestTimeout` is a `TimeoutError`,
`TransportError` and `SupervisionError` are `ConnectionError`s, `AuthorizationFailed` is also a `PermissionError`,
`NotRegistered` a `KeyError`, `RegistrationError` and `ConfigError` are `ValueError`s. The first three of these are
`OSError`s: where we catch one around code that may raise our own errors, ours are let through first. `TaskCancelled` is
not a `CancelledError`: the task of a server was cancelled, not ours.

`code` is the default wire code; the tables in `trunkline.protocol` say where a revision wants another.
`kind` is a stable name, the same in every revision; it travels as `data.kind`.
"""

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
    NotRegistered,
    OutcomeUnknown,
    PeerError,
    RegistrationError,
    RetriesExhausted,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    SupervisionError,
    TaskCancelled,
    TemplateError,
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
    TimeoutReconnecting,
    ToolNotFound,
    UnsupportedVersion,
    UrlElicitationRequired,
    WrongPhase,
)

__all__ = [
    "AuthorizationFailed", "BadAnswer", "CapabilityNotSupported", "CompletionNotFound", "ConfigError", "Conflict",
    "ConnectionClosed", "ConnectionTimeout", "ContentTooLarge", "CursorExpired", "Degraded", "DuplicateEntry", "Fenced",
    "HandshakeFailed", "HeaderMismatch", "InputFailed", "InsufficientScope", "InternalError", "Interrupted",
    "InvalidArguments", "InvalidCursor", "InvalidPageSize", "InvalidParams", "InvalidRequest", "InvalidUri",
    "MessageTooLarge", "MethodNotFound", "MissingCapability", "MisuseError", "NotNow", "NotPermitted", "NotRegistered",
    "OutcomeUnknown", "PageSizeTooLarge", "ParseError", "PeerError", "PromptNotFound", "ProtocolError", "Refusal",
    "RegistrationError", "RequestIdConflict", "RequestTimeout", "ResourceAccessDenied", "ResourceNotFound",
    "RetriesExhausted", "StoreError", "StoreUnavailable", "StoreUnusable", "SupervisionError", "TaskCancelled",
    "TemplateError", "TimeoutReconnecting", "ToolError", "ToolFailed", "ToolNotFound", "TransportError",
    "TrunklineError", "UnsupportedVersion", "UrlElicitationRequired", "WrongPhase",
    "again",
]  # fmt: skip
