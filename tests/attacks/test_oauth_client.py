"""Logins in which the server, the authorization server or the sender of the redirect is hostile."""

import hashlib
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import Any

from tests.attacks.fake_internet import Internet, Issuer, issuer, page, redirect, site
from tests.attacks.oauth_login import Login, login
from tests.attacks.test_egress import AUTHORITIES, PUBLIC, PUBLIC_TOO, connected_hosts, public, reaching

from trunkline import Settings
from trunkline.auth import ClientCredentials, MemoryTokens
from trunkline.auth.client.token_provider import TokenProvider
from trunkline.transports.http.client.channel import HttpClientChannel
from trunkline.transports.http.client.connection_pool import ConnectionPool
from trunkline.transports.http.client.credentials import BearerToken
from trunkline.transports.http.client.http_peer import HttpPeer
from trunkline.transports.http.client.http_sse import HttpSse
from trunkline.transports.http.client.url import RedirectRefused, parse_url

EVIL = "https://evil.example"


# --- mix-up ------------------------------------------------------------------------------------------


async def test_injected_code_is_not_used() -> None:
    async with login() as one:
        person, name = one.person, one.authority.name
        first = one.engine()
        assert await one.challenged(first)
        used = person.asked[0]["state"]
        one.authority.site.asked.clear()
        wrong: dict[str, Any] = {
            "another issuer": lambda asked: person.agreed(asked, iss=EVIL),
            "an issuer that is nearly the same": lambda asked: person.agreed(asked, iss=f"{name}/"),
            "the issuer in capitals": lambda asked: person.agreed(asked, iss=name.upper()),
            "no issuer": lambda asked: person.agreed(asked, iss=None),
            "two issuers": lambda asked: person.agreed(asked) + f"&iss={EVIL}",
            "no state": lambda asked: person.agreed(asked, state=None),
            "an empty state": lambda asked: person.agreed(asked, state=""),
            "the state of another login": lambda asked: person.agreed(asked, state=used),
            "two states": lambda asked: person.agreed(asked) + f"&state={used}",
            "two codes": lambda asked: person.agreed(asked) + "&code=injected",
            "no code": lambda asked: person.agreed(asked, code=None),
            "in the fragment": lambda asked: person.agreed(asked).replace("?", "#"),
            "thousands of fields": lambda asked: person.agreed(asked) + "&x=1" * 5000,
        }
        for what, back in wrong.items():
            person.back = back
            assert (await one.fails(one.engine(store=MemoryTokens()))).hop == "authorization", what
            assert one.authority.site.at("/token") == [], what
        assert len({asked["state"] for asked in person.asked}) == len(person.asked)


async def test_text_of_another_issuer_is_not_shown() -> None:
    async with login() as one:
        said = {"error": "buy-at-evil.example", "error_description": "call-555-evil", "code": None}
        for iss in (EVIL, None):
            one.person.back = lambda asked, iss=iss: one.person.agreed(asked, iss=iss, **said)
            assert "evil" not in str(await one.fails(one.engine(store=MemoryTokens())))
        one.person.back = lambda asked: one.person.agreed(asked, **said)
        assert "call-555-evil" in str(await one.fails())


async def test_metadata_of_another_issuer_is_not_used() -> None:
    async with login() as one:
        name = one.authority.name
        for issuer_ in (EVIL, f"{name}/", name.upper(), name.replace("127.0.0.1", "localhost"), "", f"{name}/mcp"):
            one.authority.metadata["issuer"] = issuer_
            assert (await one.fails()).hop == "authorization-server-metadata", issuer_
        assert one.person.shown == []
        assert {asked.method for asked in one.authority.site.asked} == {"GET"}


async def test_metadata_of_another_resource_is_not_used() -> None:
    async with login() as one:
        url, base = one.url, one.server.url
        others = (
            EVIL,
            f"{url}/deeper",
            f"{url}x",
            f"{base}/other",
            f"{url}#x",
            url.replace("http", "https"),
            "",
            "/mcp",
        )
        for resource in (*others, f"{base}@evil.example/mcp", url.replace("127.0.0.1", "localhost")):
            one.names(one.authority, resource=resource)
            assert (await one.fails()).hop == "resource-metadata", resource
        assert (one.person.shown, one.authority.site.asked) == ([], [])


async def test_token_request_names_resource_and_uses_pkce() -> None:
    async with login() as one:
        for _ in range(2):
            assert await one.challenged(one.engine(store=MemoryTokens()))
        pages, exchanges = one.person.asked, [asked.form for asked in one.authority.site.at("/token")]
        assert {asked["resource"] for asked in (*pages, *exchanges)} == {one.url}
        for page_, exchange in zip(pages, exchanges, strict=True):
            digest = hashlib.sha256(exchange["code_verifier"].encode()).digest()
            assert page_["code_challenge"] == urlsafe_b64encode(digest).rstrip(b"=").decode()
            assert page_["code_challenge_method"] == "S256"
            assert exchange["code_verifier"] not in str(page_)
        assert len({exchange["code_verifier"] for exchange in exchanges}) == 2


async def test_login_without_pkce_is_refused() -> None:
    async with login() as one:
        for methods in (None, [], ["plain"], ["s256"], ["S256 "]):
            one.authority.metadata["code_challenge_methods_supported"] = methods
            assert (await one.fails()).hop == "authorization-server-metadata"
        assert one.person.shown == []


# --- targets named by a peer -------------------------------------------------------------------------


