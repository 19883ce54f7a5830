"""Grants of unattended programs."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.auth.auth_servers import caller, servers
from tests.unit.auth.auth_setup import TOKEN, Page, RecordedRequest

from trunkline.auth import ClientCredentials, EnterpriseManaged, SigningKey, WorkloadIdentity
from trunkline.auth.jose import decode_unverified, verify_with_key
from trunkline.errors import AuthorizationFailed, ConfigError

BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@pytest.mark.row("AUT-29")
async def test_client_credentials_token_is_renewed() -> None:
    async with servers() as there:
        there.refreshes = False
        auth = ClientCredentials("robot", secret="s", now=lambda: there.now)
        async with caller(there, auth) as called:
            assert await called.call() == 200
            there.now += 3600
            assert await called.call() == 200
        assert [form["grant_type"] for form in there.exchanges] == ["client_credentials"] * 2
        assert [token for _, token in there.came].count(None) == 1  # not requested
        assert (there.exchanges[0]["scope"], there.exchanges[0]["resource"]) == ("notes", there.url)


async def test_client_may_authenticate_with_key() -> None:
    key = SigningKey.generate("RS256", kid="k")
    async with servers() as there:
        async with caller(there, ClientCredentials("robot", key=key, now=lambda: there.now)) as called:
            assert await called.call() == 200
        proof = verify_with_key(key.public, there.exchanges[0]["client_assertion"])
    assert (proof.header["kid"], proof.claims["sub"]) == ("k", "robot")


async def test_step_up_requests_more_scopes_then_stops() -> None:
    async with servers() as there:
        there.needs = {"write": {"write"}}
        there.grants = lambda scope: scope.replace("write", "").strip()
        async with caller(there, ClientCredentials("robot", secret="s", now=lambda: there.now)) as called:
            with pytest.raises(AuthorizationFailed) as failed:
                await called.call("write")
        assert (failed.value.hop, [form["scope"] for form in there.exchanges]) == ("retry", ["notes", "notes write"])


@pytest.mark.parametrize("how", ["text", "file", "function", "coroutine", "plain"])
async def test_workload_sends_platform_assertion(how: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("signed\n")
    asked: list[str] = []

    def function(audience: str) -> str:
        asked.append(audience)
        return "signed"

    async def coroutine(audience: str) -> str:
        return function(audience)

    ways: dict[str, Any] = {
        "text": "signed",
        "file": file,
        "function": function,
        "coroutine": coroutine,
        "plain": lambda: "signed",
    }
    async with servers() as there:
        async with caller(there, WorkloadIdentity(ways[how], client_id="job", now=lambda: there.now)) as called:
            assert await called.call() == 200
        [form] = there.exchanges
    assert (form["grant_type"], form["assertion"], form["client_id"]) == (BEARER, "signed", "job")
    assert asked == ([there.issuer] if how in ("function", "coroutine") else [])


async def test_unreadable_assertion_is_reported_without_content(tmp_path: Path) -> None:
    def broken() -> str:
        raise ValueError("SECRET")

    async with servers() as there:
        for way in (tmp_path / "missing", broken):
            async with caller(there, WorkloadIdentity(way, now=lambda: there.now)) as called:
                with pytest.raises(AuthorizationFailed, match="cannot be read") as failed:
                    await called.call()
            assert (failed.value.hop, "SECRET" in str(failed.value)) == ("token", False)


async def test_refused_assertion_is_not_sent_again() -> None:
    async with servers() as there:
        there.world.pages[TOKEN] = Page(400, {"error": "invalid_grant"})
        async with caller(there, WorkloadIdentity("old", now=lambda: there.now)) as called:
            with pytest.raises(AuthorizationFailed, match="invalid_grant"):
                await called.call()
        assert [asked.what for asked in there.world.asked].count(TOKEN) == 1


@pytest.mark.parametrize("known", ["idp", "idp_token_endpoint"])
async def test_enterprise_token_is_exchanged_twice(known: str) -> None:
    exchanged: list[dict[str, str]] = []
    async with servers() as there:
        idp = f"{there.world.origin}/company"

        def exchange(asked: RecordedRequest) -> Page:
            page = there.token(asked)
            exchanged.append(there.exchanges.pop())
            jag = {
                "access_token": "jag",
                "token_type": "N_A",
                "issued_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            }
            return Page(page.status, jag)

        there.world.pages["POST /company/token"] = exchange
        document = {
            "issuer": idp,
            "token_endpoint": f"{idp}/token",
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        }
        there.world.pages["GET /.well-known/oauth-authorization-server/company"] = Page(200, document)
        where = {"idp": idp} if known == "idp" else {"idp_token_endpoint": f"{idp}/token"}
        auth = EnterpriseManaged(
            "app",
            secret="s",
            id_token="who",
            idp_client_id="sso",
            idp_client_secret="t",
            now=lambda: there.now,
            **where,
        )
        async with caller(there, auth) as called:
            assert await called.call() == 200
        [form] = there.exchanges

    [asked] = exchanged
    assert (asked["audience"], asked["resource"], asked["scope"]) == (there.issuer, there.url, "notes")
    assert (
        asked["subject_token"],
        asked["subject_token_type"].rpartition(":")[2],
        asked["requested_token_type"].rpartition(":")[2],
    ) == ("who", "id_token", "id-jag")
    assert (asked.get("client_secret") == "t") == (known == "idp")
    assert (form["grant_type"], form["assertion"]) == (BEARER, "jag")


def test_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'scope'; .* issuer, now, scopes, store"):
        ClientCredentials("robot", secret="s", scope="notes")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClientCredentials("robot"),
        lambda: ClientCredentials("robot", secret="s", key=SigningKey.generate()),
        lambda: EnterpriseManaged("app", id_token="x"),
    ],
)
def test_incomplete_credentials_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


# --- DPoP, through the token provider --------------------------------------------------------------


def bound(there: Any, seen: list[dict[str, Any]]) -> None:
    """Make both servers require proofs, with a nonce of their own."""
    serve, token = there.serve, there.token
    there.kind = "DPoP"
    there.world.challenge = there.world.challenge.replace("Bearer", "DPoP")

    def checked(asked: RecordedRequest) -> Page:
        if asked.headers.get("authorization", "").startswith("DPoP "):
            proof = decode_unverified(asked.headers["dpop"])
            seen.append({**proof.claims, "jkt": proof.header["jwk"]["x"]})
            if proof.claims.get("nonce") != "rs":
                return Page(401, None, {"WWW-Authenticate": 'DPoP error="use_dpop_nonce"', "DPoP-Nonce": "rs"})
        return serve(asked)

    def proved(asked: RecordedRequest) -> Page:
        assert "dpop" in asked.headers
        return token(asked)

    there.world.pages |= {"POST /mcp": checked, TOKEN: proved}


async def test_required_binding_survives_restart(
    tmp_path: Path,
) -> None:
    from trunkline.auth import FileTokens

    seen: list[dict[str, Any]] = []
    async with servers() as there:
        bound(there, seen)
        for _ in range(2):
            async with caller(there, there.oauth(store=FileTokens(tmp_path))) as called:
                assert [await called.call(), await called.call()] == [200, 200]
            there.now += 10_000
        assert len(there.visits) == 1

    assert [proof.get("nonce") for proof in seen] == [None, "rs", "rs", None, "rs", "rs"]
    assert len({proof["jti"] for proof in seen}) == 6
    assert len({proof["jkt"] for proof in seen}) == 1
    assert all((proof["htm"], proof["htu"]) == ("POST", there.url) for proof in seen)


async def test_unbound_token_is_refused_where_binding_is_required() -> None:
    async with servers() as there, caller(there, there.oauth(dpop=True)) as called:
        with pytest.raises(AuthorizationFailed, match="does not bind") as failed:
            await called.call()
        assert failed.value.hop == "token"


async def test_concurrent_nonce_demands_share_one_login() -> None:
    import asyncio

    seen: list[dict[str, Any]] = []
    async with servers() as there:
        bound(there, seen)
        async with caller(there) as called:
            assert await asyncio.gather(*(called.call() for _ in range(8))) == [200] * 8
        assert (len(there.visits), len(there.exchanges)) == (1, 1)
