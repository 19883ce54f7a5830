"""Values of metrics, in memory that all workers of a server share.

Each worker writes to a slot of its own, so no write needs a lock between processes, and any worker can add up the
values of all. The memory is mapped before the workers are forked. It outlives a worker that is killed: its successor
continues with the same slot, so that no count is lost and no counter goes down.

A slot is an array of 64-bit floats: a header, then one entry per series. An entry has the length of its key, the number
of its values, the key, and the values. Entries are never moved or removed; the header says where the last one ends, and
is written after the entry. A process that is killed while it adds a series therefore leaves nothing behind.
"""

import mmap
import os
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from trunkline.metrics.families import FAMILIES, SERIES_OMITTED, Family

__all__ = ["MetricsMemory", "Sample", "SlotState", "SlotWriter"]

_CELL: Final = 8  # bytes
_SLOT_CELLS: Final = 1 << 17  # 1 MiB: some 3,000 histograms; the system provides only pages that are written
_END, _PID, _SEEN_AT, _OMITTED = range(4)  # cells of the header
_HEADER_CELLS: Final = 8
_PADDING: Final = b"\xff"  # no UTF-8 text contains it
_SEPARATOR: Final = "\0"


class Sample(NamedTuple):
    """The values of one series in one slot."""

    slot: int
    family: Family
    labels: tuple[str, ...]  # values, in the order of the family
    values: tuple[float, ...]  # of a histogram: the count of each bucket, not cumulated, and the sum


class SlotState(NamedTuple):
    """The process that last used a slot."""

    pid: int  # 0: none has
    seen_at: float  # when it last noted that it is alive


class MetricsMemory:
    """Memory for the values of one or several processes. Processes forked from this one share it."""

    def __init__(self, slots: int = 1) -> None:
        self._map = mmap.mmap(-1, slots * _SLOT_CELLS * _CELL)
        self._cells = memoryview(self._map).cast("d")
        self._readers = [_SlotReader(number, self._slot(number)) for number in range(slots)]
        for number in range(slots):
            self._slot(number)[_END] = _HEADER_CELLS

    @property
    def slots(self) -> int:
        """The number of slots."""
        return len(self._readers)

    def writer(self, number: int) -> "SlotWriter":
        """Return the writer of a slot. Only one process may use it at a time."""
        return SlotWriter(self._slot(number))

    def read(self) -> Iterator[Sample]:
        """Yield the samples of all slots."""
        for reader in self._readers:
            yield from reader.read()

    def state(self, number: int) -> SlotState:
        """Return the state of a slot."""
        cells = self._slot(number)
        return SlotState(int(cells[_PID]), cells[_SEEN_AT])

    def _slot(self, number: int) -> "memoryview[float]":
        return self._cells[number * _SLOT_CELLS : (number + 1) * _SLOT_CELLS]


class SlotWriter:
    """Creates the series of a slot and changes their values. Any thread may create one; a value changes on one thread
    at a time."""

    def __init__(self, cells: "memoryview[float]") -> None:
        self.cells = cells
        """The values, by the indices that `find` returns."""
        self._lock = threading.Lock()
        self._known = {(sample.family.name, sample.labels): at for sample, at in _SlotReader(0, cells).entries()}

    def take_over(self, now: float) -> bool:
        """Take over the slot for this process; return whether another process has used it. Gauges start from 0."""
        cells, own = self.cells, os.getpid()
        for (name, _), at in self._known.items():
            if FAMILIES[name].kind == "gauge":
                cells[at] = 0.0
        used = cells[_PID] not in {0.0, own}
        cells[_PID], cells[_SEEN_AT] = own, now
        return used

    def keep_alive(self, now: float) -> None:
        """Note that this process is alive."""
        self.cells[_SEEN_AT] = now

    def find(self, family: Family, labels: tuple[str, ...] = ()) -> int:
        """Return the index of the first value of a series; create the series if necessary. If the memory is full,
        return the index of a place that is never read."""
        at = self._known.get((family.name, labels))
        if at is None:
            with self._lock:
                at = self._known.get((family.name, labels))
                return self._add(family, labels) if at is None else at
        return at

    def add(self, family: Family, labels: tuple[str, ...] = (), amount: float = 1.0) -> None:
        """Add to a counter or gauge."""
        self.cells[self.find(family, labels)] += amount

    def set(self, family: Family, labels: tuple[str, ...], value: float) -> None:
        """Set a gauge."""
        self.cells[self.find(family, labels)] = value

    def observe(self, family: Family, labels: tuple[str, ...], value: float) -> None:
        """Count a value in a histogram."""
        at, bounds, cells = self.find(family, labels), family.buckets, self.cells
        cells[at + bisect_left(bounds, value)] += 1.0
        cells[at + len(bounds) + 1] += value

    def series(self, family: Family) -> list[tuple[tuple[str, ...], float]]:
        """Return the labels and the first value of each series of a family."""
        return [(labels, self.cells[at]) for (name, labels), at in self._known.items() if name == family.name]

    def _add(self, family: Family, labels: tuple[str, ...]) -> int:
        key = _SEPARATOR.join((family.name, *labels)).encode(errors="replace")
        key += _PADDING * (-len(key) % _CELL)
        cells, key_cells = self.cells, len(key) // _CELL
        start = int(cells[_END])
        at = start + 2 + key_cells
        if at + family.size > len(cells) - _MAX_SIZE:
            cells[_OMITTED] += 1
            return len(cells) - _MAX_SIZE
        cells[start], cells[start + 1] = key_cells, family.size
        cells[start + 2 : at] = memoryview(key).cast("d")
        cells[_END] = at + family.size
        self._known[family.name, labels] = at
        return at


class _SlotReader:
    """Reads the entries of a slot. It remembers those that it knows, since they stay where they are."""

    def __init__(self, number: int, cells: "memoryview[float]") -> None:
        self._number = number
        self._cells = cells
        self._end = _HEADER_CELLS
        self._series: list[tuple[Family, tuple[str, ...], int]] = []

    def read(self) -> Iterator[Sample]:
        """Yield the samples of the slot."""
        cells = self._cells
        for sample, _ in self.entries():
            yield sample
        if cells[_OMITTED]:
            yield Sample(self._number, SERIES_OMITTED, (), (cells[_OMITTED],))

    def entries(self) -> "Iterator[tuple[Sample, int]]":
        """Yield the samples with the index of their first value."""
        self._find_new()
        for family, labels, at in self._series:
            yield Sample(self._number, family, labels, tuple(self._cells[at : at + family.size])), at

    def _find_new(self) -> None:
        cells, end = self._cells, int(self._cells[_END])
        while self._end < end:
            start = self._end
            at = start + 2 + int(cells[start])
            name, *labels = _decode_key(cells[start + 2 : at])
            self._end = at + int(cells[start + 1])
            if name in FAMILIES:
                self._series.append((FAMILIES[name], tuple(labels), at))


def _decode_key(cells: "memoryview[float]") -> Sequence[str]:
    return cells.tobytes().rstrip(_PADDING).decode(errors="replace").split(_SEPARATOR)


_MAX_SIZE: Final = max(family.size for family in FAMILIES.values())
