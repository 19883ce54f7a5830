"""Principals, written: for whoever goes on with a task, and for another process that answers a request."""

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from trunkline.auth.principal import Principal
from trunkline.server.access.owner_id import principal_name
from trunkline.wire import codec

__all__ = ["PrincipalCodec", "decode_principal", "encode_principal"]


class _KeptPrincipal(Struct, array_like=True):
    subject: str
    issuer: str
    client: str
    scopes: list[str]
    claims: dict[str, Any]


def encode_principal(principal: Any) -> Raw | UnsetType:
    """A principal in JSON. One that has none is not known any more to whoever reads it."""
    if isinstance(principal, Principal):
        p = principal
        principal = _KeptPrincipal(p.subject, p.issuer, p.client, sorted(p.scopes), dict(p.claims))
    try:
        return UNSET if principal is None else codec.to_raw({type(principal).__name__: principal})
    except (TypeError, ValueError, RecursionError):
        return UNSET


def decode_principal(raw: Raw | bytes) -> Any:
    """The principal that was written."""
    [(kind, value)] = codec.decoder(dict[str, Raw])(raw).items()
    if kind != _KeptPrincipal.__name__:
        return codec.decoder(object)(value)
    p = codec.decoder(_KeptPrincipal)(value)
    return Principal(p.subject, issuer=p.issuer, client=p.client, scopes=frozenset(p.scopes), claims=p.claims)


class PrincipalCodec:
    """How principals cross from one process to another."""

    def letters(self, principal: Any) -> str:
        """A principal in letters: those of another are others."""
        return principal_name(principal)

    def written(self, principal: Any) -> bytes | None:
        """All of a principal; None if what is read would not be the same."""
        raw = encode_principal(principal)
        if raw is UNSET:
            return None
        return bytes(raw) if isinstance(principal, Principal | str) or decode_principal(raw) == principal else None

    def read(self, encoded: bytes) -> Any:
        """The principal that was written."""
        return decode_principal(encoded)
