"""Authenticator protocol: decides from a request's headers who the caller is, before the body is read.

The application calls it for every request, however old the session: a session id does not prove the caller's identity.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from trunkline.errors import MisuseError
from trunkline.transports.http.request import Headers, HttpRequest, insufficient_scope_challenge

__all__ = ["Admitted", "AuthResult", "Authenticator", "CallbackAuthenticator", "Identify", "Rejected"]

Identify = Callable[[Any], Any]
"""Returns the principal of a request from its ASGI scope, where middleware has left what it verified; None for an
anonymous caller."""


class Admitted(Struct, frozen=True):
    """The caller is admitted."""

    principal: Any = None
    expires_in: float | None = None  # seconds; None: as long as the connection


class Rejected(Struct, frozen=True):
    """The caller is rejected: status, reason, error kind, and headers such as the challenge."""

    status: int
    reason: str
    kind: str
    headers: Headers = []


AuthResult = Admitted | Rejected


class Authenticator(Protocol):
    """Decides whether a caller is admitted. `path` is the endpoint's path within the application, as clients know
    it."""

    def authenticate(self, request: HttpRequest, path: str) -> AuthResult | Awaitable[AuthResult]:
        """Return the result for a request; an awaitable only if a verifier has to do I/O."""
        ...

    def metadata_document(self, request: HttpRequest) -> bytes | None:
        """Return the JSON metadata document that is public at the path of a request; None if there is none."""
        ...

    def scope_challenge(
        self, request: HttpRequest, path: str, principal: Any, scopes: Sequence[str]
    ) -> tuple[bytes, bytes]:
        """Return the `WWW-Authenticate` header that names the scopes an admitted caller lacks for its request."""
        ...


class CallbackAuthenticator:
    """Authenticator of applications that identify callers themselves: admits every caller under the principal that a
    callback returns."""

    def __init__(self, identify: Identify) -> None:
        self._identify = identify

    def authenticate(self, request: HttpRequest, path: str) -> Admitted:  # noqa: ARG002 - the protocol's
        """Return the principal of a request. It must be hashable, since it owns sessions and tasks."""
        principal = self._identify(request.scope)
        if not isinstance(principal, Hashable):
            raise MisuseError(
                f"identify= must return a hashable principal, such as a name, not {type(principal).__name__}"
            )
        return Admitted(principal)

    def metadata_document(self, request: HttpRequest) -> bytes | None:  # noqa: ARG002 - the protocol's
        """Return None: the application has its own way to log in."""
        return None

    def scope_challenge(
        self,
        request: HttpRequest,  # noqa: ARG002 - the protocol's
        path: str,  # noqa: ARG002
        principal: Any,  # noqa: ARG002
        scopes: Sequence[str],
    ) -> tuple[bytes, bytes]:
        """Return a challenge without a link to resource metadata."""
        return insufficient_scope_challenge(scopes)
