"""Chains that refer to each other."""

from pathlib import Path

from msgspec.structs import replace

from trunkline.receipts.checkpoints import is_signed
from trunkline.receipts.entry import CallEntry, read_entry, seal, split_line
from trunkline.receipts.reader import find_files, verify_receipts
from trunkline.receipts.segments import ChainFiles


def test_end_that_was_written_again_contradicts_a_later_chain(tmp_path: Path) -> None:
    first = ChainFiles(tmp_path, "t", None, 1 << 20)
    time = "2026-07-28T12:00:00.000000Z"
    first.append(CallEntry(n=n, time=time, method="tools/call", outcome="failed") for n in (1, 2))
    first.close()  # as if killed: no checkpoint covers its end
    (file,) = find_files(tmp_path)
    later = ChainFiles(tmp_path, "t", None, 1 << 20)
    later.close()
    lines = file.path.read_bytes().splitlines(keepends=True)
    entry = read_entry(split_line(lines[2])[0])
    assert isinstance(entry, CallEntry)
    lines[2], _ = seal(replace(entry, outcome="ok"), split_line(lines[1])[1])
    file.path.write_bytes(b"".join(lines))
    reports = {report.chain: report for report in verify_receipts(find_files(tmp_path), is_signed)}
    (problem,) = [found for found in reports[first.chain].problems if not found.is_warning]
    assert (problem.kind, problem.file, problem.line, problem.entry) == ("changed", file.path.name, 3, 2)
    assert later.chain in problem.text
