"""A gateway in front of the benchmark's server, which it starts: `gateway.py http PORT`."""

import sys
from pathlib import Path

from trunkline import Gateway

SERVER = Path(__file__).with_name("server.py")

gateway = Gateway(
    {"bench": [sys.executable, str(SERVER), "stdio"]},
    options={"bench": {"prefix": "", "shared": True}},
    pins=False,
    cache=False,
)
gateway.server.run("http", port=int(sys.argv[2]))
