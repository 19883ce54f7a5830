"""Durable event log of a session: events are stored before they are sent, so that another process can replay them.

The process that sends events also keeps them in memory, up to the same limits; only the next holder of the session
reads them from the store. For each stream the log records which requests are answered on it, and when all of them have
been. For the standalone stream (stream 0: messages that belong to no request) it also records how far the client has
read, so that a GET without `Last-Event-ID` receives the rest.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final

from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import StoreError
from trunkline.server.sessions.lease import SessionLease
from trunkline.server.sessions.record import StreamRecord, read_number, read_stream
from trunkline.server.sessions.write_batcher import WriteBatcher
from trunkline.stores.store import scan_all
from trunkline.transports.http.session.event_store import MemoryEventStore
from trunkline.wire import codec
from trunkline.wire.messages import RequestId

__all__ = ["DurableEventLog"]

STANDALONE: Final = 0
_ENDED_STREAM: Final = codec.to_json(StreamRecord(()))


class _WriteProgress(Struct):
    """How far a stream has been written to the store."""

    last_written: int  # number of the last event that is stored
    pending_writes: int = 0  # writes queued since the stream was last fully stored


class DurableEventLog:
    """Event streams of one session."""

    commits_at_once: ClassVar[bool] = False

    def __init__(
        self,
        lease: SessionLease,
        batcher: WriteBatcher,
        settings: Settings,
        expires_at: Callable[[], float | None],
    ) -> None:
        self._lease = lease
        self._batcher = batcher
        self._expires_at = expires_at
        self._memory = MemoryEventStore(settings.replay_events, settings.replay_bytes)
        self._trimmed_to: dict[int, int] = {}  # by stream: number of the newest event that was trimmed
        self._unwritten: dict[int, _WriteProgress] = {}  # streams that are not fully stored
        self._unloaded: set[int] = set()  # streams of an earlier process whose events are not in memory yet
        self._drop_tasks: set[asyncio.Task[None]] = set()
        self._delivered = 0  # last standalone event that was delivered, as stored
        self._last_delivered_live = 0  # last standalone event that was appended while a client was reading
        self._on_written: Callable[[int], None] | None = None
        self._batch_done: asyncio.Future[None] | None = None  # done when the batch that got the last write is stored
        # By stream in that batch: its newest event and its number of writes.
        self._batch_streams: dict[int, tuple[int, int]] = {}
        self._closed = False
        self._fenced = False  # another process holds the session
        self.newest_stream = 0  # highest stream number so far

    def on_committed(self, callback: Callable[[int], None]) -> None:
        """Set the callback that receives the number of a stream when more of it is stored."""
        self._on_written = callback

    @property
    def last_event(self) -> int:
        """Number of the newest standalone event."""
        return self._memory.bounds(STANDALONE)[1]

    # --- writing -------------------------------------------------------------------------------

    def begin(self, stream: int, requests: Sequence[RequestId]) -> None:
        """Begin a stream on which some requests are answered."""
        self.newest_stream = max(self.newest_stream, stream)
        self._write(f"{self._lease.key}/streams/{stream:08}", codec.to_json(StreamRecord(requests)), stream, 0)

    def append(self, stream: int, frame: bytes, last_read: int | None) -> int:
        """Append an event to a stream and trim its oldest ones. Return the number of the event."""
        number = self._memory.append(stream, frame, last_read)
        self._write(self._event_key(stream, number), frame, stream, number)
        oldest, _ = self._memory.bounds(stream)
        for trimmed in range(self._trimmed_to.get(stream, 0) + 1, oldest + 1):
            self._batcher.delete(self._lease, self._event_key(stream, trimmed))
        self._trimmed_to[stream] = oldest
        if stream == STANDALONE and last_read is not None:
            self._last_delivered_live = number
            self._write_position(last_read)
        return number

    def mark_delivered(self, stream: int, number: int) -> None:
        """Note that a client has received a stream up to an event. For an event that was appended while a client was
        reading, the position is stored with the next event. If the process dies before that, a client without
        `Last-Event-ID` receives the event twice rather than never."""
        if stream == STANDALONE and number > self._last_delivered_live:
            self._write_position(number)

    def _write_position(self, number: int) -> None:
        if number > self._delivered:
            self._delivered = number
            if not self._closed:
                self._batcher.put(self._lease, f"{self._lease.key}/position", codec.to_json(number), self._expires_at())

    def end(self, stream: int) -> None:
        """Note that all requests of a stream have been answered."""
        self._write(f"{self._lease.key}/streams/{stream:08}", _ENDED_STREAM, stream, self._memory.bounds(stream)[1])

    def drop(self, stream: int) -> None:
        """Delete a stream."""
        if stream in self._unloaded:
            task = asyncio.get_running_loop().create_task(self._load_and_drop(stream))
            self._drop_tasks.add(task)
            task.add_done_callback(self._drop_tasks.discard)
            return
        oldest, last = self._memory.bounds(stream)
        for number in range(oldest + 1, last + 1):
            self._batcher.delete(self._lease, self._event_key(stream, number))
        self._batcher.delete(self._lease, f"{self._lease.key}/streams/{stream:08}")
        self._memory.drop(stream)
        self._trimmed_to.pop(stream, None)

    async def _load_and_drop(self, stream: int) -> None:
        with contextlib.suppress(StoreError):  # its data expires
            await self.load_stream(stream)
            self.drop(stream)

    def _event_key(self, stream: int, number: int) -> str:
        return f"{self._lease.key}/events/{stream:08}/{number:012}"

    def _write(self, key: str, value: bytes, stream: int, number: int) -> None:
        """Write a key of a stream; `number` is the stream's newest event after this write. Standalone events are
        urgent: replies wait for them, because a call may have caused them."""
        if self._closed:
            if self._fenced:
                # it can never be stored, so it is never delivered
                self._unwritten.setdefault(stream, _WriteProgress(number - 1))
            return
        done = self._batcher.put(self._lease, key, value, self._expires_at(), urgent=stream == STANDALONE)
        if done is not self._batch_done:
            self._batch_done, self._batch_streams = done, {}
            done.add_done_callback(partial(self._finish_batch, self._batch_streams))
        progress = self._unwritten.get(stream)
        if progress is None:
            progress = self._unwritten[stream] = _WriteProgress(number - 1)
        progress.pending_writes += 1
        self._batch_streams[stream] = (number, progress.pending_writes)

    def _finish_batch(self, batch: dict[int, tuple[int, int]], _: "asyncio.Future[None]") -> None:
        """Release the events of a batch for sending, after it was stored or failed for good. Fenced events are never
        released."""
        if self._fenced:
            return
        for stream, (number, writes) in batch.items():
            progress = self._unwritten[stream]
            progress.last_written = number
            if progress.pending_writes == writes:
                del self._unwritten[stream]
            if self._on_written is not None:
                self._on_written(stream)

    def close(self) -> None:
        """Stop writing."""
        self._closed = True

    def fence(self) -> None:
        """Stop writing because another process holds the session. Events that are not known to be stored become
        unreadable."""
        self._closed = self._fenced = True

    # --- reading -------------------------------------------------------------------------------

    def is_committed(self, stream: int) -> bool:
        """Return whether all events of a stream are stored."""
        return stream not in self._unwritten

    def size(self, stream: int) -> int:
        """Return the number of bytes of a stream in memory."""
        return self._memory.size(stream)

    def read_after(self, stream: int, number: int) -> Sequence[tuple[int, bytes]] | None:
        """Return the stored events after a number; None if these have been trimmed."""
        found = self._memory.read_after(stream, number)
        progress = self._unwritten.get(stream)
        return (
            found if progress is None or not found else [event for event in found if event[0] <= progress.last_written]
        )

    # --- restoring ------------------------------------------------------------------------------

    async def load(self, newest_stream: int, last_event: int) -> tuple[list[int], dict[int, Sequence[RequestId]]]:
        """Load the log of an earlier process. Return the stream numbers except the standalone one, and the unanswered
        requests by stream. `newest_stream` and `last_event` are the highest numbers used so far."""
        pending: dict[int, Sequence[RequestId]] = {}
        for item in await scan_all(self._lease.store, f"{self._lease.key}/streams/"):
            stream = int(item.key.rpartition("/")[2])
            self._unloaded.add(stream)
            if requests := read_stream(item.value).pending:
                pending[stream] = requests
        streams = sorted(self._unloaded)
        self.newest_stream = max([newest_stream, *streams])
        self._unloaded.add(STANDALONE)
        await self.load_stream(STANDALONE)
        if self.last_event < last_event:
            self._memory.restore(STANDALONE, last_event, ())
        position = await self._lease.store.get(f"{self._lease.key}/position")
        self._delivered = min(self.last_event, 0 if position is None else read_number(position.value))
        return streams, pending

    @property
    def delivered(self) -> int:
        """Number up to which standalone events were delivered."""
        return max(self._delivered, self._memory.bounds(STANDALONE)[0])

    async def load_stream(self, stream: int) -> None:
        """Load the events of a stream from the store, if an earlier process wrote them."""
        if stream not in self._unloaded:
            return
        items = await scan_all(self._lease.store, f"{self._lease.key}/events/{stream:08}/")
        if stream not in self._unloaded:
            return  # a concurrent call was faster
        self._unloaded.discard(stream)
        if items:
            first = int(items[0].key.rpartition("/")[2]) - 1
            self._memory.restore(stream, first, [item.value for item in items])
            self._trimmed_to[stream] = first
