"""A program that was started anew: all that it knows is in a folder. Nobody is there to open a page for it.

    python restarted.py URL FOLDER OPTIONS REVISION

The options are those of `OAuth`, as JSON. It prints what the server answers, or at which hop it was refused.
"""

import asyncio
import json
import sys
from typing import Any

from trunkline import Client
from trunkline.auth import FileTokens, OAuth, Redirected
from trunkline.errors import AuthorizationFailed


async def opened(url: str) -> str:
    """Nobody is there."""
    raise AssertionError(f"a page was opened: {url}")


async def main(url: str, folder: str, options: dict[str, Any], revision: str) -> None:
    auth = OAuth(interaction=Redirected("http://127.0.0.1/callback", opened), store=FileTokens(folder), **options)
    try:
        async with Client(url, auth=auth, revision=revision) as client:
            print((await client.call_tool("whoami")).text)
    except AuthorizationFailed as failed:
        print(f"refused at {failed.hop}: {failed}")


asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]))
