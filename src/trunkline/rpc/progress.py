"""Progress of a call that is being answered, reported to whoever asked for it."""

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import RELATED_TASK
from trunkline.protocol.types import ProgressParams
from trunkline.rpc.connection import Connection

__all__ = ["report_progress"]


def report_progress(
    connection: Connection,
    call: IncomingRequest,
    progress: float,
    total: float | None = None,
    message: str | None = None,
) -> None:
    """Reports progress, if the caller wants to hear of it; on the loop only. It must grow, and renews the deadline."""
    if call.done:
        connection.report_dropped("progress of a call that has ended", "progress_token_expired")
    elif not call.record_progress(progress, connection.now()):
        connection.report_dropped(f"progress {progress:g} does not grow", "progress_value_invalid")
    elif call.token is not None:
        meta = None if call.related_task is None else {RELATED_TASK: {"taskId": call.related_task}}
        params = ProgressParams(progress_token=call.token, progress=progress, total=total, message=message, meta=meta)
        connection.notify("notifications/progress", params, about=call)
