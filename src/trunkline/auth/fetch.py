"""The only way that code about authorization reaches the network.

Where to go is often said by a peer, so every step is looked at: the address as it is written, each address that a name
turns out to have, the very address that a socket is opened to, and each redirect anew. A request that proves who we
are, or has anything to say, follows no redirect at all.

Where the environment names a proxy, requests go through it, and which addresses names have is its business: an egress
proxy is there to decide that. What can be told from the address as it is written still holds.
"""

import asyncio
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import urljoin

from msgspec import Struct

from trunkline.auth.page_policy import judge, page
from trunkline.auth.ssrf import Reach, Refused, Target, target
from trunkline.config import Settings, proxy_for
from trunkline.errors import AuthorizationFailed, MisuseError, TransportError
from trunkline.transports.http.client.http_backend import Forbidden, Library, Reply, Resolve, body_of
from trunkline.version import __version__
from trunkline.wire.media_types import essence

__all__ = ["Answer", "Egress"]

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS: Final = 3
_HARMLESS: Final = frozenset({"accept", "accept-language", "if-none-match", "mcp-protocol-version", "user-agent"})
_SSRF: Final = 'security best practices, "Server-Side Request Forgery (SSRF)"'


class Answer(Struct, frozen=True):
    """What was answered. `headers` are found by names in any case; `url` is where it came from at last."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    @property
    def kind(self) -> str:
        """What the body is, without parameters: `application/json`."""
        return essence(self.headers.get("Content-Type", ""))


class Egress:
    """Gets and posts, and goes nowhere that it may not. There is nothing to close: such requests are rare, and each
    has a connection of its own."""

    def __init__(
        self,
        reach: Reach | None = None,
        *,
        settings: Settings | None = None,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        """`tls` trusts an authority of your own; `resolve` finds the addresses of names instead of the system."""
        try:
            from trunkline.transports.http.client.aiohttp_backend import Aiohttp
        except ModuleNotFoundError as error:
            library = str(error.name).partition(".")[0]
            raise MisuseError(f"authorization needs the library {library}: pip install 'trunkline[auth]'") from error
        self._library = Aiohttp
        self._reach = reach or Reach()
        self._settings = settings or Settings()
        self._tls = tls
        self._resolve = resolve

    async def get(self, url: str, *, hop: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Follows a few redirects, unless a header says who we are. Raises `AuthorizationFailed` with that hop."""
        given = headers or {}
        follow = _MOST_REDIRECTS if all(name.lower() in _HARMLESS for name in given) else 0
        return await self._within(_Errand(hop, "GET", given, None, follow), url)

    async def look(self, url: str, *, hop: str) -> Answer:
        """What is at an address, without going any further: a redirect is an answer, too. Raises
        `AuthorizationFailed` with that hop."""
        return await self._within(_Errand(hop, "GET", {}, None, None), url)

    async def post(self, url: str, body: bytes, *, hop: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Follows no redirect. Raises `AuthorizationFailed` with that hop."""
        return await self._within(_Errand(hop, "POST", headers or {}, body, 0), url)

    async def permit(self, url: str, *, hop: str) -> None:
        """Judge a page that a person is to be sent to, as if we went there. Raises `AuthorizationFailed` with that
        hop."""
        errand = _Errand(hop, "GET", {}, None, None)
        try:
            await judge(page(url, self._reach), self._reach, self._resolve)
        except Refused as refused:
            raise errand.failed(f"{_shown(url)} is no page to send anybody to: {refused}", _SSRF) from None

    async def _within(self, errand: "_Errand", url: str) -> Answer:
        limit = self._settings.egress_timeout
        try:
            async with asyncio.timeout(limit):
                return await self._go(errand, errand.target(url))
        except TimeoutError:
            raise errand.failed(f"{_shown(url)} does not answer within {limit} s") from None

    async def _go(self, errand: "_Errand", there: Target) -> Answer:
        for left in range(errand.follow or 0, -1, -1):
            answer = await self._once(errand, there)
            location = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or location is None or errand.follow is None:
                return answer
            there = errand.led(there, location, left)
        raise AssertionError  # the last redirect is refused

    async def _once(self, errand: "_Errand", there: Target) -> Answer:
        """One request, on a connection of its own."""
        try:
            self._reach.check(there)
        except Refused as refused:
            raise errand.failed(str(refused), _SSRF) from None
        library = self._opened(there)
        try:
            return await self._answered(library, errand, there)
        except Forbidden as forbidden:
            raise errand.failed(str(forbidden), _SSRF) from None
        except TransportError as error:
            raise errand.failed(f"{there.name} cannot be read: {error}") from error
        finally:
            await library.close()

    def _opened(self, there: Target) -> Library:
        proxy = None if there.local else proxy_for(there.url)
        vet = partial(self._reach.vet, there) if proxy is None else None
        resolve = self._resolve if proxy is None else None
        return self._library(self._settings, tls=self._tls, proxy=proxy, resolve=resolve, vet=vet)

    async def _answered(self, library: Library, errand: "_Errand", there: Target) -> Answer:
        reply = await library.send(errand.method, there.url, errand.all_headers(), errand.body)
        try:
            _unpacked(reply)
            body = await body_of(reply, self._settings.egress_answer_limit)
            return Answer(reply.status, reply.headers, body, there.url)
        finally:
            reply.close()


class _Errand(Struct, frozen=True):
    """One thing to get or to post, on behalf of a hop."""

    hop: str
    method: str
    headers: Mapping[str, str]
    body: bytes | None
    follow: int | None  # redirects at most; None: they are not even looked at

    def __repr__(self) -> str:
        return f"_Errand({self.hop!r}, {self.method})"

    def failed(self, why: str, clause: str = "") -> AuthorizationFailed:
        return AuthorizationFailed(why, hop=self.hop, clause=clause, passing=not clause)  # the net, and no rule

    def all_headers(self) -> dict[str, str]:
        """Only what is given, and what the library would make up otherwise."""
        usual = {"User-Agent": f"trunkline/{__version__}", "Accept": "application/json"}
        named = {name.lower() for name in self.headers}
        usual = {name: value for name, value in usual.items() if name.lower() not in named}
        return {**usual, **self.headers, "Accept-Encoding": "identity"}

    def target(self, url: str) -> Target:
        try:
            return target(url)
        except Refused as refused:
            raise self.failed(f"{_shown(url)} is not gone to: {refused}", _SSRF) from None

    def led(self, there: Target, location: str, left: int) -> Target:
        """Where a redirect leads, if it may be followed."""
        if self.follow == 0:
            raise self.failed(f"{there.name} points elsewhere, where what we have to say does not go", _SSRF)
        if left == 0:
            raise self.failed(f"{there.name} points elsewhere once more, after {self.follow} times", _SSRF)
        try:
            onward = self.target(urljoin(there.url, location))
        except ValueError:  # brackets that do not match, for one
            raise self.failed(f"{there.name} points to what is no address", _SSRF) from None
        if there.scheme == "https" and onward.scheme == "http":
            raise self.failed(f"{there.name} points from https to http, at {onward.name}", _SSRF)
        return onward


def _unpacked(reply: Reply) -> None:
    if reply.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise TransportError("the answer is compressed, though it was asked not to be")


def _shown(url: str) -> str:
    """As much of an address as anybody may see, of one that a peer may have made up."""
    try:
        return target(url).name
    except Refused:
        plain = "".join(character for character in url if " " < character < "\x7f")
        scheme, _, rest = plain.partition("?")[0].partition("#")[0].partition("://")
        return repr(f"{scheme[:20]}://{rest.rpartition('@')[2][:100]}" if rest else scheme[:20])
