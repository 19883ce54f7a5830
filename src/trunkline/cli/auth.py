"""`trunkline auth`: diagnose authorization, show and delete stored logins."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from trunkline.auth.doctor.report import first_failed, strip_query
from trunkline.cli import printing
from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK, Commands, print_help_by_default
from trunkline.cli.terminal import Terminal, escape
from trunkline.cli.tokens import read_token
from trunkline.config import Settings
from trunkline.findings import Finding

if TYPE_CHECKING:
    from trunkline.auth.client.tokens import StoredToken


__all__ = ["configure"]


_EXAMPLES: Final = """\
examples:
  trunkline auth doctor https://example.org/mcp
  trunkline auth status https://example.org/mcp
  trunkline auth logout https://example.org/mcp

A login begins with a client that needs one, such as `trunkline list https://example.org/mcp --login`.
"""


def _add_command(
    commands: Commands, name: str, summary: str, description: str, examples: str, *, run: Callable[..., int]
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"examples:\n{examples}"
    parser.add_argument("url", metavar="URL", help="the address of the MCP server, such as https://example.org/mcp")
    parser.set_defaults(run=run)
    return parser


# --- status and logout ---------------------------------------------------------------------------


def _add_status(commands: Commands) -> None:
    description = "Show the stored login for an MCP server, without its tokens. The exit code is 1 if there is none."
    examples = "  trunkline auth status https://example.org/mcp\n"
    _add_command(commands, "status", "show whether a login is stored", description, examples, run=_run_status)


def _run_status(options: argparse.Namespace) -> int:
    from trunkline.auth.client.authorization_code import CodeGrant
    from trunkline.auth.client.token_store import FileTokens
    from trunkline.auth.client.tokens import decode_stored_token, token_store_key

    token = decode_stored_token(asyncio.run(FileTokens().get(token_store_key(options.url, CodeGrant.name))))
    if token is None:
        sys.stdout.write(f"{options.url}: not logged in\n")
        return EXIT_FAILURE
    sys.stdout.write("".join(f"{escape(line)}\n" for line in _status_lines(options.url, token, time.time())))
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
    examples = "  trunkline auth logout https://example.org/mcp\n"
    _add_command(commands, "logout", "delete a stored login", description, examples, run=_run_logout)


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


# --- doctor --------------------------------------------------------------------------------------

_DESCRIPTION: Final = """\
Follow the steps of a client that needs a token for an MCP server, without logging in, and report each step. The exit
code is 0 if no step failed, otherwise 1."""


def _add_doctor(commands: Commands) -> None:
    examples = (
        "  trunkline auth doctor https://example.org/mcp\n"
        "  trunkline auth doctor https://mcp.internal/mcp --allow mcp.internal --token TOKEN_VARIABLE --json\n"
    )
    parser = _add_command(commands, "doctor", "diagnose failing authorization", _DESCRIPTION, examples, run=_run_doctor)
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


def _parse_seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _run_doctor(options: argparse.Namespace) -> int:
    findings = asyncio.run(_examine(options, read_token(options.token)))
    failed = first_failed(findings)
    if options.json:
        Terminal().json({"url": strip_query(options.url), "failed": failed and failed.hop, "findings": findings})
    else:
        printing.print_findings(findings)
    return EXIT_OK if failed is None else EXIT_FAILURE


async def _examine(options: argparse.Namespace, token: str | None) -> list[Finding]:
    from trunkline.auth.doctor.examine import examine
    from trunkline.auth.fetch import Egress
    from trunkline.auth.ssrf import EgressPolicy

    settings = Settings(
        egress_allowed=tuple(options.allow), egress_timeout=options.timeout, connect_timeout=options.timeout
    )
    egress = Egress(EgressPolicy.for_url(options.url, settings), settings=settings)
    return await examine(options.url, egress, timeout=options.timeout, token=token)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `trunkline auth`."""
    below = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in (_add_doctor, _add_status, _add_logout):
        add(below)
    parser.epilog = _EXAMPLES
    print_help_by_default(parser)
