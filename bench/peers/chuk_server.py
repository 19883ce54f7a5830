"""The benchmark's server on chuk-mcp-server, with its defaults. It lists in pages and reads nothing by a template."""

from chuk_mcp_server import ChukMCPServer
from handlers import add, echo, echo_sync, extra, extra_names, greet, static

server = ChukMCPServer("bench", transport="stdio")
for tool in (echo, echo_sync, add):
    server.tool(tool)
for name in extra_names(own=3):
    server.register_function_as_tool(extra, name=name)
server.resource("bench://static", mime_type="text/plain")(static)
server.prompt(greet)

server.run()
