"""The toolkit of Agno, without a model."""

import asyncio
import shlex

from agno.tools.mcp import MCPTools
from client_script import ADDENDS, ARGUMENTS, COMMAND, PATIENCE, URL, found


async def main() -> None:
    server = {"url": URL, "transport": "streamable-http"} if URL else {"command": shlex.join([COMMAND, *ARGUMENTS])}
    async with MCPTools(**server, timeout_seconds=PATIENCE) as tools:
        called = await tools.functions["add"].entrypoint(**ADDENDS)
        found(list(tools.functions), called.content)


asyncio.run(main())
