"""JSON encoding of principals, for stored tasks and for requests that another process serves."""

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from trunkline.auth.principal import Principal
from trunkline.server.access.owner_id import principal_name
from trunkline.wire import codec

__all__ = ["PrincipalCodec", "decode_principal", "encode_principal"]


class _KeptPrincipal(Struct, array_like=True):
    """A `Principal` as stored. The name of this class is part of the stored format."""

    subject: str
    issuer: str
    client: str
    scopes: list[str]
    claims: dict[str, Any]


def encode_principal(principal: Any) -> Raw | UnsetType:
    """Encode a principal as JSON; return UNSET for None and for a principal that JSON cannot represent."""
    if isinstance(principal, Principal):
        p = principal
        principal = _KeptPrincipal(p.subject, p.issuer, p.client, sorted(p.scopes), dict(p.claims))
    try:
        return UNSET if principal is None else codec.to_raw({type(principal).__name__: principal})
    except (TypeError, ValueError, RecursionError):
        return UNSET


def decode_principal(raw: Raw | bytes) -> Any:
    """Decode a principal. One that was not a `Principal` becomes the JSON value of its encoding."""
    [(kind, value)] = codec.decoder(dict[str, Raw])(raw).items()
    if kind != _KeptPrincipal.__name__:
        return codec.decoder(object)(value)
    p = codec.decoder(_KeptPrincipal)(value)
    return Principal(p.subject, issuer=p.issuer, client=p.client, scopes=frozenset(p.scopes), claims=p.claims)


class PrincipalCodec:
    """Principals in messages between processes."""

    def owner_id(self, principal: Any) -> str:
        """Return the name of a principal; different principals have different names."""
        return principal_name(principal)

    def encode(self, principal: Any) -> bytes | None:
        """Encode a principal; return None if decoding would not restore it."""
        raw = encode_principal(principal)
        if raw is UNSET:
            return None
        return bytes(raw) if isinstance(principal, Principal | str) or decode_principal(raw) == principal else None

    def decode(self, encoded: bytes) -> Any:
        """Decode a principal."""
        return decode_principal(encoded)
