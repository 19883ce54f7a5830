"""Client registration: the order of methods, and storage of the result."""

from typing import Any

import pytest
from tests.unit.auth.auth_servers import CALLBACK, REGISTER, caller, servers
from tests.unit.auth.auth_setup import TOKEN, Page

from trunkline.auth import MemoryTokens, OAuth, Redirected, SigningKey
from trunkline.errors import AuthorizationFailed, ConfigError

DOCUMENT = "https://app.example/client.json"


@pytest.mark.row("AUT-11")
@pytest.mark.parametrize(
    ("options", "client"),
    [
        ({"client_id": "mine", "client_metadata_url": DOCUMENT}, "mine"),
        ({"client_metadata_url": DOCUMENT}, DOCUMENT),
        ({}, "client-1"),
    ],
)
async def test_registration_order_follows_the_specification(options: dict[str, Any], client: str) -> None:
    async with servers() as there:
        async with caller(there, there.oauth(**options)) as called:
            await called.call()
        assert there.visits[0]["client_id"] == client
        assert len(there.registered) == (0 if options else 1)


@pytest.mark.row("AUT-11")
async def test_document_needs_server_support() -> None:
    async with servers() as there:
        there.world.server["client_id_metadata_document_supported"] = False
        async with caller(there, there.oauth(client_metadata_url=DOCUMENT)) as called:
            await called.call()
        assert there.visits[0]["client_id"] == "client-1"


@pytest.mark.row("AUT-11")
async def test_missing_registration_endpoint_is_reported() -> None:
    async with servers() as there:
        del there.world.server["registration_endpoint"]
        async with caller(there) as called:
            with pytest.raises(AuthorizationFailed, match="pass client_id=") as failed:
                await called.call()
        assert (failed.value.hop, there.visits) == ("registration", [])


@pytest.mark.row("AUT-14", "AUT-26")
@pytest.mark.parametrize(
    ("redirect_uri", "application"),
    [
        (CALLBACK, "native"),
        ("http://localhost/x", "native"),
        ("com.example:/back", "native"),
        ("https://app.example/back", "web"),
    ],
)
async def test_registration_states_application_type(redirect_uri: str, application: str) -> None:
    async with servers() as there:
        auth = there.oauth(interaction=Redirected(redirect_uri, there.agree), client_name="Notes")
        async with caller(there, auth) as called:
            await called.call()
        assert there.registered == [
            {
                "client_name": "Notes",
                "redirect_uris": [redirect_uri],
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
                "application_type": application,
            }
        ]


@pytest.mark.row("AUT-29")
@pytest.mark.parametrize(
    ("supported", "wanted"),
    [(["client_secret_post", "none"], "none"), (["client_secret_post", "client_secret_basic"], "client_secret_basic"), (["client_secret_post"], "client_secret_post"), (None, "client_secret_basic")],
)  # fmt: skip
async def test_registration_requests_supported_method(supported: Any, wanted: str) -> None:
    async with servers() as there:
        there.world.server["token_endpoint_auth_methods_supported"] = supported
        there.secret = "s3cret"
        async with caller(there) as called:
            await called.call()
        assert there.registered[0]["token_endpoint_auth_method"] == wanted
        basic, form = there.proofs[0], there.exchanges[0]
    assert (basic is not None, "client_secret" in form) == (
        wanted == "client_secret_basic",
        wanted == "client_secret_post",
    )


@pytest.mark.row("AUT-14")
@pytest.mark.parametrize(
    ("page", "words"),
    [
        (
            Page(400, {"error": "invalid_redirect_uri", "error_description": "no\x07 http"}),
            r"refused: invalid_redirect_uri: no\\x07 http",
        ),
        (Page(403), "refused with HTTP 403"),
        (Page(500), "HTTP 500"),
        (Page(201, {"client_id": ""}), "no client id"),
        (Page(201, []), "no client id"),
    ],
)
async def test_failed_registration_is_reported(page: Page, words: str) -> None:
    async with servers() as there:
        there.world.pages[REGISTER] = page
        async with caller(there) as called:
            with pytest.raises(AuthorizationFailed, match=words) as failed:
                await called.call()
        assert (failed.value.hop, there.visits) == ("registration", [])


async def test_registration_is_reused_until_secret_expires() -> None:
    async with servers() as there:
        store = MemoryTokens()
        expires = there.now + 1000
        there.world.pages[REGISTER] = lambda asked: (
            there.register(asked) and Page(201, {"client_id": f"client-{len(there.registered)}", "client_secret": "s", "client_secret_expires_at": expires})
        )  # fmt: skip

        async def log_in() -> None:
            there.tokens.clear()
            there.forget_refresh_tokens()
            async with caller(there, there.oauth(store=store)) as called:
                assert await called.call() == 200

        await log_in()
        there.now += 999
        await log_in()
        there.now += 1
        await log_in()
        assert [visit["client_id"] for visit in there.visits] == ["client-1", "client-1", "client-2"]


async def test_new_redirect_uri_registers_again() -> None:
    async with servers() as there:
        store = MemoryTokens()
        for number in (1, 1, 2):
            there.tokens.clear()
            there.forget_refresh_tokens()
            way = Redirected(f"http://127.0.0.1:{number}/callback", there.agree)
            async with caller(there, there.oauth(store=store, interaction=way)) as called:
                await called.call()
        assert [visit["client_id"] for visit in there.visits] == ["client-1", "client-1", "client-2"]


async def test_registration_is_dropped_after_failed_login() -> None:
    async with servers() as there:
        store = MemoryTokens()

        async def away(_: str) -> str:
            raise AuthorizationFailed("the login was not completed", hop="authorization")

        async with caller(there, there.oauth(store=store, interaction=Redirected(CALLBACK, away))) as called:
            with pytest.raises(AuthorizationFailed, match="the login was not completed"):
                await called.call()
        async with caller(there, there.oauth(store=store)) as called:
            assert await called.call() == 200
        assert there.visits[0]["client_id"] == "client-2"


@pytest.mark.row("AUT-12")
async def test_document_may_have_a_key() -> None:
    async with servers() as there:
        auth = there.oauth(client_metadata_url=DOCUMENT, client_key=SigningKey.generate())
        async with caller(there, auth) as called:
            await called.call()
        assert "client_assertion" in there.exchanges[0]


@pytest.mark.row("AUT-12")
@pytest.mark.parametrize(
    "options",
    [
        {"client_metadata_url": "http://a.example/x"},
        {"client_metadata_url": "https://a.example/"},
        {"client_secret": "s"},
    ],
)
def test_incomplete_identity_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OAuth(store=MemoryTokens(), **options)


async def test_secret_belongs_to_its_client_id() -> None:
    async with servers() as there:
        there.world.server["token_endpoint_auth_methods_supported"] = ["client_secret_basic"]
        async with caller(there, there.oauth(client_id="mine", client_secret="s")) as called:
            await called.call()
            there.now += 10_000
            await called.call()
        assert there.proofs == ["Basic bWluZTpz"] * 2
        assert [asked.what for asked in there.world.asked].count(TOKEN) == 2
