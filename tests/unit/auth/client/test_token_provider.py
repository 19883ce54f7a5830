"""The token provider, with real requests to a server that requires tokens: when it requests tokens, for what, and when
it stops.
"""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.auth.auth_servers import CALLBACK, REGISTER, AuthServers, caller, servers
from tests.unit.auth.auth_setup import RESOURCE, SERVER, TOKEN, Page, RecordedRequest

from trunkline.auth import FileTokens, MemoryTokens, Redirected
from trunkline.auth.client.tokens import decode_stored_token, encode_stored_token, token_store_key
from trunkline.errors import AuthorizationFailed, StoreError


@pytest.mark.row("AUT-22")
async def test_token_is_sent_in_header_never_in_url() -> None:
    async with servers() as there, caller(there) as client:
        for _ in range(3):
            assert await client.call() == 200
        [token] = there.tokens

    assert [sent for _, sent in there.came] == [None, token, token, token]
    assert len(there.visits) == 1
    assert not any(token in asked.query for asked in there.world.asked)


@pytest.mark.row("AUT-22")
async def test_token_is_sent_only_to_its_server() -> None:
    async with servers() as there, caller(there) as client:
        await client.call()
        engine = client.engine
        assert "Authorization" in await engine.headers("POST", there.url)
        elsewhere = [
            "http://127.0.0.1:1/mcp",
            there.url.replace("127.0.0.1", "localhost"),
            there.url.replace("http:", "https:"),
            "no address",
        ]
        assert [await engine.headers("POST", url) for url in elsewhere] == [{}] * len(elsewhere)


async def test_open_server_gets_no_token() -> None:
    async with servers() as there:
        there.world.open()
        async with caller(there) as client:
            assert await client.call() == 200
        assert there.visits == []


async def test_concurrent_requests_share_one_login() -> None:
    async with servers() as there, caller(there) as client:
        assert await asyncio.gather(*(client.call() for _ in range(20))) == [200] * 20
        assert (len(there.visits), len(there.registered), len(there.exchanges)) == (1, 1, 1)
        assert client.asked.count(True) == client.asked.count(False)


async def test_cancelled_caller_does_not_end_shared_login() -> None:
    async with servers() as there:
        page, agreed = asyncio.Event(), asyncio.Event()

        async def slowly(url: str) -> str:
            page.set()
            await agreed.wait()
            return await there.agree(url)

        async with caller(there, there.oauth(interaction=Redirected(CALLBACK, slowly))) as client:
            one, other = asyncio.create_task(client.call()), asyncio.create_task(client.call())
            await page.wait()
            while client.asked.count(True) < 2:
                await asyncio.sleep(0)
            one.cancel()
            await asyncio.wait([one])
            agreed.set()
            assert await other == 200
        assert (one.cancelled(), len(there.visits), client.asked.count(False)) == (True, 1, 2)


async def test_login_ends_when_all_callers_are_cancelled() -> None:
    async with servers() as there:
        page, left = asyncio.Event(), asyncio.Event()

        async def for_ever(_: str) -> str:
            page.set()
            try:
                return await asyncio.get_running_loop().create_future()
            finally:
                left.set()

        async with caller(there, there.oauth(interaction=Redirected(CALLBACK, for_ever))) as client:
            task = asyncio.create_task(client.call())
            await page.wait()
            task.cancel()
            await asyncio.wait([task])
            assert left.is_set()


# --- refresh ---------------------------------------------------------------------------------------


async def test_token_is_renewed_before_expiry_without_user() -> None:
    async with servers() as there, caller(there) as client:
        await client.call()
        there.now += 3600 - 61
        await client.call()
        assert len(there.exchanges) == 1
        there.now += 2
        assert await client.call() == 200
        assert (len(there.exchanges), len(there.visits)) == (2, 1)
        assert [status for status, _ in there.came].count("tools/call") == 4  # only the first was rejected
        renewal = there.exchanges[1]

    assert (renewal["grant_type"], renewal["resource"], "scope" in renewal) == ("refresh_token", there.url, False)


async def test_concurrent_requests_share_one_renewal() -> None:
    async with servers() as there, caller(there) as client:
        await client.call()
        there.now += 3600
        assert await asyncio.gather(*(client.call() for _ in range(10))) == [200] * 10
        assert len(there.exchanges) == 2


