"""`trunkline receipts`: verify, show and export the receipts of a server, and make the keys that sign them.

No subcommand writes to the folder of receipts, so all of them may run while servers use it.
"""

import argparse
import csv
import sys
import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins
from msgspec.structs import fields

from trunkline.cli import printing
from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK, Commands, print_help_by_default
from trunkline.cli.terminal import escape, escape_json
from trunkline.errors import ConfigError
from trunkline.findings import Finding
from trunkline.wire.codec import to_json

if TYPE_CHECKING:
    from trunkline.receipts.entry import CallEntry, Gap
    from trunkline.receipts.reader import ChainReport
    from trunkline.receipts.segments import SegmentFile

__all__ = ["configure"]

_WIDTH: Final = 79  # of help
_EXAMPLES: Final = """\
examples:
  trunkline receipts keygen receipts.key
  trunkline receipts verify receipts --key receipts.key.pub
  trunkline receipts show receipts
"""
_EXIT_CODES: Final = """\
exit codes:
  0  success; warnings do not count, except with --strict
  1  receipts were changed, dropped or moved
  2  wrong usage
"""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # with which spreadsheets begin formulas


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `trunkline receipts`."""
    below = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in (_add_verify, _add_show, _add_export, _add_digest, _add_keygen):
        add(below)
    parser.epilog = _EXAMPLES
    print_help_by_default(parser)


def _add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], about: str, examples: str
) -> argparse.ArgumentParser:
    summary = about.partition(". ")[0].removesuffix(".")
    parser = commands.add_parser(name, help=summary[0].lower() + summary[1:], description=textwrap.fill(about, _WIDTH))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"examples:\n{examples}\n{_EXIT_CODES}"
    parser.set_defaults(run=run)
    return parser


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the folder of the receipts")


# --- verify ----------------------------------------------------------------------------------------------


def _add_verify(commands: Commands) -> None:
    about = (
        "Verify that receipts are complete and unchanged. Names every entry that was changed, dropped or moved by its "
        "file and position. The end of a chain that no checkpoint covers is a warning: a server that runs, or was "
        "killed, leaves one."
    )
    examples = (
        "  trunkline receipts verify receipts --key receipts.key.pub\n"
        "  trunkline receipts verify --strict --json receipts\n"
    )
    parser = _add_command(commands, "verify", _run_verify, about, examples)
    _add_folder(parser)
    parser.add_argument(
        "--key",
        metavar="FILE",
        type=Path,
        action="append",
        help="public key that may sign; repeatable (default: the key that each chain states, which proves less)",
    )
    parser.add_argument("--pruned", action="store_true", help="the oldest files were deleted on purpose")
    parser.add_argument("--strict", action="store_true", help="fail for warnings, too")
    parser.add_argument("--json", action="store_true", help="print the reports as one line of JSON")


def _run_verify(options: argparse.Namespace) -> int:
    from trunkline.receipts.checkpoints import is_signed, load_public_keys
    from trunkline.receipts.reader import find_files, verify_receipts

    trusted = None if options.key is None else load_public_keys(options.key)
    files = find_files(options.folder)
    reports = list(verify_receipts(files, is_signed, trusted=trusted, pruned=options.pruned))
    ok = all(report.ok and not (options.strict and report.problems) for report in reports)
    if options.json:
        listed = [{**to_builtins(report), "ok": report.ok} for report in reports]
        _print_json({"folder": str(options.folder), "ok": ok, "trusted": trusted is not None, "chains": listed})
    else:
        printing.print_findings([*_findings(reports, trusted)])
    return EXIT_OK if ok else EXIT_FAILURE


def _findings(reports: "Sequence[ChainReport]", trusted: frozenset[str] | None) -> Iterator[Finding]:
    for report in reports:
        for problem in report.problems:
            place = problem.file if problem.line == 0 else f"{problem.file}:{problem.line}"
            verdict = "warning" if problem.is_warning else "failed"
            yield Finding(place, verdict, f"{problem.kind}: {problem.text}")
        if report.ok and report.files:
            yield Finding(report.chain, "ok", _describe(report))
    if trusted is None and any(report.key is not None for report in reports):
        yield Finding("keys", "warning", "signatures were checked with the keys that the files state", mend="use --key")


def _describe(report: "ChainReport") -> str:
    from trunkline.receipts.checkpoints import fingerprint

    lost = f", {report.lost} known to be missing" if report.lost else ""
    signed = "not signed" if report.key is None else f"signed by {fingerprint(report.key)}"
    state = "closed" if report.closed else f"open, {report.unsigned_calls} after the last checkpoint"
    return f"{report.calls:,} receipts{lost}; {signed}; {state}"


# --- show and export -------------------------------------------------------------------------------------


def _add_show(commands: Commands) -> None:
    about = "Show the last receipts of all chains, by time. Does not verify them."
    examples = (
        "  trunkline receipts show receipts\n"
        "  trunkline receipts show --outcome failed --name pay --since 2026-07-01 receipts\n"
    )
    parser = _add_command(commands, "show", _run_show, about, examples)
    _add_folder(parser)
    _add_filters(parser)
    parser.add_argument("--last", metavar="N", type=int, default=20, help="how many (20); 0 for all")
    parser.add_argument("--json", action="store_true", help="print each as a line of JSON")


def _add_export(commands: Commands) -> None:
    about = "Write receipts of all chains, by time, as JSON lines or CSV. Does not verify them."
    examples = (
        "  trunkline receipts export receipts > receipts.jsonl\n"
        "  trunkline receipts export --format csv --since 2026-07-01 receipts > receipts.csv\n"
    )
    parser = _add_command(commands, "export", _run_export, about, examples)
    _add_folder(parser)
    _add_filters(parser)
    parser.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="of the output (jsonl)")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="only of this tool, prompt or resource")
    parser.add_argument("--principal", metavar="TEXT", help="only of principals whose name contains this text")
    parser.add_argument("--outcome", help="only with this outcome, such as ok, failed, error or cancelled")
    parser.add_argument("--since", metavar="TIME", type=_time, help="only since this time (UTC), such as 2026-07-01")


def _time(text: str) -> str:
    """Return a time in the form of receipts, so that both can be compared as text."""
    try:
        return datetime.fromisoformat(text.removesuffix("Z")).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-07-01T12:00") from None


def _select(options: argparse.Namespace) -> "Iterator[tuple[SegmentFile, CallEntry | Gap]]":
    from trunkline.receipts.entry import Gap
    from trunkline.receipts.reader import find_files, read_receipts

    for file, entry in read_receipts(find_files(options.folder)):
        if options.since is not None and entry.time < options.since:
            continue
        if isinstance(entry, Gap):
            if options.name is options.principal is options.outcome is None:
                yield file, entry
        elif (
            (options.name is None or entry.name == options.name)
            and (options.outcome is None or entry.outcome == options.outcome)
            and (options.principal is None or options.principal in (entry.principal or ""))
        ):
            yield file, entry


def _run_show(options: argparse.Namespace) -> int:
    if options.last < 0:
        raise ConfigError(f"--last must be 0 or more, not {options.last}")
    for file, entry in deque(_select(options), maxlen=options.last or None):
        if options.json:
            _print_json(_as_json(file, entry))
        else:
            sys.stdout.write(f"{_as_line(entry)}\n")
    return EXIT_OK


def _as_line(entry: "CallEntry | Gap") -> str:
    from trunkline.receipts.entry import Gap

    if isinstance(entry, Gap):
        return f"{escape(entry.time)}  {entry.lost} receipts are missing here"
    outcome = entry.outcome if entry.code is None else f"{entry.outcome} {entry.code}"
    digests = f"{_short(entry.arguments)} -> {_short(entry.result)}"
    who = entry.principal or "anonymous"
    what = f"{escape(entry.method)} {escape(entry.name or '-')}"
    return f"{escape(entry.time)}  {escape(outcome):14}  {what}  {digests}  {escape(who)}"


def _short(digest: str | None) -> str:
    return "-" if digest is None else escape(digest.rpartition(":")[2][:12])


def _as_json(file: "SegmentFile", entry: "CallEntry | Gap") -> dict[str, Any]:
    return {"file": file.path.name, **to_builtins(entry)}


def _run_export(options: argparse.Namespace) -> int:
    if options.format == "csv":
        _write_csv(_select(options))
    else:
        for file, entry in _select(options):
            _print_json(_as_json(file, entry))
    return EXIT_OK


def _write_csv(found: "Iterable[tuple[SegmentFile, CallEntry | Gap]]") -> None:
    from trunkline.receipts.entry import CallEntry

    columns = ["file", "kind", *(field.name for field in fields(CallEntry)), "lost"]
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    for file, entry in found:
        writer.writerow({name: _cell(value) for name, value in _as_json(file, entry).items()})


def _cell(value: Any) -> Any:
    """Return a value that no spreadsheet runs as a formula."""
    if not isinstance(value, str):
        return value
    shown = escape(value)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


# --- digest and keygen -----------------------------------------------------------------------------------


def _add_digest(commands: Commands) -> None:
    about = "Print the digest of a JSON value, to find the receipts of some arguments or of a result."
    examples = "  echo '{\"amount\": 5}' | trunkline receipts digest\n  trunkline receipts digest result.json\n"
    parser = _add_command(commands, "digest", _run_digest, about, examples)
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, help="file with JSON (standard input)")


def _run_digest(options: argparse.Namespace) -> int:
    from trunkline.receipts.canonical import digest_json

    try:
        text = sys.stdin.buffer.read() if options.file is None else options.file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {options.file}: {error.strerror}") from None
    sys.stdout.write(f"{digest_json(text)}\n")
    return EXIT_OK


def _add_keygen(commands: Commands) -> None:
    about = (
        "Make a key that signs checkpoints. Writes the private key to FILE, which only you can read, and the public "
        "key to FILE.pub. Keep the private key away from the people whose changes it is to show."
    )
    examples = "  trunkline receipts keygen receipts.key\n"
    parser = _add_command(commands, "keygen", _run_keygen, about, examples)
    parser.add_argument("file", metavar="FILE", type=Path, help="file of the private key; it must not exist")
    parser.add_argument("--json", action="store_true", help="print the names and the public key as one line of JSON")


def _run_keygen(options: argparse.Namespace) -> int:
    from trunkline.receipts.checkpoints import create_key, fingerprint

    public = create_key(options.file)
    if options.json:
        _print_json({"private": str(options.file), "public": f"{options.file}.pub", "key": public})
    else:
        shown = escape(str(options.file))
        sys.stdout.write(f"private key: {shown}\npublic key:  {shown}.pub ({fingerprint(public)})\n")
    return EXIT_OK


def _print_json(value: Any) -> None:
    sys.stdout.write(f"{escape_json(to_json(value).decode())}\n")
