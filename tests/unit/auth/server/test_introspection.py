"""Introspection of opaque tokens."""

import base64
from typing import Any

import pytest
from tests.unit.auth.server.issuer import Issuer, running_issuer

from trunkline.auth.server.introspection import Introspection
from trunkline.auth.server.verifiers import BadToken, Unavailable

US = frozenset({"http://localhost:1"})


def asking(issuer: Issuer, **options: Any) -> Introspection:
    return Introspection(issuer.url, client_id="notes server", client_secret="s:cret", **options)


def knows(issuer: Issuer, **more: Any) -> None:
    issuer.known["opaque"] = {"active": True, "sub": "ada", "aud": "http://localhost:1", "client_id": "app", **more}


async def test_introspection_uses_own_credentials() -> None:
    async with running_issuer() as issuer:
        knows(issuer, scope="a b", exp=issuer.wall() + 60, cnf={"jkt": "print"})
        verified = await asking(issuer).verify("opaque", US, issuer.wall())
        assert (verified.principal.subject, verified.principal.issuer) == ("ada", issuer.url)
        assert verified.principal.scopes == {"a", "b"}
        assert (verified.expires, verified.key) == (issuer.wall() + 90, "print")
        headers, form = issuer.sent[0]
        assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"notes+server:s%3Acret"
        assert form == {"token": ["opaque"], "token_type_hint": ["access_token"]}


async def test_inactive_token_is_refused() -> None:
    async with running_issuer() as issuer:
        issuer.known["odd"] = {"active": "true", "sub": "ada", "aud": "http://localhost:1"}
        for token in ("unknown", "odd"):
            with pytest.raises(BadToken, match="not active"):
                await asking(issuer).verify(token, US, issuer.wall())


@pytest.mark.row("AUT-23")
@pytest.mark.parametrize(
    "changed",
    [{"aud": "https://other"}, {"aud": None}, {"sub": None}, {"iss": "https://other"}, {"exp": 5}, {"typ": "Refresh"}],
    ids=str,
)
async def test_active_token_must_pass_claims(changed: dict[str, Any]) -> None:
    async with running_issuer() as issuer:
        knows(issuer, **changed)
        with pytest.raises(BadToken):
            await asking(issuer).verify("opaque", US, issuer.wall())


async def test_endpoint_can_be_configured() -> None:
    async with running_issuer() as issuer:
        knows(issuer)
        await asking(issuer, endpoint=f"{issuer.url}/introspect").verify("opaque", US, issuer.wall())
        assert issuer.asked == {"/introspect": 1}


async def test_unreachable_issuer_is_unavailable() -> None:
    async with running_issuer() as issuer:
        issuer.down = True
        with pytest.raises(Unavailable):
            await asking(issuer).verify("opaque", US, issuer.wall())
        issuer.down = False
        issuer.metadata = {}
        with pytest.raises(Unavailable, match="names no introspection_endpoint"):
            await asking(issuer).verify("opaque", US, issuer.wall())
        issuer.metadata = {"introspection_endpoint": "http://login.example.com/introspect"}
        with pytest.raises(Unavailable, match="must be https"):
            await asking(issuer).verify("opaque", US, issuer.wall())


def test_repr_has_no_secrets() -> None:
    made = Introspection("https://login.example.com", client_id="a", client_secret="secret")
    assert repr(made) == "Introspection('https://login.example.com')"
