"""Finding out who issues tokens for an MCP server, and how (authorization, "Authorization Server Discovery")."""

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
# 2025-03-26, "Server Metadata Discovery", wants it said; later revisions do not mind.
_HEADERS: Final = {"Accept": "application/json", "MCP-Protocol-Version": max(Revision).value}


class DiscoveryResult(Struct, frozen=True):
    """Who issues tokens for an MCP server."""

    authorization_server: ServerMetadata
    resource: str  # the name that tokens are asked for, exactly as it was published
    scopes: tuple[str, ...] | None = None  # that the server knows of
    dpop_required: bool = False  # tokens have to be bound to a key
    resource_metadata_url: str | None = None  # where the metadata of the resource was found


async def discover(
    egress: Egress, server: str, resource_metadata_url: str | None, *, issuers: Sequence[str] = ()
) -> DiscoveryResult:
    """Who issues tokens for the MCP server at an address. `hint` is where it says that its metadata is; of several
    authorization servers, those of `issuers` come first. Raises `AuthorizationFailed`."""
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
    """The metadata of an MCP server as a resource, and where it was; None if there is none."""
    hop = "resource-metadata"
    if resource_metadata_url is not None and origin_of(resource_metadata_url) != origin_of(server):
        shown = safe_text(resource_metadata_url)
        why = f"the server says that its metadata is at {shown!r}, which is not on the server itself"
        raise AuthorizationFailed(why, hop="server", clause="RFC 9728, sections 3 and 7.3")
    places = resource_metadata_urls(server)
    for url in dict.fromkeys([resource_metadata_url, *places] if resource_metadata_url is not None else places):
        answer = await egress.get(url, hop=hop, headers=_HEADERS)
        if (metadata := _read_document(answer, hop, lambda body: read_resource_metadata(body, server))) is not None:
            return url, metadata
    if resource_metadata_url is not None:
        raise AuthorizationFailed(
            f"there is no metadata at {safe_text(resource_metadata_url)!r}", hop=hop, clause="RFC 9728, section 3.2"
        )
    return None


async def find_authorization_server(egress: Egress, issuer: str) -> ServerMetadata:
    """The metadata of an authorization server, wherever it may be."""
    return (await locate_authorization_server(egress, issuer))[1]


async def locate_authorization_server(egress: Egress, issuer: str) -> tuple[str, ServerMetadata]:
    """The same, and where it was."""
    hop, reason = "authorization-server-metadata", None
    for url in server_metadata_urls(issuer):
        try:
            answer = await egress.get(url, hop=hop, headers=_HEADERS)
            if (metadata := _read_document(answer, hop, lambda body: read_server_metadata(body, issuer))) is not None:
                return url, metadata
        except AuthorizationFailed as error:
            reason = reason or error  # another place may have what can be used
    if reason is not None:
        raise reason
    why = f"the authorization server {safe_text(issuer)!r} publishes no metadata"
    raise AuthorizationFailed(why, hop=hop, clause="authorization, Authorization Server Metadata Discovery")


async def _find_first_usable(egress: Egress, issuers: Sequence[str]) -> ServerMetadata:
    """The first authorization server that can be used; why not the first of all, if none can."""
    first, *others = issuers
    try:
        return await find_authorization_server(egress, first)
    except AuthorizationFailed:
        for issuer in others:
            with suppress(AuthorizationFailed):
                return await find_authorization_server(egress, issuer)
        raise


async def _find_self_issued(egress: Egress, server: str) -> ServerMetadata:
    """The metadata of a server that is its own authorization server, as in 2025-03-26."""
    url, hop = root_metadata_url(server), "authorization-server-metadata"
    answer = await egress.get(url, hop=hop, headers=_HEADERS)
    return _read_document(answer, hop, lambda body: read_self_issued_metadata(body, server)) or fallback_metadata(
        server
    )


def _read_document(response: FetchResponse, hop: str, read: Callable[[bytes], T]) -> T | None:
    """What was published; None if nothing was, where a page for people is nothing."""
    if response.status >= _SERVER_FAILED:
        why = f"{safe_text(response.url)!r} fails with HTTP {response.status}; try later"
        raise AuthorizationFailed(why, hop=hop, passing=True)
    if response.status != _OK or response.media_type == "text/html":
        return None
    return read(response.body)
