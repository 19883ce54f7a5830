"""Cancellation of a request by its sender."""

from trunkline.protocol.types.base import Params
from trunkline.wire.messages import RequestId

__all__ = ["CancelledParams"]


class CancelledParams(Params):
    """Params of `notifications/cancelled`."""

    request_id: RequestId | None = None  # optional in 2025-11-25
    reason: str | None = None
