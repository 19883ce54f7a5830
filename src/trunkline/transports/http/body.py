"""Reading request bodies under their size and time limits."""

import asyncio
from typing import Any, Final

from trunkline.clock import Clock, Timer
from trunkline.config import Settings
from trunkline.errors import MessageTooLarge
from trunkline.transports.http.request import BodyTooLarge, Disconnected, HttpRequest
from trunkline.wire.media_types import is_utf8_json

__all__ = ["BodyReader", "ReadDeadlines"]

ReaderTask = asyncio.Task[Any] | None


class ReadDeadlines:
    """Deadlines of the tasks that are reading a body. One timer serves all of them."""

    def __init__(self, clock: Clock, timeout: float | None) -> None:
        self._clock = clock
        self._timeout = timeout
        self._started_at: dict[ReaderTask, float] = {}
        self._timed_out: set[ReaderTask] = set()
        self._timer: Timer | None = None

    def watch_current_task(self) -> ReaderTask:
        """Start the current task's deadline."""
        task = asyncio.current_task()
        if self._timeout is not None:
            self._started_at[task] = now = self._clock.now()
            if self._timer is None:
                self._timer = self._clock.call_at(now + self._timeout, self._cancel_overdue)
        return task

    def unwatch(self, task: ReaderTask) -> None:
        """Remove a task that has finished reading."""
        self._started_at.pop(task, None)

    def take_timeout(self, task: ReaderTask) -> bool:
        """Return whether a task was cancelled because its deadline passed; if so, take the cancellation back."""
        if task is None or task not in self._timed_out:
            return False
        self._timed_out.discard(task)
        task.uncancel()
        return True

    def _cancel_overdue(self) -> None:
        self._timer = None
        now, limit = self._clock.now(), self._timeout or 0.0
        for task, since in list(self._started_at.items()):
            if now - since < limit:
                self._timer = self._clock.call_at(since + limit, self._cancel_overdue)  # the dict is in order of time
                return
            del self._started_at[task]
            if task is not None:
                self._timed_out.add(task)
                task.cancel()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_CONNECTION_CLOSE: Final = (b"connection", b"close")


class BodyReader:
    """Reads request bodies; refuses unsupported, oversized and slow ones."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._size_limit = settings.http_body_size_limit
        self._deadlines = ReadDeadlines(clock, settings.body_timeout)

    def check_content_type(self, request: HttpRequest) -> bool:
        """Return whether the body is JSON in UTF-8; refuse the request if not."""
        if is_utf8_json(request.headers.get(b"content-type", b"")):
            return True
        reason = "the content type must be application/json, in UTF-8"
        request.refuse(415, reason, kind="unsupported_media_type")
        return False

    def check_headers(self, request: HttpRequest) -> bool:
        """Return whether a body may be read; refuse the request if not."""
        return self.check_content_type(request) and self.check_length(request)

    def check_length(self, request: HttpRequest) -> bool:
        """Return whether the length of a body, received or announced, is within the limit; refuse the request if
        not."""
        if (body := request.body) is not None:
            size = len(body)
        else:
            length = request.headers.get(b"content-length", b"0")
            size = int(length) if length.isdigit() else 0
        if size <= self._size_limit:
            return True
        self._refuse_too_large(request)
        return False

    async def read_body(self, request: HttpRequest) -> bytes | None:
        """Return the raw body; None if there is none, after the request was refused."""
        reader = self._deadlines.watch_current_task()
        try:
            return await request.read_body(self._size_limit)
        except BodyTooLarge:
            self._refuse_too_large(request)
        except Disconnected:
            pass
        except asyncio.CancelledError:
            if not self._deadlines.take_timeout(reader):
                raise
            request.refuse(408, "the body did not arrive in time", _CONNECTION_CLOSE)
        finally:
            self._deadlines.unwatch(reader)
        return None

    def _refuse_too_large(self, request: HttpRequest) -> None:
        request.refuse_with_error(413, MessageTooLarge(self._size_limit), _CONNECTION_CLOSE)

    def close(self) -> None:
        """Stop watching deadlines."""
        self._deadlines.close()
