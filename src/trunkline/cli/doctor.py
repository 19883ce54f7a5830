"""`trunkline doctor`: find the step of connecting to a server that fails, and say how to mend it."""

import argparse
from typing import Final

from trunkline.cli import printing
from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK
from trunkline.cli.connection import TARGET_HELP, add_target_options
from trunkline.cli.terminal import Terminal
from trunkline.event_loop import run as run_loop

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline doctor calculator.py
  trunkline doctor "npx -y @modelcontextprotocol/server-everything"
  trunkline doctor ~/.cursor/mcp.json:github
  trunkline doctor https://example.org/mcp --token TOKEN_VARIABLE --json

Each step has a verdict: ok, warning, failed, or skipped because of an earlier failure. Begin with the first that
failed. `trunkline auth doctor` examines authorization alone, with more options.

exit codes: 0 the server can be used, 1 a step failed, 2 wrong usage
"""

_DEFAULT_TIMEOUT: Final = 15.0  # seconds for each step


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_target_options(parser)
    parser.set_defaults(run=_run, timeout=_DEFAULT_TIMEOUT)
    parser.epilog = f"{_EXAMPLES}\n{TARGET_HELP}"


def _run(options: argparse.Namespace) -> int:
    from trunkline.auth.doctor.report import first_failed, strip_query
    from trunkline.cli.doctor_steps import diagnose

    terminal = Terminal()
    findings = run_loop(diagnose(options, terminal))
    failed = first_failed(findings)
    if options.json:
        shown = strip_query(options.target) if "://" in options.target else options.target
        terminal.json({"target": shown, "failed": failed and failed.hop, "findings": findings})
    else:
        printing.print_findings(findings)
    return EXIT_OK if failed is None else EXIT_FAILURE
