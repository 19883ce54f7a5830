"""A simulated internet: sites on this machine with configured responses, a token issuer, and name resolution that a
test controls. All sockets connect to this machine.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from tests.attacks.raw import Header

from trunkline.auth.jose import SigningKey

Bytes = bytes | Mapping[str, Any] | list[Any]


class SiteRequest:
    """A request that a site received."""

    def __init__(self, head: str, body: bytes) -> None:
        first, *lines = head.split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.path, _, self.query = self.target.partition("?")
        pairs = (line.partition(": ") for line in lines if line)
        self.headers = {name.lower(): value for name, _, value in pairs}
        self.head = head
        self.body = body

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def holds(self, secret: str) -> bool:
        """Return whether any part of the request contains a secret."""
        return secret in self.head or secret.encode() in self.body


def page(body: Bytes = b"", status: int = 200, *headers: Header, kind: str = "application/json") -> bytes:
    """A response, as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    told = [("content-type", kind), ("content-length", str(len(data))), ("connection", "close"), *headers]
    lines = "".join(f"{name}: {value}\r\n" for name, value in told)
    return f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode() + data


def redirect(there: str, status: int = 302) -> bytes:
    """A redirect."""
    return page(b"", status, ("location", there))


Response = bytes | Callable[[SiteRequest], "bytes | Awaitable[bytes]"]


class Site:
    """A site with responses by path, which records its requests."""

    def __init__(self, port: int, name: str) -> None:
        self.port = port
        self.url = f"{name}:{port}" if name.startswith("http://127") else name
        self.pages: dict[str, Response] = {}
        self.other: Response = page({}, 404)
        self.asked: list[SiteRequest] = []

    @property
    def paths(self) -> list[str]:
        return [one.path for one in self.asked]

    def at(self, path: str) -> list[SiteRequest]:
        """The requests for a path."""
        return [one for one in self.asked if one.path == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request on one connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
        asked = SiteRequest(head[:-4], await reader.readexactly(length))
        self.asked.append(asked)
        says = self.pages.get(asked.path, self.other)
        said = says if isinstance(says, bytes) else says(asked)
        writer.write(said if isinstance(said, bytes) else await said)
        await writer.drain()
        await reader.read()


@asynccontextmanager
async def site(name: str = "http://127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    """A site of that name: on this machine by default, or at an address that the test's internet maps to it."""
    made: list[Site] = []
    visits: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.ensure_future(made[0].serve(reader, writer))
        visit.add_done_callback(lambda _: writer.transport.abort())
        visits.add(visit)

    server = await asyncio.start_server(begin, "127.0.0.1", 0, ssl=tls)
    made.append(Site(server.sockets[0].getsockname()[1], name))
    try:
        yield made[0]
    finally:
        server.close()
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
        for _ in range(5):
            await asyncio.sleep(0)  # for transports to end


def here(address: str) -> bool:
    """Return whether an address belongs to this machine."""
    return address == "::1" or address.startswith("127.")


class Internet:
    """Name resolution, the sites by address, and the targets of all connections."""

    def __init__(self) -> None:
        self.names: dict[str, list[Sequence[str]]] = {}  # the results of successive look-ups; the last one repeats
        self.sites: dict[str, Site] = {}  # by address
        self.connected: list[str] = []
        self.looked_up: list[str] = []

    async def resolve(self, host: str) -> Sequence[str]:
        """The addresses of a name."""
        self.looked_up.append(host)
        answers = self.names.get(host)
        if not answers:
            raise OSError(f"{host} is not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def has(self, host: str, there: Site, address: str) -> None:
        """Register a site at an address, under a name."""
        self.names[host] = [[address]]
        self.sites[address] = there

    @property
    def unexpected_targets(self) -> list[str]:
        """Unexpected targets: all but registered sites and this machine."""
        return [address for address in self.connected if not here(address) and address not in self.sites]


# --- token issuer ------------------------------------------------------------------------------------

KEY = SigningKey.generate("ES256", kid="k")
OTHER_KEY = SigningKey.generate("ES256", kid="k")  # with the same name
METADATA = "/.well-known/oauth-authorization-server"


class Issuer:
    """Signs tokens, and publishes its keys and metadata."""

    def __init__(self, there: Site) -> None:
        self.site = there
        self.name = there.url
        self.metadata: dict[str, Any] = {
            "issuer": self.name,
            "authorization_endpoint": f"{self.name}/authorize",
            "token_endpoint": f"{self.name}/token",
            "registration_endpoint": f"{self.name}/register",
            "jwks_uri": f"{self.name}/jwks",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }
        there.pages[METADATA] = lambda _: page(self.metadata)
        there.pages["/jwks"] = page({"keys": [KEY.public]})
        there.pages["/register"] = page({"client_id": "registered"}, 201)
        there.pages["/token"] = page({"access_token": "a-token", "token_type": "Bearer"})

    def token(self, audience: Any, *, key: SigningKey = KEY, header: Any = None, **claims: Any) -> str:
        """A valid token, apart from the given claims; None omits a claim."""
        usual = {"iss": self.name, "sub": "ada", "aud": audience, "client_id": "app", "exp": 2_000_000_000}
        said = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return key.sign(said, header)


@asynccontextmanager
async def issuer() -> AsyncIterator[Issuer]:
    """An issuer on this machine."""
    async with site() as there:
        yield Issuer(there)
