"""Addresses of streams, as people write them: tcp://127.0.0.1:4000, tls://example.org:4000, unix:///run/server.sock."""

from msgspec import Struct

from trunkline.errors import ConfigError

__all__ = ["Address", "parse", "spelt"]


class Address(Struct, frozen=True):
    """Where a peer is to be found: a host and a port, or the path of a socket."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""


def parse(text: str) -> Address:
    """What an address says. Raises ConfigError for one that says nothing to us."""
    scheme, found, rest = text.partition("://")
    if found and scheme == "unix" and rest.startswith("/"):
        return Address(scheme, path=rest)
    host, colon, port = rest.rpartition(":")
    if found and scheme in {"tcp", "tls"} and colon and host and port.isdecimal() and int(port) < 1 << 16:
        return Address(scheme, host.removeprefix("[").removesuffix("]"), int(port))
    raise ConfigError(f"{text!r} is no address like tcp://127.0.0.1:4000, tls://example.org:4000 or unix:///run/s.sock")


def spelt(host: str, port: int) -> str:
    """A host and a port, with the brackets that tell the colons of one from that of the other."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
