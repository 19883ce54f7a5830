"""Metadata documents of OAuth: their well-known URLs, and their validation.

They describe a protected resource (RFC 9728) and an authorization server (RFC 8414, OpenID Connect Discovery).
"""

from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from trunkline.auth.urls import origin_of, require_secure_url, safe_text
from trunkline.errors import AuthorizationFailed
from trunkline.wire import codec

__all__ = [
    "AssumedMetadata",
    "ResourceMetadata",
    "ServerMetadata",
    "canonical_resource",
    "covers",
    "fallback_metadata",
    "read_resource_metadata",
    "read_self_issued_metadata",
    "read_server_metadata",
    "require_pkce",
    "resource_metadata_urls",
    "root_metadata_url",
    "server_metadata_urls",
]

RESOURCE_METADATA: Final = "/.well-known/oauth-protected-resource"
SERVER_METADATA: Final = "/.well-known/oauth-authorization-server"
OPENID_METADATA: Final = "/.well-known/openid-configuration"
_RESOURCE_HOP: Final = "resource-metadata"
_SERVER_HOP: Final = "authorization-server-metadata"
_DISCOVERY: Final = "authorization, Authorization Server Discovery"

Texts = tuple[str, ...]


class ResourceMetadata(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Metadata of a protected resource (RFC 9728, section 2)."""

    resource: str
    authorization_servers: Texts | None = None
    jwks_uri: str | None = None
    scopes_supported: Texts | None = None
    bearer_methods_supported: Texts | None = None
    resource_name: str | None = None
    resource_documentation: str | None = None
    resource_policy_uri: str | None = None
    resource_tos_uri: str | None = None
    dpop_signing_alg_values_supported: Texts | None = None
    dpop_bound_access_tokens_required: bool | None = None


class ServerMetadata(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Metadata of an authorization server (RFC 8414, section 2)."""

    issuer: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    registration_endpoint: str | None = None
    jwks_uri: str | None = None
    introspection_endpoint: str | None = None
    introspection_endpoint_auth_methods_supported: Texts | None = None
    revocation_endpoint: str | None = None
    scopes_supported: Texts | None = None
    response_types_supported: Texts | None = None
    grant_types_supported: Texts | None = None
    token_endpoint_auth_methods_supported: Texts | None = None
    token_endpoint_auth_signing_alg_values_supported: Texts | None = None
    code_challenge_methods_supported: Texts | None = None
    dpop_signing_alg_values_supported: Texts | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None


class AssumedMetadata(ServerMetadata, frozen=True):
    """Default endpoints of 2025-03-26, for a server that publishes no metadata."""


_decode_resource: Final = codec.json_decoder(ResourceMetadata)
_decode_server: Final = codec.json_decoder(ServerMetadata)


# --- well-known URLs -------------------------------------------------------------------------------


def resource_metadata_urls(server: str) -> Texts:
    """Return the well-known URLs of an MCP server's metadata in search order: with its path, then without."""
    base, path = _split_url(server)
    found = f"{base}{RESOURCE_METADATA}"
    return (f"{found}{path}", found) if path else (found,)


def server_metadata_urls(issuer: str) -> Texts:
    """Return the well-known URLs of an authorization server's metadata in search order."""
    base, path = _split_url(issuer)
    if not path:
        return (f"{base}{SERVER_METADATA}", f"{base}{OPENID_METADATA}")
    return (f"{base}{SERVER_METADATA}{path}", f"{base}{OPENID_METADATA}{path}", f"{base}{path}{OPENID_METADATA}")


def root_metadata_url(server: str) -> str:
    """Return the metadata URL of a 2025-03-26 server that is its own authorization server: always at the root."""
    return f"{_split_url(server)[0]}{SERVER_METADATA}"


def fallback_metadata(server: str) -> AssumedMetadata:
    """Return the default endpoints of 2025-03-26, for a server that publishes none."""
    base = _split_url(server)[0]
    return AssumedMetadata(
        issuer=base,
        authorization_endpoint=f"{base}/authorize",
        token_endpoint=f"{base}/token",
        registration_endpoint=f"{base}/register",
    )


def _split_url(url: str) -> tuple[str, str]:
    """Return scheme and authority of a URL, and its path without a trailing slash."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}", _strip_slash(parts.path)


def _strip_slash(path: str) -> str:
    return path.rstrip("/")


# --- validation ------------------------------------------------------------------------------------


def read_resource_metadata(body: bytes, server: str) -> ResourceMetadata:
    """Decode resource metadata and check that it covers the MCP server at a URL. Raises `AuthorizationFailed`."""
    try:
        found = _decode_resource(body)
    except (codec.DecodeError, RecursionError) as error:
        raise _unreadable("protected resource metadata", error, _RESOURCE_HOP, "RFC 9728, section 3.2") from None
    if not covers(found.resource, server):
        why = f"is for {safe_text(found.resource)!r}, but the server is {server!r}"
        clause = "RFC 9728, section 3.3; authorization, Resource Parameter Implementation"
        raise AuthorizationFailed(f"the protected resource metadata {why}", hop=_RESOURCE_HOP, clause=clause)
    if not found.authorization_servers:
        why = "names no authorization server"
        raise AuthorizationFailed(f"the protected resource metadata {why}", hop=_RESOURCE_HOP, clause=_DISCOVERY)
    for issuer in found.authorization_servers:
        require_secure_url(issuer, "an authorization server", hop=_RESOURCE_HOP, clause="RFC 8414, section 2")
    return found


def read_server_metadata(body: bytes, issuer: str) -> ServerMetadata:
    """Decode authorization server metadata and check its issuer. Raises `AuthorizationFailed`."""
    found = _read_server(body)
    if found.issuer != issuer:  # RFC 8414 compares strings, without normalisation
        raise _wrong_issuer(found, issuer)
    return found


def read_self_issued_metadata(body: bytes, server: str) -> ServerMetadata:
    """Decode the metadata of an MCP server that is its own authorization server, as in 2025-03-26. No document
    states its issuer in advance, so the issuer must have the server's origin."""
    found = _read_server(body)
    if origin_of(found.issuer) != origin_of(server):
        raise _wrong_issuer(found, server)
    return found


def _read_server(body: bytes) -> ServerMetadata:
    try:
        found = _decode_server(body)
    except (codec.DecodeError, RecursionError) as error:
        raise _unreadable("authorization server metadata", error, _SERVER_HOP, "RFC 8414, section 3.2") from None
    for name in ("authorization_endpoint", "token_endpoint", "registration_endpoint"):
        url = getattr(found, name)
        if url is not None:
            require_secure_url(url, name, hop=_SERVER_HOP, clause="authorization, Communication Security")
    return found


def require_pkce(metadata: ServerMetadata) -> None:
    """Raise `AuthorizationFailed` unless the authorization server advertises PKCE with S256. Assumed metadata of
    2025-03-26 passes, since that revision requires PKCE."""
    if isinstance(metadata, AssumedMetadata) or "S256" in (metadata.code_challenge_methods_supported or ()):
        return
    why = f"{safe_text(metadata.issuer)!r} does not say that it supports PKCE with S256; if it does, assume_pkce=True"
    clause = "authorization, Authorization Code Protection"
    raise AuthorizationFailed(f"the authorization server {why}", hop=_SERVER_HOP, clause=clause)


def covers(resource: str, server: str) -> bool:
    """Return whether a resource is the MCP server or contains it: same origin, and a path that is a prefix of the
    server's."""
    origin = origin_of(resource)
    if origin is None or origin != origin_of(server) or "#" in resource:
        return False
    theirs, ours = _strip_slash(urlsplit(resource).path), _strip_slash(urlsplit(server).path)
    return ours == theirs or ours.startswith(f"{theirs}/")


def canonical_resource(server: str) -> str:
    """Return an MCP server's URL as a resource identifier: scheme and host in lower case, no fragment, no trailing
    slash."""
    parts = urlsplit(server)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{_strip_slash(parts.path)}{query}"


def _wrong_issuer(found: ServerMetadata, issuer: str) -> AuthorizationFailed:
    why = f"is that of {safe_text(found.issuer)!r}, and not of {safe_text(issuer)!r}"
    clause = "RFC 8414, section 3.3"
    return AuthorizationFailed(f"the authorization server metadata {why}", hop=_SERVER_HOP, clause=clause)


def _unreadable(what: str, error: Exception, hop: str, clause: str) -> AuthorizationFailed:
    return AuthorizationFailed(f"the {what} cannot be read: {safe_text(str(error))}", hop=hop, clause=clause)
