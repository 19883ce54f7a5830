"""What HTTP answers mean for the request that was posted."""

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
"""The code of an error that HTTP tells, and no message."""

_MAX_SHOWN_TEXT: Final = 200  # characters of a text that came instead of a message
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
"""What a status of failure means to a client, and what to do about it."""

_UNAUTHORIZED: Final = 401


class _NegotiatedVersion(Struct, rename="camel"):
    protocol_version: str


_decode_negotiated: Final = codec.decoder(_NegotiatedVersion)


def answers_request(message: Incoming, request: RequestId) -> bool:
    """Whether a message answers a request, or has the answer in it; also by something that cannot be used."""
    if isinstance(message, Batch):
        return any(answers_request(one, request) for one in message.messages)
    if isinstance(message, Malformed):
        return message.id == request and (message.is_reply or message.lacks_method)
    return isinstance(message, Response | ErrorResponse) and str(message.id) == str(request)


def parse_answer(body: bytes, request: RequestId, *, batches: bool) -> Incoming:
    """The answer to a request that was posted: a body of JSON, or an error that says why that is none."""
    message = codec.decode_strict(body)
    if isinstance(message, Response | ErrorResponse) and message.id == request:
        return message
    if isinstance(message, Batch) and batches and answers_request(message, request):
        return message
    if isinstance(message, ErrorResponse) and not isinstance(message.id, int | str):
        return ErrorResponse(request, message.error)  # about what could not be read, and this is all that was sent
    why = message.why if isinstance(message, Malformed) else "it answers something else"
    return unusable_answer_error(request, why)


def error_from_status(request: RequestId, status: int, reason: str, kind: str, body: bytes) -> ErrorResponse:
    """The answer to a request that was answered with a status of failure: the error in the body, if there is one."""
    told = codec.decode_strict(body) if kind == "application/json" else None
    if isinstance(told, ErrorResponse):
        return ErrorResponse(request, _with_auth_advice(told.error) if status == _UNAUTHORIZED else told.error)
    text = body[:_MAX_SHOWN_TEXT].decode("utf-8", "replace").strip() if kind == "text/plain" else ""
    why = ": ".join(filter(None, (f"HTTP {status} {reason}".rstrip(), text or ADVICE.get(status))))
    return http_error(request, why, status)


def _with_auth_advice(error: ErrorObject) -> ErrorObject:
    """The error of a server that wants a token; few of them can say how our caller passes one."""
    return replace(error, message=f"{error.message}; {ADVICE[_UNAUTHORIZED]}")


def http_error(request: RequestId, why: str, status: int | None = None) -> ErrorResponse:
    """An error that HTTP tells."""
    data = {"kind": "http_error"} if status is None else {"kind": "http_error", "status": status}
    return ErrorResponse(request, ErrorObject(HTTP_ERROR, why, data))


def unusable_answer_error(request: RequestId, why: str) -> ErrorResponse:
    """The error for an answer that cannot be used."""
    return http_error(request, f"the server's answer is of no use: {why}")


def negotiated_revision(message: Incoming, request: RequestId) -> str | None:
    """The revision that an answer to initialize agrees to; None if it tells none."""
    for one in message.messages if isinstance(message, Batch) else (message,):
        if isinstance(one, Response) and one.id == request:
            try:
                return _decode_negotiated(one.result).protocol_version
            except (codec.DecodeError, RecursionError):
                return None
    return None
