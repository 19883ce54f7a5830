"""`trunkline auth`: diagnose authorization, show and delete stored logins."""

import argparse
import asyncio
import os
import re
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from trunkline.auth.doctor.report import first_failed, strip_query
from trunkline.cli import printing
from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK, Commands, print_help_by_default
from trunkline.cli.printing import escape_control_characters
from trunkline.config import Settings
from trunkline.errors import ConfigError
from trunkline.findings import Finding
from trunkline.wire.codec import to_json

if TYPE_CHECKING:
    from trunkline.auth.client.tokens import StoredToken


__all__ = ["add_auth_commands"]


def _add_status(commands: Commands) -> None:

    description = "Show the stored login for an MCP server, without its tokens. The exit code is 1 if there is none."
    parser = commands.add_parser("status", help="show whether a login is stored", description=description)
    parser.add_argument("url", metavar="URL", help="the address of the MCP server")
    parser.set_defaults(run=_run_status)


def _run_status(options: argparse.Namespace) -> int:
    from trunkline.auth.client.authorization_code import CodeGrant
    from trunkline.auth.client.token_store import FileTokens
    from trunkline.auth.client.tokens import decode_stored_token, token_store_key

    token = decode_stored_token(asyncio.run(FileTokens().get(token_store_key(options.url, CodeGrant.name))))
    if token is None:
        sys.stdout.write(f"{options.url}: not logged in\n")
        return EXIT_FAILURE
    sys.stdout.write(
        "".join(f"{escape_control_characters(line)}\n" for line in _status_lines(options.url, token, time.time()))
    )
    return EXIT_OK


def _status_lines(url: str, token: "StoredToken", now: float) -> list[str]:
    return [
        f"{url}: logged in",
        f"  issuer   {token.issuer}",
        f"  client   {token.client_id}",
        f"  scopes   {' '.join(token.granted) or 'none are known'}",
        f"  token    {_describe_lifetime(token, now)}",
    ]


def _describe_lifetime(token: "StoredToken", now: float) -> str:
    after = "and is renewed automatically" if token.refresh is not None else "then a new login is needed"
    if token.expires is None:
        return "has no known expiry"
    until = datetime.fromtimestamp(token.expires, UTC).isoformat(" ", "seconds")
    return f"{'expired' if token.expires <= now else 'expires'} at {until}, {after}"


def _add_logout(commands: Commands) -> None:

    description = "Delete the stored tokens for an MCP server. The next client that needs one asks the user to log in."
    parser = commands.add_parser("logout", help="delete a stored login", description=description)
    parser.add_argument("url", metavar="URL", help="the address of the MCP server")
    parser.set_defaults(run=_run_logout)


def _run_logout(options: argparse.Namespace) -> int:
    deleted = asyncio.run(_forget(options.url))
    outcome = "logged out" if deleted else "was not logged in"
    sys.stdout.write(f"{options.url}: {outcome}\n")
    return EXIT_OK


async def _forget(url: str) -> bool:
    """Delete a stored login; return whether there was one."""
    from trunkline.auth.client.authorization_code import CodeGrant
    from trunkline.auth.client.token_store import FileTokens
    from trunkline.auth.client.tokens import token_store_key

    store, key = FileTokens(), token_store_key(url, CodeGrant.name)
    async with store.locked(key):
        known = await store.get(key) is not None
        await store.put(key, None)
    return known


_TOKEN: Final = re.compile(r"[!-~]+")
_DESCRIPTION: Final = """\
Follow the steps of a client that needs a token for an MCP server, without logging in, and report each step. The exit
code is 0 if no step failed, otherwise 1."""


def _add_doctor(commands: Commands) -> None:

    parser = commands.add_parser("doctor", help="diagnose failing authorization", description=_DESCRIPTION)
    parser.add_argument("url", metavar="URL", help="the address of the MCP server, such as https://example.com/mcp")
    parser.add_argument("--json", action="store_true", help="print the findings as one line of JSON")
    parser.add_argument(
        "--allow",
        metavar="HOST",
        action="append",
        default=[],
        help="allow a host with a private address; may be repeated",
    )
    parser.add_argument(
        "--timeout", metavar="S", type=_parse_seconds, default=10.0, help="seconds for each request (10)"
    )
    parser.add_argument(
        "--token",
        metavar="FROM",
        help="also try a token: the name of the environment variable that holds it, or - for standard input",
    )
    parser.set_defaults(run=_run_doctor)


def _parse_seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _run_doctor(options: argparse.Namespace) -> int:
    findings = asyncio.run(_examine(options, _read_token(options.token)))
    if options.json:
        sys.stdout.write(f"{_as_json(options.url, findings)}\n")
    else:
        printing.print_findings(findings)
    return EXIT_OK if first_failed(findings) is None else EXIT_FAILURE


def _read_token(source: str | None) -> str | None:
    """Read the token from its source; never from the command line, which every process on the machine can read."""
    if source is None:
        return None
    token = (sys.stdin.readline() if source == "-" else os.environ.get(source, "")).strip()
    if not _TOKEN.fullmatch(token):  # the value is not shown: it may be the token itself
        raise ConfigError(
            "--token takes the name of an environment variable that holds the token, or - for standard input"
        )
    return token


async def _examine(options: argparse.Namespace, token: str | None) -> list[Finding]:
    from trunkline.auth.doctor.examine import examine
    from trunkline.auth.fetch import Egress
    from trunkline.auth.ssrf import EgressPolicy

    settings = Settings(
        egress_allowed=tuple(options.allow), egress_timeout=options.timeout, connect_timeout=options.timeout
    )
    egress = Egress(EgressPolicy.for_url(options.url, settings), settings=settings)
    return await examine(options.url, egress, timeout=options.timeout, token=token)


def _as_json(url: str, findings: list[Finding]) -> str:
    failed = first_failed(findings)
    return to_json({"url": strip_query(url), "failed": failed and failed.hop, "findings": findings}).decode()


def add_auth_commands(commands: Commands) -> None:
    """Add the command `auth` and its subcommands."""
    summary = "diagnose authorization; show and delete stored logins"
    parser = commands.add_parser("auth", help=summary, description=f"{summary.capitalize()}.")
    below = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in (_add_doctor, _add_status, _add_logout):
        add(below)
    print_help_by_default(parser)
