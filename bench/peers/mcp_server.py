"""The benchmark's server on the official SDK's high-level API, with its defaults."""

import sys

from handlers import add, echo, echo_sync, extra, extra_names, greet, item, static
from mcp.server.mcpserver import MCPServer

server = MCPServer("bench")
for tool in (echo, echo_sync, add):
    server.add_tool(tool)
for name in extra_names(own=3):
    server.add_tool(extra, name=name)
server.resource("bench://static")(static)
server.resource("bench://item/{id}")(item)
server.prompt()(greet)

if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", port=int(sys.argv[2]))
