"""One server at one place: every request to it has the headers that it must have, and redirects lead no further than
its own origin."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from trunkline.errors import AuthorizationFailed
from trunkline.transports.http.client.credentials import Asking, Credentials, Heard
from trunkline.transports.http.client.headers import REVISION
from trunkline.transports.http.client.http_backend import Library, Reply
from trunkline.transports.http.client.url import Misled, Place
from trunkline.wire.media_types import EVENTS, JSON

__all__ = ["Peer"]

_SESSION: Final = "Mcp-Session-Id"
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_SAME_AGAIN: Final = frozenset({307, 308})  # these keep method and body
_MOST_REDIRECTS: Final = 3
_MOST_ATTEMPTS: Final = 8  # with other credentials each; whoever has them stops long before


class _Answered(NamedTuple):
    """A reply, where it came from, and what was sent there to prove who we are."""

    there: Place
    proof: Mapping[str, str]
    reply: Reply


class Peer:
    """A server, and what it has told us to say with every request."""

    def __init__(
        self, library: Library, place: Place, headers: Mapping[str, str], credentials: Credentials | None = None
    ) -> None:
        self.place = place
        self.session: str | None = None
        self.revision: str | None = None
        self._library = library
        self._headers = headers
        self._credentials = credentials

    async def send(
        self,
        method: str,
        *,
        accept: str = f"{JSON}, {EVENTS}",
        body: bytes | None = None,
        last_id: str | None = None,
        to: Place | None = None,
        label: Mapping[str, str] | None = None,
        asking: Asking = lambda _: None,
    ) -> Reply:
        """Sends a request, by default to the server's own place. `label` has what it says instead of what belongs to
        the session. If the server wants to know who we are, and that can be settled, it is sent once more. Raises
        `NotReached`, `Misled`, `AuthorizationFailed` or `TransportError`."""
        headers = self._all(accept, body, label or self._of_session(last_id))
        for _ in range(_MOST_ATTEMPTS):
            answered = await self._led(method, to or self.place, headers, body)
            if to is None:
                self.place = answered.there
            if not await self._again(method, answered, asking):
                return answered.reply
            answered.reply.close()
        raise AuthorizationFailed("the server is never content with who we are", hop="retry")

    async def _again(self, method: str, answered: _Answered, asking: Asking) -> bool:
        """Whether a request is to be sent once more. For a farewell nobody is asked anything."""
        if self._credentials is None or method == "DELETE":
            return False
        there, proof, reply = answered
        try:
            return await self._credentials.heard(Heard(method, there.url, proof, reply.status, reply.headers), asking)
        except BaseException:
            reply.close()
            raise

    async def _led(self, method: str, there: Place, headers: Mapping[str, str], body: bytes | None) -> _Answered:
        """The answer at the end of all redirects."""
        for _ in range(_MOST_REDIRECTS + 1):
            proof: Mapping[str, str] = (
                {} if self._credentials is None else await self._credentials.headers(method, there.url)
            )
            reply = await self._library.send(method, there.url, {**headers, **proof}, body)
            if reply.status not in _REDIRECTS or "Location" not in reply.headers:
                return _Answered(there, proof, reply)
            reply.close()
            led_to = there.leads_to(reply.headers["Location"])
            if reply.status not in _SAME_AGAIN:
                raise Misled(f"{there.name} answers HTTP {reply.status} and points to {led_to.name}; use that address")
            there = led_to
        raise Misled(f"{self.place.name} points elsewhere time and again, at last to {there.name}")

    def _all(self, accept: str, body: bytes | None, more: Mapping[str, str]) -> dict[str, str]:
        kind = {} if body is None else {"Content-Type": JSON}
        return {**self._headers, "Accept": accept, "Accept-Encoding": "identity", **kind, **more}

    def _of_session(self, last_id: str | None) -> dict[str, str]:
        said = {_SESSION: self.session, REVISION: self.revision, "Last-Event-ID": last_id}
        return {name: value for name, value in said.items() if value is not None}

    def join(self, reply: Reply) -> str | None:
        """Takes the session that an answer to initialize assigns, if it does; says why not, if it cannot be."""
        session = reply.headers.get(_SESSION)
        if session is not None and not _VISIBLE.fullmatch(session):
            return "the server gave the session an id that may not stand in a header"
        self.session = session
        return None
