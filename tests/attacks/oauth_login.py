"""Logins against an MCP server and an authorization server that a test controls. A simulated user acts as the test
says, and records the pages it was sent to.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.attacks.fake_internet import Issuer, Site, page, site
from tests.attacks.raw import within

from trunkline import Settings
from trunkline.auth import MemoryTokens, OAuth, Redirected
from trunkline.auth.client.provider import OAuthAuthorizer
from trunkline.auth.client.token_provider import TokenProvider
from trunkline.errors import AuthorizationFailed
from trunkline.transports.http.client.credentials import HttpExchange

BACK = "http://127.0.0.1:1/callback"
RESOURCE_METADATA = "/.well-known/oauth-protected-resource/mcp"
Redirect = Callable[[dict[str, str]], str]


class SimulatedUser:
    """A user who opens authorization pages and returns with a redirect."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.back: Redirect = self.agreed
        self.iss: str | None = None

    async def __call__(self, url: str) -> str:
        self.shown.append(url)
        return self.back(self.asked[-1])

    @property
    def asked(self) -> list[dict[str, str]]:
        """The query of each page."""
        return [
            {name: values[0] for name, values in parse_qs(urlsplit(url).query, keep_blank_values=True).items()}
            for url in self.shown
        ]

    def agreed(self, asked: dict[str, str], **more: str | None) -> str:
        """The redirect of a user who has agreed."""
        said = {"code": "a-code", "state": asked.get("state"), "iss": self.iss, **more}
        return f"{BACK}?{urlencode({name: value for name, value in said.items() if value is not None})}"


class Login:
    """An MCP server at `/mcp` of one site, whose metadata names an authorization server at another."""

    def __init__(self, server: Site, authority: Issuer) -> None:
        self.server = server
        self.authority = authority
        self.url = f"{server.url}/mcp"
        self.person = SimulatedUser()
        self.person.iss = authority.name
        self.store = MemoryTokens()
        self.names(authority)

    def names(self, authority: Issuer, **more: Any) -> None:
        """Name that authorization server in the metadata, or other members."""
        said = {"resource": self.url, "authorization_servers": [authority.name], **more}
        self.server.pages[RESOURCE_METADATA] = page(said)

    def oauth(self, **options: Any) -> OAuth:
        return OAuth(**{"interaction": Redirected(BACK, self.person), "store": self.store, **options})

    def engine(self, account: OAuthAuthorizer | None = None, **options: Any) -> TokenProvider:
        return (account or self.oauth(**options)).credentials(self.url, settings=Settings())

    async def challenged(
        self, engine: TokenProvider, status: int = 401, challenge: str = "Bearer", **sent: str
    ) -> bool:
        """Answer a request with a challenge."""
        headers = {"WWW-Authenticate": challenge}
        proof = sent or await engine.headers("POST", self.url)
        return await within(
            engine.handle_response(HttpExchange("POST", self.url, proof, status, headers), lambda _: None), "a login"
        )

    async def fails(self, engine: TokenProvider | None = None, **challenged: Any) -> AuthorizationFailed:
        """Return why a login fails."""
        try:
            await self.challenged(engine or self.engine(), **challenged)
        except AuthorizationFailed as error:
            return error
        raise AssertionError(f"it was logged in, after {self.person.shown}")


@asynccontextmanager
async def login() -> AsyncIterator[Login]:
    async with site() as server, site() as there:
        yield Login(server, Issuer(there))
