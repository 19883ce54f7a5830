"""Verification of a chain: its lines in, its problems out.

Every line has the hash of the line before in its own hash, so a line that was changed, dropped, moved, repeated or
inserted does not fit. The number `n` of each entry tells these cases apart. After a line that does not fit, the
verification goes on with the hashes that the lines state, so that every problem is named and none is named twice.

A chain of which all hashes were computed again fits. Its checkpoints do not: their signatures need the private key.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct

from trunkline.receipts.checkpoints import fingerprint, signed_text
from trunkline.receipts.entry import (
    FORMAT,
    GENESIS,
    CallEntry,
    Checkpoint,
    Entry,
    Gap,
    Header,
    Unreadable,
    read_entry,
    split_line,
)

__all__ = ["ChainVerifier", "CheckSignature", "Problem", "ProblemKind"]

ProblemKind = Literal[
    "changed",  # an entry, or its hash, is not as it was written
    "missing",  # entries or files are gone
    "misplaced",  # an entry is repeated, moved or inserted
    "signature",  # a checkpoint is not signed by its key: earlier entries were changed and hashed again
    "key",  # the key is not one of the trusted keys
    "renamed",  # the file is not the one that its header names
    "unsigned",  # warning: no checkpoint covers the end of the chain
    "torn",  # warning: the last line is incomplete
]
WARNINGS: Final = frozenset({"unsigned", "torn"})

CheckSignature = Callable[[str, str, bytes], bool]
"""Whether a public key has made a signature of a text."""

Links = Mapping[int, tuple[str, str]]
"""Entries of a chain that headers of other chains refer to: by number, the hash and the file of the header."""

_MAX_PROBLEMS: Final = 100  # per chain; a chain with more was replaced, and the first is what counts
_MAX_CANDIDATES: Final = 16  # hashes of lines that did not fit, one of which the next line may follow


class Problem(Struct, frozen=True):
    """A problem of a chain, and its place."""

    kind: ProblemKind
    file: str
    line: int  # from 1; 0 for the whole file
    entry: int | None  # number of the entry in its chain
    text: str

    @property
    def is_warning(self) -> bool:
        """Whether a server that runs, or was killed, leaves the same behind."""
        return self.kind in WARNINGS


class ChainVerifier:
    """Verify the lines of one chain, segment by segment, in the order of the files."""

    def __init__(
        self,
        chain: str,
        check: CheckSignature,
        *,
        trusted: frozenset[str] | None = None,
        links: Links = MappingProxyType({}),
        pruned: bool = False,
    ) -> None:
        """`trusted` are the public keys that may sign; None: the key that the header states. With `pruned` the first
        segments may be missing."""
        self.chain = chain
        self.problems: list[Problem] = []
        self.calls = 0
        self.lost = 0  # calls that gaps count
        self.unsigned_calls = 0  # since the last checkpoint
        self.signed_through: int | None = None  # number of the last valid checkpoint
        self.closed = False  # the last line is a final checkpoint
        self.key: str | None = None
        self.head: tuple[int, str] | None = None  # number and hash of the last entry
        self._check = check
        self._trusted = trusted
        self._links = links
        self._pruned = pruned
        self._seen_links: set[int] = set()
        self._previous: list[bytes] = [GENESIS]  # hashes that the next line may follow
        self._next = 0  # number of the next entry
        self._in_step = True  # the last line did fit
        self._segment = 0
        self._first = 0  # number of the first entry that is not pruned
        self._file = ""
        self._line = 0

    # --- feeding -------------------------------------------------------------------------------

    def begin_file(self, file: str, segment: int) -> None:
        """Begin a segment. Its lines follow."""
        missing = range(self._segment + 1, segment)
        self._file, self._line, self._segment = file, 0, segment
        if missing:
            if missing[0] > 1 or not self._pruned:
                self._add("missing", None, _segments(missing))
            self._previous = []  # the header states what it follows

    def feed(self, line: bytes) -> None:
        """Verify a line, which ends with a line feed."""
        self._line += 1
        try:
            body, mark = split_line(line)
            entry = read_entry(body)
        except Unreadable as error:
            self._add("changed", self._next, f"the line cannot be read: {error}")
            self._in_step = False
            return
        if not self._previous and isinstance(entry, Header):
            self._previous, self._next = [_from_hex(entry.follows)], entry.n
            self._first = entry.n if self._pruned and self.head is None else self._first
        before = next((one for one in self._previous if sha256(one + body).digest() == mark), None)
        if before is None:
            self._report_misfit(entry)
            self._previous = [*self._previous[1 - _MAX_CANDIDATES :], mark]
            self._in_step = False
            self._check_link(entry.n, mark)
            return
        if entry.n != self._next and self._in_step:
            self._add("misplaced", entry.n, f"entry {entry.n} is in the place of entry {self._next}")
        self._previous, self._next, self._in_step = [mark], entry.n + 1, True
        self.head = (entry.n, mark.hex())
        self._check_link(entry.n, mark)
        self._accept(entry, before)

    def end_file(self, rest: bytes, *, last: bool) -> None:
        """End a segment. `rest` is the end of the file without a line feed."""
        if self._line == 0 and not rest:
            text = "the file is empty: its server was killed before the first line, or the content was removed"
            self._add("torn" if last else "missing", None, text)
        elif rest:
            self._line += 1
            text = f"the last line is incomplete ({len(rest)} bytes): its server was killed, or the end was cut off"
            self._add("torn" if last else "missing", self._next, text)

    def end_chain(self) -> None:
        """Report the end of the chain, once all segments are read."""
        last = self._next - 1
        for n, (_, file) in sorted(self._links.items()):
            if n not in self._seen_links and n >= self._first:
                self._add("missing", n, f"entry {n} is missing: {file} refers to it")
        if self.closed or self.head is None:
            return
        covered = (
            "it has no checkpoint" if self.signed_through is None else f"the last checkpoint is {self.signed_through}"
        )
        text = f"the chain ends at entry {last} and was not closed; {covered}, {self.unsigned_calls} calls follow it"
        self._add("unsigned", last, text)

    # --- lines ---------------------------------------------------------------------------------

    def _report_misfit(self, entry: Entry) -> None:
        expected = self._next
        if not self._in_step and entry.n >= expected:  # the lines before do not fit either
            self._add("changed", entry.n, f"entry {entry.n} does not follow the line before")
            self._next = entry.n + 1
        elif entry.n == expected:
            self._add("changed", expected, f"entry {expected} was changed")
            self._next = expected + 1
        elif entry.n > expected:
            gone = f"entry {expected} is" if entry.n == expected + 1 else f"entries {expected} to {entry.n - 1} are"
            self._add("missing", expected, f"{gone} missing before this line, or its number was changed")
            self._next = entry.n + 1
        else:
            self._add("misplaced", entry.n, f"entry {entry.n} is repeated, out of order or inserted")

    def _accept(self, entry: Entry, before: bytes) -> None:
        if (self._line == 1) != isinstance(entry, Header):
            self._add("misplaced", entry.n, "a file begins with a header and has no other")
        if self.closed:
            self._add("misplaced", entry.n, "an entry after the end of the chain")
            self.closed = False
        match entry:
            case Header():
                self._accept_header(entry, before)
            case CallEntry():
                self.calls += 1
                self.unsigned_calls += 1
            case Gap():
                self.lost += entry.lost
            case Checkpoint():
                self._accept_checkpoint(entry, before)

    def _accept_header(self, header: Header, before: bytes) -> None:
        if header.format != FORMAT:
            self._add("changed", header.n, f"format {header.format} is not known; use the release that wrote it")
        if (header.chain, header.segment) != (self.chain, self._segment):
            self._add("renamed", header.n, f"the header is that of {header.chain}, segment {header.segment}")
        if header.follows != before.hex():
            self._add("changed", header.n, "the header states another hash of the line before")
        if header.segment > 1 and header.key != self.key and self.key is not None:
            self._add("key", header.n, "the key has changed within the chain")
        self.key = header.key
        if self._trusted is not None and header.key not in self._trusted:
            whose = "has no key" if header.key is None else f"has the key {_name(header.key)}, which is not trusted"
            self._add("key", header.n, f"the chain {whose}")

    def _accept_checkpoint(self, checkpoint: Checkpoint, before: bytes) -> None:
        self.closed = checkpoint.final
        if self.key is None and checkpoint.signature is None:
            return  # a log without a key
        text = signed_text(self.chain, checkpoint.n, before, final=checkpoint.final)
        if self.key is None or checkpoint.signature is None or not self._check(self.key, checkpoint.signature, text):
            since = "the beginning" if self.signed_through is None else f"checkpoint {self.signed_through}"
            self._add("signature", checkpoint.n, f"the signature is not valid: a line since {since} was changed")
            return
        self.signed_through, self.unsigned_calls = checkpoint.n, 0

    def _check_link(self, n: int, mark: bytes) -> None:
        if (link := self._links.get(n)) is not None:
            self._seen_links.add(n)
            if link[0] != mark.hex():
                self._add("changed", n, f"entry {n} is not the one that {link[1]} refers to")

    def _add(self, kind: ProblemKind, entry: int | None, text: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS or kind in WARNINGS:
            self.problems.append(Problem(kind, self._file, self._line, entry, text))


def _segments(missing: range) -> str:
    if len(missing) == 1:
        return f"segment {missing[0]} of the chain is missing before this file"
    return f"segments {missing[0]} to {missing[-1]} of the chain are missing before this file"


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""  # no line follows it


def _name(key: str) -> str:
    try:
        return fingerprint(key)
    except ValueError:
        return "that cannot be read"