@pytest.mark.row("PROMISE-11")
async def test_expired_token_is_renewed_after_restart(tmp_path: Any) -> None:
    async with servers() as there:
        there.needs["write"] = {"write"}
        async with caller(there, there.oauth(store=FileTokens(tmp_path))) as client:
            await client.call()
            await client.call("write")
        there.now += 10_000
        async with caller(there, there.oauth(store=FileTokens(tmp_path))) as client:
            assert await client.call("write") == 200
        kept = decode_stored_token(await FileTokens(tmp_path).get(token_store_key(there.url, "code")))

    assert len(there.visits) == 2  # the login, and for more
    assert kept is not None
    assert kept.requested == ("notes", "write")
    assert len(there.registered) == 1


async def test_processes_do_not_reuse_a_refresh_token(tmp_path: Any) -> None:
    async with servers() as there:
        stores = [FileTokens(tmp_path) for _ in range(3)]
        async with caller(there, there.oauth(store=stores[0])) as first:
            await first.call()
        async with (
            caller(there, there.oauth(store=stores[1])) as one,
            caller(there, there.oauth(store=stores[2])) as other,
        ):
            assert [await one.call(), await other.call()] == [200, 200]
            there.now += 10_000
            assert await asyncio.gather(one.call(), other.call()) == [200, 200]
        assert [form["grant_type"] for form in there.exchanges] == ["authorization_code", "refresh_token"]


async def test_login_of_another_process_is_found() -> None:
    async with servers() as there:
        store = MemoryTokens()
        async with caller(there, there.oauth(store=store)) as one, caller(there, there.oauth(store=store)) as other:
            assert await other.engine.headers("POST", there.url) == {}  # it has looked, and there was nothing
            await one.call()
            assert await other.call() == 200
        assert len(there.visits) == 1


async def test_revoked_refresh_token_needs_new_login() -> None:
    async with servers() as there, caller(there) as client:
        await client.call()
        there.forget_refresh_tokens()
        there.tokens.clear()
        there.now += 10_000
        assert await client.call() == 200
        assert len(there.visits) == 2


async def test_server_error_keeps_refresh_token() -> None:
    async with servers() as there:
        store = MemoryTokens()
        async with caller(there, there.oauth(store=store)) as client:
            await client.call()
            there.now += 10_000
            there.world.pages[TOKEN] = Page(503)
            with pytest.raises(AuthorizationFailed) as failed:
                await client.call()
            assert (failed.value.hop, failed.value.passing) == ("refresh", True)
            there.world.pages[TOKEN] = there.token
            assert await client.call() == 200
        assert len(there.visits) == 1


async def test_valid_token_is_used_if_renewal_fails() -> None:
    async with servers() as there, caller(there) as client:
        await client.call()
        there.now += 3600 - 30
        there.world.pages[TOKEN] = Page(503)
        assert await client.call() == 200


async def test_refresh_token_is_stored_before_use() -> None:
    async with servers() as there:
        store, seen = MemoryTokens(), []
        serve = there.serve

        def look(asked: RecordedRequest) -> Page:
            kept = decode_stored_token(store._values.get(token_store_key(there.url, "code")))
            seen.append((asked.headers.get("authorization"), None if kept is None else f"Bearer {kept.access}"))
            return serve(asked)

        there.world.pages["POST /mcp"] = look
        async with caller(there, there.oauth(store=store)) as client:
            await client.call()
            there.now += 10_000
            await client.call()
        assert [sent == kept for sent, kept in seen] == [True] * 3


async def test_token_without_lifetime_is_used_until_refused() -> None:
    async with servers() as there:
        there.lifetime = None
        async with caller(there) as client:
            await client.call()
            there.now += 1e9
            await client.call()
            assert len(there.exchanges) == 1
            there.tokens.clear()
            assert await client.call() == 200
        assert [form["grant_type"] for form in there.exchanges] == ["authorization_code", "refresh_token"]


async def test_expired_token_is_sent_rather_than_none() -> None:
    async with servers() as there:
        there.refreshes = False
        async with caller(there) as client:
            await client.call()
            there.now += 10_000
            await client.call()
        assert None not in [token for _, token in there.came[1:]]


async def test_short_lived_token_is_used_once() -> None:
    async with servers() as there:
        there.lifetime = 5
        async with caller(there) as client:
            for _ in range(3):
                await client.call()
        assert len(there.exchanges) == 3


