"""`trunkline receipts` on the files of a real log."""

import csv
import io
import json
import stat
from pathlib import Path

import pytest
from tests.unit.cli.commands import run, trunkline

from trunkline.cli.main import main
from trunkline.receipts.canonical import digest_json
from trunkline.receipts.checkpoints import create_key, load_signer
from trunkline.receipts.entry import CallEntry, Gap
from trunkline.receipts.reader import find_files
from trunkline.receipts.segments import ChainFiles

HOSTILE = "=pay\x1b[2J\x9b"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed chain of five calls, one gap and a checkpoint, signed with `key`."""
    create_key(tmp_path / "key")
    files = ChainFiles(tmp_path / "receipts", "t", load_signer(tmp_path / "key"), 1 << 20)
    names = ["add", "add", "pay", HOSTILE]
    files.append(
        CallEntry(
            n=files.next + at,
            time=f"2026-07-28T12:00:0{at}.000000Z",
            method="tools/call",
            name=name,
            principal=None if at else "Principal('ada')",
            outcome="failed" if name == "pay" else "ok",
            arguments=digest_json(b"{}"),
        )
        for at, name in enumerate(names)
    )
    files.append([Gap(n=files.next, time="2026-07-28T12:00:09.000000Z", lost=7)])
    files.checkpoint(final=True)
    files.close()
    return tmp_path / "receipts"


def change(folder: Path, old: bytes, new: bytes) -> str:
    (file,) = find_files(folder)
    content = file.path.read_bytes()
    assert old in content
    file.path.write_bytes(content.replace(old, new, 1))
    return file.path.name


def test_intact_log_is_verified(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, said, _ = run(
        capsys, "receipts", "verify", str(folder), "--key", f"{folder.parent / 'key'}.pub", "--strict"
    )
    assert status == 0
    assert "4 receipts, 7 known to be missing; signed by" in said
    assert "warning" not in said


def test_key_of_the_file_alone_is_a_warning(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, said, _ = run(capsys, "receipts", "verify", str(folder))
    assert status == 0
    assert "signatures were checked with the keys that the files state" in said


@pytest.mark.row("V04")
def test_changed_entry_is_named_by_file_and_position(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    name = change(folder, b'"name":"pay"', b'"name":"pat"')
    status, said, _ = run(capsys, "receipts", "verify", str(folder))
    assert status == 1
    assert f"{name}:4: changed: entry 3 was changed" in said
    status, said, _ = run(capsys, "receipts", "verify", "--json", str(folder))
    report = json.loads(said)
    assert (status, report["ok"], report["trusted"]) == (1, False, False)
    (problem,) = report["chains"][0]["problems"]
    assert problem == {
        "kind": "changed",
        "file": name,
        "line": 4,
        "entry": 3,
        "text": "entry 3 was changed",
    }


def test_foreign_key_fails(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    create_key(tmp_path / "other")
    status, said, _ = run(capsys, "receipts", "verify", str(folder), "--key", str(tmp_path / "other.pub"))
    assert status == 1
    assert "which is not trusted" in said


def test_cut_end_is_an_unsigned_tail(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (file,) = find_files(folder)
    lines = file.path.read_bytes().splitlines(keepends=True)
    file.path.write_bytes(b"".join(lines[:3]) + lines[3][:50])
    status, said, _ = run(capsys, "receipts", "verify", str(folder))
    assert status == 0
    assert f"{file.path.name}:4: torn: the last line is incomplete (50 bytes)" in said
    assert "unsigned: the chain ends at entry 2 and was not closed; it has no checkpoint, 2 calls follow it" in said
    assert run(capsys, "receipts", "verify", "--strict", str(folder))[0] == 1


def test_show_filters_and_escapes(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, said, _ = run(capsys, "receipts", "show", str(folder))
    assert status == 0
    assert said.isascii()
    assert "\x1b" not in said
    assert len(said.splitlines()) == 5
    assert said.splitlines()[-1].endswith("7 receipts are missing here")
    shown = {
        ("--name", "add"): 2,
        ("--outcome", "failed"): 1,
        ("--principal", "ada"): 1,
        ("--since", "2026-07-28T12:00:02"): 3,
        ("--last", "1"): 1,
        ("--last", "0"): 5,
    }
    for option, count in shown.items():
        assert len(run(capsys, "receipts", "show", *option, str(folder))[1].splitlines()) == count, option
    (line,) = run(capsys, "receipts", "show", "--json", "--name", HOSTILE, str(folder))[1].splitlines()
    assert json.loads(line)["name"] == HOSTILE
    assert line.isprintable()


def test_export_as_json_lines_and_csv(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    status, said, _ = run(capsys, "receipts", "export", str(folder))
    assert status == 0
    assert [json.loads(line)["kind"] for line in said.splitlines()] == ["call"] * 4 + ["gap"]
    status, said, _ = run(capsys, "receipts", "export", "--format", "csv", str(folder))
    rows = list(csv.DictReader(io.StringIO(said)))
    assert status == 0
    assert [row["name"] for row in rows] == ["add", "add", "pay", "'=pay\\x1b[2J\\x9b", ""]  # no formula
    assert rows[-1]["lost"] == "7"


async def test_digest_of_standard_input_finds_receipts(folder: Path) -> None:
    ended = await trunkline("receipts", "digest", stdin=' { "b": 1.0, "a": "x" } ')
    assert (ended.status, ended.out.strip()) == (0, digest_json(b'{"a":"x","b":1}'))


def test_key_is_private_and_never_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "new.key"
    status, said, _ = run(capsys, "receipts", "keygen", str(path))
    assert status == 0
    assert "new.key.pub" in said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    status, _, said = run(capsys, "receipts", "keygen", str(path))
    assert status == 2
    assert "exists" in said
    assert path.read_bytes() == before
    status, said, _ = run(capsys, "receipts", "keygen", "--json", str(tmp_path / "json.key"))
    assert json.loads(said)["public"].endswith("json.key.pub")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["verify", "{empty}"], "has no receipts"),
        (["verify", "{empty}/none"], "cannot read the folder"),
        (["verify", "--key", "{empty}/none", "{folder}"], "cannot read the key"),
        (["show", "--since", "yesterday", "{folder}"], "is not a time"),
        (["show", "--last", "-1", "{folder}"], "--last"),
        (["digest", "{empty}/none"], "cannot read"),
        (["keygen", "{empty}/none/key"], "cannot write the key"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_wrong_usage_is_explained(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, arguments: list[str], told: str
) -> None:
    (tmp_path / "empty").mkdir()
    words = [word.format(empty=tmp_path / "empty", folder=folder) for word in arguments]
    status, _, said = run(capsys, "receipts", *words)
    assert status == 2
    assert told in said


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["receipts"]) == 2
    for name in ("verify", "show", "export", "digest", "keygen"):
        assert f"  trunkline receipts {name}" in run(capsys, "receipts", name, "--help")[1]
