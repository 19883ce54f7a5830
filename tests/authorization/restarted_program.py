"""A restarted program: its whole state is in a folder, and no user is present to open a page.

    python restarted_program.py URL FOLDER OPTIONS REVISION

The options are those of `OAuth`, as JSON. It prints the server's answer, or the hop that rejected it.
"""

import asyncio
import json
import sys
from typing import Any

from trunkline import Client
from trunkline.auth import FileTokens, OAuth, Redirected
from trunkline.errors import AuthorizationFailed


async def opened(url: str) -> str:
    """Fail: no user is present."""
    raise AssertionError(f"a page was opened: {url}")


async def main(url: str, folder: str, options: dict[str, Any], revision: str) -> None:
    auth = OAuth(interaction=Redirected("http://127.0.0.1/callback", opened), store=FileTokens(folder), **options)
    try:
        async with Client(url, auth=auth, revision=revision) as client:
            print((await client.call_tool("whoami")).text)
    except AuthorizationFailed as failed:
        print(f"refused at {failed.hop}: {failed}")


asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]))
