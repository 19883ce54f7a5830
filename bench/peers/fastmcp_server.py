"""The benchmark's server on fastmcp, with its defaults."""

from fastmcp import FastMCP
from fastmcp.tools import Tool
from handlers import add, echo, echo_sync, extra, extra_names, greet, item, static

server = FastMCP("bench")
for tool in (echo, echo_sync, add):
    server.tool(tool)
for name in extra_names(own=3):
    server.add_tool(Tool.from_function(extra, name=name))
server.resource("bench://static")(static)
server.resource("bench://item/{id}")(item)
server.prompt(greet)

server.run("stdio", show_banner=False)
