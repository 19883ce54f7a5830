"""Turn responses of the authorization flow into findings. Pure functions: this module sends no requests."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from trunkline.auth import challenge as challenges
from trunkline.auth.challenge import Challenge
from trunkline.auth.doctor.probe import UNAUTHORIZED, ProbeResponse
from trunkline.auth.doctor.report import strip_query
from trunkline.auth.fetch import FetchResponse
from trunkline.auth.jose import KeySet, MalformedJws
from trunkline.auth.metadata import AssumedMetadata, ResourceMetadata, ServerMetadata, canonical_resource
from trunkline.auth.urls import is_loopback, origin_of, safe_text
from trunkline.errors import AuthorizationFailed, TransportError
from trunkline.findings import Finding
from trunkline.wire import codec

__all__ = [
    "UNAUTHORIZED",
    "assess_address",
    "assess_authorization_endpoint",
    "assess_cors",
    "assess_failure",
    "assess_keys",
    "assess_missing_resource_metadata",
    "assess_registration",
    "assess_resource_metadata",
    "assess_response",
    "assess_server_metadata",
    "assess_token_endpoint",
    "assess_token_response",
    "assess_unencrypted_token",
    "assess_unreachable",
    "assess_url",
    "find_token_challenge",
    "is_unencrypted",
]

_OFFLINE: Final = "offline_access"
_DISCOVERY: Final = "MCP authorization, Protected Resource Metadata Discovery Requirements"
_REFRESH: Final = "MCP authorization, Refresh Tokens"
_ERRORS: Final = "MCP authorization, Error Handling"
_TLS_CLAUSE: Final = "RFC 6750, section 5.3; MCP authorization, Communication Security"
_OK, _REDIRECT, _BAD, _FORBIDDEN, _TOO_MANY, _SERVER_ERROR = 200, 300, 400, 403, 429, 500
_ABSENT_STATUSES: Final = frozenset({404, 405, 410, 501})
_MCP_CLAUSE: Final = re.compile(r"(^|; )(authorization|security best practices),")  # clauses of the MCP specification
_CLAUSE_BY_HOP: Final = {
    "resource-metadata": "RFC 9728, section 3",
    "authorization-server-metadata": "RFC 8414, section 3",
    "authorization": "RFC 6749, section 3.1",
    "token": "RFC 6749, section 3.2",
    "keys": "RFC 8414, section 2",
}
_FIX_BY_CLAUSE: Final = {  # keys are substrings of the clause
    "Communication Security": "serve every endpoint of the authorization server over https",
    "Authorization Code Protection": "support PKCE, and put S256 into `code_challenge_methods_supported`",
    "Server-Side Request Forgery": "let it answer by itself at a public address; --allow HOST permits one that is not",
    "RFC 9728, section 3.3": "let `resource` be the address that clients are given for the MCP server",
    "RFC 9728, sections 3 and 7.3": "serve the metadata on the MCP server itself, and name that address",
    "RFC 8414, section 3.3": "let `issuer` be, letter by letter, what the protected resource metadata names",
    "Authorization Server Discovery": "put the issuer of an authorization server into `authorization_servers`",
}
_FIX_BY_HOP: Final = {
    "resource-metadata": "serve it as JSON at the well-known address of the endpoint, and name that in the challenge",
    "authorization-server-metadata": "serve it as JSON at a well-known address of the issuer",
    "authorization": "see that the authorization endpoint can be reached, at the address that the metadata names",
    "token": "see that the token endpoint can be reached, at the very address that the metadata names",
    "keys": "see that the keys can be loaded from the address that the metadata names",
}


def assess_failure(error: AuthorizationFailed, observations: Sequence[str] = ()) -> Finding:
    """Report the error that a client would raise, and the responses at the URLs that it tried."""
    clause = _MCP_CLAUSE.sub(r"\1MCP \2,", error.clause) or _CLAUSE_BY_HOP.get(error.hop, "")
    seen = f"{error} ({'; '.join(observations)})" if observations else str(error)
    mend = next((mend for part, mend in _FIX_BY_CLAUSE.items() if part in clause), _FIX_BY_HOP.get(error.hop, ""))
    return Finding(error.hop, "failed", seen, clause, mend)


# --- the URL ---------------------------------------------------------------------------------------


def assess_url(url: str) -> Finding | None:
    """Return what is wrong with the URL as written, or None."""
    if origin_of(url) is not None and urlsplit(url).scheme in {"http", "https"} and not {"#", "@"}.intersection(url):
        return None
    seen, mend = (
        f"{safe_text(strip_query(url).rpartition('@')[2])!r} is not the URL of an MCP server",
        "pass the whole URL, such as https://example.com/mcp",
    )
    return Finding("address", "failed", seen, "MCP authorization, Canonical Server URI", mend)


def assess_unreachable(hop: str, url: str, error: TransportError) -> Finding:
    """Report that a server did not respond."""
    mend = "see that the address is right, that the server runs, and that its certificate is valid"
    return Finding(hop, "failed", f"{strip_query(url)} cannot be reached: {error}", "RFC 9110, section 4", mend)


def is_unencrypted(url: str) -> bool:
    """Return whether requests to a URL cross a network without TLS."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def assess_address(url: str, response: ProbeResponse) -> Iterator[Finding]:
    """Report whether the server responded, and whether it uses TLS."""
    if not is_unencrypted(url):
        yield Finding("address", "ok", f"{strip_query(url)} answers")
        return
    seen = f"{strip_query(url)} answers without TLS, so tokens can be read on the network"
    verdict = "failed" if response.status == UNAUTHORIZED else "warning"
    yield Finding("address", verdict, seen, _TLS_CLAUSE, "serve it over https; http is for this machine only")


