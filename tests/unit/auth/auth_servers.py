"""An authorization server and an MCP server that requires its tokens, on the loopback, with a user who agrees at once.

They are built on `faulty.World`, so that a test can replace any page; each records its requests. Time stands still.
"""

import contextlib
import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.unit.auth.auth_setup import AUTHORIZE, ENDPOINT, TOKEN, AuthSetup, Page, RecordedRequest, auth_setup

from trunkline.auth import MemoryTokens, OAuth, Redirected
from trunkline.auth.client.token_provider import TokenProvider
from trunkline.config import Settings
from trunkline.transports.http.client.connection_pool import ConnectionPool
from trunkline.transports.http.client.http_peer import HttpPeer
from trunkline.transports.http.client.url import parse_url

REGISTER = "POST /login/register"
CALLBACK = "http://127.0.0.1:33418/callback"
TOOL = {"name": "read", "inputSchema": {"type": "object"}}


class AuthServers:
    """Both servers, the user, and their state."""

    def __init__(self, auth_setup: AuthSetup) -> None:
        self.world = auth_setup
        self.url, self.issuer = auth_setup.url, auth_setup.issuer
        self.now = 1_000_000.0
        self.lifetime: float | None = 3600
        self.refreshes = True  # tokens come with a refresh token
        self.kind = "Bearer"
        self.secret: str | None = None  # that clients get on registration
        self.needs: dict[str, set[str]] = {}  # scopes, by tool
        self.grants: Callable[[str], str] = lambda scope: scope
        self.visits: list[dict[str, str]] = []  # of the user, to the page
        self.exchanges: list[dict[str, str]] = []
        self.proofs: list[str | None] = []  # the Authorization headers of those
        self.registered: list[dict[str, Any]] = []
        self.tokens: dict[str, set[str]] = {}  # valid ones, and their scopes
        self.came: list[tuple[str, str | None]] = []  # requests to the MCP server: method, token
        self._codes: dict[str, dict[str, str]] = {}
        self._refresh: dict[str, str] = {}  # refresh tokens, and their scope
        auth_setup.server["registration_endpoint"] = auth_setup.at(REGISTER)
        auth_setup.pages |= {TOKEN: self.token, REGISTER: self.register, ENDPOINT: self.serve, "GET /mcp": Page(405)}

    # --- the user --------------------------------------------------------------------------------

    async def agree(self, page: str) -> str:
        """Agree as the user, and redirect back."""
        where = urlsplit(page)
        assert f"GET {where.path}" == AUTHORIZE
        asked = dict(parse_qsl(where.query))
        self.visits.append(asked)
        code = secrets.token_urlsafe(8)
        self._codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": self.issuer}
        return f"{asked['redirect_uri']}?{urlencode(back)}"

    def oauth(self, **options: Any) -> OAuth:
        """The OAuth options for this server."""
        return OAuth(
            **{
                "interaction": Redirected(CALLBACK, self.agree),
                "store": MemoryTokens(),
                "now": lambda: self.now,
                **options,
            }
        )

    # --- the authorization server ----------------------------------------------------------------

    def register(self, asked: RecordedRequest) -> Page:
        wanted = json.loads(asked.body)
        self.registered.append(wanted)
        secret = {} if self.secret is None else {"client_secret": self.secret, "client_secret_expires_at": 0}
        return Page(201, {**wanted, "client_id": f"client-{len(self.registered)}", **secret})

    def token(self, asked: RecordedRequest) -> Page:
        form = dict(parse_qsl(asked.body.decode()))
        self.exchanges.append(form)
        self.proofs.append(asked.headers.get("authorization"))
        match form["grant_type"]:
            case "authorization_code":
                return self._exchange(form)
            case "refresh_token":
                scope = self._refresh.pop(form["refresh_token"], None)
                return Page(400, {"error": "invalid_grant"}) if scope is None else self.issue(scope)
            case _:
                return self.issue(form.get("scope", ""))

    def _exchange(self, form: dict[str, str]) -> Page:
        sent = self._codes.pop(form["code"], None)
        proof = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if sent is None or sent["code_challenge"] != proof or sent["redirect_uri"] != form["redirect_uri"]:
            return Page(400, {"error": "invalid_grant", "error_description": "not that code"})
        return self.issue(sent.get("scope", ""))

    def issue(self, scope: str) -> Page:
        """A new token."""
        access, granted = secrets.token_urlsafe(8), self.grants(scope)
        self.tokens[access] = set(granted.split())
        answer: dict[str, Any] = {"access_token": access, "token_type": self.kind, "scope": granted}
        if self.lifetime is not None:
            answer["expires_in"] = self.lifetime
        if self.refreshes:
            answer["refresh_token"] = secrets.token_urlsafe(8)
            self._refresh[answer["refresh_token"]] = scope
        return Page(200, answer)

    def forget_refresh_tokens(self) -> None:
        """Invalidate all refresh tokens."""
        self._refresh.clear()

    # --- the MCP server --------------------------------------------------------------------------

    def serve(self, asked: RecordedRequest) -> Page:
        message = json.loads(asked.body or b"{}")
        method, params = message.get("method", ""), message.get("params", {})
        token = asked.headers.get("authorization", "").partition(" ")[2] or None
        self.came.append((method, token))
        if token not in self.tokens:
            return Page(401, None, {"WWW-Authenticate": self.world.challenge})
        if missing := self.needs.get(params.get("name", ""), set()) - self.tokens[token]:
            said = f'error="insufficient_scope", scope="{" ".join(sorted(missing))}"'
            return Page(403, None, {"WWW-Authenticate": f"Bearer {said}"})
        if "id" not in message:
            return Page(202)
        return Page(200, {"jsonrpc": "2.0", "id": message["id"], "result": _result(method, params)})


def _result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            info = {"name": "office", "version": "1"}
            version = params["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": "read"}]}
        case _:
            return {}


@contextlib.asynccontextmanager
async def servers() -> AsyncIterator[AuthServers]:
    """Both servers, for a while."""
    async with auth_setup() as made:
        yield AuthServers(made)


class Caller:
    """Sends requests to the MCP server with a token provider, as the transport does."""

    def __init__(self, engine: TokenProvider, url: str) -> None:
        self.engine = engine
        self._library = ConnectionPool(Settings())
        self._peer = HttpPeer(self._library, parse_url(url), {}, engine)
        self.asked: list[bool] = []  # the messages about a required login

    async def call(self, tool: str = "read", *, verb: str = "POST") -> int:
        """The final status of a call."""
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool}}
        reply = await self._peer.send(verb, body=json.dumps(message).encode(), on_authorizing=self.asked.append)
        reply.close()
        return reply.status

    async def close(self) -> None:
        await self._library.close()


@contextlib.asynccontextmanager
async def caller(servers: AuthServers, auth: Any = None, url: str | None = None) -> AsyncIterator[Caller]:
    """A caller like a new process: it knows only the content of the store."""
    url = url or servers.url
    made = Caller((auth or servers.oauth()).credentials(url, settings=Settings()), url)
    try:
        yield made
    finally:
        await made.close()
