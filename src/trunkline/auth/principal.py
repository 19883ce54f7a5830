"""Principal: the verified identity of a caller."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from trunkline.errors import MisuseError

__all__ = ["Principal"]

_NO_CLAIMS: Final[Mapping[str, Any]] = MappingProxyType({})


class Principal:
    """A verified caller: a subject, known to an issuer, acting through a client.

    Two principals are equal if issuer, client and subject are equal. Scopes and claims may differ between two tokens of
    one user, and its sessions must still belong to it. A subject is required, since all users of one application share
    its client id.
    """

    __slots__ = ("_identity", "claims", "client", "issuer", "scopes", "subject")

    def __init__(
        self,
        subject: str,
        *,
        issuer: str = "",
        client: str = "",
        scopes: "frozenset[str] | tuple[str, ...]" = frozenset(),
        claims: Mapping[str, Any] = _NO_CLAIMS,
    ) -> None:
        if not subject:
            raise MisuseError("a principal needs a subject: without one all users of a client would be the same")
        self.subject = subject
        self.issuer = issuer
        self.client = client
        self.scopes = frozenset(scopes)
        self.claims = claims
        self._identity = (issuer, client, subject)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Principal) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        """Show the identity only: claims may be confidential, and handles are bound to this text."""
        issuer, client, subject = self._identity
        return f"Principal({subject!r}, issuer={issuer!r}, client={client!r})"