# --- the server and its challenge ------------------------------------------------------------------


def assess_response(response: ProbeResponse) -> Finding:
    """Assess the response to a request without a token."""
    seen = f"it answers {response.status} to {response.method} without a token"
    if response.status == UNAUTHORIZED:
        return _assess_challenge(response)
    if response.status < _REDIRECT:
        return Finding("server", "ok", f"{seen}: the server requires no authorization")
    if response.status < _BAD:
        seen, mend = f"{seen}, and points to {response.location!r}", "give clients the address that it points to"
        return Finding("server", "failed", seen, "RFC 9110, section 15.4", mend)
    if response.status == _FORBIDDEN:
        mend = "answer 401 with a challenge to requests without a token; 403 is for tokens that lack scopes"
        return Finding("server", "failed", seen, _ERRORS, mend)
    if response.status in _ABSENT_STATUSES:
        mend = "see that the path is that of the MCP endpoint, and that it takes POST"
        return Finding("server", "failed", seen, "MCP transports, Streamable HTTP", mend)
    if response.status >= _SERVER_ERROR:
        return Finding("server", "failed", seen, "RFC 9110, section 15.6", "look into the log of the server")
    return Finding("server", "failed", seen, _ERRORS, "answer 401 and a challenge before anything else is looked at")


def find_token_challenge(response: ProbeResponse) -> Challenge | None:
    """Return the server's Bearer or DPoP challenge, if there is one."""
    return challenges.find_challenge(challenges.parse_challenges(response.challenges or ""), "bearer", "dpop")


def _assess_challenge(response: ProbeResponse) -> Finding:
    """Assess the challenge of a 401."""
    mend = 'answer 401 with WWW-Authenticate: Bearer resource_metadata="…", scope="…"'
    if response.challenges is None:
        clause = f"RFC 9110, section 15.5.2; {_DISCOVERY}"
        return Finding("server", "warning", "it answers 401 without WWW-Authenticate", clause, mend)
    challenge = find_token_challenge(response)
    if challenge is None:
        schemes = (
            ", ".join(one.scheme for one in challenges.parse_challenges(response.challenges))
            or "nothing that can be read"
        )
        seen = f"WWW-Authenticate asks for {safe_text(schemes)}, and not for a bearer token"
        return Finding("server", "warning", seen, "RFC 6750, section 3; RFC 9728, section 5.1", mend)
    return _assess_token_challenge(challenge, mend)


