"""One server at one place: every request to it has the headers that it must have, and redirects lead no further than
its own origin."""

import re
from collections.abc import Mapping
from typing import Final

from trunkline.errors import TransportError
from trunkline.transports.http.client.labels import REVISION
from trunkline.transports.http.client.library import Library, Reply
from trunkline.transports.http.client.places import Misled, Place

__all__ = ["EVENTS", "JSON", "Peer", "TooMuch", "body_of", "kind_of"]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
_SESSION: Final = "Mcp-Session-Id"
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_SAME_AGAIN: Final = frozenset({307, 308})  # these keep method and body
_MOST_REDIRECTS: Final = 3


class TooMuch(TransportError):
    """A body over the limit."""


class Peer:
    """A server, and what it has told us to say with every request."""

    def __init__(self, library: Library, place: Place, headers: Mapping[str, str]) -> None:
        self.place = place
        self.session: str | None = None
        self.revision: str | None = None
        self._library = library
        self._headers = headers

    async def send(
        self,
        method: str,
        *,
        accept: str = f"{JSON}, {EVENTS}",
        body: bytes | None = None,
        last_id: str | None = None,
        to: Place | None = None,
        label: Mapping[str, str] | None = None,
    ) -> Reply:
        """Sends a request, by default to the server's own place. `label` has what it says instead of what belongs to
        the session. Raises `NotReached`, `Misled` or `TransportError`."""
        headers = self._all(accept, body, label or self._of_session(last_id))
        there = to or self.place
        for _ in range(_MOST_REDIRECTS + 1):
            reply = await self._library.send(method, there.url, headers, body)
            if reply.status not in _REDIRECTS or "Location" not in reply.headers:
                if to is None:
                    self.place = there
                return reply
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


def kind_of(reply: Reply) -> str:
    """What the body of an answer is, without parameters."""
    return reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()


async def body_of(reply: Reply, limit: int) -> bytes:
    """All of a body. Raises `TooMuch` as soon as it is, and `TransportError` if it breaks off."""
    length = reply.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) > limit:
        raise TooMuch(f"the answer is larger than the limit of {limit} bytes")
    body = bytearray()
    async for data in reply.chunks():
        body += data
        if len(body) > limit:
            raise TooMuch(f"the answer is larger than the limit of {limit} bytes")
    return bytes(body)
