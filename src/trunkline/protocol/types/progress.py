"""Progress: how far a request has come."""

from trunkline.protocol.meta import ProgressToken
from trunkline.protocol.types.base import Number, Params

__all__ = ["ProgressParams"]


class ProgressParams(Params):
    """How far the request that named this token has come."""

    progress_token: ProgressToken
    progress: Number
    total: Number | None = None
    message: str | None = None
