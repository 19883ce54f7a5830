"""The authenticator: accepted tokens and challenges, with real tokens, against a whole application."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.auth.server.issuer import Issuer, ManualWallClock, bearer, running_issuer
from tests.unit.auth.server.test_dpop import made_for
from tests.unit.transports.http.asgi import Answer, Host, hosted, request

from trunkline import Context, Server, Settings
from trunkline.auth import (
    BadToken,
    Introspection,
    Jwt,
    Principal,
    ResourceServer,
    SigningKey,
    StaticTokens,
    Verified,
    Verifier,
)
from trunkline.auth.challenge import Challenge, parse_challenges
from trunkline.auth.server.token_cache import TokenCache
from trunkline.errors import ConfigError
from trunkline.transports.http.asgi import make_request
from trunkline.transports.http.authenticator import Admitted

WELL_KNOWN = "/.well-known/oauth-protected-resource"
ADA = Principal("ada", scopes=("notes", "openid", "offline_access"))


def offering(**options: Any) -> Server:
    server = Server("t", **options)

    @server.tool
    async def whoami(context: Context) -> str:
        return repr(context.principal)

    return server


@asynccontextmanager
async def guarded(resource: ResourceServer, *, path: str = "/") -> AsyncIterator[Host]:
    async with hosted(offering(), gate=resource.within(path), path=path) as host:
        yield host


def static(**options: Any) -> ResourceServer:
    return ResourceServer(StaticTokens({"known": ADA, "other": Principal("eve")}), **options)


async def ping(host: Host, authorization: Any = None, **options: Any) -> Answer:
    return await host.ask("POST", request("initialize", INITIALIZE), authorization=authorization, **options)


INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


def challenge(answer: Answer) -> Challenge:
    found = parse_challenges(answer.headers["www-authenticate"])
    assert len(found) == 1
    return found[0]


def kind(answer: Answer) -> str:
    assert answer.json["error"]["code"] == -32600
    return answer.json["error"]["data"]["kind"]


# --- 401, 403 and 400 ---------------------------------------------------------------------------------------------


@pytest.mark.row("AUT-04", "AUT-05", "AUT-19")
async def test_missing_token_gets_challenge_with_metadata_and_scopes() -> None:
    async with guarded(static(scopes=["notes", "offline_access"])) as host:
        answer = await ping(host)
        assert (answer.status, kind(answer)) == (401, "authentication_failed")
        assert challenge(answer).scheme == "bearer"
        assert challenge(answer).params == {"scope": "notes", "resource_metadata": f"http://localhost:1{WELL_KNOWN}"}


@pytest.mark.row("SEC-02")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "PUT"])
@pytest.mark.parametrize("path", ["/", "/sse", "/messages"])
async def test_every_request_needs_a_token(method: str, path: str) -> None:
    async with guarded(static()) as host:
        answer = await host.ask(method, request("ping"), path=path, mcp_session_id="made-up")
        assert answer.status == 401


async def test_preflight_needs_no_token() -> None:
    async with guarded(static()) as host:
        answer = await host.ask("OPTIONS", origin="http://localhost:1", authorization=None)
        assert answer.status == 204
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert "dpop" in answer.headers["access-control-allow-headers"]


async def test_challenge_is_readable_across_origins() -> None:
    async with guarded(static(scopes=["more"])) as host:
        for token, status in ((None, 401), (bearer("known"), 403)):
            answer = await ping(host, token, origin="http://localhost:1")
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == "http://localhost:1"
            assert "www-authenticate" in answer.headers["access-control-expose-headers"]


@pytest.mark.row("AUT-23")
@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer ", "Bearer a b", "Bearer a,b", "DPoP a b", ("Bearer known", "Bearer known")]
)
async def test_malformed_header_gets_400(header: Any) -> None:
    async with guarded(static()) as host:
        answer = await ping(host, header)
        assert (answer.status, kind(answer)) == (400, "invalid_request")


async def test_other_scheme_counts_as_no_token() -> None:
    async with guarded(static()) as host:
        answer = await ping(host, "Basic a25vd246")
        assert (answer.status, kind(answer)) == (401, "authentication_failed")
        assert "error" not in challenge(answer).params


@pytest.mark.row("AUT-22")
async def test_token_in_url_is_refused() -> None:
    gate = static().within("/")
    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer known")]
    scope: dict[str, Any] = {"headers": headers, "path": "/", "query_string": b"access_token=known"}
    turned: Any = gate.authenticate(make_request(None, scope, method="POST"), "/")
    assert (turned.status, turned.kind) == (400, "invalid_request")


async def test_unknown_token_is_refused() -> None:
    async with guarded(static()) as host:
        answer = await ping(host, bearer("made-up"))
        assert (answer.status, kind(answer)) == (401, "invalid_credentials")
        assert challenge(answer).params["error"] == "invalid_token"
        assert "made-up" not in str(answer.headers) + answer.body.decode()


@pytest.mark.row("AUT-20")
async def test_missing_server_scopes_get_403_with_all_scopes() -> None:
    async with guarded(static(scopes=["more"])) as host:
        answer = await ping(host, bearer("known"))
        assert (answer.status, kind(answer)) == (403, "authorization_failed")
        params = challenge(answer).params
        assert params["error"] == "insufficient_scope"
        assert params["scope"] == "more notes"  # it keeps its members, apart from those between it and its issuer
        assert params["resource_metadata"] == f"http://localhost:1{WELL_KNOWN}"


@pytest.mark.row("AUT-19")
async def test_scopes_may_imply_scopes() -> None:
    async with guarded(static(scopes=["read"], implied={"notes": ["write"], "write": ["read", "notes"]})) as host:
        assert (await ping(host, bearer("known"))).status == 200
        assert (await ping(host, bearer("other"))).status == 403


async def test_allow_callback_decides_last() -> None:
    async with guarded(static(allow=lambda principal: principal.subject == "ada")) as host:
        assert (await ping(host, bearer("known"))).status == 200
        answer = await ping(host, bearer("other"))
        assert (answer.status, kind(answer)) == (403, "unauthorized_operation")
        assert "www-authenticate" not in answer.headers


@pytest.mark.row("PROMISE-12")
async def test_session_of_another_principal_is_invisible() -> None:
    async with guarded(static()) as host:
        session = (await ping(host, bearer("known"))).headers["mcp-session-id"]
        for method in ("POST", "GET", "DELETE"):
            answer = await host.ask(method, request("ping"), authorization=bearer("other"), mcp_session_id=session)
            assert (answer.status, kind(answer)) == (404, "session_not_found")
        assert (await host.ask("POST", request("ping"), mcp_session_id=session)).status == 401
        again = await host.ask("POST", request("ping"), authorization=bearer("known"), mcp_session_id=session)
        assert again.status == 200


# --- real tokens ----------------------------------------------------------------------------------------------------


def signed(issuer: Issuer, **options: Any) -> ResourceServer:
    return ResourceServer(Jwt(issuer.url), now=issuer.wall, **options)


async def test_handler_sees_verified_principal() -> None:
    async with running_issuer() as issuer, guarded(signed(issuer)) as host:
        token = bearer(issuer.token(client_id="app"))
        session = (await ping(host, token)).headers["mcp-session-id"]
        call = request("tools/call", {"name": "whoami", "arguments": {}})
        answer = await host.ask("POST", call, authorization=token, mcp_session_id=session)
        assert answer.json["result"]["content"][0]["text"] == f"Principal('ada', issuer='{issuer.url}', client='app')"


@pytest.mark.row("AUT-23")
@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"aud": "https://other.example.com"}, "invalid_token"),
        ({"iss": "https://other.example.com"}, "invalid_token"),
        ({"exp": 1}, "token_expired"),
        ({"cnf": {"x5t#S256": "x"}}, "invalid_token"),
        ({"sub": None}, "invalid_token"),
    ],
    ids=str,
)
async def test_invalid_token_gets_401(claims: dict[str, Any], told: str) -> None:
    async with running_issuer() as issuer, guarded(signed(issuer)) as host:
        answer = await ping(host, bearer(issuer.token(**claims)))
        assert (answer.status, kind(answer)) == (401, told)
        assert challenge(answer).params["error"] == "invalid_token"


async def test_token_is_cached_per_audience() -> None:
    async with running_issuer() as issuer:
        resource = signed(issuer)
        async with guarded(resource) as host:
            token = bearer(issuer.token(exp=issuer.wall() + 100))
            assert (await ping(host, token)).status == 200
            issuer.down = True
            assert (await ping(host, token)).status == 200
            assert (
                await host.ask("POST", request("ping"), authorization=token, host="127.0.0.1:1")
            ).status == 401  # which is another name
            issuer.wall.advance(131)
            assert kind(await ping(host, token)) == "token_expired"


async def test_cached_token_is_authenticated_synchronously() -> None:
    async with running_issuer() as issuer:
        gate = signed(issuer).within("/")
        scope: dict[str, Any] = {
            "headers": [(b"host", b"localhost:1"), (b"authorization", bearer(issuer.token()).encode())],
            "path": "/",
            "scheme": "http",
            "server": ("127.0.0.1", 1),
        }
        asked = make_request(None, scope, method="POST")
        first: Any = gate.authenticate(asked, "/")
        assert isinstance(first, Awaitable)
        admitted = await first
        assert gate.authenticate(asked, "/") == admitted == Admitted(Principal("ada", issuer=issuer.url), 3630.0)


async def test_key_rotation_invalidates_cache() -> None:
    async with running_issuer() as issuer, guarded(signed(issuer)) as host:
        old = bearer(issuer.token())
        assert (await ping(host, old)).status == 200
        issuer.rotate()
        issuer.wall.advance(40)
        assert (await ping(host, old)).status == 200  # unknown to the issuer
        assert (await ping(host, bearer(issuer.token()))).status == 200
        assert kind(await ping(host, old)) == "invalid_token"


def test_token_cache_is_bounded() -> None:
    tokens, verifier = TokenCache(max_entries=2), Verifier()
    verifier.keep = 10.0
    for name in ("a", "b", "c"):
        tokens.put(name, frozenset(), Verified(Principal(name)), verifier, 0.0)
    assert len(tokens) == 2
    assert tokens.get("a", frozenset(), 1.0) is None
    assert tokens.get("c", frozenset(), 1.0) is not None
    assert tokens.get("c", frozenset(), 10.0) is None


@pytest.mark.row("Q08")
async def test_unavailable_issuer_gets_503_and_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with running_issuer() as issuer, guarded(signed(issuer)) as host:
        issuer.down = True
        for _ in range(2):
            answer = await ping(host, bearer(issuer.token()))
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            assert issuer.url not in answer.body.decode()
        assert [record.message for record in caplog.records if issuer.url in record.message] != []
        assert len([record for record in caplog.records if issuer.url in record.message]) == 1


async def test_verifier_of_the_issuer_is_used() -> None:
    async with running_issuer() as one, running_issuer() as two, running_issuer() as third:
        opaque = Introspection(third.url, client_id="us", client_secret="x")
        third.known["opaque"] = {"active": True, "sub": "bob", "aud": "http://localhost:1"}
        verifiers = (Jwt(one.url), Jwt(two.url), StaticTokens({"known": ADA}), opaque)
        async with guarded(ResourceServer(*verifiers, now=one.wall)) as host:
            assert (await ping(host, bearer(two.token()))).status == 200
            assert one.asked == {}
            assert (await ping(host, bearer(one.token()))).status == 200
            assert (await ping(host, bearer("known"))).status == 200
            assert third.asked == {}
            assert (await ping(host, bearer("opaque"))).status == 200
            assert kind(await ping(host, bearer("unknown"))) == "invalid_token"
            assert kind(await ping(host, bearer(two.token(iss="https://strange")))) == "invalid_credentials"
            assert kind(await ping(host, bearer(one.token(key=two.key)))) == "invalid_token"
            assert kind(await ping(host, bearer("not.a.token"))) == "invalid_token"


async def test_custom_verifier() -> None:
    class Reversed(Verifier):
        def verify(self, token: str, audiences: Any, now: float) -> Verified:
            if token != token[::-1]:
                raise BadToken("it is not the same from behind")
            return Verified(Principal(token))

    async with guarded(ResourceServer(Reversed())) as host:
        assert (await ping(host, bearer("anna"))).status == 200
        assert (await ping(host, bearer("bob.x"))).status == 401


# --- DPoP-bound tokens ----------------------------------------------------------------------------------------------


def proof(key: SigningKey, token: str, wall: ManualWallClock, *, method: str = "POST", **claims: Any) -> str:
    return made_for(key, token, method, "http://localhost:1/", now=wall(), **claims)


async def test_bound_token_needs_proof() -> None:
    key = SigningKey.generate()
    async with running_issuer() as issuer, guarded(signed(issuer)) as host:
        token = issuer.token(cnf={"jkt": key.thumbprint})
        answer = await ping(host, bearer(token))
        assert (answer.status, kind(answer)) == (401, "invalid_token")
        assert challenge(answer).scheme == "dpop"
        assert "ES256" in challenge(answer).params["algs"].split()
        assert (await ping(host, bearer(token), dpop=proof(key, token, issuer.wall))).status == 401
        bad = await ping(host, f"DPoP {token}")
        assert challenge(bad).params["error"] == "invalid_dpop_proof"
        once = proof(key, token, issuer.wall)
        assert (await ping(host, f"DPoP {token}", dpop=once)).status == 200
        assert challenge(await ping(host, f"DPoP {token}", dpop=once)).params["error"] == "invalid_dpop_proof"
        assert (await ping(host, f"dpop {token}", dpop=proof(key, token, issuer.wall))).status == 200
        twice = (proof(key, token, issuer.wall), proof(key, token, issuer.wall))
        assert (await ping(host, f"DPoP {token}", dpop=twice)).status == 400


async def test_unbound_token_is_refused_as_dpop() -> None:
    key = SigningKey.generate()
    async with running_issuer() as issuer, guarded(signed(issuer)) as host:
        token = issuer.token()
        answer = await ping(host, f"DPoP {token}", dpop=proof(key, token, issuer.wall))
        assert (answer.status, challenge(answer).params["error"]) == (401, "invalid_token")


async def test_required_nonce_is_demanded() -> None:
    key = SigningKey.generate()
    async with running_issuer() as issuer, guarded(signed(issuer, dpop_nonces=True)) as host:
        token = issuer.token(cnf={"jkt": key.thumbprint})
        answer = await ping(host, f"DPoP {token}", dpop=proof(key, token, issuer.wall))
        assert challenge(answer).params["error"] == "use_dpop_nonce"
        good = proof(key, token, issuer.wall, nonce=answer.headers["dpop-nonce"])
        assert (await ping(host, f"DPoP {token}", dpop=good)).status == 200


async def test_bound_tokens_can_be_required_or_refused() -> None:
    key = SigningKey.generate()
    async with running_issuer() as issuer:
        bound, plain = issuer.token(cnf={"jkt": key.thumbprint}), issuer.token()
        async with guarded(signed(issuer, dpop=True)) as host:
            assert challenge(await ping(host)).scheme == "dpop"
            assert (await ping(host, bearer(plain))).status == 401
            page = await host.ask("GET", path=WELL_KNOWN)
            assert page.json["dpop_bound_access_tokens_required"] is True
        async with guarded(signed(issuer, dpop=False)) as host:
            assert (await ping(host, f"DPoP {bound}", dpop=proof(key, bound, issuer.wall))).status == 401
            assert (await ping(host, bearer(plain))).status == 200
            assert "dpop_signing_alg_values_supported" not in (await host.ask("GET", path=WELL_KNOWN)).json


# --- public documents -----------------------------------------------------------------------------------------------


@pytest.mark.row("AUT-03")
async def test_metadata_names_issuers() -> None:
    resource = ResourceServer(
        Jwt("https://login.example.com"),
        Jwt("https://other.example.com"),
        scopes=["notes"],
        scopes_supported=["notes", "notes:write", "offline_access"],
        documentation="https://docs.example.com",
        resource_name="Notes",
    )
    async with guarded(resource, path="/mcp") as host:
        for path in (WELL_KNOWN, f"{WELL_KNOWN}/mcp"):
            answer = await host.ask("GET", path=path, origin="https://anywhere.example.com")
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
            told = answer.json
            assert "ES256" in told.pop("dpop_signing_alg_values_supported")
            assert told == {
                "resource": "http://localhost:1/mcp",
                "authorization_servers": ["https://login.example.com", "https://other.example.com"],
                "scopes_supported": ["notes", "notes:write"],
                "bearer_methods_supported": ["header"],
                "resource_name": "Notes",
                "resource_documentation": "https://docs.example.com",
            }
        sse = await host.ask("GET", path=f"{WELL_KNOWN}/sse")
        assert sse.json["resource"] == "http://localhost:1/sse"


async def test_metadata_is_public_and_read_only() -> None:
    async with guarded(static()) as host:
        asked = await host.ask("OPTIONS", path=WELL_KNOWN, origin="https://anywhere.example.com")
        assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, "*")
        assert (await host.ask("POST", path=WELL_KNOWN)).status == 405
        assert (await host.ask("GET", path=WELL_KNOWN, host="evil.example.com")).status == 403
        assert (await host.ask("GET", path="/elsewhere")).status == 404


async def test_public_url_is_the_audience() -> None:
    async with running_issuer() as issuer:
        resource = signed(issuer, public_url="https://notes.example.com/api/mcp")
        async with guarded(resource, path="/mcp") as host:
            answer = await ping(host, path="/mcp")
            where = f"https://notes.example.com/api{WELL_KNOWN}/mcp"
            assert challenge(answer).params["resource_metadata"] == where
            for path in (f"{WELL_KNOWN}/mcp", f"{WELL_KNOWN}/api/mcp", WELL_KNOWN):
                page = await host.ask("GET", path=path)
                assert page.json["resource"] == "https://notes.example.com/api/mcp"
            ours = bearer(issuer.token(aud="https://notes.example.com/api/mcp"))
            assert (await ping(host, ours, path="/mcp")).status == 200
            assert (await ping(host, bearer(issuer.token(aud="http://localhost:1/mcp")), path="/mcp")).status == 401


# --- invalid configuration --------------------------------------------------------------------------------------------


@pytest.mark.row("SEC-01")
def test_wildcard_host_needs_public_url() -> None:
    for hosts in (("*",), ("*.example.com",)):
        server = Server("t", auth=static(), settings=Settings(allowed_hosts=hosts))
        with pytest.raises(ConfigError, match="public_url"):
            server.asgi()
        Server("t", auth=static(public_url="https://x.example.com"), settings=Settings(allowed_hosts=hosts)).asgi()


@pytest.mark.parametrize(
    "url", ["notes.example.com", "https://x.example/mcp?a=1", "https://x.example/#a", "ftp://x.example"]
)
def test_public_url_must_be_a_url(url: str) -> None:
    with pytest.raises(ConfigError, match="public_url"):
        static(public_url=url)


def test_invalid_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a verifier"):
        ResourceServer()
    with pytest.raises(ConfigError, match="scopes is a list"):
        static(scopes="notes")
    with pytest.raises(ConfigError, match="empty"):
        StaticTokens({"": ADA})
    assert "known" not in repr(StaticTokens({"known": ADA}))
