"""Receipts: whatever happens to the files, a crash is told from a change, and a change is named by its place."""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from trunkline.receipts.chain import ChainVerifier, Problem
from trunkline.receipts.checkpoints import Signer, create_key, is_signed, load_signer, signed_text
from trunkline.receipts.entry import GENESIS, CallEntry, Checkpoint, Entry, Header, read_entry, seal, split_line
from trunkline.receipts.reader import find_files, verify_receipts
from trunkline.receipts.segments import ChainFiles

CHAIN = "20260728T120000Z-1-0123456789abcdef"
TIME = "2026-07-28T12:00:00.000000Z"


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    path = tmp_path_factory.mktemp("keys") / "key"
    create_key(path)
    return load_signer(path)


@dataclass
class Log:
    """A closed chain in memory: files of lines."""

    files: list[list[bytes]] = field(default_factory=list)

    @classmethod
    def build(cls, signer: Signer, sizes: list[int]) -> "Log":
        """Return a chain with a file for each number of calls, and a checkpoint after every third call."""
        log, n, mark = cls(), 0, GENESIS

        def add(entry: Entry) -> None:
            nonlocal n, mark
            line, mark = seal(entry, mark)
            log.files[-1].append(line)
            n += 1

        def sign(*, final: bool = False) -> None:
            signature = signer.sign(signed_text(CHAIN, n, mark, final=final))
            add(Checkpoint(n=n, time=TIME, signature=signature, final=final))

        for number, size in enumerate(sizes, 1):
            log.files.append([])
            head = {"follows": mark.hex(), "time": TIME, "server": "s", "pid": 1, "key": signer.public}
            add(Header(n=n, chain=CHAIN, segment=number, **head))
            for call in range(size):
                add(CallEntry(n=n, time=TIME, method="tools/call", name=f"t{call}", outcome="ok"))
                if call % 3 == 2:
                    sign()
            sign(final=number == len(sizes))
        return log

    def verify(self, contents: list[bytes] | None = None) -> list[Problem]:
        verifier = ChainVerifier(CHAIN, is_signed)
        found = [b"".join(lines) for lines in self.files] if contents is None else contents
        for number, content in enumerate(found, 1):
            verifier.begin_file(f"file {number}", number)
            *lines, rest = content.split(b"\n")
            for line in lines:
                verifier.feed(line + b"\n")
            verifier.end_file(rest, last=number == len(found))
        verifier.end_chain()
        return verifier.problems


SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=3)


@given(sizes=SIZES, data=st.data())
def test_flipped_bit_is_named_by_its_line(signer: Signer, sizes: list[int], data: st.DataObject) -> None:
    log = Log.build(signer, sizes)
    assert log.verify() == []
    contents = [bytearray(b"".join(lines)) for lines in log.files]
    file = data.draw(st.integers(0, len(contents) - 1))
    at = data.draw(st.integers(0, len(contents[file]) - 1))
    line = contents[file][:at].count(b"\n") + 1
    contents[file][at] ^= 1 << data.draw(st.integers(0, 7))
    problems = log.verify([bytes(content) for content in contents])
    assert (f"file {file + 1}", line) in {(problem.file, problem.line) for problem in problems}


@given(sizes=SIZES, data=st.data())
def test_dropped_line_is_named_by_its_place(signer: Signer, sizes: list[int], data: st.DataObject) -> None:
    log = Log.build(signer, sizes)
    file = data.draw(st.integers(0, len(sizes) - 1))
    at = data.draw(st.integers(0, len(log.files[file]) - 1))
    is_last = at == len(log.files[file]) - 1
    del log.files[file][at]
    problems = log.verify()
    if is_last and file == len(sizes) - 1:  # the end of a chain looks like that of a killed process
        assert {problem.kind for problem in problems} <= {"unsigned", "torn"}
        assert problems
    elif is_last:
        assert (problems[0].file, problems[0].line) == (f"file {file + 2}", 1)  # the next line
    else:
        assert (problems[0].file, problems[0].line) == (f"file {file + 1}", at + 1)
        assert not problems[0].is_warning


