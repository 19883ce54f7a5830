"""Progress of a request."""

from trunkline.protocol.meta import ProgressToken
from trunkline.protocol.types.base import Number, Params

__all__ = ["ProgressParams"]


class ProgressParams(Params):
    """Params of `notifications/progress`."""

    progress_token: ProgressToken
    progress: Number
    total: Number | None = None
    message: str | None = None
