"""Where a server is, as its clients see it: the name of the resource, and where its metadata can be read.

RFC 9728 has the metadata of `https://host/path` at `https://host/.well-known/oauth-protected-resource/path`. A request
for that comes to us if we have the host for ourselves. Where others own it, and hand us only what begins with a prefix,
the document is behind that prefix; the challenge says where.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from trunkline.auth.metadata import RESOURCE_METADATA, canonical

__all__ = ["Place", "place_of", "published_at", "said_place"]

_PORTS: Final = {"http": "80", "https": "443"}
_SCHEMES: Final = {"ws": "http", "wss": "https"}


class Place(Struct, frozen=True):
    """One endpoint, as whoever comes to it knows it."""

    resource: str  # its name as a resource, which tokens are for
    audiences: frozenset[str]  # the same, however its last slash is written
    metadata: str  # where its metadata is
    base: str  # what stands before every path within the application


def place_of(scope: Mapping[str, Any], headers: Mapping[bytes, bytes], path: str) -> Place:
    """The endpoint at a path within the application, from where a request came to: the guard has let in only the names
    that we are known by."""
    said: str = scope.get("scheme", "http")
    scheme = _SCHEMES.get(said, said)
    prefix = f"{scope.get('prefix', '')}{scope.get('root_path', '')}".rstrip("/")
    base = f"{scheme}://{_host(scope, headers, scheme)}{prefix}"
    inner = path.rstrip("/")
    return _place(base, f"{base}{inner}", f"{base}{RESOURCE_METADATA}{inner}")


def said_place(public: str, main: str, path: str) -> Place:
    """The same where the operator has said what the public address of the endpoint at `main` is."""
    whole = canonical(public)
    origin, outer = whole.removesuffix(urlsplit(whole).path), urlsplit(whole).path
    inner = main.rstrip("/")
    if not outer.endswith(inner):  # somebody before us gives it another name, and knows best where it is
        return _place(origin, whole, f"{origin}{RESOURCE_METADATA}{outer}")
    base = f"{origin}{outer.removesuffix(inner)}"
    here = path.rstrip("/")
    return _place(base, f"{base}{here}", f"{base}{RESOURCE_METADATA}{here}")


def published_at(path: str, public: str | None) -> frozenset[str]:
    """The paths within the application where the metadata of an endpoint is to be read."""
    outer = "" if public is None else urlsplit(public).path.rstrip("/")
    inner = path.rstrip("/")
    return frozenset({RESOURCE_METADATA, f"{RESOURCE_METADATA}{inner}", f"{RESOURCE_METADATA}{outer}"})


def _place(base: str, resource: str, metadata: str) -> Place:
    return Place(resource, frozenset({resource, f"{resource}/"}), metadata, base)


def _host(scope: Mapping[str, Any], headers: Mapping[bytes, bytes], scheme: str) -> str:
    """The host and port that a request came to. Anybody can write any port into the header Host, and a token for what
    listens at that one is none for us: the port is that of our own socket, unless a trusted proxy has another."""
    host = headers.get(b"host", b"").decode("latin-1").strip().lower()
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, ""
    server = scope.get("server")
    if server and server[1] is not None and not scope.get("proxied"):
        port = str(server[1])
    return name if not port or port == _PORTS.get(scheme) else f"{name}:{port}"
