"""What commands are added to, and what they end with."""

import argparse
import sys
from typing import Final, Protocol

__all__ = ["INTERRUPTED", "NOBODY_READS", "NOT_WELL", "USAGE", "WELL", "Commands", "explain"]

WELL: Final = 0
NOT_WELL: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
NOBODY_READS: Final = 141


class Commands(Protocol):
    """The commands of the program, or those below one of them."""

    def add_parser(self, name: str, *, help: str, description: str) -> argparse.ArgumentParser:  # noqa: A002
        """Adds one."""
        ...


def explain(parser: argparse.ArgumentParser) -> None:
    """Lets a command that only has others below it say which these are."""

    def run(_: argparse.Namespace) -> int:
        parser.print_help(sys.stderr)
        return USAGE

    parser.set_defaults(run=run)
