"""`trunkline stubs`: write a typed Python module for a server."""

import argparse
from pathlib import Path
from typing import Final

from trunkline.cli.commands import EXIT_OK
from trunkline.cli.connection import TARGET_HELP, add_target_options, run_to_exit_code
from trunkline.cli.description import fetch_description
from trunkline.cli.stub_module import StubModule, write_stubs
from trunkline.cli.terminal import Terminal
from trunkline.errors import MisuseError

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline stubs calculator.py -o calculator_client.py
  trunkline stubs https://example.org/mcp > example_client.py

The module has a client class for this server, whose tools are typed methods:

  async with CalculatorClient("python calculator.py") as client:
      total = await client.tools.add(a=5, b=3)

Names that are no identifiers are changed to similar ones. A method returns the structured content of a result, or a
ToolResult if the tool has no output schema.

exit codes: 0 success, 1 the server reported an error, 2 wrong usage, 3 the server cannot be reached
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_target_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the module to a file")
    parser.epilog = f"{_EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    terminal = Terminal()

    async def main() -> int:
        module = write_stubs(await fetch_description(options.target, options, terminal))
        if options.output is not None:
            _save(module, options.output)
            terminal.note(f"{module.client} with {len(module.methods)} tools written to {options.output}")
        if options.json:
            terminal.json({"client": module.client, "methods": module.methods, "module": module.source})
        elif options.output is None:
            terminal.line(module.source.rstrip("\n"))
        return EXIT_OK

    return run_to_exit_code(main(), terminal)


def _save(module: StubModule, path: str) -> None:
    try:
        Path(path).write_text(module.source, "utf-8")
    except OSError as error:
        raise MisuseError(f"cannot write {path}: {error.strerror}") from error
