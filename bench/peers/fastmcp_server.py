"""The benchmark's server on fastmcp, with its defaults; under overload with its own rate limit."""

import os
import sys

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

if os.environ.get("BENCH_GUARD") == "overload":
    from fastmcp.server.middleware.rate_limiting import RateLimitingMiddleware

    server.add_middleware(RateLimitingMiddleware(max_requests_per_second=100, burst_capacity=100))

if sys.argv[1] == "stdio":
    server.run("stdio", show_banner=False)
else:
    server.run("http", port=int(sys.argv[2]), show_banner=False)
