"""A browser on this machine, and a port that it is sent back to.

Any page that the person has open can send requests to that port, so a visit counts only if it asks for our path, under
our name, with the state of the login that we wait for. Others are told so, and the wait goes on.
"""

import asyncio
import hmac
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import parse_qs, urlsplit

from trunkline.auth.client.browser import check_login_url, open_page
from trunkline.auth.client.interaction import Waiting, print_to_user, wait_for_user
from trunkline.auth.ssrf import EgressDenied, parse_target
from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, ConfigError

__all__ = ["LoopbackBrowser"]

_LOOPBACK: Final = "127.0.0.1"
_PATH: Final = "/callback"
_MAX_HEAD_BYTES: Final = 32 * 1024  # bytes: a code may be long, and browsers send cookies of other ports along
_HEAD_TIMEOUT: Final = 10.0  # seconds: browsers open connections before they need them
_MAX_CONNECTIONS: Final = 32  # at once
_SUCCESS_TEXT: Final = "Thank you. You can close this page and go back to where you came from."
_STATUS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
}


class LoopbackBrowser:
    """Opens a browser, and waits on a port of 127.0.0.1 for the person to come back."""

    def __init__(
        self,
        *,
        redirect_uri: str | None = None,
        settings: Settings | None = None,
        open_page: Callable[[str], Awaitable[str | None]] = open_page,
    ) -> None:
        """`redirect_uri` is for a client that is registered with one: http, this machine, and a port. `open_page` shows
        a page in another way, and says why not, if it cannot."""
        self._fixed_redirect_uri = redirect_uri
        self._settings = settings or Settings()
        self._open_page = open_page
        if redirect_uri is not None and _redirect_port(redirect_uri) is None:
            raise ConfigError(f"{redirect_uri!r} is no redirect URI like http://{_LOOPBACK}:8765{_PATH}")

    @asynccontextmanager
    async def waiting(self, prefer: str | None = None) -> AsyncGenerator[Waiting]:
        """Listens, on the port of last time if it is free."""
        desk = _CallbackServer(self._settings, self._open_page)
        try:
            await desk.open(self._fixed_redirect_uri, prefer)
            yield desk
        finally:
            await desk.close()


