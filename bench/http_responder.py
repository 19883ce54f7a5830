"""A bare HTTP server to measure clients against: no library, so that it favours none of them.

It implements just enough of HTTP/1.1 for well-behaved clients. The path selects the response, or its failure. It is
a proxy too, for absolute addresses and for tunnels.
"""

import asyncio
import json
import logging
import ssl
import time
from typing import Any

from bench.environments import ROOT

CERTIFICATE = ROOT / "tests" / "contract" / "localhost.pem"  # with its key; self-signed
EVENTS = 10_000


def body(number: int, **more: Any) -> bytes:
    """A message of about 200 bytes, identified by its id."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": "x" * 150, **more}).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = chunk(b"id: 1\ndata: " + body(1) + b"\n\n")


class Responder(asyncio.Protocol):
    """Answers one request after another on a connection; the path selects the response, or its failure."""

    connections: set["Responder"] = set()  # noqa: RUF012  shared by all on purpose
    open_streams: set["Responder"] = set()  # noqa: RUF012
    opened = hang_ups = tunnels = 0

    def connection_made(self, transport: Any) -> None:
        self.transport, self.buffer, self.tunnel = transport, b"", None
        self.connections.add(self)
        Responder.opened += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self.open_streams.discard(self)
        if self.tunnel:
            self.tunnel.close()

    def data_received(self, data: bytes) -> None:
        if self.tunnel:
            self.tunnel.write(data)
            return
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            lines = self.buffer[:end].decode().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
            whole = end + 4 + int(headers.get("content-length", 0))
            if len(self.buffer) < whole:
                return
            content, self.buffer = self.buffer[end + 4 : whole], self.buffer[whole:]
            method, target, _ = lines[0].split(" ")
            if method == "CONNECT":
                self.connecting = asyncio.ensure_future(self.connect(target))
                return
            proxied = target.startswith("http://")
            path = "/" + target.split("/", 3)[3] if proxied else target
            getattr(self, "on" + path.replace("/", "_"))(content, headers, proxied)

    async def connect(self, target: str) -> None:
        Responder.tunnels += 1
        host, port = target.split(":")
        self.tunnel, _ = await asyncio.get_running_loop().create_connection(lambda: Pipe(self.transport), host, port)
        self.transport.write(b"HTTP/1.1 200 OK\r\n\r\n")

    def answer(self, content: bytes, status: str = "200 OK", more: str = "", length: int | None = None) -> None:
        length = len(content) if length is None else length
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n"
        self.transport.write(head.encode() + content)

    def on_echo(self, content: bytes, headers: dict[str, str], proxied: bool) -> None:
        self.answer(body(json.loads(content)["id"], auth="authorization" in headers, proxied=proxied))

    def on_events(self, *_: Any) -> None:
        self.transport.write(STREAM)
        for _ in range(EVENTS // 50):
            if not self.transport.is_closing():
                self.transport.write(EVENT * 50)
        self.transport.write(b"0\r\n\r\n")

    def on_open(self, *_: Any) -> None:
        self.transport.write(STREAM + EVENT)
        self.open_streams.add(self)

    def on_tick(self, *_: Any) -> None:
        for stream in self.open_streams:
            stream.transport.write(chunk(b"data: %d\n\n" % time.monotonic_ns()))
        self.answer(body(0))

    def on_count(self, *_: Any) -> None:
        counts = {name: getattr(Responder, name) for name in ("opened", "hang_ups", "tunnels")}
        self.answer(body(0, connections=len(self.connections), **counts))

    def on_silent(self, *_: Any) -> None: ...

    def on_half(self, *_: Any) -> None:
        self.answer(b"x" * 500, length=1000)

    def on_short(self, *_: Any) -> None:
        self.on_half()
        self.transport.close()

    def on_cut(self, *_: Any) -> None:
        self.transport.write(STREAM + EVENT)
        self.transport.close()

    def on_reset(self, *_: Any) -> None:
        self.transport.write(STREAM + EVENT)
        asyncio.get_running_loop().call_later(0.05, self.transport.abort)

    def on_bye(self, *_: Any) -> None:
        self.answer(body(0))
        self.transport.close()

    def on_hangup(self, *_: Any) -> None:
        Responder.hang_ups += 1
        self.transport.abort()

    def on_redirect(self, *_: Any) -> None:
        port = self.transport.get_extra_info("sockname")[1]
        self.answer(b"", "307 Temporary Redirect", f"Location: http://localhost:{port}/echo\r\n")


class Pipe(asyncio.Protocol):
    """The far half of a tunnel."""

    def __init__(self, near: asyncio.Transport) -> None:
        self.data_received, self.connection_lost = near.write, lambda _: near.close()


async def serve() -> None:
    """Print the ports, one without TLS and one with, and serve until killed."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # clients disconnect on purpose
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    plain = await loop.create_server(Responder, "127.0.0.1", 0, backlog=1000)
    secure = await loop.create_server(Responder, "127.0.0.1", 0, ssl=context)
    print(*(server.sockets[0].getsockname()[1] for server in (plain, secure)), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
