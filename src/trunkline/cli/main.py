"""The command `trunkline`: its subcommands, argument parsing and exit codes.

Exit codes: 0 success, 1 a problem was found or the server reported an error, 2 wrong usage, 3 the server cannot be
reached, 130 after Ctrl+C (`run` and `dev` shut down: 0), 141 if the reader of its output has closed the pipe.

Only the module of the chosen subcommand is imported, so that every command starts quickly.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple

from trunkline.cli.commands import (
    EXIT_BROKEN_PIPE,
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    end_interrupted_line,
    print_help_by_default,
)
from trunkline.errors import MisuseError, TrunklineError
from trunkline.errors.suggestions import did_you_mean
from trunkline.errors.text import printable
from trunkline.version import __version__

__all__ = ["COMMANDS", "build_command_parser", "main"]


class Command(NamedTuple):
    """A subcommand: the function that adds its arguments, as `module:function`, and its summary."""

    configure: str
    summary: str
    nested: bool = False  # it has subcommands of its own


COMMANDS: Final = {
    "run": Command("run:configure", "serve a server of a Python file or module"),
    "dev": Command("run:configure_dev", "run over HTTP with reload and a log of messages"),
    "gateway": Command("gateway:configure", "serve the servers of a configuration file as one"),
    "settings": Command("settings:configure", "show the settings of `run`, and where they are set"),
    "list": Command("catalog:configure", "list the tools, resources and prompts of a server"),
    "call": Command("call:configure", "call a tool"),
    "read": Command("requests:configure_read", "read a resource"),
    "prompt": Command("requests:configure_prompt", "get a prompt"),
    "complete": Command("requests:configure_complete", "complete an argument of a prompt or a resource template"),
    "tasks": Command("tasks:configure", "list, await and cancel tasks"),
    "watch": Command("watch:configure", "print notifications as they arrive"),
    "ping": Command("requests:configure_ping", "check that a server responds"),
    "shell": Command("shell:configure", "call and read interactively, with completion"),
    "bench": Command("bench.command:configure", "load test of a server: latency, throughput, errors"),
    "conformance": Command("conformance:configure", "run the official conformance suite against a server"),
    "completion": Command("completion:configure", "print completions for bash, zsh or fish"),
    "install": Command("install:configure_install", "add a server to the configuration of a host"),
    "uninstall": Command("install:configure_uninstall", "remove a server from the configuration of a host"),
    "export": Command("install:configure_export", "print the entry of a server for the configuration of a host"),
    "new": Command("new:configure", "create a project with a server and its tests"),
    "inspect": Command("inspect:configure", "describe a server and everything that it offers"),
    "diff": Command(
        "diff:configure", "list the changes between two versions of a server, and those that break clients"
    ),
    "lint": Command("lint:configure", "find problems that models, hosts and providers have with a server"),
    "doctor": Command("doctor:configure", "find out why a server cannot be used"),
    "stubs": Command("stubs:configure", "write a typed Python module for a server"),
    "ps": Command("ps:configure", "list the serving processes of this user, and their calls"),
    "top": Command("top:configure", "watch the serving processes of this user"),
    "auth": Command("auth:configure", "diagnose authorization; show and delete stored logins", nested=True),
    "pins": Command("pins:configure", "show, compare and approve the tools that clients have pinned", nested=True),
    "store": Command("store:configure", "check, migrate, measure, export and back up a store", nested=True),
    "receipts": Command(
        "receipts:configure", "verify, show and export receipts of calls; make their keys", nested=True
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process, and return the exit code."""
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")  # output of peers may have characters that the terminal cannot encode
    try:
        try:
            return _run([*(sys.argv[1:] if arguments is None else arguments)])
        finally:
            sys.stdout.flush()  # here, where BrokenPipeError can still be handled
    except KeyboardInterrupt:
        end_interrupted_line()
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes the rest at exit
        return EXIT_BROKEN_PIPE


def _run(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        parser = build_command_parser(arguments[0])
        words = arguments[1:]
        options = parser.parse_args(words) if COMMANDS[arguments[0]].nested else parser.parse_intermixed_args(words)
    else:
        if arguments and not arguments[0].startswith("-"):
            hint = did_you_mean(arguments[0], COMMANDS) or " `trunkline --help` lists the commands."
            sys.stderr.write(f"trunkline: there is no command {printable(repr(arguments[0]))}.{hint}\n")
            return EXIT_USAGE
        options = _build_parser().parse_args(arguments)
    try:
        return options.run(options)
    except TrunklineError as error:
        sys.stderr.write(f"trunkline: {printable(str(error), max_length=None, multiline=True)}\n")
        return EXIT_USAGE if isinstance(error, MisuseError) else EXIT_FAILURE


def _build_parser() -> argparse.ArgumentParser:
    """Return the parser for a command line without a known command."""
    parser = argparse.ArgumentParser(
        prog="trunkline",
        description="The line between AI applications and their tools (Model Context Protocol).",
        epilog="`trunkline COMMAND --help` explains a command, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"trunkline {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary)
    print_help_by_default(parser)
    return parser


def build_command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser for the arguments of a command."""
    command = COMMANDS[name]
    parser = argparse.ArgumentParser(
        prog=f"trunkline {name}",
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module, _, function = command.configure.partition(":")
    getattr(import_module(f"trunkline.cli.{module}"), function)(parser)
    return parser
