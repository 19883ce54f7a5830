"""Requests to a token endpoint, and client authentication there."""

import secrets
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

from msgspec import Struct

from trunkline.auth import fetch
from trunkline.auth.client.dpop import Prover
from trunkline.auth.fetch import Egress, basic_auth_header
from trunkline.auth.jose import SigningKey
from trunkline.auth.metadata import ServerMetadata
from trunkline.auth.urls import safe_text
from trunkline.errors import AuthorizationFailed
from trunkline.wire import codec

__all__ = ["ClientIdentity", "OAuthErrorResponse", "TokenEndpoint", "choose_auth_method", "error_from_response"]

_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_LIFE: Final = 300  # seconds
_OK: Final = 200
_SERVER_FAILED: Final = 500
_TOO_MANY: Final = 429


class ClientIdentity(Struct, frozen=True):
    """Client id at an authorization server, and how the client authenticates."""

    client_id: str
    method: str = "none"  # one of client_secret_basic, client_secret_post, private_key_jwt, none
    secret: str | None = None
    key: SigningKey | None = None
    registered: bool = False  # dynamically, so the client can register again

    def __repr__(self) -> str:
        return f"ClientIdentity({self.client_id!r}, {self.method})"


class OAuthErrorResponse(AuthorizationFailed):
    """An error response of an authorization server; `error` is its code, such as `invalid_grant`."""

    def __init__(self, message: str, *, hop: str, error: str, clause: str = "RFC 6749, section 5.2") -> None:
        super().__init__(message, hop=hop, clause=clause)
        self.error = error


class _ErrorBody(Struct):
    error: str = ""
    error_description: str | None = None


_decode_error: Final = codec.json_decoder(_ErrorBody)


def error_from_response(response: fetch.FetchResponse, what: str, hop: str) -> AuthorizationFailed:
    """Return the exception for an error response."""
    try:
        body = _decode_error(response.body)
    except (codec.DecodeError, RecursionError):
        body = _ErrorBody()
    words = ": ".join(safe_text(word) for word in (body.error, body.error_description) if word)
    message = f"{what} was refused: {words}" if words else f"{what} was refused with HTTP {response.status}"
    if response.status >= _SERVER_FAILED or response.status == _TOO_MANY:
        return AuthorizationFailed(f"{what} failed with HTTP {response.status}; try later", hop=hop, passing=True)
    return OAuthErrorResponse(message, hop=hop, error=body.error)


def choose_auth_method(metadata: ServerMetadata, *, secret: bool, key: bool = False) -> str:
    """Choose the client authentication method for a client with a secret, a key or neither."""
    if key:
        return "private_key_jwt"
    supported = metadata.token_endpoint_auth_methods_supported
    if not secret:
        return "none"
    usable = ("client_secret_basic", "client_secret_post", "none")
    return next((method for method in usable if supported is None or method in supported), "client_secret_basic")


class TokenEndpoint:
    """The token endpoint of one authorization server."""

    def __init__(
        self, egress: Egress, metadata: ServerMetadata, prover: Prover | None, now: Callable[[], float]
    ) -> None:
        self._egress = egress
        self._metadata = metadata
        self._prover = prover
        self._now = now

    async def request_token(
        self, identity: ClientIdentity, fields: Mapping[str, str | None], *, hop: str = "token"
    ) -> bytes:
        """Return the body of a successful response. Raises `OAuthErrorResponse` if the server refuses, otherwise
        `AuthorizationFailed`."""
        url = self._metadata.token_endpoint
        if url is None:
            clause = "RFC 8414, section 2"
            raise AuthorizationFailed("the authorization server has no token endpoint", hop=hop, clause=clause)
        response = await self._post_with_nonce_retry(url, identity, fields, hop)
        failed = error_from_response(response, "the token request", hop)
        if response.status == _OK and not (isinstance(failed, OAuthErrorResponse) and failed.error):
            return response.body
        raise failed

    async def _post_with_nonce_retry(
        self, url: str, identity: ClientIdentity, fields: Mapping[str, str | None], hop: str
    ) -> fetch.FetchResponse:
        """Post a request, and repeat it once if the server demands a DPoP nonce."""
        response = await self._post(url, identity, fields, hop)
        failed = error_from_response(response, "", hop)
        if self._prover is not None and isinstance(failed, OAuthErrorResponse) and failed.error == "use_dpop_nonce":
            return await self._post(url, identity, fields, hop)
        return response

    async def _post(
        self, url: str, identity: ClientIdentity, fields: Mapping[str, str | None], hop: str
    ) -> fetch.FetchResponse:
        ours, headers = self._authenticate_client(identity)
        if self._prover is not None:
            headers["DPoP"] = self._prover.create_proof("POST", url)
        form = {name: value for name, value in {**fields, **ours}.items() if value is not None}
        response = await self._egress.post(url, urlencode(form).encode(), hop=hop, headers={**_FORM, **headers})
        if self._prover is not None:
            self._prover.record_nonce(url, response.headers)
        return response

    def _authenticate_client(self, identity: ClientIdentity) -> tuple[dict[str, str], dict[str, str]]:
        """Return the form fields and headers that authenticate the client."""
        named = {"client_id": identity.client_id} if identity.client_id else {}
        match identity.method:
            case "client_secret_basic":
                return {}, {"Authorization": basic_auth_header(identity.client_id, identity.secret or "")}
            case "client_secret_post":
                return {**named, "client_secret": identity.secret or ""}, {}
            case "private_key_jwt" if identity.key is not None:
                assertion = {
                    "client_assertion_type": _ASSERTION_TYPE,
                    "client_assertion": self._sign_assertion(identity, identity.key),
                }
                return {**named, **assertion}, {}
            case _:
                return named, {}

    def _sign_assertion(self, identity: ClientIdentity, key: SigningKey) -> str:
        now = int(self._now())
        return key.sign(
            {
                "iss": identity.client_id,
                "sub": identity.client_id,
                "aud": self._metadata.issuer,
                "jti": secrets.token_urlsafe(16),
                "iat": now,
                "exp": now + _ASSERTION_LIFE,
            },
            {"typ": "JWT"},
        )
