"""Login with a browser on this machine, which is redirected to a loopback port.

Any page in the browser can send requests to that port. So a request counts only if it has the callback path, a loopback
Host header and the state of the current login. Other requests get an error page, and the server keeps waiting.
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
_MAX_HEAD_BYTES: Final = 32 * 1024  # bytes: codes may be long, and browsers send the cookies of other ports
_HEAD_TIMEOUT: Final = 10.0  # seconds: browsers open connections in advance
_MAX_CONNECTIONS: Final = 32  # concurrent
_SUCCESS_TEXT: Final = "Login complete. You can close this page."
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
    """Opens a browser, and waits on a port of 127.0.0.1 for the redirect."""

    def __init__(
        self,
        *,
        redirect_uri: str | None = None,
        settings: Settings | None = None,
        open_page: Callable[[str], Awaitable[str | None]] = open_page,
    ) -> None:
        """`redirect_uri` is for a client that is registered with one: http, this machine, and a port. `open_page`
        replaces the way to open a page; it returns the reason if it cannot."""
        self._fixed_redirect_uri = redirect_uri
        self._settings = settings or Settings()
        self._open_page = open_page
        if redirect_uri is not None and _redirect_port(redirect_uri) is None:
            raise ConfigError(f"{redirect_uri!r} is not a redirect URI such as http://{_LOOPBACK}:8765{_PATH}")

    @asynccontextmanager
    async def waiting(self, prefer: str | None = None) -> AsyncGenerator[Waiting]:
        """Listen, on the port of the last login if it is free."""
        desk = _CallbackServer(self._settings, self._open_page)
        try:
            await desk.open(self._fixed_redirect_uri, prefer)
            yield desk
        finally:
            await desk.close()


class _CallbackServer:
    """HTTP server that receives the redirect."""

    def __init__(self, settings: Settings, open_page: Callable[[str], Awaitable[str | None]]) -> None:
        self.redirect_uri = ""
        self._settings = settings
        self._open_page = open_page
        self._path = _PATH
        self._port = 0
        self._state: bytes | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: dict[asyncio.Task[None], StreamWriter] = {}  # of open connections, the oldest first
        self._callback_url: asyncio.Future[str] | None = None

    async def open(self, fixed: str | None, prefer: str | None) -> None:
        """Bind a port: only the fixed one if there is one, otherwise the preferred one or any."""
        for uri in (fixed,) if fixed is not None else (prefer, None):
            port = _redirect_port(uri) if uri is not None else 0
            if port is not None and await self._listen(port):
                self.redirect_uri = uri or f"http://{_LOOPBACK}:{self._port}{_PATH}"
                self._path = urlsplit(self.redirect_uri).path
                return
        raise AuthorizationFailed(f"cannot listen on {fixed}: the port is in use", hop="authorization")

    async def _listen(self, port: int) -> bool:
        try:
            self._server = await asyncio.start_server(self._accept, _LOOPBACK, port, limit=_MAX_HEAD_BYTES)
        except OSError:
            return False
        self._port = int(self._server.sockets[0].getsockname()[1])
        return True

    async def visit(self, url: str) -> str:
        """Open the page, and return the callback URL."""
        check_login_url(url)
        self._state = _read_state(urlsplit(url).query)
        self._callback_url = asyncio.get_running_loop().create_future()
        print_to_user(f"To log in, open this page in your browser:\n\n    {url}\n")
        return await wait_for_user(self._wait_for_callback(url, self._callback_url), self._settings.person_timeout)

    async def _wait_for_callback(self, url: str, callback: "asyncio.Future[str]") -> str:
        opening = asyncio.ensure_future(self._open_page(url))
        try:
            await asyncio.wait([opening, callback], return_when=asyncio.FIRST_COMPLETED)
            if not callback.done() and (why := await opening) is not None:
                print_to_user(f"It could not be opened from here: {why}.")
            return await callback
        finally:
            opening.cancel()

    async def close(self) -> None:
        """Stop listening, and cancel open connections."""
        if self._server is not None:
            self._server.close()
        for visit in self._tasks:
            visit.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- connections -------------------------------------------------------------------------------

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        if len(self._writers) == _MAX_CONNECTIONS:  # drop the oldest, so that a page cannot block the callback
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
        status, text, callback_url = await self._read_request(reader)
        writer.write(_encode_response(status, text))
        with suppress(TimeoutError):
            async with asyncio.timeout(_HEAD_TIMEOUT):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        if callback_url is not None and self._callback_url is not None and not self._callback_url.done():
            self._callback_url.set_result(callback_url)

    async def _read_request(self, reader: StreamReader) -> tuple[int, str, str | None]:
        """Read a request; return status and text of the response, and the callback URL if the request is valid."""
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            return 408, "Request timeout.", None
        except asyncio.LimitOverrunError:
            return 431, "Request header fields too large.", None
        return self._check_request(head)

    def _check_request(self, head: bytes) -> tuple[int, str, str | None]:
        first, *lines = head.decode("latin-1").split("\r\n")
        match first.split(" "):
            case [method, asked, "HTTP/1.1" | "HTTP/1.0"] if asked.startswith("/") and asked.isascii():
                path, _, query = asked.partition("?")
            case _:
                return 400, "Malformed request.", None
        hosts = [value.strip().lower() for name, _, value in (line.partition(":") for line in lines) if _is_host(name)]
        if hosts not in ([f"{_LOOPBACK}:{self._port}"], [f"localhost:{self._port}"]):  # otherwise DNS rebinding
            return 421, "Unexpected Host header.", None
        if path != self._path:
            return 404, "Not found.", None
        if method != "GET":
            return 405, "Method not allowed.", None
        if self._callback_url is None or not _is_same_state(self._state, _read_state(query)):
            return 400, "This request does not belong to the current login.", None
        return 200, _SUCCESS_TEXT, f"{self.redirect_uri}?{query}"


def _is_host(name: str) -> bool:
    return name.strip().lower() == "host"


def _redirect_port(uri: str) -> int | None:
    """Return the port of a redirect URI that this machine can listen on, or None."""
    try:
        target = parse_target(uri)
    except EgressDenied:
        return None
    parts = urlsplit(uri)
    usable = target.scheme == "http" and parts.hostname in {_LOOPBACK, "localhost"}
    return parts.port if usable and parts.path and not parts.query and not parts.fragment else None


def _read_state(query: str) -> bytes | None:
    """Return the only `state` of a query, or None."""
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=100).get("state", [])
    except ValueError:
        return None
    return found[0].encode() if len(found) == 1 else None


def _is_same_state(ours: bytes | None, theirs: bytes | None) -> bool:
    return ours is None or (theirs is not None and hmac.compare_digest(ours, theirs))


def _encode_response(status: int, text: str) -> bytes:
    """Encode a response with fixed text; nothing of the request is reflected."""
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
