"""Writer of receipts: a thread with a bounded queue between the event loop and the files of the chain.

The event loop only appends to a queue. The thread encodes, hashes, signs and writes what has gathered there; it sleeps
while there is nothing to do. A batch that cannot be written is kept and tried again. Once the queue is full, further
receipts are counted, and the log says how many are missing as soon as it can be written again.
"""

import atexit
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from trunkline.errors import StoreError
from trunkline.receipts.checkpoints import load_signer
from trunkline.receipts.entry import CallEntry, Entry, Gap, format_time
from trunkline.receipts.options import Receipts
from trunkline.receipts.segments import ChainFiles

__all__ = ["MakeEntry", "ReceiptWriter"]

MakeEntry = Callable[[int], CallEntry]
"""Makes the entry with a number. Called on the thread of the writer, perhaps more than once."""

_GATHER: Final = 0.02  # seconds: receipts of this time are one batch
_RETRY: Final = 0.5  # seconds between two attempts while the log cannot be written
_MAX_BATCH: Final = 1000  # entries
_MAX_BYTES: Final = 64 * 1024 * 1024  # of the messages that queued receipts refer to
_CLOSE_TIMEOUT: Final = 10.0  # seconds that the end of the process waits for the last batch

_log: Final = logging.getLogger("trunkline")


class ReceiptWriter:
    """The receipts of one process. `add` is called on the event loop; the other methods may block."""

    def __init__(self, options: Receipts, server: str) -> None:
        """Begin a chain. Raises `ConfigError` for a bad key and `StoreError` if the folder cannot be written."""
        signer = None if options.key is None else load_signer(options.key)
        try:
            self._files = ChainFiles(options.folder, server, signer, options.segment_bytes)
        except OSError as error:
            raise StoreError(f"cannot write receipts to {options.folder}: {error.strerror or error}") from error
        self._options = options
        self.running = 0  # calls that will need a receipt; written by the event loop only
        self._queue: deque[tuple[MakeEntry, int]] = deque()  # with the bytes that each refers to
        self._added_bytes = 0  # written by the event loop only
        self._removed_bytes = 0  # written by the thread only
        self._awake = False  # the thread looks at the queue before it sleeps
        self._wake = threading.Event()
        self._closing = False
        self._lost = 0  # receipts that did not fit into the queue; written by the event loop only
        self._reported = 0  # those that gaps in the log count; written by the thread only
        self._failure: str | None = None  # why the last attempt to write failed
        self._unsigned = 0  # calls since the last checkpoint
        self._unsynced = False
        self._signed_at = self._synced_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="trunkline-receipts", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def chain(self) -> str:
        """The name of the chain."""
        return self._files.chain

    @property
    def queued(self) -> int:
        """Receipts that wait to be written."""
        return len(self._queue)

    @property
    def lost(self) -> int:
        """Receipts that did not fit into the queue."""
        return self._lost

    # --- on the event loop -----------------------------------------------------------------------

    def find_refusal(self) -> str | None:
        """Return why a call must not start: its receipt could not be written."""
        if self._options.on_failure == "continue":
            return None
        if self._failure is not None:
            return f"receipts cannot be written: {self._failure}"
        return "too many receipts wait to be written" if self._is_full(self.running) else None

    def _is_full(self, reserved: int = 0) -> bool:
        too_many = len(self._queue) + reserved >= self._options.max_queue
        return too_many or self._added_bytes - self._removed_bytes > _MAX_BYTES

    def add(self, make: MakeEntry, size: int = 0) -> None:
        """Queue a receipt, which refers to so many bytes of messages until it is written."""
        if self._options.on_failure == "continue" and self._is_full():
            self._lost += 1
            return
        self._added_bytes += size
        self._queue.append((make, size))
        if not self._awake:
            self._awake = True
            self._wake.set()

    # --- closing ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is queued, sign it and close the chain. Receipts that still cannot be written are lost."""
        self._closing = True
        self._wake.set()
        self._thread.join(_CLOSE_TIMEOUT)
        atexit.unregister(self.close)

    # --- on the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wake.wait(self._seconds_until_due())
                self._wake.clear()
                if not self._closing:
                    time.sleep(_GATHER if self._failure is None else _RETRY)
                self._write_queued()
                self._awake = False
                if self._queue:  # added before the flag was reset
                    self._awake = True
                    self._wake.set()
            self._finish()
        except Exception:  # noqa: BLE001 - a bug of ours must not end calls
            self._failure = "the writer has failed; the log of the server has the reason"
            _log.exception("the writer of receipts has failed")
        finally:
            self._files.close()

    def _finish(self) -> None:
        self._write_queued()
        if self._failure is None:
            self._attempt(lambda: self._files.checkpoint(final=True))
            self._attempt(self._files.sync)
        missing = len(self._queue) + self._lost - self._reported
        if missing:
            _log.error("%d receipts are lost: %s", missing, self._failure)

    def _seconds_until_due(self) -> float | None:
        """Return the seconds until something is due without further calls; None if nothing is."""
        if self._failure is not None:
            return _RETRY
        now, due = time.monotonic(), list[float]()
        if self._unsigned:
            due.append(self._signed_at + self._options.checkpoint_interval)
        if self._unsynced and self._options.fsync is not None:
            due.append(self._synced_at + self._options.fsync)
        return max(min(due) - now, 0.0) if due else None

    def _write_queued(self) -> None:
        """Write the queue in batches; then sign and sync, if it is time."""
        if self._failure is not None and not self._queue and not self._attempt(self._files.checkpoint):
            return
        while self._queue or self._lost > self._reported:
            if not self._write_batch():
                return
        now, options = time.monotonic(), self._options
        if self._unsigned and now >= self._signed_at + options.checkpoint_interval:
            self._sign()
        if self._unsynced and options.fsync is not None and now >= self._synced_at + options.fsync:
            if self._attempt(self._files.sync):
                self._unsynced = False
            self._synced_at = now

    def _write_batch(self) -> bool:
        """Write the first part of the queue, and remove it once it is written. Return False if that fails."""
        taken = [self._queue[at] for at in range(min(len(self._queue), _MAX_BATCH))]
        reported = self._reported
        first, lost = self._files.next, self._lost - self._reported
        entries: list[Entry] = [make(first + at) for at, (make, _) in enumerate(taken)]
        if lost and len(taken) < _MAX_BATCH:
            entries.append(Gap(n=first + len(entries), time=format_time(time.time()), lost=lost))
            self._reported += lost
        if not self._attempt(lambda: self._files.append(entries)):
            self._reported = reported
            return False
        for _ in taken:
            self._removed_bytes += self._queue.popleft()[1]
        self._unsynced = True
        self._unsigned += len(entries)
        if self._unsigned >= self._options.checkpoint_calls:
            self._sign()
        with contextlib.suppress(OSError):  # the chain goes on in the file that is full
            self._files.rotate_if_full()
        return True

    def _sign(self) -> None:
        if self._attempt(self._files.checkpoint):
            self._unsigned = 0
            self._unsynced = True
        self._signed_at = time.monotonic()

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Run an action on the files; return False and remember the reason if it fails."""
        try:
            action()
        except OSError as error:
            if self._failure is None:
                refuses = self._options.on_failure == "refuse"
                then = "calls are refused" if refuses else "calls go on without receipts"
                _log.error("cannot write receipts: %s; %s until they can be written", error, then)
            self._failure = error.strerror or str(error)
            return False
        if self._failure is not None:
            self._failure = None
            _log.warning("receipts can be written again")
        return True
