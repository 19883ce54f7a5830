"""An echo on `asgi()` under uvicorn: `asgi_server.py http PORT`. It also runs on earlier commits of the package."""

import sys

import uvicorn

from peers.handlers import echo
from trunkline import Server

server = Server("bench")
server.add_tool(echo)
uvicorn.run(
    server.asgi(path="/mcp"),
    port=int(sys.argv[2]),
    http="httptools",
    loop="uvloop",
    ws="none",
    log_level="warning",
    access_log=False,
    server_header=False,
    date_header=False,
)
