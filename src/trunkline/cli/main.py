"""The command `trunkline`: argument parsing and exit codes.

Exit codes: 0 success, 1 a problem was found, 2 wrong usage, 130 after Ctrl+C, 141 if the reader of its output has
closed the pipe.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from trunkline.cli import auth, store
from trunkline.cli.commands import EXIT_BROKEN_PIPE, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, print_help_by_default
from trunkline.errors import MisuseError, TrunklineError
from trunkline.version import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process, and return the exit code."""
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")  # output of peers may have characters that the terminal cannot encode
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # here, where BrokenPipeError can still be handled
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes the rest at exit
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
    store.add_store_commands(commands)
    print_help_by_default(parser)
    return parser
