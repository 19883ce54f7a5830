"""Exit codes and behaviour that all commands share."""

import argparse
import contextlib
import sys
from typing import Final, Protocol

__all__ = [
    "EXIT_BROKEN_PIPE",
    "EXIT_FAILURE",
    "EXIT_INTERRUPTED",
    "EXIT_OK",
    "EXIT_UNREACHABLE",
    "EXIT_USAGE",
    "Commands",
    "end_interrupted_line",
    "print_help_by_default",
]

EXIT_OK: Final = 0
EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141


class Commands(Protocol):
    """The subcommands of a parser."""

    def add_parser(self, name: str, *, help: str, description: str) -> argparse.ArgumentParser:  # noqa: A002
        """Add a subcommand."""
        ...


def print_help_by_default(parser: argparse.ArgumentParser) -> None:
    """Let a command without its subcommand print its help."""

    def run(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return EXIT_USAGE

    parser.set_defaults(run=run)


def end_interrupted_line() -> None:
    """End the line on which a terminal has echoed Ctrl+C."""
    with contextlib.suppress(OSError):
        if sys.stderr.isatty():
            sys.stderr.write("\n")
            sys.stderr.flush()