# --- limits ----------------------------------------------------------------------------------------


async def test_refused_fresh_token_fails() -> None:
    async with servers() as there:
        there.world.pages["POST /mcp"] = Page(
            401,
            None,
            {"WWW-Authenticate": f'{there.world.challenge}, error="invalid_token", error_description="not\u009b you"'},
        )
        async with caller(there) as client:
            with pytest.raises(AuthorizationFailed, match=r"just issued for it: not\\x9b you") as failed:
                await client.call()
            assert (failed.value.hop, len(there.visits)) == ("retry", 1)
            with pytest.raises(AuthorizationFailed):
                await client.call()
            assert len(there.visits) == 1  # another attempt so soon would be in vain
            there.now += 301
            with pytest.raises(AuthorizationFailed):
                await client.call()
            assert len(there.exchanges) > 1


async def test_refused_stored_token_is_refreshed_then_granted() -> None:
    async with servers() as there:
        store = MemoryTokens()
        async with caller(there, there.oauth(store=store)) as client:
            await client.call()
        there.world.pages["POST /mcp"] = Page(401, None, {"WWW-Authenticate": there.world.challenge})
        async with caller(there, there.oauth(store=store)) as client:
            with pytest.raises(AuthorizationFailed):
                await client.call()
        grants = [form["grant_type"] for form in there.exchanges]

    assert grants == ["authorization_code", "refresh_token", "authorization_code"]


@pytest.mark.row("AUT-21")
async def test_step_up_keeps_earlier_scopes() -> None:
    async with servers() as there:
        there.needs = {"write": {"write"}, "admin": {"admin"}}
        async with caller(there) as client:
            assert [await client.call(tool) for tool in ("read", "write", "admin", "write")] == [200] * 4
        assert [visit["scope"] for visit in there.visits] == ["notes", "notes write", "notes write admin"]


@pytest.mark.row("AUT-21")
async def test_denied_scopes_are_not_requested_again() -> None:
    async with servers() as there:
        there.needs = {"write": {"write"}}
        there.grants = lambda _: "notes"
        async with caller(there) as client:
            await client.call()
            for _ in range(2):
                with pytest.raises(AuthorizationFailed) as failed:
                    await client.call("write")
            assert failed.value.hop == "retry"
            assert await client.call() == 200
        assert len(there.visits) == 2


