"""`trunkline store`: check, migrate, measure, export and back up the store of a server.

Only `migrate` writes to the store. Keys and session ids are never printed, except by `export --include-secrets`.
"""

import argparse
import asyncio
import base64
import contextlib
import os
import sys
import textwrap
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from trunkline.cli import printing
from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK, Commands, print_help_by_default
from trunkline.cli.store_location import DEFAULT_PREFIX, is_redis_url, make_store, resolve_location
from trunkline.cli.terminal import escape, escape_json
from trunkline.errors import ConfigError, Conflict, StoreError, StoreUnusable
from trunkline.findings import Finding
from trunkline.wire.codec import DecodeError, json_decoder, to_json

if TYPE_CHECKING:
    from trunkline.cli.store_survey import StoreSurvey
    from trunkline.stores.reader import StoreReader
    from trunkline.stores.store import Item, Lease, Store

__all__ = ["configure"]

Run = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]
"""Runs a subcommand and returns the exit code."""

_WIDTH: Final = 79  # of help
_EXIT_CODES: Final = """\
exit codes:
  0  success; nothing needs attention
  1  a problem was found, or the store cannot be used
  2  wrong usage
"""
_decode_any: Final[Callable[[bytes], Any]] = json_decoder(cast("Any", Any))


_EXAMPLES: Final = """\
examples:
  trunkline store check state.db
  trunkline store stats redis://localhost:6379
  trunkline store backup state.db /backups/state.db
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `trunkline store`."""
    below = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in (_add_check, _add_migrate, _add_stats, _add_export, _add_backup):
        add(below)
    parser.epilog = _EXAMPLES
    print_help_by_default(parser)


def _add_command(
    commands: Commands, name: str, run: "Run", about: str, examples: str, *, json: str | None = None
) -> argparse.ArgumentParser:
    """Add a subcommand. `json` says what its option `--json` prints; None: it has none."""
    summary = about.partition(". ")[0]
    parser = commands.add_parser(name, help=summary[0].lower() + summary[1:], description=textwrap.fill(about, _WIDTH))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"examples:\n{examples}\n{_EXIT_CODES}"
    parser.add_argument(
        "store",
        metavar="URL-OR-PATH",
        help="path of a SQLite file, a Redis URL, or env:NAME for the environment variable that holds it",
    )
    parser.add_argument("--prefix", default=DEFAULT_PREFIX, help="prefix of a store on Redis (trunkline:)")
    if json is not None:
        parser.add_argument("--json", action="store_true", help=f"print {json} as one line of JSON")
    parser.set_defaults(run=partial(_run, run))
    return parser


def _run(run: "Run", options: argparse.Namespace) -> int:
    return asyncio.run(run(options))


# --- locations -------------------------------------------------------------------------------------------


def _make_reader(options: argparse.Namespace) -> "StoreReader":
    location = resolve_location(options.store)
    if is_redis_url(location):
        from trunkline.stores.redis.reader import RedisReader

        return RedisReader(location, prefix=options.prefix)
    from trunkline.stores.sqlite.reader import SqliteReader

    return SqliteReader(Path(location))


@asynccontextmanager
async def _opened(reader: "StoreReader") -> "AsyncGenerator[StoreReader]":
    try:
        await reader.open()
        yield reader
    finally:
        await reader.close()


# --- check -----------------------------------------------------------------------------------------------


def _add_check(commands: Commands) -> None:
    about = "Check that a store is intact. Reads everything, changes nothing, and may run while servers use the store."
    examples = "  trunkline store check state.db\n  trunkline store check --json env:STORE_URL\n"
    _add_command(commands, "check", _run_check, about, examples, json="the findings")


