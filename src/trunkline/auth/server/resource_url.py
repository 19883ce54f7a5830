"""Where a server is, as its clients see it: the name of the resource, and where its metadata can be read.

RFC 9728 has the metadata of `https://host/path` at `https://host/.well-known/oauth-protected-resource/path`. A request
for that comes to us if we have the host for ourselves. Where others own it, and hand us only what begins with a prefix,
the document is behind that prefix; the challenge says where.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from trunkline.auth.metadata import RESOURCE_METADATA, canonical_resource
from trunkline.auth.urls import is_loopback

__all__ = ["ResourceLocation", "location_from_public_url", "location_from_request", "metadata_paths"]

_PORTS: Final = {"http": "80", "https": "443"}
_SCHEMES: Final = {"ws": "http", "wss": "https"}


class ResourceLocation(Struct, frozen=True):
    """One endpoint, as whoever comes to it knows it."""

    resource: str  # its name as a resource, which tokens are for
    audiences: frozenset[str]  # the same with and without a last slash; empty: no token is for this address
    metadata_url: str  # where its metadata is
    base_url: str  # what stands before every path within the application


def location_from_request(scope: Mapping[str, Any], headers: Mapping[bytes, bytes], path: str) -> ResourceLocation:
    """The endpoint at a path within the application, derived from a request. The guard has admitted only host names
    that the server is known by; scheme and port are those of our own socket.

    A trusted proxy can pass on the port in Host and the headers X-Forwarded-Proto and X-Forwarded-Prefix as its caller
    wrote them, which cannot be told apart from values of its own. A forwarded request therefore contributes its host
    name and nothing else: the address is https, at the default port, without a prefix. The names of this machine to
    itself are never the address of a proxy, so no token is for them. Any other address has to be configured."""
    forwarded: bool = scope.get("proxied", False)
    name, said = _host_name(headers), str(scope.get("scheme", "http"))
    scheme = "https" if forwarded else _SCHEMES.get(said, said)
    port = None if forwarded else _own_port(scope, scheme)
    root = scope.get("root_path", "").rstrip("/")
    base = f"{scheme}://{name}{f':{port}' if port else ''}{root}"
    inner = path.rstrip("/")
    place = _build_location(base, f"{base}{inner}", f"{base}{RESOURCE_METADATA}{inner}")
    return replace(place, audiences=frozenset()) if forwarded and is_loopback(name.strip("[]")) else place


def location_from_public_url(public: str, main: str, path: str) -> ResourceLocation:
    """The same where the operator has said what the public address of the endpoint at `main` is."""
    whole = canonical_resource(public)
    origin, outer = whole.removesuffix(urlsplit(whole).path), urlsplit(whole).path
    inner = main.rstrip("/")
    if not outer.endswith(inner):  # somebody before us gives it another name, and knows best where it is
        return _build_location(origin, whole, f"{origin}{RESOURCE_METADATA}{outer}")
    base = f"{origin}{outer.removesuffix(inner)}"
    here = path.rstrip("/")
    return _build_location(base, f"{base}{here}", f"{base}{RESOURCE_METADATA}{here}")


def metadata_paths(path: str, public: str | None) -> frozenset[str]:
    """The paths within the application where the metadata of an endpoint is to be read."""
    outer = "" if public is None else urlsplit(public).path.rstrip("/")
    inner = path.rstrip("/")
    return frozenset({RESOURCE_METADATA, f"{RESOURCE_METADATA}{inner}", f"{RESOURCE_METADATA}{outer}"})


def _build_location(base: str, resource: str, metadata: str) -> ResourceLocation:
    return ResourceLocation(resource, frozenset({resource, f"{resource}/"}), metadata, base)


def _host_name(headers: Mapping[bytes, bytes]) -> str:
    """The host that a request names, without its port: a caller can write any port there."""
    host = headers.get(b"host", b"").decode("latin-1").strip().lower()
    name, colon, _ = host.rpartition(":")
    return host if not colon or host.endswith("]") else name


def _own_port(scope: Mapping[str, Any], scheme: str) -> str | None:
    """The port of the socket that accepted the request; None if it is the default one, or not known."""
    server = scope.get("server")
    port = None if not server or server[1] is None else str(server[1])
    return None if port == _PORTS.get(scheme) else port