def _assess_token_challenge(challenge: Challenge, mend: str) -> Finding:
    where = challenge.params.get("resource_metadata")
    if where is None:
        seen = "WWW-Authenticate does not name the protected resource metadata, so clients have to guess"
        return Finding("server", "warning", seen, f"RFC 9728, section 5.1; {_DISCOVERY}", mend)
    if _OFFLINE in (challenge.scopes or ()):
        seen = f"WWW-Authenticate asks for the scope {_OFFLINE}, which is not the server's business"
        return Finding("server", "warning", seen, _REFRESH, f"leave {_OFFLINE} out of the challenge")
    scopes = "no scopes" if challenge.scopes is None else f"the scopes {safe_text(' '.join(challenge.scopes))!r}"
    return Finding("server", "ok", f"it answers 401, and the challenge names {safe_text(where)} and {scopes}")


# --- the protected resource ------------------------------------------------------------------------


def assess_resource_metadata(
    where: str, metadata: ResourceMetadata, url: str, hint: str | None, challenge: Challenge | None
) -> Iterator[Finding]:
    """Report the content of valid resource metadata, and what stricter clients may reject."""
    hop = "resource-metadata"
    issuers = safe_text(", ".join(metadata.authorization_servers or ()))
    yield Finding(hop, "ok", f"{safe_text(where)} says that tokens come from {issuers}")
    if hint is not None and where != hint:
        seen = f"there is none at {safe_text(hint)}, which the challenge names; clients find it elsewhere by luck"
        yield Finding(hop, "warning", seen, "RFC 9728, section 5.1", f"name {safe_text(where)} in the challenge")
    if metadata.resource.rstrip("/") != canonical_resource(url):
        whole = strip_query(canonical_resource(url))
        seen = (
            f"`resource` is {safe_text(metadata.resource)!r}, which is not all of {whole!r}; strict clients refuse that"
        )
        yield Finding(hop, "warning", seen, "RFC 9728, section 3.3", f"let `resource` be {whole!r}")
    if _OFFLINE in (metadata.scopes_supported or ()):
        seen = f"`scopes_supported` has {_OFFLINE}, which is not the server's business"
        yield Finding(hop, "warning", seen, _REFRESH, f"leave {_OFFLINE} out of `scopes_supported`")
    if metadata.scopes_supported is None and (challenge is None or challenge.scopes is None):
        seen = "neither the challenge nor the metadata names scopes, so clients ask for none"
        mend = "name what is needed for a start in the challenge's `scope`, or in `scopes_supported`"
        yield Finding(hop, "warning", seen, "MCP authorization, Scope Selection Strategy", mend)
    if metadata.bearer_methods_supported is not None and "header" not in metadata.bearer_methods_supported:
        seen = "`bearer_methods_supported` leaves out `header`, the only way that clients send tokens"
        clause = "MCP authorization, Token Requirements"
        yield Finding(hop, "warning", seen, clause, "take tokens from the Authorization header, and say so")


def assess_missing_resource_metadata(server: ServerMetadata, observations: Sequence[str]) -> Finding:
    """Report missing resource metadata. A 2025-03-26 server may be its own authorization server instead."""
    hop, clause, mend = "resource-metadata", f"RFC 9728, section 3; {_DISCOVERY}", _FIX_BY_HOP["resource-metadata"]
    seen = f"there is no protected resource metadata ({'; '.join(observations)})"
    if isinstance(server, AssumedMetadata):
        return Finding(hop, "failed", seen, clause, mend)
    seen = f"{seen}; the server says that it issues tokens itself, as was the way of 2025-03-26"
    return Finding(hop, "warning", seen, clause, mend)