async def _run_check(options: argparse.Namespace) -> int:
    reader = _make_reader(options)
    findings: list[Finding] = []
    try:
        async with _opened(reader):
            findings += [await _check_structure(reader), _check_schema(reader)]
            findings += await _check_content(reader)
    except StoreError as error:
        findings.append(Finding("store", "failed", str(error)))
    healthy = all(finding.verdict == "ok" for finding in findings)
    if options.json:
        listed = [
            {"check": found.hop, "verdict": found.verdict, "seen": found.seen, "fix": found.mend} for found in findings
        ]
        _print_json({"store": str(reader), "ok": healthy, "findings": listed})
    else:
        printing.print_findings(findings)
    return EXIT_OK if healthy else EXIT_FAILURE


async def _check_structure(reader: "StoreReader") -> Finding:
    problems = await reader.verify()
    if problems:
        return Finding("structure", "failed", "; ".join(problems), mend="stop the servers and restore a backup")
    return Finding("structure", "ok", "intact")


def _check_schema(reader: "StoreReader") -> Finding:
    if reader.schema == 0:
        return Finding("schema", "ok", "the store is empty")
    if reader.pending:
        seen = f"version {reader.schema} of an older release, to be migrated {' and '.join(reader.pending)}"
        first = "stop the servers and " if reader.stop_first else ""
        return Finding("schema", "warning", seen, mend=f"{first}run `trunkline store migrate`, or start this release")
    return Finding("schema", "ok", f"version {reader.schema}")


async def _check_content(reader: "StoreReader") -> list[Finding]:
    from trunkline.cli.store_survey import survey_store

    survey = await survey_store(reader)
    return [_check_records(survey), _check_leases(survey)]


def _check_records(survey: "StoreSurvey") -> Finding:
    if survey.unreadable:
        shown = "; ".join(survey.examples)
        seen = f"{survey.unreadable} of {survey.items} items cannot be decoded: {shown}"
        return Finding("records", "failed", seen, mend="use the release that wrote them, or restore a backup")
    if survey.unknown:
        seen = f"{survey.unknown} of {survey.items} items are of no known kind"
        return Finding("records", "warning", seen, mend="use the release that wrote them to check them")
    if survey.older_layouts:
        seen = f"{survey.older_layouts} session records have the layout of an older release"
        return Finding("records", "warning", seen, mend="run `trunkline store migrate`; servers can read them, too")
    return Finding("records", "ok", f"{survey.items} items, and {survey.expired} expired ones to be deleted")


def _check_leases(survey: "StoreSurvey") -> Finding:
    running = f"{len(survey.processes)} live processes, {survey.leases} leases"
    if survey.orphaned:
        seen = f"{survey.orphaned} sessions are held by processes that are dead; {running}"
        mend = "nothing, if their clients come back: another process takes over, or they expire; else find the crash"
        return Finding("leases", "warning", seen, mend=mend)
    return Finding("leases", "ok", running)


# --- migrate ---------------------------------------------------------------------------------------------


def _add_migrate(commands: Commands) -> None:
    about = (
        "Migrate a store to this release. Servers migrate the store that they open, too. Some changes of the schema "
        "need all servers to be stopped; then it says so and does nothing."
    )
    examples = "  trunkline store migrate --dry-run state.db\n  trunkline store migrate state.db\n"
    parser = _add_command(commands, "migrate", _run_migrate, about, examples, json="the outcome")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


async def _run_migrate(options: argparse.Namespace) -> int:
    async with _opened(_make_reader(options)) as reader:
        old, processes = await _older_records(reader), await _live_processes(reader)
    if reader.stop_first and processes and not options.dry_run:
        raise StoreUnusable(f"{len(processes)} processes use the store {reader}; stop them before its schema changes")
    skipped = 0
    if not options.dry_run and (reader.pending or old):
        skipped = await _migrate(make_store(options.store, options.prefix), old)
    if options.json:
        done = {"schema": reader.pending, "records": len(old) - skipped, "skipped": skipped}
        _print_json({"store": str(reader), "dryRun": options.dry_run, **done})
    else:
        would = "would be migrated" if options.dry_run else "migrated"
        _write_lines(_migration_lines(reader.pending, len(old), skipped, would))
    return EXIT_OK


