"""The authorization response, and its validation."""

from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from tests.unit.auth.auth_servers import CALLBACK, caller, servers

from trunkline.auth import Redirected
from trunkline.auth.client.authorization_code import AuthorizationRequest, read_code
from trunkline.auth.client.token_endpoint import OAuthErrorResponse
from trunkline.auth.metadata import ServerMetadata
from trunkline.errors import AuthorizationFailed

ISSUER = "https://login.example"


def sent(*, advertises: bool | None = None) -> AuthorizationRequest:
    server = ServerMetadata(issuer=ISSUER, authorization_response_iss_parameter_supported=advertises)
    return AuthorizationRequest.create(server, CALLBACK)


def back(visit: AuthorizationRequest, **fields: str) -> str:
    return f"{CALLBACK}?{urlencode({'state': visit.state, **fields})}"


@pytest.mark.row("AUT-25")
@pytest.mark.parametrize(
    ("advertises", "iss"), [(True, ISSUER), (False, ISSUER), (None, ISSUER), (False, None), (None, None)]
)
def test_code_of_expected_issuer_is_accepted(advertises: bool | None, iss: str | None) -> None:
    visit = sent(advertises=advertises)
    assert read_code(back(visit, code="c", **({} if iss is None else {"iss": iss})), visit) == "c"


@pytest.mark.row("AUT-25")
@pytest.mark.parametrize(
    ("advertises", "iss"),
    [(True, None), (True, ""), *((told, f"{wrong}") for told in (True, False, None) for wrong in (f"{ISSUER}/", ISSUER.upper(), "https://login.example:443", "https://evil.example"))],
)  # fmt: skip
def test_response_of_another_issuer_is_refused_and_not_shown(advertises: bool | None, iss: str | None) -> None:
    visit = sent(advertises=advertises)
    named = {} if iss is None else {"iss": iss}
    for fields in ({"code": "c"}, {"error": "EVIL", "error_description": "EVIL"}):
        with pytest.raises(AuthorizationFailed) as failed:
            read_code(back(visit, **fields, **named), visit)
        assert (failed.value.hop, failed.value.clause) == ("authorization", "RFC 9207, section 2.4")
        assert "EVIL" not in str(failed.value)


@pytest.mark.row("AUT-24")
@pytest.mark.parametrize("state", ["", "other"])
def test_response_with_another_state_is_refused(state: str) -> None:
    visit = sent()
    with pytest.raises(AuthorizationFailed, match="another state"):
        read_code(f"{CALLBACK}?{urlencode({'state': state, 'code': 'c'})}", visit)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "code=a&code=b&state={state}",
        "state={state}",
        "state={state}&code=",
        "&".join(f"a{n}=1" for n in range(99)) + "&state={state}",
    ],
)
def test_incomplete_or_ambiguous_response_is_refused(query: str) -> None:
    visit = sent()
    with pytest.raises(AuthorizationFailed, match="the authorization response"):
        read_code(f"{CALLBACK}?{query.format(state=visit.state)}", visit)


def test_error_response_is_shown_escaped() -> None:
    visit = sent()
    with pytest.raises(OAuthErrorResponse) as failed:
        read_code(back(visit, error="access_denied", error_description="no\x1b[31m\nway"), visit)
    assert str(failed.value) == r"the authorization server answers access_denied: no\x1b[31m\nway"
    assert (failed.value.error, failed.value.hop) == ("access_denied", "authorization")


def test_each_request_has_secrets_that_repr_hides() -> None:
    one, other = sent(), sent()
    assert len({one.state, other.state, one.verifier, other.verifier}) == 4
    assert len(one.verifier) >= 43  # RFC 7636, section 4.1
    assert one.verifier not in repr(one)
    assert one.state not in repr(one)


@pytest.mark.row("AUT-16", "AUT-17")
async def test_authorization_url_has_all_parameters() -> None:
    async with servers() as there:
        there.world.server["authorization_endpoint"] += "?tenant=1"
        async with caller(there, there.oauth(parameters={"login_hint": "ada", "state": "mine"})) as client:
            assert await client.call() == 200
        [visit] = there.visits

    assert visit.pop("state") != "mine"
    assert len(visit.pop("code_challenge")) == 43
    assert visit == {
        "tenant": "1",
        "login_hint": "ada",
        "response_type": "code",
        "client_id": "client-1",
        "redirect_uri": CALLBACK,
        "code_challenge_method": "S256",
        "resource": there.url,
        "scope": "notes",
    }
    [exchange] = there.exchanges
    assert exchange["resource"] == there.url


@pytest.mark.row("AUT-16")
async def test_login_needs_pkce_support() -> None:
    async with servers() as there:
        del there.world.server["code_challenge_methods_supported"]
        async with caller(there) as client:
            with pytest.raises(AuthorizationFailed, match="PKCE"):
                await client.call()
        assert (there.visits, there.registered) == ([], [])


async def test_refused_code_is_reported() -> None:
    async with servers() as there:

        async def someone_elses(page: str) -> str:
            query = dict(parse_qsl(urlsplit(page).query))
            return f"{CALLBACK}?{urlencode({'state': query['state'], 'code': 'stolen', 'iss': there.issuer})}"

        async with caller(there, there.oauth(interaction=Redirected(CALLBACK, someone_elses))) as client:
            with pytest.raises(AuthorizationFailed, match="invalid_grant: not that code") as failed:
                await client.call()
        assert failed.value.hop == "token"
