"""The documents that say how to get a token: of a protected resource (RFC 9728) and of an authorization server
(RFC 8414, OpenID Connect Discovery). Where they are to be found, and what must be true of them."""

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
    """What a protected resource says of itself (RFC 9728, section 2)."""

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
    """What an authorization server says of itself (RFC 8414, section 2)."""

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
    """What nobody has published: the addresses that 2025-03-26 takes for granted."""


_decode_resource: Final = codec.json_decoder(ResourceMetadata)
_decode_server: Final = codec.json_decoder(ServerMetadata)


# --- where they are ----------------------------------------------------------------------------


def resource_metadata_urls(server: str) -> Texts:
    """Where the metadata of an MCP server may be, in the order to look: with its path, then without."""
    base, path = _split_url(server)
    found = f"{base}{RESOURCE_METADATA}"
    return (f"{found}{path}", found) if path else (found,)


def server_metadata_urls(issuer: str) -> Texts:
    """Where the metadata of an authorization server may be, in the order to look."""
    base, path = _split_url(issuer)
    if not path:
        return (f"{base}{SERVER_METADATA}", f"{base}{OPENID_METADATA}")
    return (f"{base}{SERVER_METADATA}{path}", f"{base}{OPENID_METADATA}{path}", f"{base}{path}{OPENID_METADATA}")


def root_metadata_url(server: str) -> str:
    """Where a server of 2025-03-26, which is its own authorization server, says so: always at its root."""
    return f"{_split_url(server)[0]}{SERVER_METADATA}"


def fallback_metadata(server: str) -> AssumedMetadata:
    """What 2025-03-26 takes for granted where nothing is published."""
    base = _split_url(server)[0]
    return AssumedMetadata(
        issuer=base,
        authorization_endpoint=f"{base}/authorize",
        token_endpoint=f"{base}/token",
        registration_endpoint=f"{base}/register",
    )


def _split_url(url: str) -> tuple[str, str]:
    """The address of the server alone, and the path without a slash at its end."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}", _strip_slash(parts.path)


def _strip_slash(path: str) -> str:
    return path.rstrip("/")


# --- what must be true of them -----------------------------------------------------------------


def read_resource_metadata(body: bytes, server: str) -> ResourceMetadata:
    """The metadata of a resource, if it is that of the MCP server at an address."""
    try:
        found = _decode_resource(body)
    except (codec.DecodeError, RecursionError) as error:
        raise _unreadable("protected resource metadata", error, _RESOURCE_HOP, "RFC 9728, section 3.2") from None
    if not covers(found.resource, server):
        why = f"is for {safe_text(found.resource)!r}, and the server is {server!r}"
        clause = "RFC 9728, section 3.3; authorization, Resource Parameter Implementation"
        raise AuthorizationFailed(f"the protected resource metadata {why}", hop=_RESOURCE_HOP, clause=clause)
    if not found.authorization_servers:
        why = "names no authorization server"
        raise AuthorizationFailed(f"the protected resource metadata {why}", hop=_RESOURCE_HOP, clause=_DISCOVERY)
    for issuer in found.authorization_servers:
        require_secure_url(issuer, "an authorization server", hop=_RESOURCE_HOP, clause="RFC 8414, section 2")
    return found


def read_server_metadata(body: bytes, issuer: str) -> ServerMetadata:
    """The metadata of an authorization server, if it is that of this issuer."""
    found = _read_server(body)
    if found.issuer != issuer:  # as plain texts: nothing is the same but the same
        raise _wrong_issuer(found, issuer)
    return found


def read_self_issued_metadata(body: bytes, server: str) -> ServerMetadata:
    """The metadata of an MCP server that is its own authorization server, as in 2025-03-26. Nobody has said how its
    issuer is written, which therefore has to be on that very server."""
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
    """Refuses an authorization server that does not say that it knows PKCE with S256; one that says nothing at all,
    as in 2025-03-26, is taken at its revision's word."""
    if isinstance(metadata, AssumedMetadata) or "S256" in (metadata.code_challenge_methods_supported or ()):
        return
    why = f"{safe_text(metadata.issuer)!r} does not say that it supports PKCE with S256; if it does, assume_pkce=True"
    clause = "authorization, Authorization Code Protection"
    raise AuthorizationFailed(f"the authorization server {why}", hop=_SERVER_HOP, clause=clause)


def covers(resource: str, server: str) -> bool:
    """Whether a resource is an MCP server, or what it is a part of: the same origin, and a path that leads there."""
    origin = origin_of(resource)
    if origin is None or origin != origin_of(server) or "#" in resource:
        return False
    theirs, ours = _strip_slash(urlsplit(resource).path), _strip_slash(urlsplit(server).path)
    return ours == theirs or ours.startswith(f"{theirs}/")


def canonical_resource(server: str) -> str:
    """The address of an MCP server as a resource: scheme and host in lower case, no fragment, no slash at the end."""
    parts = urlsplit(server)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{_strip_slash(parts.path)}{query}"


def _wrong_issuer(found: ServerMetadata, issuer: str) -> AuthorizationFailed:
    why = f"is that of {safe_text(found.issuer)!r}, and not of {safe_text(issuer)!r}"
    clause = "RFC 8414, section 3.3"
    return AuthorizationFailed(f"the authorization server metadata {why}", hop=_SERVER_HOP, clause=clause)


def _unreadable(what: str, error: Exception, hop: str, clause: str) -> AuthorizationFailed:
    return AuthorizationFailed(f"the {what} cannot be read: {safe_text(str(error))}", hop=hop, clause=clause)
