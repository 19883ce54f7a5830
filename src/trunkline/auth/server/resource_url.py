"""The URL of a protected endpoint as its clients see it, and the URL of its metadata.

RFC 9728 places the metadata of `https://host/path` at `https://host/.well-known/oauth-protected-resource/path`. That
works if this server owns the whole host. Behind a proxy that forwards only a prefix, the document lies below that
prefix, and the challenge names its URL.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from trunkline.auth.metadata import RESOURCE_METADATA, canonical_resource
from trunkline.auth.urls import is_loopback
from trunkline.transports.http.request import HttpRequest

__all__ = ["ResourceLocation", "location_from_public_url", "location_from_request", "metadata_paths"]

_PORTS: Final = {"http": "80", "https": "443"}
_SCHEMES: Final = {"ws": "http", "wss": "https"}


class ResourceLocation(Struct, frozen=True):
    """Public URLs of one endpoint."""

    resource: str  # resource identifier, the audience of tokens
    audiences: frozenset[str]  # with and without a trailing slash; empty: no token is accepted here
    metadata_url: str  # URL of its metadata
    base_url: str  # prefix of every path of the application


def location_from_request(request: HttpRequest, path: str) -> ResourceLocation:
    """Derive the location of the endpoint at a path from a request. The origin policy has admitted only known host
    names; scheme and port are those of the listening socket.

    A trusted proxy may pass on the port in Host, X-Forwarded-Proto and X-Forwarded-Prefix as its caller wrote them,
    which is indistinguishable from its own values. So only the host name of a forwarded request counts: the URL is
    https, at the default port, without a prefix. Loopback names are never the URL of a proxy, so they accept no token.
    Configure `public_url` for any other URL.
    """
    forwarded, own_scheme, name = request.proxied, request.scheme, _host_name(request.headers)
    scheme = "https" if forwarded else _SCHEMES.get(own_scheme, own_scheme)
    port = None if forwarded else _own_port(request, scheme)
    root = request.root_path.rstrip("/")
    base = f"{scheme}://{name}{f':{port}' if port else ''}{root}"
    inner = path.rstrip("/")
    location = _build_location(base, f"{base}{inner}", f"{base}{RESOURCE_METADATA}{inner}")
    return replace(location, audiences=frozenset()) if forwarded and is_loopback(name.strip("[]")) else location


def location_from_public_url(public: str, main: str, path: str) -> ResourceLocation:
    """Return the location of the endpoint at `path`, where the operator configured the public URL of the endpoint at
    `main`."""
    whole = canonical_resource(public)
    origin, outer = whole.removesuffix(urlsplit(whole).path), urlsplit(whole).path
    inner = main.rstrip("/")
    if not outer.endswith(inner):  # a proxy rewrites the path
        return _build_location(origin, whole, f"{origin}{RESOURCE_METADATA}{outer}")
    base = f"{origin}{outer.removesuffix(inner)}"
    here = path.rstrip("/")
    return _build_location(base, f"{base}{here}", f"{base}{RESOURCE_METADATA}{here}")


def metadata_paths(path: str, public: str | None) -> frozenset[str]:
    """Return the application's paths that serve the metadata of an endpoint."""
    outer = "" if public is None else urlsplit(public).path.rstrip("/")
    inner = path.rstrip("/")
    return frozenset({RESOURCE_METADATA, f"{RESOURCE_METADATA}{inner}", f"{RESOURCE_METADATA}{outer}"})


def _build_location(base: str, resource: str, metadata: str) -> ResourceLocation:
    return ResourceLocation(resource, frozenset({resource, f"{resource}/"}), metadata, base)


def _host_name(headers: Mapping[bytes, bytes]) -> str:
    """Return the host of a request without its port: a caller can write any port there."""
    host = headers.get(b"host", b"").decode("latin-1").strip().lower()
    name, colon, _ = host.rpartition(":")
    return host if not colon or host.endswith("]") else name


def _own_port(request: HttpRequest, scheme: str) -> str | None:
    """Return the port of the accepting socket, or None if it is the default or unknown."""
    server = request.server
    port = None if not server or server[1] is None else str(server[1])
    return None if port == _PORTS.get(scheme) else port
