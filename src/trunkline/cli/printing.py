"""Output of findings: with colours on a terminal if rich is installed, otherwise as plain lines."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from trunkline.cli.terminal import escape
from trunkline.findings import Finding, Verdict

__all__ = ["print_findings"]

Write = Callable[[str, str, str], None]  # the margin, its style, the text

_STYLES: Final[dict[Verdict, str]] = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}
_MARGIN: Final = max(map(len, _STYLES)) + 2


def print_findings(findings: Sequence[Finding]) -> None:
    """Write findings to standard output, each with its verdict in the margin."""
    write = _writer()
    for finding in findings:
        first, *more = _lines(finding)
        write(finding.verdict, _STYLES[finding.verdict], first)
        for line in more:
            write("", "", line)


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{escape(finding.hop)}: {escape(finding.seen)}"
    if finding.clause:
        yield f"Rule: {escape(finding.clause)}"
    if finding.mend:
        yield f"Fix: {escape(finding.mend)}"


def _writer() -> Write:
    if sys.stdout.isatty():
        try:
            return _rich_writer()
        except ImportError:
            pass
    return _write_plain


def _write_plain(margin: str, style: str, text: str) -> None:  # noqa: ARG001 - colours are for terminals
    sys.stdout.write(f"{margin:{_MARGIN}}{text}\n")


def _rich_writer() -> Write:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)

    def write(margin: str, style: str, text: str) -> None:
        row = Table.grid(padding=0)
        row.add_column(width=_MARGIN)
        row.add_column(overflow="fold")
        row.add_row(Text(margin, style), Text(text))
        console.print(row)

    return write
