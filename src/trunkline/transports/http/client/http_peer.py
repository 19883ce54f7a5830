"""One server at one place: every request to it has the headers that it must have, and redirects lead no further than
its own origin."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from trunkline.errors import AuthorizationFailed
from trunkline.transports.http.client.credentials import Credentials, HttpExchange, OnAuthorizing
from trunkline.transports.http.client.headers import REVISION_HEADER
from trunkline.transports.http.client.http_backend import HttpBackend, Reply
from trunkline.transports.http.client.url import HttpUrl, RedirectRefused
from trunkline.wire.media_types import EVENT_STREAM, JSON

__all__ = ["HttpPeer"]

_SESSION_HEADER: Final = "Mcp-Session-Id"
_VISIBLE_ASCII: Final = re.compile(r"[\x21-\x7e]+")
_REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
_METHOD_PRESERVING_STATUSES: Final = frozenset({307, 308})  # these keep method and body
_MAX_REDIRECTS: Final = 3
_MAX_AUTH_ATTEMPTS: Final = 8  # with other credentials each; whoever has them stops long before


class _RoutedReply(NamedTuple):
    """A reply, where it came from, and what was sent there to prove who we are."""

    url: HttpUrl
    auth_headers: Mapping[str, str]
    reply: Reply


class HttpPeer:
    """A server, and what it has told us to say with every request."""

    def __init__(
        self, library: HttpBackend, place: HttpUrl, headers: Mapping[str, str], credentials: Credentials | None = None
    ) -> None:
        self.endpoint = place
        self.session_id: str | None = None
        self.revision: str | None = None
        self._backend = library
        self._headers = headers
        self._credentials = credentials

    async def send(
        self,
        method: str,
        *,
        accept: str = f"{JSON}, {EVENT_STREAM}",
        body: bytes | None = None,
        last_id: str | None = None,
        url: HttpUrl | None = None,
        modern_headers: Mapping[str, str] | None = None,
        on_authorizing: OnAuthorizing = lambda _: None,
    ) -> Reply:
        """Sends a request, by default to the server's own place. `label` has what it says instead of what belongs to
        the session. If the server wants to know who we are, and that can be settled, it is sent once more. Raises
        `NotReached`, `Misled`, `AuthorizationFailed` or `TransportError`."""
        headers = self._build_headers(accept, body, modern_headers or self._session_headers(last_id))
        for _ in range(_MAX_AUTH_ATTEMPTS):
            answered = await self._follow_redirects(method, url or self.endpoint, headers, body)
            if url is None:
                self.endpoint = answered.url
            if not await self._should_resend(method, answered, on_authorizing):
                return answered.reply
            answered.reply.close()
        raise AuthorizationFailed("the server is never content with who we are", hop="retry")

    async def _should_resend(self, method: str, answered: _RoutedReply, asking: OnAuthorizing) -> bool:
        """Whether a request is to be sent once more. For a farewell nobody is asked anything."""
        if self._credentials is None or method == "DELETE":
            return False
        there, proof, reply = answered
        try:
            return await self._credentials.handle_response(
                HttpExchange(method, there.url, proof, reply.status, reply.headers), asking
            )
        except BaseException:
            reply.close()
            raise

    async def _follow_redirects(
        self, method: str, there: HttpUrl, headers: Mapping[str, str], body: bytes | None
    ) -> _RoutedReply:
        """The answer at the end of all redirects."""
        for _ in range(_MAX_REDIRECTS + 1):
            proof: Mapping[str, str] = (
                {} if self._credentials is None else await self._credentials.headers(method, there.url)
            )
            reply = await self._backend.send(method, there.url, {**headers, **proof}, body)
            if reply.status not in _REDIRECT_STATUSES or "Location" not in reply.headers:
                return _RoutedReply(there, proof, reply)
            reply.close()
            led_to = there.resolve(reply.headers["Location"])
            if reply.status not in _METHOD_PRESERVING_STATUSES:
                raise RedirectRefused(
                    f"{there.name} answers HTTP {reply.status} and points to {led_to.name}; use that address"
                )
            there = led_to
        raise RedirectRefused(f"{self.endpoint.name} points elsewhere time and again, at last to {there.name}")

    def _build_headers(self, accept: str, body: bytes | None, more: Mapping[str, str]) -> dict[str, str]:
        kind = {} if body is None else {"Content-Type": JSON}
        return {**self._headers, "Accept": accept, "Accept-Encoding": "identity", **kind, **more}

    def _session_headers(self, last_id: str | None) -> dict[str, str]:
        said = {_SESSION_HEADER: self.session_id, REVISION_HEADER: self.revision, "Last-Event-ID": last_id}
        return {name: value for name, value in said.items() if value is not None}

    def adopt_session(self, reply: Reply) -> str | None:
        """Takes the session that an answer to initialize assigns, if it does; says why not, if it cannot be."""
        session = reply.headers.get(_SESSION_HEADER)
        if session is not None and not _VISIBLE_ASCII.fullmatch(session):
            return "the server gave the session an id that may not stand in a header"
        self.session_id = session
        return None
