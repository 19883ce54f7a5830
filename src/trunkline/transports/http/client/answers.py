"""What HTTP answers mean for the request that was posted."""

from typing import Final

from msgspec import Struct

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

__all__ = ["HTTP_ERROR", "answer_in", "answers", "failed", "refusal", "revision_in"]

HTTP_ERROR: Final = -32000
"""The code of an error that HTTP tells, and no message."""

_SHOWN: Final = 200  # characters of a text that came instead of a message
_ADVICE: Final = {
    401: "the server wants to know who is calling; pass auth=",
    403: "the server does not allow that, with these credentials or from here",
    404: "there is nothing at that address",
    405: "that address takes no messages",
    407: "the proxy wants credentials",
    413: "the message is too large for the server",
    429: "the server has been asked too much; try later",
    503: "the server is not available now",
}


class _Agreed(Struct, rename="camel"):
    protocol_version: str


_read_agreed: Final = codec.decoder(_Agreed)


def answers(message: Incoming, request: RequestId) -> bool:
    """Whether a message answers a request, or has the answer in it."""
    if isinstance(message, Batch):
        return any(answers(one, request) for one in message.messages)
    return isinstance(message, Response | ErrorResponse) and message.id == request


def answer_in(body: bytes, request: RequestId, *, batches: bool) -> Incoming:
    """The answer to a request that was posted: a body of JSON, or an error that says why that is none."""
    message = codec.decode_strict(body)
    if answers(message, request) and (batches or not isinstance(message, Batch)):
        return message
    if isinstance(message, ErrorResponse) and not isinstance(message.id, int | str):
        return ErrorResponse(request, message.error)  # about what could not be read, and this is all that was sent
    why = message.why if isinstance(message, Malformed) else "it answers something else"
    return failed(request, f"the server's answer is of no use: {why}")


def refusal(request: RequestId, status: int, reason: str, kind: str, body: bytes) -> ErrorResponse:
    """The answer to a request that was answered with a status of failure: the error in the body, if there is one."""
    told = codec.decode_strict(body) if kind == "application/json" else None
    if isinstance(told, ErrorResponse):
        return ErrorResponse(request, told.error)
    text = body[:_SHOWN].decode("utf-8", "replace").strip() if kind == "text/plain" else ""
    return failed(request, f"HTTP {status} {_ADVICE.get(status) or text or reason}".rstrip(), status)


def failed(request: RequestId, why: str, status: int | None = None) -> ErrorResponse:
    """An error that HTTP tells."""
    data = {"kind": "http_error"} if status is None else {"kind": "http_error", "status": status}
    return ErrorResponse(request, ErrorObject(HTTP_ERROR, why, data))


def revision_in(message: Incoming, request: RequestId) -> str | None:
    """The revision that an answer to initialize agrees to; None if it tells none."""
    for one in message.messages if isinstance(message, Batch) else (message,):
        if isinstance(one, Response) and one.id == request:
            try:
                return _read_agreed(one.result).protocol_version
            except (codec.DecodeError, RecursionError):
                return None
    return None