async def _older_records(reader: "StoreReader") -> "list[Item]":
    from trunkline.cli.store_kinds import has_older_layout

    found: list[Item] = []
    async for item in reader.items():
        with contextlib.suppress(DecodeError):  # for `check`
            if has_older_layout(item):
                found.append(item)
    return found


async def _live_processes(reader: "StoreReader") -> list[str]:
    from trunkline.cli.store_survey import live_processes

    return live_processes([lease async for lease in reader.leases()], reader.now)


async def _migrate(store: "Store", old: "list[Item]") -> int:
    """Migrate the schema and some session records; return how many were changed by another process meanwhile."""
    from trunkline.server.sessions.record import read_record
    from trunkline.stores.store import Put

    skipped = 0
    try:
        await store.open()  # migrates the schema
        for item in old:
            try:
                await store.commit([Put(item.key, to_json(read_record(item.value)), item.expires, item.version)])
            except Conflict:
                skipped += 1
    finally:
        await store.close()
    return skipped


def _migration_lines(pending: list[str], old: int, skipped: int, would: str) -> Iterator[str]:
    for change in pending:
        yield f"schema: {would} {change}"
    if old:
        yield f"session records: {old - skipped} {would}"
    if skipped:
        yield f"session records: {skipped} were changed by a server meanwhile, which has migrated them"
    if not (pending or old):
        yield "nothing to migrate"


# --- stats -----------------------------------------------------------------------------------------------


def _add_stats(commands: Commands) -> None:
    about = "Show what a store holds. Counts items, bytes and owners by kind; owners are not named."
    examples = "  trunkline store stats state.db\n  trunkline store stats --json redis://localhost\n"
    _add_command(commands, "stats", _run_stats, about, examples, json="the figures")


async def _run_stats(options: argparse.Namespace) -> int:
    from trunkline.cli.store_survey import survey_store

    async with _opened(_make_reader(options)) as reader:
        survey, size = await survey_store(reader), await reader.size()
    if options.json:
        _print_json(_stats_as_json(reader, survey, size))
    else:
        _write_lines(_stats_lines(reader, survey, size))
    return EXIT_OK


def _stats_as_json(reader: "StoreReader", survey: "StoreSurvey", size: int | None) -> dict[str, Any]:
    kinds = {
        name: {
            "items": count.items,
            "bytes": count.bytes,
            "owners": len(count.owners),
            "oldest": count.oldest,
            "newest": count.newest,
        }
        for name, count in sorted(survey.kinds.items())
    }
    return {
        "store": str(reader),
        "schema": reader.schema,
        "bytes": size,
        "items": survey.items,
        "expired": survey.expired,
        "owners": len(survey.owners),
        "processes": survey.processes,
        "leases": survey.leases,
        "kinds": kinds,
    }


def _stats_lines(reader: "StoreReader", survey: "StoreSurvey", size: int | None) -> Iterator[str]:
    yield f"{reader}: schema {reader.schema}" + ("" if size is None else f", {size:,} bytes")
    yield (
        f"{survey.items:,} items of {len(survey.owners):,} owners, {survey.expired:,} expired; "
        f"{survey.leases:,} leases; {len(survey.processes)} live processes"
    )
    if survey.kinds:
        yield f"{'kind':18}{'items':>10}{'bytes':>14}{'owners':>8}  {'oldest':20}  newest"
    for name, count in sorted(survey.kinds.items()):
        times = f"{_time(count.oldest):20}  {_time(count.newest)}"
        yield f"{name:18}{count.items:>10,}{count.bytes:>14,}{len(count.owners):>8,}  {times}".rstrip()


