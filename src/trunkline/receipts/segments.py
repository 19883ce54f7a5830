"""Files of one chain: each process appends to files of its own, so that no process waits for another.

The name of a file is that of its chain and the number of the segment. A process never writes to a file that it has not
created: what a killed process has left stays as it is. The header of a new chain has the last entries of the chains in
the folder, so the end of an older chain cannot be cut off unnoticed.
"""

import os
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from trunkline.receipts.checkpoints import Signer, signed_text
from trunkline.receipts.entry import (
    GENESIS,
    Checkpoint,
    Entry,
    Header,
    Unreadable,
    format_time,
    read_entry,
    seal,
    split_line,
)

__all__ = ["SUFFIX", "ChainFiles", "SegmentFile", "find_links", "find_segments", "read_header"]

SUFFIX: Final = ".jsonl"
_NAME: Final = re.compile(r"(?P<chain>\d{8}T\d{6}Z-\d+-[0-9a-f]{16})\.(?P<segment>\d{6})\.jsonl")
_MODE: Final = 0o600
_TAIL: Final = 64 * 1024  # bytes that are read from the end of a file: more than the longest line


class SegmentFile(NamedTuple):
    """A file of a receipt log."""

    path: Path
    chain: str
    segment: int


def find_segments(folder: Path) -> list[SegmentFile]:
    """Return the files of the chains in a folder, by chain and segment."""
    found = [
        SegmentFile(path, match["chain"], int(match["segment"]))
        for path in folder.iterdir()
        if (match := _NAME.fullmatch(path.name)) is not None
    ]
    return sorted(found, key=lambda file: (file.chain, file.segment))


def read_header(path: Path) -> Header | None:
    """Return the header of a file; None if it has no whole header."""
    with suppress(OSError, Unreadable), path.open("rb") as file:
        entry = read_entry(split_line(file.readline())[0])
        return entry if isinstance(entry, Header) else None
    return None


def find_links(files: Iterable[SegmentFile]) -> dict[str, tuple[int, str]]:
    """Return the number and hash of the last whole line of each chain, unless the header of another chain has it
    already."""
    last = {file.chain: file.path for file in files}
    linked: set[tuple[str, int]] = set()
    for file in files:
        if file.segment == 1 and (header := read_header(file.path)) is not None:
            linked.update((chain, link[0]) for chain, link in header.links.items())
    heads = {chain: head for chain, path in last.items() if (head := _read_head(path)) is not None}
    return {chain: head for chain, head in heads.items() if (chain, head[0]) not in linked}


def _read_head(path: Path) -> tuple[int, str] | None:
    """Return the number and hash of the last whole entry of a file."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        for line in reversed(file.read().splitlines(keepends=True)):
            with suppress(Unreadable):
                body, mark = split_line(line)
                return read_entry(body).n, mark.hex()
    return None


class ChainFiles:
    """The chain that this process writes. Not thread-safe."""

    def __init__(self, folder: Path, server: str, signer: Signer | None, max_bytes: int) -> None:
        """Create the folder and the first file. Raises `OSError`."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self.chain = f"{started}-{os.getpid()}-{secrets.token_hex(8)}"
        self.next = 0  # number of the next entry
        self._folder = folder
        self._server = server
        self._signer = signer
        self._max_bytes = max_bytes
        self._hash = GENESIS
        self._segment = 0
        self._file = -1
        self._size = 0  # bytes of whole lines
        self._start_segment(find_links(find_segments(folder)))

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries together; their numbers begin with `next`. Raises `OSError`; then none is part of the chain."""
        lines, mark, count = bytearray(), self._hash, 0
        for entry in entries:
            line, mark = seal(entry, mark)
            lines += line
            count += 1
        self._write(lines)
        self._hash = mark
        self.next += count

    def checkpoint(self, *, final: bool = False) -> None:
        """Sign all lines so far. Raises `OSError`."""
        self.append([self._make_checkpoint(final=final)])

    def rotate_if_full(self) -> None:
        """Continue in a new file if this one is full. Raises `OSError`; then the chain continues in the old file."""
        if self._size >= self._max_bytes:
            self.checkpoint()
            self.sync()
            self._start_segment({})

    def sync(self) -> None:
        """Wait until the lines are on the disk. Raises `OSError`."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _make_checkpoint(self, *, final: bool) -> Checkpoint:
        n, signer = self.next, self._signer
        signature = None if signer is None else signer.sign(signed_text(self.chain, n, self._hash, final=final))
        return Checkpoint(n=n, time=format_time(time.time()), signature=signature, final=final)

    def _write(self, lines: bytearray) -> None:
        """Write whole lines, or nothing."""
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(lines)

    def _start_segment(self, links: dict[str, tuple[int, str]]) -> None:
        segment = self._segment + 1
        header = Header(
            n=self.next,
            chain=self.chain,
            segment=segment,
            follows=self._hash.hex(),
            time=format_time(time.time()),
            server=self._server,
            pid=os.getpid(),
            key=None if self._signer is None else self._signer.public,
            links=links,
        )
        line, mark = seal(header, self._hash)
        path = self._folder / f"{self.chain}.{segment:06}{SUFFIX}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
        try:
            if os.write(file, line) < len(line):
                raise OSError("the disk is full")
            os.fsync(file)
            self._sync_folder()
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        self.close()
        self._file, self._size, self._segment = file, len(line), segment
        self._hash, self.next = mark, self.next + 1

    def _sync_folder(self) -> None:
        """Wait until the name of a new file is on the disk."""
        if os.name != "posix":
            return
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
