"""Requests to an issuer that the operator configured."""

from typing import Final

from trunkline.auth.fetch import Egress, FetchResponse
from trunkline.auth.ssrf import EgressPolicy
from trunkline.auth.urls import require_secure_url
from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, ConfigError

__all__ = ["egress_for", "require_ok", "require_operator_url"]

_OK: Final = 200


def require_operator_url(url: str, what: str) -> str:
    """Return a configured URL if it is https, or http to this machine. Raises `ConfigError`."""
    try:
        return require_secure_url(url, what, hop="keys", clause="authorization, Communication Security")
    except AuthorizationFailed as error:
        raise ConfigError(str(error)) from None


def egress_for(*urls: str | None) -> Egress:
    """Return a client that may reach the hosts of these URLs, also private ones, since the operator configured them."""
    settings = Settings()
    around = [EgressPolicy.for_url(url, settings) for url in urls if url is not None]
    allowed = tuple(dict.fromkeys(name for reach in around for name in reach.allowed))
    return Egress(EgressPolicy(any(reach.loopback for reach in around), allowed), settings=settings)


def require_ok(response: FetchResponse, what: str, *, hop: str) -> bytes:
    """Return the body of a 200 response. Raises `AuthorizationFailed`."""
    if response.status != _OK:
        raise AuthorizationFailed(f"{what} cannot be fetched: the response has status {response.status}", hop=hop)
    return response.body
