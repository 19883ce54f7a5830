"""Multi round-trip requests: the server answers with questions, and the client retries with answers (from 2026-07-28
on)."""

from typing import Any

from msgspec import Raw

from trunkline.protocol.types.base import Params, Result, Wire

__all__ = ["INPUT_REQUIRED", "AskableParams", "InputRequest", "InputRequiredResult"]

INPUT_REQUIRED = "input_required"


class InputRequest(Wire):
    """A question to the client; in older revisions a request."""

    method: str
    params: Any = None


class InputRequiredResult(Result):
    """A result that asks for input before the request can complete."""

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None


class AskableParams(Params, kw_only=True):
    """Params of a request that may be answered with questions."""

    input_responses: dict[str, Raw] | None = None
    request_state: str | None = None
