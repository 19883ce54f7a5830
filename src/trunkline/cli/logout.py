"""`trunkline auth logout`: forgets a login."""

import argparse
import asyncio
import sys

from trunkline.cli.commands import WELL, Commands

__all__ = ["add_to"]


def add_to(commands: Commands) -> None:
    """Adds the command."""
    told = "Forgets the tokens for an MCP server. The next client that wants one has to ask somebody to log in."
    parser = commands.add_parser("logout", help="forget a login", description=told)
    parser.add_argument("url", metavar="URL", help="the address of the MCP server")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    known = asyncio.run(_forget(options.url))
    told = "logged out" if known else "nobody was logged in"
    sys.stdout.write(f"{options.url}: {told}\n")
    return WELL


async def _forget(url: str) -> bool:
    """Whether there was something to forget."""
    from trunkline.auth.client.authorization_code import CodeGrant
    from trunkline.auth.client.token_store import FileTokens
    from trunkline.auth.client.tokens import key_for

    store, key = FileTokens(), key_for(url, CodeGrant.name)
    async with store.locked(key):
        known = await store.get(key) is not None
        await store.put(key, None)
    return known
