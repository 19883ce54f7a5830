"""Signed tokens, verified with the published keys of an issuer."""

from collections.abc import Awaitable

import pytest
from tests.unit.auth.server.issuer import Issuer, running_issuer

from trunkline.auth.jose import SigningKey
from trunkline.auth.server.issuer_keys import RETRY_INTERVAL
from trunkline.auth.server.jwt import Jwt
from trunkline.auth.server.verifiers import BadToken, Unavailable, Verified
from trunkline.errors import ConfigError

US = frozenset({"http://localhost:1"})
METADATA = "/.well-known/oauth-authorization-server"


async def verified(jwt: Jwt, issuer: Issuer, token: str) -> Verified:
    answer = jwt.verify(token, US, issuer.wall())
    return await answer if isinstance(answer, Awaitable) else answer


async def test_metadata_names_the_keys() -> None:
    async with running_issuer() as issuer:
        jwt = Jwt(issuer.url)
        assert (await verified(jwt, issuer, issuer.token())).principal.subject == "ada"
        assert isinstance(jwt.verify(issuer.token(sub="eve"), US, issuer.wall()), Verified)  # at once
        assert issuer.asked == {METADATA: 1, "/keys": 1}


async def test_jwks_uri_needs_no_metadata() -> None:
    async with running_issuer() as issuer:
        await verified(Jwt(issuer.url, jwks_uri=f"{issuer.url}/keys"), issuer, issuer.token())
        assert issuer.asked == {"/keys": 1}


async def test_key_rotation_is_followed() -> None:
    async with running_issuer() as issuer:
        jwt = Jwt(issuer.url)
        old = issuer.token()
        await verified(jwt, issuer, old)
        issuer.rotate()
        before = jwt.generation
        assert (await verified(jwt, issuer, issuer.token())).principal.subject == "ada"
        assert jwt.generation == before + 1
        with pytest.raises(BadToken):
            await verified(jwt, issuer, old)
        issuer.rotate("third")
        with pytest.raises(BadToken):  # the last fetch is too recent
            await verified(jwt, issuer, issuer.token())
        assert issuer.asked["/keys"] == 2
        issuer.wall.advance(RETRY_INTERVAL)
        assert (await verified(jwt, issuer, issuer.token())).principal.subject == "ada"
        assert issuer.asked["/keys"] == 3


async def test_unknown_key_fetches_are_limited() -> None:
    async with running_issuer() as issuer:
        jwt, stranger = Jwt(issuer.url), SigningKey.generate(kid="made-up")
        await verified(jwt, issuer, issuer.token())
        issuer.wall.advance(RETRY_INTERVAL)
        for _ in range(5):
            with pytest.raises(BadToken, match="not among those that the issuer publishes"):
                await verified(jwt, issuer, issuer.token(key=stranger))
        assert issuer.asked["/keys"] == 2


async def test_old_keys_last_while_issuer_is_down() -> None:
    async with running_issuer() as issuer:
        jwt = Jwt(issuer.url)
        await verified(jwt, issuer, issuer.token())
        issuer.down = True
        issuer.wall.advance(3000)
        assert (await verified(jwt, issuer, issuer.token())).principal.subject == "ada"


async def test_moved_keys_are_discovered_again() -> None:
    async with running_issuer() as issuer:
        jwt = Jwt(issuer.url)
        await verified(jwt, issuer, issuer.token())
        issuer.metadata["jwks_uri"] = f"{issuer.url}/nowhere"
        issuer.rotate()
        issuer.wall.advance(RETRY_INTERVAL)
        await verified(jwt, issuer, issuer.token())  # still at the old location
        issuer.down = True
        issuer.wall.advance(700)
        await verified(jwt, issuer, issuer.token())
        issuer.down = False
        issuer.wall.advance(RETRY_INTERVAL)
        await verified(jwt, issuer, issuer.token())
        assert issuer.asked[METADATA] == 2


async def test_unreachable_issuer_is_unavailable() -> None:
    async with running_issuer() as issuer:
        issuer.down = True
        with pytest.raises(Unavailable, match="are unavailable"):
            await verified(Jwt(issuer.url), issuer, issuer.token())
        issuer.down = False
        issuer.metadata = {}
        with pytest.raises(Unavailable, match="names no jwks_uri"):
            await verified(Jwt(issuer.url), issuer, issuer.token())
        issuer.published = []
        with pytest.raises(BadToken):
            await verified(Jwt(issuer.url, jwks_uri=f"{issuer.url}/keys"), issuer, issuer.token())


async def test_metadata_of_another_issuer_is_refused() -> None:
    async with running_issuer() as issuer:
        issuer.metadata["issuer"] = "https://elsewhere.example.com"
        with pytest.raises(Unavailable, match=r"elsewhere\.example\.com"):
            await verified(Jwt(issuer.url), issuer, issuer.token())


@pytest.mark.row("AUT-23", "SEC-01")
async def test_audience_must_match_or_be_configured() -> None:
    async with running_issuer() as issuer:
        token = issuer.token(aud="api://notes")
        with pytest.raises(BadToken, match="another audience"):
            await verified(Jwt(issuer.url), issuer, token)
        assert await verified(Jwt(issuer.url, audience="api://notes"), issuer, token)
        with pytest.raises(BadToken, match="another audience"):
            await verified(Jwt(issuer.url, audience=["api://notes"]), issuer, issuer.token())


async def test_wrong_signature_or_algorithm_is_refused() -> None:
    async with running_issuer() as issuer:
        with pytest.raises(BadToken, match="signature"):
            await verified(Jwt(issuer.url), issuer, issuer.token(key=SigningKey.generate(kid="first")))
        with pytest.raises(BadToken, match="algorithm"):
            await verified(Jwt(issuer.url, algorithms=["RS256"]), issuer, issuer.token())
        with pytest.raises(BadToken, match="not a signed token"):
            await verified(Jwt(issuer.url), issuer, "opaque")


@pytest.mark.parametrize(
    ("issuer", "options", "why"),
    [
        ("http://login.example.com", {}, "must be https"),
        ("login.example.com", {}, "not a usable URL"),
        ("https://a:b@login.example.com", {}, "neither a user"),
        ("https://login.example.com", {"jwks_uri": "http://10.0.0.1/keys"}, "must be https"),
        ("https://login.example.com", {"algorithms": ["HS256"]}, "HS256"),
        ("https://login.example.com", {"algorithms": []}, "nothing"),
    ],
)
def test_insecure_configuration_is_refused(issuer: str, options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Jwt(issuer, **options)  # type: ignore[arg-type]


def test_repr_names_issuer() -> None:
    assert repr(Jwt("https://login.example.com")) == "Jwt('https://login.example.com')"
