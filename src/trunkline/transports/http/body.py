"""How long a peer may take to say what it has begun to say. One timer watches all who are being read.

Reading what is posted: its kind, its length, and how long it may take to arrive.
"""

import asyncio
from typing import Any, Final

from trunkline.clock import Clock, Timer
from trunkline.config import Settings
from trunkline.errors import MessageTooLarge
from trunkline.transports.http.request import BodyTooLarge, Disconnected, Visit
from trunkline.wire import codec
from trunkline.wire.media_types import is_utf8_json
from trunkline.wire.messages import Incoming

__all__ = ["Patience", "Reading"]

Reader = asyncio.Task[Any] | None


class Patience:
    """Watches tasks that read what a peer sends, and stops whoever takes too long."""

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._since: dict[Reader, float] = {}
        self._stopped: set[Reader] = set()
        self._timer: Timer | None = None

    def begin(self) -> Reader:
        """Watches the current task, which begins to read."""
        task = asyncio.current_task()
        if self._seconds is not None:
            self._since[task] = now = self._clock.now()
            if self._timer is None:
                self._timer = self._clock.call_at(now + self._seconds, self._look)
        return task

    def end(self, task: Reader) -> None:
        """It has read."""
        self._since.pop(task, None)

    def ran_out(self, task: Reader) -> bool:
        """Whether a task was stopped from here; if so, that cancellation is taken back."""
        if task is None or task not in self._stopped:
            return False
        self._stopped.discard(task)
        task.uncancel()
        return True

    def _look(self) -> None:
        self._timer = None
        now, limit = self._clock.now(), self._seconds or 0.0
        for task, since in list(self._since.items()):
            if now - since < limit:
                self._timer = self._clock.call_at(since + limit, self._look)  # they stand in the order of time
                return
            del self._since[task]
            if task is not None:
                self._stopped.add(task)
                task.cancel()

    def close(self) -> None:
        """Watches nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_CLOSE: Final = (b"connection", b"close")


class Reading:
    """Reads messages from the bodies of requests."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._limit = settings.http_body_size_limit
        self._patience = Patience(clock, settings.body_timeout)

    async def message(self, visit: Visit) -> Incoming | None:
        """What was posted; None if there is none to be had, which the peer has been told."""
        body = await self.body(visit)
        return None if body is None else codec.decode_strict(body)

    async def body(self, visit: Visit) -> bytes | None:
        """The same, as it came."""
        if not is_utf8_json(visit.headers.get(b"content-type", b"")):
            why = "the content type must be application/json, in UTF-8"
            await visit.refuse(415, why, kind="unsupported_media_type")
            return None
        length = visit.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limit:
            await self._too_large(visit)
            return None
        reader = self._patience.begin()
        try:
            return await visit.body(self._limit)
        except BodyTooLarge:
            await self._too_large(visit)
        except Disconnected:
            pass
        except asyncio.CancelledError:
            if not self._patience.ran_out(reader):
                raise
            await visit.refuse(408, "the body did not arrive in time", _CLOSE)
        finally:
            self._patience.end(reader)
        return None

    async def _too_large(self, visit: Visit) -> None:
        await visit.refuse_with(413, MessageTooLarge(self._limit), _CLOSE)

    def close(self) -> None:
        """Waits for nobody any more."""
        self._patience.close()
