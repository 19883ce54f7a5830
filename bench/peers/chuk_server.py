"""The benchmark's server on chuk-mcp-server, with its defaults. It lists in pages and reads nothing by a template."""

import sys

from chuk_mcp_server import ChukMCPServer
from handlers import add, echo, echo_sync, extra, extra_names, greet, static

server = ChukMCPServer("bench", transport=sys.argv[1])
for tool in (echo, echo_sync, add):
    server.tool(tool)
for name in extra_names(own=3):
    server.register_function_as_tool(extra, name=name)
server.resource("bench://static", mime_type="text/plain")(static)
server.prompt(greet)

if sys.argv[1] == "stdio":
    server.run()
else:
    server.run(host="127.0.0.1", port=int(sys.argv[2]))
