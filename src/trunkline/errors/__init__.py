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
    │   │   └── RequestTimeout
    │   │       └── ConnectionTimeout, TimeoutReconnecting     the peer does not answer a ping either
    │   └── Refusal                  1001 and up: understood, but declined
    │       └── NotNow                   1008: declined for now, without any effect
    ├── ToolError                a tool failed, with a message for the model
    ├── PeerError                an error of the peer: its code, message and data
    │   ├── ToolFailed               a tool call returned a result with isError
    │   ├── TaskCancelled            a task was cancelled and has no result
    │   └── BadAnswer                a response that violates its method's type or its tool's schema
    ├── InputFailed              the peer requests input that is not available here
    ├── MisuseError              the program that uses Trunkline is at fault
    │   └── RegistrationError, DuplicateEntry, NotRegistered, TemplateError, ConfigError
    ├── TransportError           the connection failed
    │   ├── HandshakeFailed          the handshake failed
    │   ├── AuthorizationFailed      the server requires authorization, and obtaining it failed
    │   └── ConnectionClosed         the connection is closed; with the exit status of a child process
    │       └── OutcomeUnknown           and the request may or may not have been executed
    ├── StoreError               reading or writing stored data failed
    │   ├── Conflict                 another writer changed the item meanwhile
    │   ├── Fenced                   the lease of the writer is lost
    │   ├── StoreUnavailable         the store does not respond; a commit may or may not have happened
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
