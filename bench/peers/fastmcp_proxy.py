"""A proxy of fastmcp in front of its own server, which it starts: `fastmcp_proxy.py http PORT`."""

import sys
from pathlib import Path

from fastmcp.server import create_proxy

SERVER = Path(__file__).with_name("fastmcp_server.py")
BACKEND = {"mcpServers": {"bench": {"command": sys.executable, "args": [str(SERVER), "stdio"]}}}

create_proxy(BACKEND, name="bench").run("http", port=int(sys.argv[2]), show_banner=False)
