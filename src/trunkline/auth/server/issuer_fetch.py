"""Reaching an issuer that the operator of a server has named."""

from typing import Final

from trunkline.auth.fetch import Answer, Egress
from trunkline.auth.ssrf import Reach
from trunkline.auth.urls import secured
from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, ConfigError

__all__ = ["answered", "egress_for", "named"]

_OK: Final = 200


def named(url: str, what: str) -> str:
    """An address that the operator gave, if it may be used: https, or http to this machine."""
    try:
        return secured(url, what, hop="keys", clause="authorization, Communication Security")
    except AuthorizationFailed as error:
        raise ConfigError(str(error)) from None


def egress_for(*urls: str | None) -> Egress:
    """The way to the hosts of these addresses, wherever they are: whoever runs the server has named them."""
    settings = Settings()
    around = [Reach.around(url, settings) for url in urls if url is not None]
    allowed = tuple(dict.fromkeys(name for reach in around for name in reach.allowed))
    return Egress(Reach(any(reach.loopback for reach in around), allowed), settings=settings)


def answered(answer: Answer, what: str, *, hop: str) -> bytes:
    """The body of an answer that is one."""
    if answer.status != _OK:
        raise AuthorizationFailed(f"{what} cannot be had: the answer was status {answer.status}", hop=hop)
    return answer.body
