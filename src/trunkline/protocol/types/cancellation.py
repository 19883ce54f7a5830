"""Cancellation: a request whose answer nobody waits for any more."""

from trunkline.protocol.types.base import Params
from trunkline.wire.messages import RequestId

__all__ = ["CancelledParams"]


class CancelledParams(Params):
    """Names a request that its sender gives up."""

    request_id: RequestId | None = None  # 2025-11-25 lets it be absent
    reason: str | None = None
