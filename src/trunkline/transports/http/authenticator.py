"""The seam to who decides, before anything of a request is read, whether its sender is known and may come in.

A gate is asked about every request, however long a session has been open: an id is not a proof of who comes with it.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from trunkline.errors import MisuseError
from trunkline.transports.http.request import Headers, Scope, insufficient_scope_challenge

__all__ = ["Admitted", "AuthResult", "Authenticator", "CallbackAuthenticator", "Identify", "Rejected"]

Identify = Callable[[Scope], Any]
"""Who is known to have sent a request, from what has been verified about it; None for nobody in particular."""


class Admitted(Struct, frozen=True):
    """Whoever comes may come in."""

    principal: Any = None
    expires_in: float | None = None  # for how many seconds that holds; None: as long as the line


class Rejected(Struct, frozen=True):
    """Whoever comes is turned away: the status, the reason in words and by its kind, and what goes with it."""

    status: int
    reason: str
    kind: str
    headers: Headers = []


AuthResult = Admitted | Rejected


class Authenticator(Protocol):
    """Decides who may come in. `path` is always that of an endpoint within the application, as it is known to whoever
    comes there."""

    def authenticate(self, scope: Scope, headers: dict[bytes, bytes], path: str) -> AuthResult | Awaitable[AuthResult]:
        """Whether the sender of a request may come in; at once, where nobody has to be asked."""
        ...

    def metadata_document(self, scope: Scope, route: str) -> bytes | None:
        """What anybody may read at a path within the application: a JSON document that says how to get in."""
        ...

    def scope_challenge(self, scope: Scope, path: str, principal: Any, scopes: Sequence[str]) -> tuple[bytes, bytes]:
        """The header that tells a sender, who was let in, which scopes are needed for what it asked."""
        ...


class CallbackAuthenticator:
    """A gate for applications that know by themselves who comes: everybody is let in, under the name they give."""

    def __init__(self, identify: Identify) -> None:
        self._identify = identify

    def authenticate(self, scope: Scope, headers: dict[bytes, bytes], path: str) -> Admitted:  # noqa: ARG002 - the seam's
        """The principal of a request. What cannot be told from others cannot own anything."""
        principal = self._identify(scope)
        if not isinstance(principal, Hashable):
            raise MisuseError(f"identify must give something hashable, such as a name, not {type(principal).__name__}")
        return Admitted(principal)

    def metadata_document(self, scope: Scope, route: str) -> bytes | None:  # noqa: ARG002 - the seam's
        """Nobody has to be told how to get in."""
        return None

    def scope_challenge(self, scope: Scope, path: str, principal: Any, scopes: Sequence[str]) -> tuple[bytes, bytes]:  # noqa: ARG002
        """Which scopes are needed."""
        return insufficient_scope_challenge(scopes)
