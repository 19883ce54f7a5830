"""`trunkline auth doctor`: at which hop authorization fails, and why."""

import argparse
import asyncio
import os
import re
import sys
from typing import Final

from trunkline.auth.doctor.report import Finding, first_failed, without_secrets
from trunkline.cli import printing
from trunkline.cli.commands import NOT_WELL, WELL, Commands
from trunkline.config import Settings
from trunkline.errors import ConfigError
from trunkline.wire.codec import to_json

__all__ = ["add_to"]

_TOKEN: Final = re.compile(r"[!-~]+")
_DESCRIPTION: Final = """\
Walks the way that a client goes to get a token for an MCP server, without logging in, and says of each hop whether it
is well. Ends with 0 if none failed and with 1 if one did."""


def add_to(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser("doctor", help="find out why authorization fails", description=_DESCRIPTION)
    parser.add_argument("url", metavar="URL", help="the address of the MCP server, such as https://example.com/mcp")
    parser.add_argument("--json", action="store_true", help="write what was found as one line of JSON")
    parser.add_argument(
        "--allow",
        metavar="HOST",
        action="append",
        default=[],
        help="a host that may be gone to though its address is a private one; can be given several times",
    )
    parser.add_argument("--timeout", metavar="S", type=_seconds, default=10.0, help="seconds for each request (10)")
    parser.add_argument(
        "--token",
        metavar="FROM",
        help="try a token, too: the name of the environment variable that holds it, or - for standard input",
    )
    parser.set_defaults(run=_run)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _run(options: argparse.Namespace) -> int:
    findings = asyncio.run(_examine(options, _token(options.token)))
    if options.json:
        sys.stdout.write(f"{_as_json(options.url, findings)}\n")
    else:
        printing.show(findings)
    return WELL if first_failed(findings) is None else NOT_WELL


def _token(source: str | None) -> str | None:
    """The token, from where it is; never from the command line, which every process on the machine can read."""
    if source is None:
        return None
    token = (sys.stdin.readline() if source == "-" else os.environ.get(source, "")).strip()
    if not _TOKEN.fullmatch(token):  # what was given is not repeated: it may be the token itself
        raise ConfigError(
            "--token takes the name of an environment variable that holds the token, or - for standard input"
        )
    return token


async def _examine(options: argparse.Namespace, token: str | None) -> list[Finding]:
    from trunkline.auth.doctor.examine import examine
    from trunkline.auth.fetch import Egress
    from trunkline.auth.ssrf import Reach

    settings = Settings(
        egress_allowed=tuple(options.allow), egress_timeout=options.timeout, connect_timeout=options.timeout
    )
    egress = Egress(Reach.around(options.url, settings), settings=settings)
    return await examine(options.url, egress, patience=options.timeout, token=token)


def _as_json(url: str, findings: list[Finding]) -> str:
    failed = first_failed(findings)
    return to_json({"url": without_secrets(url), "failed": failed and failed.hop, "findings": findings}).decode()
