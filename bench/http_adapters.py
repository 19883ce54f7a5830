"""HTTP client libraries behind the same few methods: post, stream, close. A transport needs no others."""

import asyncio
import functools
import importlib
import ssl
import urllib.parse
import urllib.request
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from typing import Any

from bench.http_responder import CERTIFICATE

LIBRARIES = {
    "httpx": "httpx==0.28.1",
    "httpx2": "httpx2==2.16.0",
    "aiohttp": "aiohttp==3.14.5",
    "niquests": "niquests==3.21.2",
    "own": "httptools==0.9.0",
}
POOL = 1000  # connections, where a library wants a number
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Authorization": "Bearer secret",
    "Mcp-Session-Id": "0123456789abcdef",
}


@functools.cache
def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address, if any."""
    parts = urllib.parse.urlsplit(url)
    return None if urllib.request.proxy_bypass(parts.netloc) else urllib.request.getproxies().get(parts.scheme)


def make(name: str, trusted: ssl.SSLContext | None = None, limit: int | None = None) -> Any:
    """A client of the library called `name`, with at most `limit` connections."""
    return ADAPTERS[name](importlib.import_module(LIBRARIES[name].split("==")[0]), trusted, limit)


class Httpx:
    """httpx, or httpx2, which differ in their name only."""

    def __init__(self, module: Any, trusted: ssl.SSLContext | None, limit: int | None) -> None:
        limits = module.Limits(max_connections=limit, max_keepalive_connections=None)
        more = {"verify": trusted} if trusted else {}
        self.client, self.options = module.AsyncClient(limits=limits, timeout=None, **more), {}

    async def post(self, url: str, content: bytes) -> tuple[int, bytes]:
        response = await self.client.post(url, content=content, headers=HEADERS, **self.options)
        return response.status_code, response.content

    async def stream(self, url: str) -> AsyncIterator[bytes]:
        async with self.client.stream("GET", url, headers=HEADERS) as response:
            async for data in response.aiter_raw():
                yield data

    async def close(self) -> None:
        await self.client.aclose()


class Aiohttp:
    """aiohttp without cookies and decompression, and with an explicit proxy.

    With `trust_env` it would read ~/.netrc in a thread for every request, and send credentials from there.
    """

    def __init__(self, module: Any, trusted: ssl.SSLContext | None, limit: int | None) -> None:
        self.options: dict[str, Any] = {"allow_redirects": False}
        self.client = module.ClientSession(
            connector=module.TCPConnector(limit=limit or 0, ssl=trusted or True),
            timeout=module.ClientTimeout(total=None),
            cookie_jar=module.DummyCookieJar(),
            auto_decompress=False,
        )

    async def post(self, url: str, content: bytes) -> tuple[int, bytes]:
        async with self.client.post(
            url, data=content, headers=HEADERS, proxy=proxy_of(url), **self.options
        ) as response:
            return response.status, await response.read()

    async def stream(self, url: str) -> AsyncIterator[bytes]:
        async with self.client.get(url, headers=HEADERS, proxy=proxy_of(url), **self.options) as response:
            async for data in response.content.iter_any():
                yield data

    async def close(self) -> None:
        await self.client.close()


class Niquests:
    """niquests, with a pool as large as the test, and with an explicit proxy."""

    def __init__(self, module: Any, trusted: ssl.SSLContext | None, limit: int | None) -> None:
        self.options: dict[str, Any] = {"allow_redirects": False}
        self.client = module.AsyncSession(pool_maxsize=limit or POOL, timeout=None)
        self.client.trust_env = False  # it would read ~/.netrc and the variables again for every request
        if trusted:
            self.client.verify = str(CERTIFICATE)

    async def post(self, url: str, content: bytes) -> tuple[int, bytes]:
        proxies = {url.split(":", 1)[0]: proxy_of(url)} if proxy_of(url) else None
        response = await self.client.post(url, data=content, headers=HEADERS, proxies=proxies, **self.options)
        return response.status_code, response.content

    async def stream(self, url: str) -> AsyncIterator[bytes]:
        response = await self.client.get(url, headers=HEADERS, stream=True, **self.options)
        try:
            async for data in await response.iter_content(-1):
                yield data
        finally:
            await response.close()

    async def close(self) -> None:
        await self.client.close()


class Line(asyncio.Protocol):
    """One connection of our own client: a parser in C, and a queue of its output."""

    def __init__(self, module: Any) -> None:
        self.parser = module.HttpResponseParser(self)
        self.chunks: deque[bytes] = deque()
        self.done = self.kept = self.lost = False
        self.waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        self.wake()

    def on_body(self, data: bytes) -> None:
        self.chunks.append(data)

    def on_message_complete(self) -> None:
        self.done, self.kept = True, self.parser.should_keep_alive()  # which forgets it after this

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.wake()

    def wake(self) -> None:
        if self.waiter and not self.waiter.done():
            self.waiter.set_result(None)

    async def read(self) -> bytes:
        """The data since the last call; empty once the response is complete."""
        while not self.chunks and not self.done:
            if self.lost:
                raise ConnectionResetError("the connection was lost before the answer was complete")
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        data = b"".join(self.chunks)
        self.chunks.clear()
        return data


class Own:
    """The basis of a client of our own: asyncio's transports, httptools, a stack of idle connections."""

    def __init__(self, module: Any, trusted: ssl.SSLContext | None, limit: int | None) -> None:
        self.module, self.trusted, self.options = module, trusted, {}
        self.places = asyncio.Semaphore(limit or POOL)
        self.idle: defaultdict[tuple[str, str], list[Line]] = defaultdict(list)  # by scheme and host
        self.head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())

    async def ask(self, method: str, url: str, content: bytes) -> AsyncIterator[tuple[int, bytes]]:
        scheme, _, host, path = url.split("/", 3)
        async with self.places:
            line = await self.line(scheme, host)
            try:
                head = f"{method} /{path} HTTP/1.1\r\nHost: {host}\r\n{self.head}Content-Length: {len(content)}\r\n\r\n"
                line.transport.write(head.encode() + content)
                while data := await line.read():
                    yield line.parser.get_status_code(), data
                yield line.parser.get_status_code(), b""
            finally:
                if line.done and line.kept and not line.lost:
                    line.done = False
                    self.idle[scheme, host].append(line)
                else:
                    line.transport.abort()

    async def line(self, scheme: str, host: str) -> Line:
        idle = self.idle[scheme, host]
        while idle:
            if not (line := idle.pop()).lost:
                return line
        name, port = host.split(":")
        context = (self.trusted or ssl.create_default_context()) if scheme == "https:" else None
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: Line(self.module), name, int(port), ssl=context))[1]

    async def post(self, url: str, content: bytes) -> tuple[int, bytes]:
        parts = [part async for part in self.ask("POST", url, content)]
        return parts[-1][0], b"".join(data for _, data in parts)

    async def stream(self, url: str) -> AsyncIterator[bytes]:
        async for _, data in self.ask("GET", url, b""):
            yield data

    async def close(self) -> None:
        for lines in self.idle.values():
            for line in lines:
                line.transport.abort()


ADAPTERS = {"httpx": Httpx, "httpx2": Httpx, "aiohttp": Aiohttp, "niquests": Niquests, "own": Own}
