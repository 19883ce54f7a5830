"""Convert HTTP responses to JSON-RPC responses."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from trunkline.wire import codec
from trunkline.wire.messages import (
    Batch,
    ErrorObject,
    ErrorResponse,
    Incoming,
    Malformed,
    RequestId,
    Response,
)

__all__ = [
    "ADVICE",
    "HTTP_ERROR",
    "answers_request",
    "error_from_status",
    "http_error",
    "negotiated_revision",
    "parse_answer",
    "unusable_answer_error",
]

HTTP_ERROR: Final = -32000
"""Error code for failures of HTTP without a JSON-RPC error."""

_MAX_SHOWN_TEXT: Final = 200  # characters of a plain-text body
ADVICE: Final[Mapping[int, str]] = {
    401: "authorization is needed; pass auth= with a token, or auth=OAuth() to log in",
    403: "access denied: these credentials, or requests from here, are not allowed",
    404: "there is nothing at this path; check the address, which often ends in /mcp",
    405: "this path takes no messages; check the address, which often ends in /mcp",
    407: "the proxy needs credentials",
    413: "the message is too large for the server",
    429: "too many requests; try later",
    500: "the server failed; its log says why",
    503: "the server is not available now; try later",
}
"""Explanations of HTTP error statuses, with advice."""

_UNAUTHORIZED: Final = 401


class _NegotiatedVersion(Struct, rename="camel"):
    protocol_version: str


_decode_negotiated: Final = codec.decoder(_NegotiatedVersion)


def answers_request(message: Incoming, request: RequestId) -> bool:
    """Return whether a message is or contains the response to a request, even a malformed one."""
    if isinstance(message, Batch):
        return any(answers_request(item, request) for item in message.messages)
    if isinstance(message, Malformed):
        return message.id == request and (message.is_reply or message.lacks_method)
    return isinstance(message, Response | ErrorResponse) and str(message.id) == str(request)


def parse_answer(body: bytes, request: RequestId, *, batches: bool) -> Incoming:
    """Parse a JSON body as the response to a request; return an error response if it is not one."""
    message = codec.decode_strict(body)
    if isinstance(message, Response | ErrorResponse) and message.id == request:
        return message
    if isinstance(message, Batch) and batches and answers_request(message, request):
        return message
    if isinstance(message, ErrorResponse) and not isinstance(message.id, int | str):
        return ErrorResponse(request, message.error)  # an error without an id refers to the only message we sent
    explanation = message.why if isinstance(message, Malformed) else "it is not the response to this request"
    return unusable_answer_error(request, explanation)


def error_from_status(request: RequestId, status: int, reason: str, kind: str, body: bytes) -> ErrorResponse:
    """Return the error response for an HTTP error status: the error in the body, if there is one."""
    message = codec.decode_strict(body) if kind == "application/json" else None
    if isinstance(message, ErrorResponse):
        return ErrorResponse(request, _with_auth_advice(message.error) if status == _UNAUTHORIZED else message.error)
    text = body[:_MAX_SHOWN_TEXT].decode("utf-8", "replace").strip() if kind == "text/plain" else ""
    explanation = ": ".join(filter(None, (f"HTTP {status} {reason}".rstrip(), text or ADVICE.get(status))))
    return http_error(request, explanation, status)


def _with_auth_advice(error: ErrorObject) -> ErrorObject:
    """Add to a server's 401 error how to pass a token to this client."""
    return replace(error, message=f"{error.message}; {ADVICE[_UNAUTHORIZED]}")


def http_error(request: RequestId, explanation: str, status: int | None = None) -> ErrorResponse:
    """Return an error response for a failure of HTTP."""
    data = {"kind": "http_error"} if status is None else {"kind": "http_error", "status": status}
    return ErrorResponse(request, ErrorObject(HTTP_ERROR, explanation, data))


def unusable_answer_error(request: RequestId, explanation: str) -> ErrorResponse:
    """Return the error response for an unusable answer."""
    return http_error(request, f"the server's response is unusable: {explanation}")


def negotiated_revision(message: Incoming, request: RequestId) -> str | None:
    """Return the protocol revision in an `initialize` response; None if there is none."""
    for item in message.messages if isinstance(message, Batch) else (message,):
        if isinstance(item, Response) and item.id == request:
            try:
                return _decode_negotiated(item.result).protocol_version
            except (codec.DecodeError, RecursionError):
                return None
    return None