def assess_cors(hop: str, response: FetchResponse) -> Iterator[Finding]:
    """Report metadata that clients in browsers cannot read across origins."""
    if "access-control-allow-origin" not in {name.lower() for name in response.headers}:
        seen = f"clients that run in a browser cannot read {response.url}: it has no Access-Control-Allow-Origin"
        mend = "answer with Access-Control-Allow-Origin: *, since nothing in it is secret"
        yield Finding(hop, "warning", seen, "Fetch, CORS protocol", mend)


# --- the authorization server ----------------------------------------------------------------------


def assess_server_metadata(metadata: ServerMetadata) -> Iterator[Finding]:
    """Report missing or noteworthy fields of valid authorization server metadata."""
    for name in ("authorization_endpoint", "token_endpoint"):
        if getattr(metadata, name) is None:
            yield _metadata_failure(f"`{name}` is missing", "RFC 8414, section 2", f"name the {name} in the metadata")
    if "code" not in (metadata.response_types_supported or ("code",)):
        seen = "`response_types_supported` leaves out `code`"
        yield _metadata_failure(seen, "RFC 8414, section 2; OAuth 2.1, section 4.1", "support the response type `code`")
    grants = metadata.grant_types_supported or ("authorization_code", "refresh_token")
    if "authorization_code" not in grants:
        seen = "`grant_types_supported` leaves out `authorization_code`: no user can log in"
        clause = "RFC 8414, section 2; OAuth 2.1, section 4.1"
        yield _metadata_failure(seen, clause, "support the grant `authorization_code`")
    elif "refresh_token" not in grants:
        seen = "`grant_types_supported` leaves out `refresh_token`: users log in again whenever a token expires"
        yield _metadata_warning(seen, _REFRESH, "support the grant `refresh_token`")
    if not metadata.authorization_response_iss_parameter_supported:
        seen = "it does not say that it puts `iss` into its redirects, by which clients recognise the issuer"
        mend = "send `iss`, and set `authorization_response_iss_parameter_supported`"
        yield _metadata_warning(
            seen, "RFC 9207, section 2.3; MCP authorization, Authorization Response Validation", mend
        )


def _metadata_failure(seen: str, clause: str, mend: str) -> Finding:
    return Finding("authorization-server-metadata", "failed", seen, clause, mend)


def _metadata_warning(seen: str, clause: str, mend: str) -> Finding:
    return Finding("authorization-server-metadata", "warning", seen, clause, mend)


def assess_registration(metadata: ServerMetadata) -> Finding:
    """Report how a client obtains its id."""
    hop, clause = "registration", "MCP authorization, Client Registration"
    methods = metadata.token_endpoint_auth_methods_supported
    if metadata.client_id_metadata_document_supported:
        if methods is None or {"none", "private_key_jwt"}.intersection(methods):
            return Finding(hop, "ok", "a client brings a metadata document of its own, whose address is its id")
        seen = "metadata documents are taken for ids, but their clients cannot authenticate: only secrets are taken"
        clause = "MCP authorization, Client ID Metadata Documents"
        return Finding(hop, "warning", seen, clause, "take `none` or `private_key_jwt` at the token endpoint")
    if metadata.registration_endpoint is not None:
        return Finding(hop, "ok", "a client registers itself; since 2026-07-28 a metadata document is the better way")
    seen = "clients can neither register themselves nor bring a metadata document: each needs an id made by hand"
    mend = "set `client_id_metadata_document_supported`, or offer a `registration_endpoint`"
    return Finding(hop, "warning", seen, clause, mend)


# --- endpoints of the authorization server ---------------------------------------------------------


