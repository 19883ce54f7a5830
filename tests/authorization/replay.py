"""Authorization servers that behave as known ones do, from a record of their metadata and peculiarities.

    async with replayed("okta") as okta: ...

A record has the published documents, and then: the status of a `registration` (None: there is none), the `client`
that an administrator has made instead, the condition for a refresh token (`refresh_with`; None: never), the effect
of a refresh on it (`rotation`), further members that come `back` with a code and in an `answer`, and the `claims` of
its tokens (None: they are opaque). The issuer's host becomes 127.0.0.1, and every other host localhost: another host
is another origin here too.
"""

import base64
import hashlib
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from urllib.parse import unquote_plus, urlencode, urlsplit

from aiohttp import web

from trunkline.auth.jose import SigningKey

RECORDS = Path(__file__).with_name("profiles")
NAMES = sorted(path.stem for path in RECORDS.glob("*.json"))
SCOPES = "notes:read"

Grant = dict[str, str]
"""The parameters of an authorization request that the user has granted."""


class TokenError(Exception):
    """An error of the token endpoint."""


class Replayed:
    """One authorization server, on a port of this machine."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record
        self.documents: Mapping[str, Any] = record["documents"]
        self.metadata: Mapping[str, Any] = next(iter(self.documents.values()))
        self.issuer: str = self.metadata["issuer"]
        self.lifetime = 3600
        self.key = SigningKey.generate("ES256")
        self.known: dict[str, tuple[float, Grant]] = {}  # opaque access tokens, with expiry and scope
        self.failing = False  # whether its token endpoint is out of order
        self.refreshed = 0
        self._clients: dict[str, str | None] = {}
        self._codes: dict[str, Grant] = {}
        self._refresh: dict[str, Grant] = {}
        if client := record["client"]:
            self._clients[client["id"]] = client["secret"]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer any request."""
        path = request.path
        if path in self.documents:
            return web.json_response(self.documents[path])
        handler = {
            self._path("authorization_endpoint"): self._authorize,
            self._path("token_endpoint"): self._token,
            self._path("registration_endpoint"): self._register,
            self._path("jwks_uri"): self._keys,
        }.get(path)
        return await handler(request) if handler else web.json_response({"error": "not_found"}, status=404)

    def revoke_all(self) -> None:
        """Revoke all grants."""
        self.known.clear()
        self._refresh.clear()

    def _path(self, endpoint: str) -> str | None:
        return urlsplit(self.metadata[endpoint]).path if endpoint in self.metadata else None

    async def _keys(self, _: web.Request) -> web.Response:
        return web.json_response({"keys": [{**self.key.public, "use": "sig"}]})

    async def _register(self, request: web.Request) -> web.Response:
        status = self.record["registration"]
        if status != web.HTTPCreated.status_code:
            return web.json_response({"errorCode": "E0000006", "errorSummary": "no permission"}, status=status)
        asked = await request.json()
        ident = token_urlsafe(8)
        self._clients[ident] = None if asked["token_endpoint_auth_method"] == "none" else token_urlsafe(16)
        made = {**asked, "client_id": ident, "client_secret": self._clients[ident], "client_secret_expires_at": 0}
        return web.json_response(made, status=status)

    async def _authorize(self, request: web.Request) -> web.Response:
        """Grant at once, without a page for the user."""
        asked = dict(request.query)
        assert asked["client_id"] in self._clients, "nobody knows this client"
        assert asked["code_challenge_method"] == "S256"
        assert asked["response_type"] == "code"
        code = token_urlsafe(8)
        self._codes[code] = asked
        back = {name: value.format(issuer=self.issuer) for name, value in self.record.get("back", {}).items()}
        query = urlencode({"code": code, "state": asked["state"], **back})
        return web.Response(status=302, headers={"location": f"{asked['redirect_uri']}?{query}"})

    async def _token(self, request: web.Request) -> web.Response:
        if self.failing:
            return web.Response(status=503)
        form = {name: str(value) for name, value in (await request.post()).items()}
        try:
            self._authenticate(request, form)
            answer = self._refreshing(form) if form["grant_type"] == "refresh_token" else self._exchanged(form)
            status = 200
        except TokenError as refused:
            answer = {"error": str(refused), "error_description": "see the manual"}
            status = 200 if self.record.get("forms") else 400
        if self.record.get("forms") and "application/json" not in request.headers.get("accept", ""):
            return web.Response(text=urlencode(answer), content_type="application/x-www-form-urlencoded")
        return web.json_response(answer, status=status)

    def _authenticate(self, request: web.Request, form: dict[str, str]) -> None:
        """Check the client's credentials, by a method that the metadata names."""
        methods = self.metadata.get(
            "token_endpoint_auth_methods_supported", ("client_secret_basic", "client_secret_post")
        )
        kind, _, proof = request.headers.get("authorization", "").partition(" ")
        if kind == "Basic" and "client_secret_basic" in methods:
            ident, _, secret = base64.b64decode(proof).decode().partition(":")
            form["client_id"], form["client_secret"] = unquote_plus(ident), unquote_plus(secret)
        elif "client_secret" in form and "client_secret_post" not in methods:
            raise TokenError("invalid_client")
        ident = form.get("client_id", "")
        if ident not in self._clients or self._clients[ident] != form.get("client_secret"):
            raise TokenError("invalid_client")

    def _exchanged(self, form: Mapping[str, str]) -> dict[str, Any]:
        grant = self._codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if grant is None or challenge != grant["code_challenge"] or form["redirect_uri"] != grant["redirect_uri"]:
            raise TokenError("invalid_grant")
        return {**self._access(grant), **self._first_refresh(grant)}

    def _first_refresh(self, grant: Grant) -> dict[str, str]:
        wanted: Mapping[str, str] | None = self.record["refresh_with"]
        if wanted is None or not all(value in grant.get(name, "").split() for name, value in wanted.items()):
            return {}
        return {"refresh_token": self._kept(grant)}

    def _kept(self, grant: Grant) -> str:
        token = token_urlsafe(8)
        self._refresh[token] = grant
        return token

    def _refreshing(self, form: Mapping[str, str]) -> dict[str, Any]:
        token, rotation = form["refresh_token"], self.record["rotation"]
        if token not in self._refresh:
            raise TokenError("bad_refresh_token" if self.record.get("forms") else "invalid_grant")
        self.refreshed += 1
        grant = self._refresh[token] if rotation != "replaced" else self._refresh.pop(token)
        if rotation == "kept":
            return self._access(grant)
        return {**self._access(grant), "refresh_token": token if rotation == "same" else self._kept(grant)}

    def _access(self, grant: Grant) -> dict[str, Any]:
        expires = self.record.get("expires", True)
        until = time.time() + (self.lifetime if expires else 1e9)
        if self.record["claims"] is None:
            token = token_urlsafe(16)
            self.known[token] = (until, grant)
        else:
            token = self._signed(grant, until)
        scope = SCOPES.replace(" ", ",") if self.record.get("forms") else SCOPES
        said = {"access_token": token, "token_type": "Bearer", "scope": scope, **self.record.get("answer", {})}
        return {**said, "expires_in": self.lifetime} if expires else said

    def _signed(self, grant: Grant, until: float) -> str:
        words = {"client": grant["client_id"], "scopes": SCOPES, "resource": grant.get("resource", "")}
        text = json.dumps(self.record["claims"])
        for name, value in words.items():
            text = text.replace(f"{{{name}}}", value)
        claims = {"iss": self.issuer, "iat": int(time.time()), "exp": int(until), "jti": token_urlsafe(8)}
        return self.key.sign({**claims, **json.loads(text)})


@asynccontextmanager
async def replayed(name: str) -> AsyncIterator[Replayed]:
    """An authorization server, by the name of its record."""
    text = (RECORDS / f"{name}.json").read_text(encoding="utf-8")
    listening = socket.create_server(("127.0.0.1", 0))
    server = Replayed(_moved(text, listening.getsockname()[1]))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        yield server
    finally:
        await runner.cleanup()


def _moved(text: str, port: int) -> Any:
    """A record whose hosts are all this machine."""
    home = re.findall(r'"issuer": "https://([^/"]+)', text)[0]
    hosts = {home: "127.0.0.1"}
    return json.loads(
        re.sub(r"https://([^/\"]+)", lambda found: f"http://{hosts.get(found[1], 'localhost')}:{port}", text)
    )
