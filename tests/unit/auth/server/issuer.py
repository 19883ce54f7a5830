"""A token issuer on this machine: real metadata, real keys, real signatures, over real HTTP."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from trunkline.auth.jose import SigningKey

BEGIN = 1_700_000_000.0


class ManualWallClock:
    """A manual wall clock."""

    def __init__(self) -> None:
        self.time = BEGIN

    def __call__(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


class Issuer:
    """Signs tokens, and publishes its verification keys."""

    def __init__(self, wall: ManualWallClock, url: str) -> None:
        self.wall = wall
        self.url = url
        self.key = SigningKey.generate("ES256", kid="first")
        self.published = [self.key]
        self.metadata: dict[str, Any] = {"jwks_uri": f"{url}/keys", "introspection_endpoint": f"{url}/introspect"}
        self.down = False
        self.held: asyncio.Event | None = None  # responses wait for it
        self.known: dict[str, Any] = {}  # the introspection responses
        self.asked: Counter[str] = Counter()
        self.sent: list[tuple[dict[str, str], dict[str, list[str]]]] = []

    def token(self, *, key: SigningKey | None = None, header: Any = None, **claims: Any) -> str:
        """A token that is valid for an hour; None omits a claim."""
        now = self.wall()
        usual = {"iss": self.url, "aud": "http://localhost:1", "sub": "ada", "exp": now + 3600, "iat": now}
        said = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return (key or self.key).sign(said, header)

    def rotate(self, kid: str = "second") -> None:
        """Replace the signing key; only the new one is published."""
        self.key = SigningKey.generate("ES256", kid=kid)
        self.published = [self.key]

    def _answer(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        self.asked[path] += 1
        if self.down:
            return 503, {}
        match path:
            case "/.well-known/oauth-authorization-server":
                return 200, {"issuer": self.url, **self.metadata}
            case "/keys":
                return 200, {"keys": [key.public for key in self.published]}
            case "/introspect":
                form = parse_qs(body.decode())
                self.sent.append((headers, form))
                return 200, self.known.get(form["token"][0], {"active": False})
            case _:
                return 404, {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request on one connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for line in head[1:] if line for name, _, value in [line.partition(": ")]}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        status, said = self._answer(head[0].split()[1], headers, body)
        if self.held is not None:
            await self.held.wait()
        data = json.dumps(said).encode()
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(data)}"]
        writer.write("\r\n".join([*lines, "connection: close", "", ""]).encode() + data)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def running_issuer(wall: ManualWallClock | None = None) -> AsyncIterator[Issuer]:
    """An issuer, for the duration of a test."""
    listening = socket.create_server(("127.0.0.1", 0))
    made = Issuer(wall or ManualWallClock(), f"http://127.0.0.1:{listening.getsockname()[1]}")
    async with await asyncio.start_server(made.serve, sock=listening):
        yield made


def bearer(token: str) -> str:
    """The Authorization header."""
    return f"Bearer {token}"
