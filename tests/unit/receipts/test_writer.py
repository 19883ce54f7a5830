"""The writer of receipts: its queue, and its end."""

import threading
from pathlib import Path

import pytest
from tests.limits import PATIENCE

from trunkline import Receipts
from trunkline.receipts.checkpoints import is_signed
from trunkline.receipts.entry import CallEntry
from trunkline.receipts.reader import ChainReport, find_files, verify_receipts
from trunkline.receipts.writer import ReceiptWriter

MIB = 1024 * 1024


class BusyWriter:
    """A writer whose thread is busy with its first receipt until `finish`."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        self.writer = ReceiptWriter(Receipts(folder, **options), "t")  # type: ignore[arg-type]
        self._begun, self._released = threading.Event(), threading.Event()
        self.writer.add(self._wait)
        assert self._begun.wait(PATIENCE)

    def _wait(self, n: int) -> CallEntry:
        self._begun.set()
        assert self._released.wait(PATIENCE)
        return make(n)

    def finish(self) -> ChainReport:
        self._released.set()
        self.writer.close()
        (report,) = verify_receipts(find_files(self.folder), is_signed)
        return report


def make(n: int) -> CallEntry:
    return CallEntry(n=n, time="2026-07-28T12:00:00.000000Z", method="tools/call", outcome="ok")


@pytest.mark.parametrize(("size", "kept"), [(0, 99), (MIB, 65)], ids=["receipts", "bytes"])
def test_receipts_beyond_the_queue_are_counted(tmp_path: Path, size: int, kept: int) -> None:
    busy = BusyWriter(tmp_path / "receipts", max_queue=100)
    for _ in range(150):
        busy.writer.add(make, size)
    report = busy.finish()
    assert (report.calls, report.lost, report.closed, report.problems) == (1 + kept, 150 - kept, True, [])


def test_refusing_writer_counts_running_calls(tmp_path: Path) -> None:
    busy = BusyWriter(tmp_path / "receipts", max_queue=10, on_failure="refuse")
    busy.writer.running = 8
    assert busy.writer.find_refusal() is None
    busy.writer.running = 9
    assert busy.writer.find_refusal() == "too many receipts wait to be written"
    for _ in range(9):
        busy.writer.add(make)
    assert busy.finish().calls == 10


def test_writer_closes_once(tmp_path: Path) -> None:
    writer = ReceiptWriter(Receipts(tmp_path / "receipts"), "t")
    writer.add(make)
    writer.close()
    writer.close()
    (report,) = verify_receipts(find_files(tmp_path / "receipts"), is_signed)
    assert (report.calls, report.closed, report.problems) == (1, True, [])
