"""Find the authorization server of an MCP server (authorization, "Authorization Server Discovery")."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from msgspec import Struct

from trunkline.auth.fetch import Egress, FetchResponse
from trunkline.auth.metadata import (
    ResourceMetadata,
    ServerMetadata,
    canonical_resource,
    fallback_metadata,
    read_resource_metadata,
    read_self_issued_metadata,
    read_server_metadata,
    resource_metadata_urls,
    root_metadata_url,
    server_metadata_urls,
)
from trunkline.auth.urls import origin_of, safe_text
from trunkline.errors import AuthorizationFailed
from trunkline.protocol.revisions import Revision

__all__ = [
    "DiscoveryResult",
    "discover",
    "find_authorization_server",
    "find_resource_metadata",
    "locate_authorization_server",
]

T = TypeVar("T")
_OK: Final = 200
_SERVER_FAILED: Final = 500
# 2025-03-26, "Server Metadata Discovery", requires the version header; later revisions ignore it.
_HEADERS: Final = {"Accept": "application/json", "MCP-Protocol-Version": max(Revision).value}


class DiscoveryResult(Struct, frozen=True):
    """The authorization server of an MCP server, and the parameters for its tokens."""

    authorization_server: ServerMetadata
    resource: str  # the resource identifier, exactly as published
    scopes: tuple[str, ...] | None = None  # of the resource metadata
    dpop_required: bool = False  # tokens must be bound to a key
    resource_metadata_url: str | None = None  # URL of the resource metadata


async def discover(
    egress: Egress, server: str, resource_metadata_url: str | None, *, issuers: Sequence[str] = ()
) -> DiscoveryResult:
    """Find the authorization server for the MCP server at a URL. Raises `AuthorizationFailed`.

    `resource_metadata_url` is the URL that the server's challenge names. If there are several authorization servers,
    those in `issuers` come first.
    """
    found = await find_resource_metadata(egress, server, resource_metadata_url)
    if found is None:
        return DiscoveryResult(await _find_self_issued(egress, server), canonical_resource(server))
    where, metadata = found
    named = sorted(metadata.authorization_servers or (), key=lambda issuer: issuer not in issuers)
    return DiscoveryResult(
        await _find_first_usable(egress, named),
        metadata.resource,
        metadata.scopes_supported,
        metadata.dpop_bound_access_tokens_required is True,
        where,
    )


async def find_resource_metadata(
    egress: Egress, server: str, resource_metadata_url: str | None
) -> tuple[str, ResourceMetadata] | None:
    """Return the URL and the content of an MCP server's resource metadata, or None if it publishes none."""
    hop = "resource-metadata"
    if resource_metadata_url is not None and origin_of(resource_metadata_url) != origin_of(server):
        shown = safe_text(resource_metadata_url)
        why = f"the challenge names metadata at {shown!r}, which is not on the MCP server itself"
        raise AuthorizationFailed(why, hop="server", clause="RFC 9728, sections 3 and 7.3")
    urls = resource_metadata_urls(server)
    for url in dict.fromkeys([resource_metadata_url, *urls] if resource_metadata_url is not None else urls):
        response = await egress.get(url, hop=hop, headers=_HEADERS)
        if (metadata := _read_document(response, hop, lambda body: read_resource_metadata(body, server))) is not None:
            return url, metadata
    if resource_metadata_url is not None:
        raise AuthorizationFailed(
            f"there is no metadata at {safe_text(resource_metadata_url)!r}", hop=hop, clause="RFC 9728, section 3.2"
        )
    return None


async def find_authorization_server(egress: Egress, issuer: str) -> ServerMetadata:
    """Return the metadata of an authorization server."""
    return (await locate_authorization_server(egress, issuer))[1]


async def locate_authorization_server(egress: Egress, issuer: str) -> tuple[str, ServerMetadata]:
    """Return the URL and the content of an authorization server's metadata."""
    hop, reason = "authorization-server-metadata", None
    for url in server_metadata_urls(issuer):
        try:
            response = await egress.get(url, hop=hop, headers=_HEADERS)
            if (metadata := _read_document(response, hop, lambda body: read_server_metadata(body, issuer))) is not None:
                return url, metadata
        except AuthorizationFailed as error:
            reason = reason or error  # the next well-known URL may have a usable document
    if reason is not None:
        raise reason
    why = f"the authorization server {safe_text(issuer)!r} publishes no metadata"
    raise AuthorizationFailed(why, hop=hop, clause="authorization, Authorization Server Metadata Discovery")


async def _find_first_usable(egress: Egress, issuers: Sequence[str]) -> ServerMetadata:
    """Return the first usable authorization server; if none is, raise the first one's error."""
    first, *others = issuers
    try:
        return await find_authorization_server(egress, first)
    except AuthorizationFailed:
        for issuer in others:
            with suppress(AuthorizationFailed):
                return await find_authorization_server(egress, issuer)
        raise


async def _find_self_issued(egress: Egress, server: str) -> ServerMetadata:
    """Return the metadata of a server that is its own authorization server, as in 2025-03-26."""
    url, hop = root_metadata_url(server), "authorization-server-metadata"
    response = await egress.get(url, hop=hop, headers=_HEADERS)
    return _read_document(response, hop, lambda body: read_self_issued_metadata(body, server)) or fallback_metadata(
        server
    )


def _read_document(response: FetchResponse, hop: str, read: Callable[[bytes], T]) -> T | None:
    """Read a published document; return None if there is none. An HTML page counts as none."""
    if response.status >= _SERVER_FAILED:
        why = f"{safe_text(response.url)!r} failed with HTTP {response.status}; try later"
        raise AuthorizationFailed(why, hop=hop, passing=True)
    if response.status != _OK or response.media_type == "text/html":
        return None
    return read(response.body)
