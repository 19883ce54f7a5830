"""Error kinds of the founding documents: their numbers there, and their use here.

A kind is a stable name that is sent as `data.kind`, whatever the code is. Only a profile sends the founding numbers:
outside of it, the wire has the codes of the specification. A kind without a use is reserved, with the reason.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, cast

from msgspec import Struct

__all__ = ["KINDS", "KINDS_BY_CODE", "KINDS_BY_NAME", "ErrorKind", "ReportedAs", "kind_of"]


class ReportedAs(Enum):
    """How an error of a kind is reported."""

    ERROR = "error"  # to the peer: an error response
    RESULT = "failed result"  # to the peer: a failed result of tools/call, for the model
    RAISED = "exception"  # to the program that uses Trunkline
    FACT = "fact"  # to observers; the peer is not concerned, or is gone


class ErrorKind(Struct, frozen=True):
    """One kind of error."""

    founding_code: int  # its number in the founding documents
    name: str
    reported_as: ReportedAs = ReportedAs.ERROR
    code: int | None = None  # wire code, if it is sent as an error
    reserved: str | None = None  # why it is unused


def _error(founding: int, name: str, code: int = -32602) -> ErrorKind:
    return ErrorKind(founding, name, ReportedAs.ERROR, code)


def _result(founding: int, name: str, code: int | None = None) -> ErrorKind:
    return ErrorKind(founding, name, ReportedAs.RESULT, code)


def _raised(founding: int, name: str) -> ErrorKind:
    return ErrorKind(founding, name, ReportedAs.RAISED)


def _fact(founding: int, name: str) -> ErrorKind:
    return ErrorKind(founding, name, ReportedAs.FACT)


def _reserved(founding: int, name: str, why: str) -> ErrorKind:
    return ErrorKind(founding, name, reserved=why)


KINDS: Final[tuple[ErrorKind, ...]] = (
    _error(-32700, "parse_error", -32700),
    _error(-32600, "invalid_request", -32600),
    _error(-32601, "method_not_found", -32601),
    _error(-32602, "invalid_params"),
    _error(-32603, "internal_error", -32603),
    _error(-32001, "resource_not_found", -32002),
    _error(-32002, "tool_not_found"),
    _error(-32003, "prompt_not_found"),
    _error(-32004, "capability_not_supported", -32601),
    _error(-32005, "server_not_initialized", -32600),
    _error(-32006, "subscription_failed", -32603),
    _reserved(-32007, "validation_failed", "invalid values have a more precise kind"),
    _reserved(-32008, "transport_error", "the connection is gone; raised as `TransportError`"),
    _error(-32009, "request_timeout", -32603),
    _error(-32010, "rate_limit_exceeded", 1003),
    _raised(-32011, "tool_description_exceeds_max"),
    _error(-32012, "message_size_exceeds_maximum", -32600),
    _error(-32013, "invalid_content_type", -32603),
    _error(-32014, "content_too_large"),
    _error(-32015, "invalid_encoding", -32603),
    _error(-32016, "binary_data_too_large"),
    _error(-32017, "text_too_long"),
    _error(-32018, "invalid_mime_type", -32603),
    _error(-32019, "unsupported_media_type", -32600),
    _error(-32020, "media_type_not_acceptable", -32600),
    _raised(-32021, "resource_template_not_found"),
    _error(-32022, "invalid_uri"),
    _error(-32023, "uri_syntax_error"),
    _error(-32024, "uri_too_long"),
    _error(-32025, "resource_access_denied"),
    _raised(-32026, "resource_already_exists"),
    _reserved(-32027, "resource_locked", "resources are not locked"),
    _reserved(-32028, "resource_version_mismatch", "reading is not conditional"),
    _raised(-32029, "template_render_failed"),
    _raised(-32030, "invalid_uri_template"),
    _result(-32031, "tool_execution_failed"),
    _result(-32032, "tool_execution_timeout"),
    _result(-32033, "tool_execution_cancelled"),
    _result(-32034, "invalid_tool_arguments", -32602),  # an error up to 2025-06-18
    _result(-32035, "tool_is_disabled"),
    _result(-32036, "tool_result_too_large"),
    _result(-32037, "tool_not_allowed"),
    _result(-32038, "maximum_concurrent_tools_exceeded"),
    _result(-32039, "tool_dependency_failed"),
    _raised(-32040, "tool_schema_invalid"),
    _error(-32042, "url_elicitation_required", -32042),
    _error(-32043, "prompt_argument_missing"),
    _error(-32044, "prompt_render_failed", -32603),
    _error(-32045, "invalid_prompt_arguments"),
    _error(-32046, "sampling_failed", -32603),
    _error(-32047, "sampling_timeout", -32603),
    _raised(-32048, "invalid_model_preferences"),
    _error(-32049, "model_not_available", -32603),
    _error(-32050, "sampling_rate_limited", -32603),
    _error(-32051, "authentication_failed", -32600),
    _error(-32052, "authorization_failed", -32600),
    _error(-32053, "invalid_credentials", -32600),
    _error(-32054, "token_expired", -32600),
    _error(-32055, "insufficient_permissions", -32600),
    _error(-32056, "access_denied", -32600),
    _error(-32057, "session_expired", -32600),
    _error(-32058, "session_not_found", -32600),
    _error(-32059, "invalid_token", -32600),
    _error(-32060, "unauthorized_operation", -32600),
    _error(-32071, "invalid_cursor"),
    _error(-32072, "cursor_expired"),
    _reserved(-32073, "pagination_not_supported", "every list has pages"),
    _error(-32074, "page_size_too_large"),
    _error(-32075, "invalid_page_size"),
    _reserved(-32076, "invalid_offset", "cursors are authenticated; a forged one is invalid_cursor"),
    _error(-32081, "task_not_found"),
    _reserved(-32082, "task_already_exists", "idempotency keys have a kind of their own; a profile uses the number"),
    _error(-32083, "task_failed", -32603),
    _error(-32084, "task_cancelled"),
    _error(-32085, "task_timeout", -32603),
    _reserved(-32086, "task_state_invalid", "illegal transitions have a more precise kind"),
    _error(-32087, "maximum_concurrent_tasks_exceeded", -32603),
    _reserved(-32088, "task_dependency_failed", "tools have a kind of their own; a profile uses the number"),
    _reserved(-32089, "task_result_not_ready", "tasks/result waits for the result, outside of a profile"),
    _error(-32090, "task_already_completed"),
    _fact(-32091, "invalid_progress_token"),
    _fact(-32092, "progress_token_expired"),
    _reserved(
        -32093, "progress_update_failed", "calls of a closed connection are gone; that is progress_token_expired"
    ),
    _reserved(-32094, "notification_failed", "sending does not fail; a failed connection is closed"),
    _fact(-32095, "notification_queue_full"),
    _raised(-32096, "invalid_notification_type"),
    _reserved(-32097, "notification_not_delivered", "an ended session has no subscriptions"),
    _error(-32110, "completion_not_found"),
    _error(-32111, "invalid_completion_reference"),
    _error(-32112, "invalid_completion_argument"),
    _error(-32113, "completion_failed", -32603),
)
"""All kinds, in the order of their founding numbers."""

KINDS_BY_NAME: Final[Mapping[str, ErrorKind]] = {kind.name: kind for kind in KINDS}
"""All kinds by name."""

KINDS_BY_CODE: Final[Mapping[int, ErrorKind]] = {
    kind.founding_code: kind for kind in KINDS if kind.founding_code != kind.code
}
"""The kinds whose founding number no revision uses for them."""


def kind_of(data: Any) -> str | None:
    """Return the error kind in the data of an error, if any."""
    kind: Any = cast("dict[str, Any]", data).get("kind") if isinstance(data, dict) else None
    return kind if isinstance(kind, str) else None
