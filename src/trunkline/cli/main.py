"""The command `trunkline`: what there is, and how it ends.

It ends with 0 if all is well, 1 if what was asked about is not well, 2 if it was asked in the wrong way, and, as
programs do, with 130 after Ctrl+C and 141 if nobody reads what it writes any more.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from trunkline.cli import auth
from trunkline.cli.commands import EXIT_BROKEN_PIPE, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, print_help_by_default
from trunkline.errors import MisuseError, TrunklineError
from trunkline.version import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the arguments say, those of the process if none are given; gives what the process is to end with."""
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")  # strangers write in all letters, and terminals may not know them
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # here, where it can still be answered that nobody reads it
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is written when Python ends
        return EXIT_BROKEN_PIPE


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except TrunklineError as error:
        sys.stderr.write(f"trunkline: {error}\n")
        return EXIT_USAGE if isinstance(error, MisuseError) else EXIT_FAILURE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trunkline", description="The line between AI applications and their tools (Model Context Protocol)."
    )
    parser.add_argument("--version", action="version", version=f"trunkline {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    auth.add_auth_commands(commands)
    print_help_by_default(parser)
    return parser
