"""`trunkline auth status`: what is kept of a login."""

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trunkline.cli.commands import NOT_WELL, WELL, Commands
from trunkline.cli.printing import harmless

if TYPE_CHECKING:
    from trunkline.auth.client.tokens import Kept

__all__ = ["add_to"]


def add_to(commands: Commands) -> None:
    """Adds the command."""
    told = "Says what is kept of a login to an MCP server, other than its tokens. Ends with 1 if there is nothing."
    parser = commands.add_parser("status", help="see whether somebody is logged in", description=told)
    parser.add_argument("url", metavar="URL", help="the address of the MCP server")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from trunkline.auth.client.authorization_code import CodeGrant
    from trunkline.auth.client.token_store import FileTokens
    from trunkline.auth.client.tokens import key_for, read_kept

    kept = read_kept(asyncio.run(FileTokens().get(key_for(options.url, CodeGrant.name))))
    if kept is None:
        sys.stdout.write(f"{options.url}: nobody is logged in\n")
        return NOT_WELL
    sys.stdout.write("".join(f"{harmless(line)}\n" for line in _lines(options.url, kept, time.time())))
    return WELL


def _lines(url: str, kept: "Kept", now: float) -> list[str]:
    return [
        f"{url}: logged in",
        f"  issuer   {kept.issuer}",
        f"  client   {kept.client_id}",
        f"  scopes   {' '.join(kept.granted) or 'none are known'}",
        f"  token    {_lifetime(kept, now)}",
    ]


def _lifetime(kept: "Kept", now: float) -> str:
    after = "and is renewed without asking" if kept.refresh is not None else "and then somebody has to log in again"
    if kept.expires is None:
        return "does not say when it ends"
    until = datetime.fromtimestamp(kept.expires, UTC).isoformat(" ", "seconds")
    return f"{'ended' if kept.expires <= now else 'ends'} at {until}, {after}"