def _time(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- export ----------------------------------------------------------------------------------------------


def _add_export(commands: Commands) -> None:
    about = (
        "Write all items as JSON lines. Leaves out the values of keys, and masks session ids; what users have sent is "
        "included, so protect the output like the store."
    )
    examples = "  trunkline store export state.db > state.jsonl\n  trunkline store export -o state.jsonl state.db\n"
    parser = _add_command(commands, "export", _run_export, about, examples)
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a new file that only you can read")
    parser.add_argument("--include-secrets", action="store_true", help="include keys and session ids")


async def _run_export(options: argparse.Namespace) -> int:
    async with _opened(_make_reader(options)) as reader:
        with _output(options.output) as write:
            header = {"store": str(reader), "schema": reader.schema, "exported": reader.now}
            write(_to_line(header))
            async for item in reader.items():
                if item.expires is None or item.expires > reader.now:
                    write(_to_line(_export_item(item, include_secrets=options.include_secrets)))
            async for lease in reader.leases():
                if lease.expires > reader.now:
                    write(_to_line(_export_lease(lease, include_secrets=options.include_secrets)))
    return EXIT_OK


@contextlib.contextmanager
def _output(name: str | None) -> "Generator[Callable[[str], object]]":
    if name is None:
        yield sys.stdout.write
        return
    try:
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot create {name}: {error.strerror}; choose another name or folder") from error
    with open(descriptor, "w", encoding="utf-8") as file:
        yield file.write


def _export_item(item: "Item", *, include_secrets: bool) -> dict[str, Any]:
    from trunkline.cli.store_kinds import kind_of, mask_key

    kind = kind_of(item.key)
    shown: dict[str, Any] = {
        "key": item.key if include_secrets else mask_key(item.key),
        "kind": kind.name,
        "version": item.version,
        "expires": item.expires,
    }
    if kind.secret and not include_secrets:
        return {**shown, "secret": True}
    try:
        value: Any = _decode_any(item.value)
    except DecodeError:
        return {**shown, "base64": base64.b64encode(item.value).decode()}
    return {**shown, "value": value if include_secrets else _mask_value(kind.name, value)}


def _mask_value(kind: str, value: Any) -> Any:
    """Return a decoded record with the session ids in it masked."""
    from trunkline.cli.store_kinds import mask

    match kind, value:
        case "session", {"id": str(ident)}:
            return {**value, "id": mask(ident)}
        case "task", {"caller": {"session": str(ident)} as caller}:
            return {**value, "caller": {**caller, "session": mask(ident)}}
        case _:
            return value


def _export_lease(lease: "Lease", *, include_secrets: bool) -> dict[str, Any]:
    from trunkline.cli.store_kinds import mask_key

    return {
        "lease": lease.name if include_secrets else mask_key(lease.name),
        "holder": lease.holder,
        "token": lease.token,
        "expires": lease.expires,
    }


# --- backup ----------------------------------------------------------------------------------------------


def _add_backup(commands: Commands) -> None:
    about = "Copy a SQLite store to a new file. Servers may use the store meanwhile; the copy is of one moment."
    examples = "  trunkline store backup state.db /backups/state-2026-11-17.db\n"
    parser = _add_command(commands, "backup", _run_backup, about, examples, json="the outcome")
    parser.add_argument("file", metavar="FILE", help="the copy; it must not exist yet")


async def _run_backup(options: argparse.Namespace) -> int:
    location = resolve_location(options.store)
    if is_redis_url(location):
        raise ConfigError(
            "a store on Redis is backed up by Redis: run BGSAVE (or BGREWRITEAOF) and copy the file that it writes, "
            "or use a replica"
        )
    from trunkline.stores.sqlite.reader import back_up

    size = back_up(Path(location), Path(options.file))
    if options.json:
        _print_json({"store": location, "file": options.file, "bytes": size})
    else:
        _write_lines([f"{options.file}: {size:,} bytes"])
    return EXIT_OK


# --- output ----------------------------------------------------------------------------------------------


def _print_json(value: object) -> None:
    sys.stdout.write(_to_line(value))


def _to_line(value: object) -> str:
    """Return a value as a line of JSON that cannot control a terminal."""
    return f"{escape_json(to_json(value).decode())}\n"


def _write_lines(lines: "Iterator[str] | list[str]") -> None:
    for line in lines:
        sys.stdout.write(f"{escape(line)}\n")
