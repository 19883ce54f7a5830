"""Reading and verifying a folder of receipts, while servers may write to it."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from msgspec import Struct

from trunkline.errors import ConfigError
from trunkline.receipts.chain import ChainVerifier, CheckSignature, Problem
from trunkline.receipts.entry import CallEntry, Entry, Gap, Unreadable, read_entry, split_line
from trunkline.receipts.segments import SegmentFile, find_segments, read_header

__all__ = ["ChainReport", "find_files", "read_receipts", "verify_receipts"]


class ChainReport(Struct, frozen=True):
    """The outcome of verifying one chain."""

    chain: str
    files: list[str]
    calls: int
    lost: int  # calls without receipts, of which the log knows
    unsigned_calls: int  # after the last checkpoint
    signed_through: int | None  # number of the last valid checkpoint
    closed: bool
    key: str | None  # the public key that the chain states
    head: tuple[int, str] | None  # number and hash of the last entry
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        """Whether there are no problems besides warnings."""
        return all(problem.is_warning for problem in self.problems)


def find_files(folder: Path) -> list[SegmentFile]:
    """Return the files of receipts in a folder. Raises `ConfigError` if it cannot be read or has none."""
    try:
        files = find_segments(folder)
    except OSError as error:
        raise ConfigError(f"cannot read the folder {folder}: {error.strerror}") from None
    if not files:
        raise ConfigError(f"the folder {folder} has no receipts")
    return files


def verify_receipts(
    files: Sequence[SegmentFile],
    check: CheckSignature,
    *,
    trusted: frozenset[str] | None = None,
    pruned: bool = False,
) -> Iterator[ChainReport]:
    """Verify all chains together, and yield the report of each. `trusted` are the public keys that may sign; None: the
    key that each chain states. With `pruned`, the oldest files may be missing."""
    links = _collect_links(files)
    for chain, segments in groupby(files, attrgetter("chain")):
        verifier = ChainVerifier(chain, check, trusted=trusted, links=links.pop(chain, {}), pruned=pruned)
        yield _verify_chain(verifier, list(segments))
    if not pruned:
        yield from (_report_missing(chain, wanted) for chain, wanted in sorted(links.items()))


def _collect_links(files: Iterable[SegmentFile]) -> dict[str, dict[int, tuple[str, str]]]:
    """Return the entries that headers refer to: by chain and number, the hash and the file of the header."""
    links: dict[str, dict[int, tuple[str, str]]] = {}
    for file in files:
        if file.segment == 1 and (header := read_header(file.path)) is not None:
            for chain, (n, mark) in header.links.items():
                links.setdefault(chain, {})[n] = (mark, file.path.name)
    return links


def _verify_chain(verifier: ChainVerifier, segments: Sequence[SegmentFile]) -> ChainReport:
    for segment in segments:
        verifier.begin_file(segment.path.name, segment.segment)
        rest, feed = b"", verifier.feed
        with segment.path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    feed(line)
                else:
                    rest = line
        verifier.end_file(rest, last=segment is segments[-1])
    verifier.end_chain()
    return ChainReport(
        chain=verifier.chain,
        files=[segment.path.name for segment in segments],
        calls=verifier.calls,
        lost=verifier.lost,
        unsigned_calls=verifier.unsigned_calls,
        signed_through=verifier.signed_through,
        closed=verifier.closed,
        key=verifier.key,
        head=verifier.head,
        problems=verifier.problems,
    )


def _report_missing(chain: str, wanted: dict[int, tuple[str, str]]) -> ChainReport:
    problems = [
        Problem("missing", f"{chain}.*", 0, n, f"the chain is missing: {file} refers to its entry {n}")
        for n, (_, file) in sorted(wanted.items())
    ]
    return ChainReport(chain, [], 0, 0, 0, None, closed=False, key=None, head=None, problems=problems)


def read_receipts(files: Sequence[SegmentFile]) -> Iterator[tuple[SegmentFile, CallEntry | Gap]]:
    """Yield the receipts of all chains by time, with their files. Lines that cannot be read are left out; `verify`
    names them."""
    chains = [_read_chain(list(segments)) for _, segments in groupby(files, attrgetter("chain"))]
    return merge(*chains, key=lambda found: found[1].time)


def _read_chain(segments: Sequence[SegmentFile]) -> Iterator[tuple[SegmentFile, CallEntry | Gap]]:
    for segment in segments:
        with segment.path.open("rb") as file:
            for line in file:
                entry = _read_line(line)
                if isinstance(entry, CallEntry | Gap):
                    yield segment, entry


def _read_line(line: bytes) -> Entry | None:
    try:
        return read_entry(split_line(line)[0])
    except Unreadable:
        return None
