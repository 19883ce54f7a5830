"""Multi round-trips: requests answered with questions, and sent again with the answers (from 2026-07-28 on)."""

from typing import Any

from msgspec import Raw

from trunkline.protocol.types.base import Params, Result, Wire

__all__ = ["INPUT_REQUIRED", "AskableParams", "InputRequest", "InputRequiredResult"]

INPUT_REQUIRED = "input_required"


class InputRequest(Wire):
    """A question to the client: one that older revisions ask by a request."""

    method: str
    params: Any = None


class InputRequiredResult(Result):
    """What has to be known before a request can be answered."""

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None


class AskableParams(Params, kw_only=True):
    """Parameters of a request that may be answered with questions."""

    input_responses: dict[str, Raw] | None = None
    request_state: str | None = None
