"""A valid setup of MCP authorization, in which a test can break any part.

One server on the loopback plays the MCP server and its authorization server. Every document and every page is an
attribute that a test may change; the server records its requests.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

KEY = {
    "kty": "EC",
    "crv": "P-256",
    "use": "sig",
    "alg": "ES256",
    "kid": "1",
    "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
    "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
}
ENDPOINT = "POST /mcp"
RESOURCE = "GET /.well-known/oauth-protected-resource/mcp"
RESOURCE_AT_THE_ROOT = "GET /.well-known/oauth-protected-resource"
SERVER = "GET /.well-known/oauth-authorization-server/login"
OPENID = "GET /login/.well-known/openid-configuration"
AUTHORIZE = "GET /login/authorize"
TOKEN = "POST /login/token"
KEYS = "GET /login/keys"
GREETING = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "serverInfo": {"name": "open", "version": "1"},
}


class Page(NamedTuple):
    """A response: a status, a document or text, and headers."""

    status: int
    body: Any = None
    headers: dict[str, str] = {}

    def written(self) -> bytes:
        plain = isinstance(self.body, str)
        body = self.body.encode() if plain else b"" if self.body is None else json.dumps(self.body).encode()
        told = {"Content-Type": "text/html" if plain else "application/json", **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        return f"HTTP/1.1 {self.status} Said\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


class RecordedRequest(NamedTuple):
    """A request: verb and path together, the query, its headers and its body."""

    what: str
    query: str
    headers: dict[str, str]
    body: bytes


class AuthSetup:
    """The servers. `pages` is by verb and path; other requests get 404."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.url = f"{self.origin}/mcp"
        self.issuer = f"{self.origin}/login"
        self.challenge = f'Bearer resource_metadata="{self.at(RESOURCE)}", scope="notes"'
        self.resource: dict[str, Any] = {
            "resource": self.url,
            "authorization_servers": [self.issuer],
            "scopes_supported": ["notes"],
            "bearer_methods_supported": ["header"],
        }
        self.server: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": self.at(AUTHORIZE),
            "token_endpoint": self.at(TOKEN),
            "jwks_uri": self.at(KEYS),
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": True,
        }
        self.pages: dict[str, Page | Callable[[RecordedRequest], Page]] = {
            RESOURCE: Page(200, self.resource, {"Access-Control-Allow-Origin": "*"}),
            SERVER: Page(200, self.server, {"Access-Control-Allow-Origin": "*"}),
            AUTHORIZE: Page(400, "<h1>client_id is missing</h1>"),
            TOKEN: Page(400, {"error": "invalid_request"}, {"Cache-Control": "no-store"}),
            KEYS: Page(200, {"keys": [KEY]}),
        }
        self.asked: list[RecordedRequest] = []
        self.silent = False
        self.knocked = asyncio.Event()

    def at(self, page: str) -> str:
        """The address of a page."""
        return self.origin + page.partition(" ")[2]

    def open(self) -> None:
        """Make the MCP server accept every request."""
        self.pages[ENDPOINT] = Page(200, {"jsonrpc": "2.0", "id": 1, "result": GREETING})

    def answer(self, asked: RecordedRequest) -> Page:
        self.asked.append(asked)
        self.knocked.set()
        if asked.what in self.pages:
            found = self.pages[asked.what]
            return found if isinstance(found, Page) else found(asked)
        if asked.what == ENDPOINT:
            return Page(401, None, {"WWW-Authenticate": self.challenge} if self.challenge else {})
        return Page(404)


@contextlib.asynccontextmanager
async def auth_setup(tls: ssl.SSLContext | None = None) -> AsyncIterator[AuthSetup]:
    """A valid setup, for the duration of a test."""
    made: AuthSetup
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                page = made.answer(await _read(reader))
                if not made.silent:
                    writer.write(page.written())
        tasks.discard(task)
        writer.transport.abort()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    made = AuthSetup(f"http{'s' if tls else ''}://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    try:
        yield made
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> RecordedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    verb, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    where = urlsplit(target)
    return RecordedRequest(f"{verb} {where.path}", where.query, headers, body)