class _CallbackServer:
    """Where the person comes back to."""

    def __init__(self, settings: Settings, open_page: Callable[[str], Awaitable[str | None]]) -> None:
        self.redirect_uri = ""
        self._settings = settings
        self._open_page = open_page
        self._path = _PATH
        self._port = 0
        self._state: bytes | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: dict[asyncio.Task[None], StreamWriter] = {}  # of those that have a place, the oldest first
        self._callback_url: asyncio.Future[str] | None = None

    async def open(self, fixed: str | None, prefer: str | None) -> None:
        """Takes a port: the fixed one or none, else the preferred one or any."""
        for uri in (fixed,) if fixed is not None else (prefer, None):
            port = _redirect_port(uri) if uri is not None else 0
            if port is not None and await self._listen(port):
                self.redirect_uri = uri or f"http://{_LOOPBACK}:{self._port}{_PATH}"
                self._path = urlsplit(self.redirect_uri).path
                return
        raise AuthorizationFailed(f"nobody can come back to {fixed}: its port is taken", hop="authorization")

    async def _listen(self, port: int) -> bool:
        try:
            self._server = await asyncio.start_server(self._accept, _LOOPBACK, port, limit=_MAX_HEAD_BYTES)
        except OSError:
            return False
        self._port = int(self._server.sockets[0].getsockname()[1])
        return True

    async def visit(self, url: str) -> str:
        """Opens the page, and waits for the person to come back from it."""
        check_login_url(url)
        self._state = _read_state(urlsplit(url).query)
        self._callback_url = asyncio.get_running_loop().create_future()
        print_to_user(f"To log in, open this page in your browser:\n\n    {url}\n")
        return await wait_for_user(self._wait_for_callback(url, self._callback_url), self._settings.person_timeout)

    async def _wait_for_callback(self, url: str, back: "asyncio.Future[str]") -> str:
        opening = asyncio.ensure_future(self._open_page(url))
        try:
            await asyncio.wait([opening, back], return_when=asyncio.FIRST_COMPLETED)
            if not back.done() and (why := await opening) is not None:
                print_to_user(f"It could not be opened from here: {why}.")
            return await back
        finally:
            opening.cancel()

    async def close(self) -> None:
        """Listens no more, and ends the visits that are under way."""
        if self._server is not None:
            self._server.close()
        for visit in self._tasks:
            visit.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- visits -------------------------------------------------------------------------------------

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        if (
            len(self._writers) == _MAX_CONNECTIONS
        ):  # whoever came first goes: a page that keeps every place keeps nobody away
            self._writers.pop(next(iter(self._writers))).transport.abort()
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        self._writers[task] = writer
        task.add_done_callback(self._discard_connection)

    def _discard_connection(self, visit: "asyncio.Task[None]") -> None:
        self._tasks.discard(visit)
        self._writers.pop(visit, None)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._respond(reader, writer)
        finally:
            writer.transport.abort()

    async def _respond(self, reader: StreamReader, writer: StreamWriter) -> None:
        status, text, came = await self._read_request(reader)
        writer.write(_encode_response(status, text))
        with suppress(TimeoutError):
            async with asyncio.timeout(_HEAD_TIMEOUT):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        if came is not None and self._callback_url is not None and not self._callback_url.done():
            self._callback_url.set_result(came)

    async def _read_request(self, reader: StreamReader) -> tuple[int, str, str | None]:
        """A request: the status and the words that answer it, and the URL that was asked for if it is the one."""
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            return 408, "That took too long.", None
        except asyncio.LimitOverrunError:
            return 431, "That is too much.", None
        return self._check_request(head)

    def _check_request(self, head: bytes) -> tuple[int, str, str | None]:
        first, *lines = head.decode("latin-1").split("\r\n")
        match first.split(" "):
            case [method, asked, "HTTP/1.1" | "HTTP/1.0"] if asked.startswith("/") and asked.isascii():
                path, _, query = asked.partition("?")
            case _:
                return 400, "That is not HTTP.", None
        hosts = [value.strip().lower() for name, _, value in (line.partition(":") for line in lines) if _is_host(name)]
        if hosts not in ([f"{_LOOPBACK}:{self._port}"], [f"localhost:{self._port}"]):  # or a name that was bent to us
            return 421, "Nobody is known here under that name.", None
        if path != self._path:
            return 404, "There is nothing here.", None
        if method != "GET":
            return 405, "This page can only be looked at.", None
        if self._callback_url is None or not _is_same_state(self._state, _read_state(query)):
            return 400, "This does not belong to a login that was begun here.", None
        return 200, _SUCCESS_TEXT, f"{self.redirect_uri}?{query}"


def _is_host(name: str) -> bool:
    return name.strip().lower() == "host"


def _redirect_port(uri: str) -> int | None:
    """The port of a redirect URI that can be listened on from here."""
    try:
        there = parse_target(uri)
    except EgressDenied:
        return None
    parts = urlsplit(uri)
    known = there.scheme == "http" and parts.hostname in {_LOOPBACK, "localhost"}
    return parts.port if known and parts.path and not parts.query and not parts.fragment else None


def _read_state(query: str) -> bytes | None:
    """The one state of a query; None if there is none, or more than one."""
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=100).get("state", [])
    except ValueError:
        return None
    return found[0].encode() if len(found) == 1 else None


def _is_same_state(ours: bytes | None, theirs: bytes | None) -> bool:
    return ours is None or (theirs is not None and hmac.compare_digest(ours, theirs))


def _encode_response(status: int, text: str) -> bytes:
    """An answer with a sentence of ours, and nothing of what was asked."""
    body = f"<!doctype html><meta charset=utf-8><title>Login</title><p>{text}</p>\n".encode()
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}",
        "Content-Type: text/html; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
        "Referrer-Policy: no-referrer",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body
