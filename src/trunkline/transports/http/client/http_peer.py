"""Requests to one server: headers, authorization retries, and redirects within the server's origin."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from trunkline.errors import AuthorizationFailed, TransportError
from trunkline.transports.http.client.credentials import BearerToken, Credentials, HttpExchange, OnAuthorizing
from trunkline.transports.http.client.headers import REVISION_HEADER
from trunkline.transports.http.client.http_backend import Cancel, HttpBackend, OnOutcome, Reply
from trunkline.transports.http.client.url import HttpUrl, RedirectRefused
from trunkline.wire.media_types import EVENT_STREAM, JSON

__all__ = ["HttpPeer"]

_EITHER: Final = f"{JSON}, {EVENT_STREAM}"
_SESSION_HEADER: Final = "Mcp-Session-Id"
_VISIBLE_ASCII: Final = re.compile(r"[\x21-\x7e]+")
_REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
_METHOD_PRESERVING_STATUSES: Final = frozenset({307, 308})  # redirects that keep method and body
_MAX_REDIRECTS: Final = 3
_MAX_AUTH_ATTEMPTS: Final = 8  # a limit for faulty credentials, which ask for a retry every time


class _RoutedReply(NamedTuple):
    """A response with the URL that sent it and the credential headers of the request."""

    url: HttpUrl
    auth_headers: Mapping[str, str]
    reply: Reply


class HttpPeer:
    """A server with its session id and protocol revision, which every request repeats."""

    def __init__(
        self,
        backend: HttpBackend,
        endpoint: HttpUrl,
        headers: Mapping[str, str],
        credentials: Credentials | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.session_id: str | None = None
        self.revision: str | None = None
        self._backend = backend
        self._headers = headers
        self._credentials = credentials

    async def send(
        self,
        method: str,
        *,
        accept: str = _EITHER,
        body: bytes | None = None,
        last_id: str | None = None,
        url: HttpUrl | None = None,
        modern_headers: Mapping[str, str] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        on_authorizing: OnAuthorizing = lambda _: None,
        first_outcome: Reply | TransportError | None = None,
    ) -> Reply:
        """Send a request, by default to the server's endpoint.

        `modern_headers` replace the session headers. If the server demands authorization, authorize and send the
        request again. `first_outcome` is that of the first attempt, if `start` has made it. Raise `RequestNotSent`,
        `RedirectRefused`, `AuthorizationFailed` or `TransportError`.
        """
        headers = self._build_headers(accept, body, modern_headers or self._session_headers(last_id), trace_headers)
        for _ in range(_MAX_AUTH_ATTEMPTS):
            routed = await self._follow_redirects(method, url or self.endpoint, headers, body, first_outcome)
            first_outcome = None
            if url is None:
                self.endpoint = routed.url
            if not await self._should_resend(method, routed, on_authorizing):
                return routed.reply
            routed.reply.close()
        raise AuthorizationFailed("the server demands other credentials again and again", hop="retry")

    def start(
        self,
        body: bytes,
        modern_headers: Mapping[str, str] | None,
        on_outcome: OnOutcome,
        trace_headers: Mapping[str, str] | None = None,
    ) -> Cancel | None:
        """Post a message to the endpoint at once, and return a function that cancels it; None if that takes waiting,
        for credentials or for a connection. Pass the outcome to `send`, unless it is a response that needs none of
        it."""
        if self._credentials is not None and not isinstance(self._credentials, BearerToken):
            return None
        headers = self._build_headers(_EITHER, body, modern_headers or self._session_headers(None), trace_headers)
        if self._credentials is not None:
            headers |= self._credentials.fixed_headers
        return self._backend.start("POST", self.endpoint.url, headers, body, on_outcome)

    async def _should_resend(self, method: str, routed: _RoutedReply, on_authorizing: OnAuthorizing) -> bool:
        """Return whether to send a request again. A DELETE is never repeated for authorization."""
        if self._credentials is None or method == "DELETE":
            return False
        url, auth_headers, reply = routed
        try:
            return await self._credentials.handle_response(
                HttpExchange(method, url.url, auth_headers, reply.status, reply.headers), on_authorizing
            )
        except BaseException:
            reply.close()
            raise

    async def _follow_redirects(
        self,
        method: str,
        url: HttpUrl,
        headers: Mapping[str, str],
        body: bytes | None,
        outcome: Reply | TransportError | None,
    ) -> _RoutedReply:
        """Send a request and return the response after all redirects. `outcome` is that of the first attempt, if it
        has been made."""
        for _ in range(_MAX_REDIRECTS + 1):
            auth_headers: Mapping[str, str] = (
                {} if self._credentials is None else await self._credentials.headers(method, url.url)
            )
            if isinstance(outcome, TransportError):
                raise outcome
            reply = outcome or await self._backend.send(method, url.url, {**headers, **auth_headers}, body)
            outcome = None
            if reply.status not in _REDIRECT_STATUSES or "Location" not in reply.headers:
                return _RoutedReply(url, auth_headers, reply)
            reply.close()
            target = url.resolve(reply.headers["Location"])
            if reply.status not in _METHOD_PRESERVING_STATUSES:
                raise RedirectRefused(
                    f"{url.name} answers HTTP {reply.status} and points to {target.name}; use that address"
                )
            url = target
        raise RedirectRefused(f"{self.endpoint.name} redirects too many times, at last to {url.name}")

    def _build_headers(
        self, accept: str, body: bytes | None, extra: Mapping[str, str], trace: Mapping[str, str] | None
    ) -> dict[str, str]:
        content_type = {} if body is None else {"Content-Type": JSON}
        headers = {**self._headers, "Accept": accept, "Accept-Encoding": "identity", **content_type, **extra}
        return headers if trace is None else {**headers, **trace}

    def _session_headers(self, last_id: str | None) -> dict[str, str]:
        headers = {_SESSION_HEADER: self.session_id, REVISION_HEADER: self.revision, "Last-Event-ID": last_id}
        return {name: value for name, value in headers.items() if value is not None}

    def adopt_session(self, reply: Reply) -> str | None:
        """Store the session id of an `initialize` response; return an error text if the id is invalid."""
        session = reply.headers.get(_SESSION_HEADER)
        if session is not None and not _VISIBLE_ASCII.fullmatch(session):
            return "the server assigned a session id with characters that a header must not contain"
        self.session_id = session
        return None