async def test_private_endpoints_of_issuer_are_denied(internet: Internet) -> None:
    internet.names["inner.example"] = [["10.0.0.1"]]
    async with public(internet) as server, public(internet, "login.example", PUBLIC_TOO) as there:
        one = Login(server, Issuer(there))
        good = dict(one.authority.metadata)
        for endpoint in ("token_endpoint", "registration_endpoint"):
            for named in (*AUTHORITIES, "http://login.example/x"):
                one.authority.metadata = {**good, endpoint: named}
                await one.fails(
                    TokenProvider(
                        one.url, one.oauth()._create_grant(Settings()), store=MemoryTokens(), egress=reaching(internet)
                    )
                )
                assert set(connected_hosts(internet)) <= {PUBLIC, PUBLIC_TOO}, (endpoint, named)
        one.authority.metadata = good
        engine = TokenProvider(
            one.url, one.oauth()._create_grant(Settings()), store=MemoryTokens(), egress=reaching(internet)
        )
        assert await one.challenged(engine)


async def test_client_secret_does_not_follow_redirect() -> None:
    async with login() as one, site() as evil:
        secret = ClientCredentials("app", secret="canary", issuer=one.authority.name)
        for status in (301, 302, 303, 307, 308):
            one.authority.site.pages["/token"] = redirect(f"{evil.url}/token", status)
            assert (await one.fails(one.engine(secret))).hop == "token"
        assert evil.asked == []


# --- credentials are bound to one authorization server -----------------------------------------------


async def test_secret_is_not_sent_to_another_issuer() -> None:
    async with login() as one, issuer() as evil:
        accounts = [
            ClientCredentials("app", secret="canary", issuer=one.authority.name),
            ClientCredentials("first used here", secret="canary"),
            one.oauth(client_id="app", client_secret="canary", issuer=one.authority.name, store=MemoryTokens()),
            one.oauth(client_id="first used here", client_secret="canary", store=MemoryTokens()),
        ]
        engines = [one.engine(account) for account in accounts]
        for engine in engines:
            assert await one.challenged(engine)
        one.names(evil)
        one.person.iss = evil.name
        evil.site.pages["/token"] = page({"access_token": "new", "token_type": "Bearer"})
        for account in accounts:
            assert (await one.fails(one.engine(account))).hop == "registration"
        assert not any(asked.holds("canary") or asked.holds("Basic") for asked in evil.site.asked)


async def test_secret_stays_with_issuer_of_first_server() -> None:
    async with login() as one, login() as evil:
        accounts = [ClientCredentials("app", secret="canary"), one.oauth(client_id="app", client_secret="canary")]
        evil.person.iss = evil.authority.name
        for account in accounts:
            assert await one.challenged(one.engine(account))
            one.person.iss = evil.authority.name
            await evil.fails(evil.engine(account))
            one.person.iss = one.authority.name
        assert evil.authority.site.at("/token") == []


async def test_refresh_token_is_not_sent_to_another_issuer() -> None:
    async with login() as one, issuer() as evil:
        first = {
            "access_token": "old-canary",
            "token_type": "Bearer",
            "refresh_token": "canary",
            "expires_in": 3600,
        }
        one.authority.site.pages["/token"] = page(first)
        assert await one.challenged(one.engine())
        one.names(evil)
        one.person.iss = evil.name
        assert await one.challenged(one.engine())  # logs in anew
        assert len(one.person.shown) == 2
        assert not any(asked.holds("canary") for asked in evil.site.asked)


async def test_registration_is_not_sent_to_another_issuer() -> None:
    async with login() as one, issuer() as evil:
        made = {"client_id": "canary-id", "client_secret": "canary", "token_endpoint_auth_method": "client_secret_post"}
        one.authority.site.pages["/register"] = page(made, 201)
        assert await one.challenged(one.engine())
        assert one.authority.site.at("/token")[0].form["client_secret"] == "canary"
        one.names(evil)
        one.person.iss = evil.name
        assert await one.challenged(one.engine())
        assert one.person.asked[-1]["client_id"] == "registered"
        assert not any(asked.holds("canary") for asked in evil.site.asked)


# --- recipients of tokens ----------------------------------------------------------------------------


async def test_token_is_not_sent_to_another_origin() -> None:
    async with login() as one:
        engine = one.engine()
        assert await one.challenged(engine)
        assert "Authorization" in await engine.headers("POST", one.url)
        host, port = "127.0.0.1", one.server.port
        for url in (
            *(
                f"http://{host}:{port + 1}/mcp",
                f"https://{host}:{port}/mcp",
                f"http://localhost:{port}/mcp",
                f"{EVIL}/mcp",
            ),
            *(f"http://{host}:{port}@evil.example/mcp", f"http://{host}:{port}\\@evil.example/", "/mcp", ""),
        ):
            assert await engine.headers("POST", url) == {}, url


async def test_token_does_not_follow_redirect() -> None:
    async with site() as server, site() as evil:
        library = ConnectionPool(Settings())
        for status in (301, 302, 303, 307, 308):
            server.pages["/mcp"] = redirect(f"{evil.url}/mcp", status)
            with suppress(RedirectRefused):
                await HttpPeer(library, parse_url(f"{server.url}/mcp"), {}, BearerToken("canary")).send(
                    "POST", body=b"{}"
                )
        for there in (evil.url, evil.url.removeprefix("http:"), f"{server.url}@{evil.url.removeprefix('http://')}"):
            stream = f"event: endpoint\ndata: {there}/messages\n\n".encode()
            server.pages["/mcp"] = page(stream, kind="text/event-stream")
            peer = HttpPeer(library, parse_url(f"{server.url}/mcp"), {}, BearerToken("canary"))
            older = HttpSse(peer, HttpClientChannel(library, peer, Settings()), Settings())
            with suppress(RedirectRefused):
                await older.open(lambda _: None)
            assert older._endpoint is None, there
            older.close()
        await library.close()
        assert evil.asked == []
        assert {asked.headers.get("authorization") for asked in server.asked} == {"Bearer canary"}