@given(sizes=SIZES, data=st.data())
def test_moved_repeated_and_inserted_lines_are_named(signer: Signer, sizes: list[int], data: st.DataObject) -> None:
    log = Log.build(signer, sizes)
    file = data.draw(st.integers(0, len(sizes) - 1))
    lines = log.files[file]
    at = data.draw(st.integers(0, len(lines) - 2))
    match data.draw(st.sampled_from(["swap", "repeat", "insert"])):
        case "swap":
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
            place = at + 1
        case "repeat":
            lines.insert(at + 1, lines[at])
            place = at + 2
        case _:
            call = CallEntry(n=data.draw(st.integers(0, 40)), time=TIME, method="tools/call", outcome="ok")
            lines.insert(at + 1, seal(call, data.draw(st.binary(min_size=32, max_size=32)))[0])
            place = at + 2
    failed = [problem for problem in log.verify() if not problem.is_warning]
    assert (failed[0].file, failed[0].line) == (f"file {file + 1}", place)


@given(sizes=SIZES, data=st.data())
def test_rewritten_chain_fails_at_its_next_checkpoint(signer: Signer, sizes: list[int], data: st.DataObject) -> None:
    log = Log.build(signer, sizes)
    file = data.draw(st.integers(0, len(sizes) - 1))
    at = data.draw(st.integers(0, len(log.files[file]) - 1))
    _rewrite(log, file, at)
    failed = [problem for problem in log.verify() if not problem.is_warning]
    assert failed
    assert failed[0].kind == "signature"


def _rewrite(log: Log, file: int, at: int) -> None:
    """Change a line and compute all later hashes again, as an attacker without the key can."""
    mark, changing = GENESIS, False
    for number, lines in enumerate(log.files):
        for place, line in enumerate(lines):
            entry = read_entry(split_line(line)[0])
            if (number, place) == (file, at):
                changing = True
                entry = _with_other_time(entry)
            elif isinstance(entry, Header) and changing:
                entry = replace(entry, follows=mark.hex())
            lines[place], mark = seal(entry, mark)


def _with_other_time(entry: Entry) -> Entry:
    if isinstance(entry, Checkpoint):
        return replace(entry, signature="00" * 64)
    return replace(entry, time="1999-01-01T00:00:00.000000Z")


@dataclass(frozen=True)
class Life:
    """One process: the sizes of its batches, and how it ended."""

    batches: list[int]
    cut: float | None  # part of its last file that survived the crash; None: closed in good order


PART = st.floats(0, 1, exclude_max=True)
LIVES = st.lists(
    st.builds(Life, st.lists(st.integers(0, 5), max_size=6), st.none() | st.floats(0, 1)), min_size=1, max_size=4
)


def _run_lives(folder: Path, signer: Signer, lives: list[Life]) -> None:
    for life in lives:
        files = ChainFiles(folder, "s", signer, 2000)
        for size in life.batches:
            first = files.next
            files.append(
                CallEntry(n=first + at, time=TIME, method="tools/call", name="t" * 200, outcome="ok")
                for at in range(size)
            )
            if size % 2:
                files.checkpoint()
            files.rotate_if_full()
        if life.cut is None:
            files.checkpoint(final=True)
        files.close()
        if life.cut is not None:
            last = max(file.path for file in find_files(folder) if file.chain == files.chain)
            os.truncate(last, int(last.stat().st_size * life.cut))


@settings(max_examples=40, deadline=None)
@given(lives=LIVES)
def test_crash_at_any_byte_leaves_warnings_only(signer: Signer, lives: list[Life]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run_lives(folder, signer, lives)
        reports = list(verify_receipts(find_files(folder), is_signed, trusted=frozenset({signer.public})))
    assert len(reports) == len(lives)
    assert [report.problems for report in reports if not report.ok] == []
    assert sum(report.closed for report in reports) == sum(life.cut is None for life in lives)
    for report in reports:
        assert report.closed or any(problem.is_warning for problem in report.problems)


@settings(max_examples=40, deadline=None)
@given(lives=LIVES, which=PART, kept=PART)
def test_cut_after_a_restart_is_found(signer: Signer, lives: list[Life], which: float, kept: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run_lives(folder, signer, lives)
        victims = [file.path for file in find_files(folder) if b"\n" in file.path.read_bytes()]
        last = ChainFiles(folder, "s", signer, 2000)  # refers to the ends of all chains
        last.checkpoint(final=True)
        last.close()
        if not victims:
            return
        victim = victims[int(which * len(victims))]
        os.truncate(victim, int(victim.read_bytes().rindex(b"\n") * kept))
        reports = list(verify_receipts(find_files(folder), is_signed))
    failed = [problem for report in reports for problem in report.problems if not problem.is_warning]
    assert any(problem.file.startswith(victim.name.partition(".")[0]) for problem in failed)
