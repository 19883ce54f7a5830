"""A proxy or a gateway in front of a server, for the probes in tests/interop/peers.

    python tests/interop/front.py proxy|gateway URL [REVISION]

It listens on any free port. The server is at an address; REVISION is the newest one to speak with it.
"""

import sys

from trunkline import Gateway, Server, proxy

NAME, INSTRUCTIONS = "everything", "Try everything."  # as the probes expect


def make_front(kind: str, url: str, revision: str | None) -> Server:
    """Return the server in front of another one."""
    if kind == "proxy":
        return proxy(url, name=NAME, revision=revision)
    options = {"behind": {"prefix": ""}}
    gateway = Gateway({"behind": url}, name=NAME, options=options, instructions=INSTRUCTIONS, pins=False, cache=False)
    return gateway.server


if __name__ == "__main__":
    make_front(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None).run("http", port=0)