@pytest.mark.row("AUT-21")
async def test_endless_scope_demands_fail() -> None:
    async with servers() as there:
        names = iter("abcdefghij")

        def more(asked: RecordedRequest) -> Page:
            if "authorization" not in asked.headers:
                return Page(401, None, {"WWW-Authenticate": there.world.challenge})
            return Page(403, None, {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{next(names)}"'})

        there.world.pages["POST /mcp"] = more
        async with caller(there) as client:
            with pytest.raises(AuthorizationFailed) as failed:
                await client.call()
        assert (failed.value.hop, len(there.visits)) == ("retry", 3)


async def test_other_403_is_an_ordinary_response() -> None:
    async with servers() as there:
        there.world.pages["POST /mcp"] = Page(403)
        async with caller(there) as client:
            assert await client.call() == 403
        assert there.visits == []


async def test_non_oauth_challenge_is_reported() -> None:
    async with servers() as there:
        there.world.challenge = 'Basic realm="x", Negotiate'
        async with caller(there) as client:
            with pytest.raises(AuthorizationFailed, match="wants basic, negotiate") as failed:
                await client.call()
        assert (failed.value.hop, there.visits) == ("server", [])


async def test_session_delete_starts_no_login() -> None:
    async with servers() as there:
        there.world.pages["DELETE /mcp"] = Page(401, None, {"WWW-Authenticate": there.world.challenge})
        async with caller(there) as client:
            assert await client.call(verb="DELETE") == 401
        assert there.visits == []


async def test_store_error_is_an_authorization_failure() -> None:
    class Broken(MemoryTokens):
        async def get(self, key: str) -> bytes | None:
            raise StoreError("the disk is gone")

    async with servers() as there, caller(there, there.oauth(store=Broken())) as client:
        with pytest.raises(AuthorizationFailed, match="the disk is gone") as failed:
            await client.call()
        assert failed.value.hop == "token"


# --- scopes ----------------------------------------------------------------------------------------


@pytest.mark.row("AUT-18")
@pytest.mark.parametrize(
    ("challenged", "supported", "ours", "asked"),
    [
        ("a b", ["x"], None, "a b"),
        (None, ["x", "y"], None, "x y"),
        (None, None, None, None),
        (None, ["x"], "mine", "mine"),
        ("a", ["x"], ["mine"], "a mine"),
    ],
)
async def test_scope_selection(challenged: str | None, supported: Any, ours: Any, asked: str | None) -> None:
    async with servers() as there:
        scope = "" if challenged is None else f', scope="{challenged}"'
        there.world.challenge = f'Bearer resource_metadata="{there.world.at(RESOURCE)}"{scope}'
        there.world.resource["scopes_supported"] = supported
        async with caller(there, there.oauth(scopes=ours)) as client:
            await client.call()
        assert there.visits[0].get("scope") == asked


@pytest.mark.row("AUT-26")
@pytest.mark.parametrize(
    ("listed", "asked"), [(["offline_access"], "notes offline_access"), (["notes"], "notes"), (None, "notes")]
)
async def test_offline_access_is_requested_where_supported(listed: Any, asked: str) -> None:
    async with servers() as there:
        there.world.server["scopes_supported"] = listed
        async with caller(there) as client:
            await client.call()
        [visit] = there.visits
    assert (visit["scope"], visit.get("prompt")) == (asked, "consent" if "offline" in asked else None)


# --- another authorization server ------------------------------------------------------------------


def switch_authorization_server(there: AuthServers) -> str:
    """Another authorization server takes over, at the same pages under another name."""
    issuer = f"{there.world.origin}/new"
    document = {**there.world.server, "issuer": issuer}
    there.world.pages["GET /.well-known/oauth-authorization-server/new"] = Page(200, document)
    there.world.resource["authorization_servers"] = [issuer]
    there.issuer = issuer
    there.tokens.clear()
    return issuer


@pytest.mark.row("AUT-15")
async def test_new_issuer_reuses_nothing() -> None:
    async with servers() as there, caller(there) as client:
        await client.call()
        switch_authorization_server(there)
        assert await client.call() == 200
        assert [visit["client_id"] for visit in there.visits] == ["client-1", "client-2"]
        assert [form["grant_type"] for form in there.exchanges] == ["authorization_code"] * 2


@pytest.mark.row("AUT-15")
async def test_refresh_token_stays_with_issuer_after_restart() -> None:
    async with servers() as there:
        store = MemoryTokens()
        async with caller(there, there.oauth(store=store)) as client:
            await client.call()
        switch_authorization_server(there)
        there.now += 10_000
        async with caller(there, there.oauth(store=store)) as client:
            assert await client.call() == 200
        assert [form["grant_type"] for form in there.exchanges] == ["authorization_code"] * 2


@pytest.mark.row("AUT-15")
async def test_refresh_token_stays_with_issuer_despite_document() -> None:
    async with servers() as there:
        store, document = MemoryTokens(), "https://app.example/client.json"
        async with caller(there, there.oauth(store=store, client_metadata_url=document)) as client:
            await client.call()
        switch_authorization_server(there)
        there.now += 10_000
        async with caller(there, there.oauth(store=store, client_metadata_url=document)) as client:
            assert await client.call() == 200
        assert [form["grant_type"] for form in there.exchanges] == ["authorization_code"] * 2


@pytest.mark.row("AUT-15")
async def test_new_issuer_is_not_asked_for_old_scopes() -> None:
    async with servers() as there, caller(there) as client:
        there.needs = {"write": {"write"}}
        await client.call("write")
        switch_authorization_server(there)
        await client.call()
        assert [visit["scope"] for visit in there.visits] == ["notes", "notes write", "notes"]


@pytest.mark.row("AUT-15")
async def test_client_id_of_another_issuer_is_refused() -> None:
    async with servers() as there, caller(there, there.oauth(client_id="mine")) as client:
        await client.call()
        switch_authorization_server(there)
        with pytest.raises(AuthorizationFailed, match="is for") as failed:
            await client.call()
        assert (failed.value.hop, len(there.visits)) == ("registration", 1)


@pytest.mark.row("AUT-15")
async def test_client_id_is_bound_to_configured_issuer() -> None:
    async with (
        servers() as there,
        caller(there, there.oauth(client_id="mine", issuer="https://other.example")) as client,
    ):
        with pytest.raises(AuthorizationFailed, match=r"is for 'https://other\.example'"):
            await client.call()
        assert there.visits == []


@pytest.mark.row("AUT-15")
async def test_document_works_with_any_issuer() -> None:
    url = "https://app.example/client.json"
    async with servers() as there, caller(there, there.oauth(client_metadata_url=url)) as client:
        await client.call()
        switch_authorization_server(there)
        await client.call()
        assert [visit["client_id"] for visit in there.visits] == [url, url]
        assert there.registered == []


@pytest.mark.row("AUT-07")
async def test_first_usable_issuer_is_used() -> None:
    async with servers() as there:
        there.world.resource["authorization_servers"] = [f"{there.world.origin}/gone", there.issuer]
        async with caller(there) as client:
            assert await client.call() == 200


async def test_forgotten_registration_is_repeated_once() -> None:
    async with servers() as there:
        there.secret = "s3cret"
        there.world.server["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
        async with caller(there) as client:
            await client.call()
            there.tokens.clear()

            def forgetful(asked: RecordedRequest) -> Page:
                page = there.token(asked)
                known = there.exchanges[-1]["client_id"] != "client-1"
                return page if known else Page(401, {"error": "invalid_client"})

            there.world.pages[TOKEN] = forgetful
            assert await client.call() == 200
        assert [visit["client_id"] for visit in there.visits] == ["client-1", "client-2"]


async def test_metadata_is_fetched_on_refusal_not_on_renewal() -> None:
    async with servers() as there, caller(there) as client:
        await client.call()
        for _ in range(3):
            there.now += 10_000
            there.tokens.clear()
            await client.call()
        assert len(there.visits) == 1  # each refresh token is valid for one refresh
        assert [asked.what for asked in there.world.asked].count(SERVER) == 1
        assert [asked.what for asked in there.world.asked].count(REGISTER) == 1


async def test_client_forgotten_during_login_registers_again() -> None:
    async with servers() as there:
        store = MemoryTokens()
        there.refreshes = False
        async with caller(there, there.oauth(store=store)) as client:
            await client.call()
        there.tokens.clear()

        def forgetful(asked: RecordedRequest) -> Page:
            page = there.token(asked)
            return page if there.exchanges[-1]["client_id"] == "client-2" else Page(401, {"error": "invalid_client"})

        there.world.pages[TOKEN] = forgetful
        async with caller(there, there.oauth(store=store)) as client:
            assert await client.call() == 200
        assert [visit["client_id"] for visit in there.visits] == ["client-1", "client-1", "client-2"]


async def test_unknown_fresh_client_fails() -> None:
    async with servers() as there:
        there.world.pages[TOKEN] = Page(401, {"error": "invalid_client"})
        async with caller(there) as client:
            with pytest.raises(AuthorizationFailed, match="invalid_client"):
                await client.call()
        assert (len(there.visits), len(there.registered)) == (1, 1)


async def test_refresh_token_without_registration_needs_login() -> None:
    async with servers() as there:
        store = MemoryTokens()
        async with caller(there, there.oauth(store=store)) as client:
            await client.call()
        await store.put(f"client of {there.issuer}", b"not what it was")
        there.tokens.clear()
        async with caller(there, there.oauth(store=store)) as client:
            assert await client.call() == 200
        assert [form["grant_type"] for form in there.exchanges] == ["authorization_code"] * 2


async def test_missing_login_page_is_reported() -> None:
    async with servers() as there:
        del there.world.server["authorization_endpoint"]
        async with caller(there) as client:
            with pytest.raises(AuthorizationFailed, match="no authorization endpoint") as failed:
                await client.call()
        assert failed.value.hop == "authorization-server-metadata"


async def test_unreadable_key_needs_new_login() -> None:
    async with servers() as there:
        store, key = MemoryTokens(), token_store_key(there.url, "code")
        there.kind = "DPoP"
        async with caller(there, there.oauth(store=store, dpop=True)) as client:
            await client.call()
        kept = decode_stored_token(await store.get(key))
        assert kept is not None
        await store.put(key, encode_stored_token(replace(kept, key={"kty": "EC", "alg": "ES256"})))
        there.tokens.clear()
        there.forget_refresh_tokens()
        async with caller(there, there.oauth(store=store, dpop=True)) as client:
            assert await client.call() == 200
        assert len(there.visits) == 2
