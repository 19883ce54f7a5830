"""`trunkline diff`: changes between two versions of a server, and whether they break its clients."""

import argparse
from typing import Final

from trunkline.cli.catalog_diff import Change, compare_descriptions
from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK
from trunkline.cli.connection import TARGET_HELP, add_target_options, run_to_exit_code
from trunkline.cli.description import fetch_description
from trunkline.cli.terminal import Terminal, escape

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline inspect calculator.py --format json > catalog.json     # once, and into version control
  trunkline diff catalog.json calculator.py                        # in CI: fails on a breaking change
  trunkline diff https://example.org/mcp https://next.example.org/mcp --json

A change is breaking if a client of OLD may fail with NEW: an entry or an argument is gone, an argument is required or
accepts less, a result has more forms or fewer members, or a hint promises less.

exit codes: 0 no breaking change, 1 a breaking change, or an error of a server, 2 wrong usage, 3 a server cannot be
reached
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("old", metavar="OLD", help="a target, or a file of `trunkline inspect --format json`")
    parser.add_argument("new", metavar="NEW", help="the same, of the new version")
    add_target_options(parser, dest="")
    parser.add_argument("--breaking", action="store_true", help="list only breaking changes")
    parser.epilog = f"{_EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    terminal = Terminal()

    async def main() -> int:
        old = await fetch_description(options.old, options, terminal)
        new = await fetch_description(options.new, options, terminal)
        changes = compare_descriptions(old, new)
        breaking = sum(change.breaking for change in changes)
        shown = [change for change in changes if change.breaking or not options.breaking]
        if options.json:
            counts = {"breaking": breaking, "compatible": len(changes) - breaking}
            terminal.json({**counts, "changes": shown})
        else:
            _print(shown, breaking, len(changes) - breaking, terminal)
        return EXIT_FAILURE if breaking else EXIT_OK

    return run_to_exit_code(main(), terminal)


def _print(changes: list[Change], breaking: int, compatible: int, terminal: Terminal) -> None:
    for change in changes:
        label, style = ("breaking", "bad") if change.breaking else ("compatible", "good")
        margin = terminal.styled(label, style) + " " * (12 - len(label))
        terminal.line(f"{margin}{escape(change.where)}: {escape(change.text)}")
    if not breaking and not compatible:
        terminal.note("no changes")
    else:
        terminal.note(f"{breaking} breaking, {compatible} compatible")