def assess_authorization_endpoint(response: FetchResponse) -> Finding:
    """Assess the login page's response to a request without parameters."""
    seen, clause = f"the authorization endpoint answers {response.status} to an empty request", "RFC 6749, section 3.1"
    if response.status in _ABSENT_STATUSES:
        mend = "let `authorization_endpoint` be the URL of the login page"
        return Finding("authorization", "failed", seen, clause, mend)
    if response.status >= _SERVER_ERROR:
        return Finding("authorization", "warning", seen, clause, "answer an invalid request with 400")
    return Finding("authorization", "ok", seen)


class _OAuthError(Struct):
    error: str


_read_error: Final = codec.json_decoder(_OAuthError)


def assess_token_endpoint(response: FetchResponse) -> Finding:
    """Assess the token endpoint's response to an invalid code."""
    hop, clause, request = "token", "RFC 6749, section 5.2", "to an invalid code"
    status = f"the token endpoint answers {response.status}"
    if response.status == _TOO_MANY:
        return Finding(hop, "warning", f"{status} {request}: it limits the rate of requests", clause, "try again later")
    try:
        error = safe_text(_read_error(response.body).error)
    except (codec.DecodeError, RecursionError):
        kind = safe_text(response.media_type) or "no content type"
        mend = 'answer with 400 and JSON such as {"error": "invalid_grant"}'
        return Finding(hop, "failed", f"{status} {request}, with {kind} and no OAuth error", clause, mend)
    seen = f"{status} and {error!r} {request}"
    if not _OK < response.status < _SERVER_ERROR:
        return Finding(hop, "warning", seen, clause, "answer errors with 400 or 401")
    return Finding(hop, "ok", f"{seen}, as it should")


def assess_keys(response: FetchResponse) -> Finding:
    """Assess whether the published keys can verify tokens."""
    clause, mend = "RFC 7517, section 5", "publish the public keys that tokens are signed with at `jwks_uri`"
    if response.status != _OK:
        return Finding("keys", "failed", f"{response.url} answers {response.status}", clause, mend)
    try:
        keys = KeySet(response.body)
    except MalformedJws as error:
        return Finding("keys", "failed", f"the document at {response.url} is not a JWK Set: {error}", clause, mend)
    if not len(keys):
        return Finding("keys", "failed", f"no key at {response.url} can verify a signature", clause, mend)
    return Finding("keys", "ok", f"{len(keys)} of the keys can verify signatures")


# --- a token ---------------------------------------------------------------------------------------


def assess_token_response(response: ProbeResponse) -> Finding:
    """Assess the MCP server's response to a request with a token."""
    challenge = find_token_challenge(response)
    params: Mapping[str, str] = {} if challenge is None else challenge.params
    why = safe_text(": ".join(filter(None, (params.get("error"), params.get("error_description")))))
    seen = f"it answers {response.status} to {response.method} with the token" + (f" ({why})" if why else "")
    if response.status == UNAUTHORIZED:
        mend = "see that the token is not expired, is of this issuer, and has this server as its audience"
        return Finding("retry", "failed", seen, "MCP authorization, Token Handling", mend)
    if response.status == _FORBIDDEN:
        scopes = safe_text(" ".join((challenge and challenge.scopes) or ())) or "that the server needs"
        clause = "RFC 6750, section 3.1; MCP authorization, Scope Challenge Handling"
        return Finding("retry", "failed", seen, clause, f"get a token with the scopes {scopes}")
    if response.status < _REDIRECT:
        return Finding("retry", "ok", seen)
    return Finding(
        "retry", "warning", seen, _ERRORS, "check the server's log: the token was accepted, the request was not"
    )


def assess_unencrypted_token(url: str) -> Finding:
    """Report that the token was not sent, since the connection is not encrypted."""
    seen = f"the token was not sent to {strip_query(url)}, since it could be read on the network"
    return Finding("retry", "failed", seen, _TLS_CLAUSE, "serve it over https; http is for this machine only")
