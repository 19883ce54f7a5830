"""Client registration (authorization, "Client Registration"): a configured client id, a client ID metadata document,
or dynamic registration."""

from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from trunkline.auth.client.grant import GrantRequest, IssuerBinding
from trunkline.auth.client.token_endpoint import ClientIdentity, choose_auth_method, error_from_response
from trunkline.auth.jose import SigningKey
from trunkline.auth.metadata import ServerMetadata
from trunkline.auth.urls import is_loopback
from trunkline.errors import AuthorizationFailed, ConfigError
from trunkline.wire import codec

__all__ = ["ClientRegistrar", "Registration"]

_HOP: Final = "registration"
_SUCCESS_STATUSES: Final = frozenset({200, 201})
_KNOWN_METHODS: Final = ("none", "client_secret_basic", "client_secret_post")


class Registration(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored dynamic registration."""

    client_id: str
    redirect_uri: str
    method: str = "none"
    secret: str | None = None
    expires: float = 0  # seconds since the epoch, of the secret; 0: never

    def __repr__(self) -> str:
        return f"Registration({self.client_id!r}, {self.method})"


class _RegistrationResponse(Struct):
    client_id: str = ""
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None

    def __repr__(self) -> str:
        return f"_RegistrationResponse({self.client_id!r})"


_decode_response: Final = codec.json_decoder(_RegistrationResponse)
_decode_registration: Final = codec.json_decoder(Registration)


class ClientRegistrar:
    """Finds the client identity for an authorization server, or registers one."""

    def __init__(
        self,
        *,
        client_id: str | None = None,
        secret: str | None = None,
        key: SigningKey | None = None,
        issuer: str | None = None,
        document: str | None = None,
        name: str = "Trunkline",
    ) -> None:
        """`document` is the URL of a client ID metadata document."""
        if document is not None and (not document.startswith("https://") or urlsplit(document).path in {"", "/"}):
            raise ConfigError("a client ID metadata document has an https address with a path")
        if client_id is None and (secret is not None or (key is not None and document is None)):
            raise ConfigError("a secret or a key is for a client id, which is missing")
        self.client_id = client_id
        self._secret = secret
        self._key = key
        self._binding = None if client_id is None else IssuerBinding(client_id, issuer)
        self._document = document
        self._name = name

    async def load_registration(self, request: GrantRequest) -> Registration | None:
        """Return the stored registration at this authorization server, unless it has expired."""
        try:
            data = await request.store.get(_store_key(request))
            registration = None if data is None else _decode_registration(data)
        except (codec.DecodeError, RecursionError):
            return None
        return registration if registration is not None and not 0 < registration.expires <= request.now() else None

    async def find_identity(self, request: GrantRequest, client_id: str) -> ClientIdentity | None:
        """Return the client identity with this id, or None."""
        if self._preset_client_id(request.discovery.authorization_server) == client_id:
            return await self._preset_identity(request)
        registration = await self.load_registration(request)
        return (
            _identity_from(registration) if registration is not None and registration.client_id == client_id else None
        )

    async def get_identity(self, request: GrantRequest, redirect_uri: str) -> ClientIdentity:
        """Return the client identity, in the order of the specification, or register a new one. Raises
        `AuthorizationFailed`."""
        server = request.discovery.authorization_server
        if self._preset_client_id(server) is not None:
            return await self._preset_identity(request)
        registration = await self.load_registration(request)
        if registration is not None and registration.redirect_uri == redirect_uri:
            return _identity_from(registration)
        if server.registration_endpoint is None:
            why = (
                f"{server.issuer!r} does not support dynamic registration; register a client there and pass client_id="
            )
            raise AuthorizationFailed(why, hop=_HOP, clause="authorization, Client Registration")
        return _identity_from(await self._register(request, server.registration_endpoint, redirect_uri))

    async def forget(self, request: GrantRequest) -> None:
        """Delete the stored registration."""
        await request.store.put(_store_key(request), None)

    def _preset_client_id(self, server: ServerMetadata) -> str | None:
        """Return the client id that needs no registration, if there is one."""
        return self.client_id or (self._document if server.client_id_metadata_document_supported else None)

    async def _preset_identity(self, request: GrantRequest) -> ClientIdentity:
        if self.client_id is None or self._binding is None:
            method = choose_auth_method(request.discovery.authorization_server, secret=False, key=self._key is not None)
            return ClientIdentity(self._document or "", method, key=self._key)
        await self._binding.check(request)
        method = choose_auth_method(
            request.discovery.authorization_server, secret=self._secret is not None, key=self._key is not None
        )
        return ClientIdentity(self.client_id, method, self._secret, self._key)

    async def _register(self, grant_request: GrantRequest, url: str, redirect_uri: str) -> Registration:
        method = _preferred_method(grant_request.discovery.authorization_server)
        request: dict[str, Any] = {
            "client_name": self._name,
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            "application_type": _application_type(redirect_uri),
        }
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        response = await grant_request.egress.post(url, codec.to_json(request), hop=_HOP, headers=headers)
        if response.status not in _SUCCESS_STATUSES:
            issuer = grant_request.discovery.authorization_server.issuer
            what = f"registering with {issuer!r}, since no client_id= was given,"
            raise error_from_response(response, what, _HOP)
        registration = _read_registration(response.body, grant_request.discovery.authorization_server, redirect_uri)
        await grant_request.store.put(_store_key(grant_request), codec.to_json(registration))
        return registration


def _read_registration(body: bytes, server: ServerMetadata, redirect_uri: str) -> Registration:
    try:
        response = _decode_response(body)
    except (codec.DecodeError, RecursionError):
        response = _RegistrationResponse()
    if not response.client_id:
        clause = "RFC 7591, section 3.2.1"
        raise AuthorizationFailed("the registration response has no client id", hop=_HOP, clause=clause)
    method, secret = response.token_endpoint_auth_method, response.client_secret
    if method not in _KNOWN_METHODS or (method != "none" and secret is None):
        method = choose_auth_method(server, secret=secret is not None)
    return Registration(
        client_id=response.client_id,
        redirect_uri=redirect_uri,
        method=method,
        secret=secret,
        expires=(response.client_secret_expires_at or 0) if secret is not None else 0,
    )


def _preferred_method(server: ServerMetadata) -> str:
    """Choose the authentication method to register: `none` if possible, since a program on a user's machine cannot
    protect a secret."""
    supported = server.token_endpoint_auth_methods_supported
    return next((method for method in _KNOWN_METHODS if supported and method in supported), "client_secret_basic")


def _application_type(redirect_uri: str) -> str:
    """Return `native` if the redirect URI is on this machine or has a custom scheme, otherwise `web`."""
    parts = urlsplit(redirect_uri)
    on_the_web = parts.scheme in {"http", "https"} and not is_loopback(parts.hostname or "")
    return "web" if on_the_web else "native"


def _identity_from(registration: Registration) -> ClientIdentity:
    return ClientIdentity(registration.client_id, registration.method, registration.secret, registered=True)


def _store_key(request: GrantRequest) -> str:
    return f"client of {request.discovery.authorization_server.issuer}"
