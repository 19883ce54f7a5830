"""The auth doctor: in a valid setup it finds nothing; in a setup with one fault it names the hop."""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

import pytest
from tests.contract.connections import server_tls
from tests.transcripts import check_transcript
from tests.unit.auth.auth_setup import (
    AUTHORIZE,
    ENDPOINT,
    GREETING,
    KEY,
    KEYS,
    OPENID,
    RESOURCE,
    RESOURCE_AT_THE_ROOT,
    SERVER,
    TOKEN,
    AuthSetup,
    Page,
    RecordedRequest,
    auth_setup,
)

from trunkline import Settings
from trunkline.auth.doctor import diagnose
from trunkline.auth.doctor.examine import HOPS, examine
from trunkline.auth.doctor.probe import ProbeResponse
from trunkline.auth.doctor.report import first_failed
from trunkline.auth.fetch import Egress
from trunkline.auth.ssrf import EgressPolicy
from trunkline.findings import Finding

HTML = "<!doctype html><title>Sign in</title>"
DISCOVERY = "MCP authorization, Protected Resource Metadata Discovery Requirements"


@pytest.fixture
async def there() -> AsyncIterator[AuthSetup]:
    async with auth_setup() as made:
        yield made


async def at_10_0_0_7(_: str) -> Sequence[str]:
    return ["10.0.0.7"]


async def look(auth_setup: AuthSetup, url: str | None = None, **options: Any) -> list[Finding]:
    """The doctor's findings; all other names resolve to a private address."""
    settings = Settings(egress_timeout=10.0)
    egress = Egress(EgressPolicy.for_url(auth_setup.url, settings), settings=settings, resolve=at_10_0_0_7)
    return await examine(url or auth_setup.url, egress, **options)


def verdicts(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.hop, finding.verdict) for finding in findings]


def hops(findings: list[Finding], *verdict: str) -> list[tuple[str, str]]:
    """The hops of these verdicts, each with its clause."""
    return [(finding.hop, finding.clause) for finding in findings if finding.verdict in verdict]


# --- no fault -----------------------------------------------------------------------------------


async def test_healthy_servers_have_no_problems(there: AuthSetup) -> None:
    findings = await look(there)

    assert verdicts(findings) == [(hop, "ok") for hop in HOPS]
    assert first_failed(findings) is None
    assert not any(finding.mend for finding in findings)


async def test_doctor_neither_registers_nor_logs_in(there: AuthSetup) -> None:
    there.server["registration_endpoint"] = f"{there.origin}/register"
    await look(there)

    assert [asked.what for asked in there.asked if asked.what.startswith("POST")] == [ENDPOINT, TOKEN]
    assert all(asked.query == "" for asked in there.asked)
    assert b"code=none" in there.asked[-2].body
    check_transcript([("client", asked.body) for asked in there.asked if asked.what == ENDPOINT], "client")


async def test_open_server_needs_no_more_hops(there: AuthSetup) -> None:
    there.open()
    assert verdicts(await look(there)) == [("address", "ok"), ("server", "ok")]


async def test_open_handshake_server_session_is_deleted(there: AuthSetup) -> None:
    def answer(asked: RecordedRequest) -> Page:
        if b"server/discover" in asked.body:
            return Page(400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no session"}})
        return Page(200, {"jsonrpc": "2.0", "id": 1, "result": GREETING}, {"Mcp-Session-Id": "s1"})

    there.pages[ENDPOINT] = answer
    findings = await look(there)

    assert verdicts(findings) == [("address", "ok"), ("server", "ok")]
    assert [asked.what for asked in there.asked] == [ENDPOINT, ENDPOINT, "DELETE /mcp"]
    assert there.asked[-1].headers["mcp-session-id"] == "s1"
    check_transcript([("client", asked.body) for asked in there.asked if asked.body], "client")


async def test_redirect_within_origin_is_followed(there: AuthSetup) -> None:
    there.pages["POST /old"] = Page(307, None, {"Location": "/mcp"})
    there.resource["resource"] = there.origin
    there.pages[f"{RESOURCE_AT_THE_ROOT}/old"] = there.pages[RESOURCE]
    findings = await look(there, f"{there.origin}/old")

    assert first_failed(findings) is None
    assert hops(findings, "warning") == [("resource-metadata", "RFC 9728, section 3.3")]


async def test_openid_metadata_and_bare_challenge_suffice(there: AuthSetup) -> None:
    there.pages[OPENID] = there.pages.pop(SERVER)
    there.pages[RESOURCE_AT_THE_ROOT] = there.pages.pop(RESOURCE)
    there.challenge = 'Bearer realm="notes", scope="notes"'
    findings = await look(there)

    assert first_failed(findings) is None
    assert hops(findings, "warning") == [("server", f"RFC 9728, section 5.1; {DISCOVERY}")]
    assert there.at(OPENID) in next(f.seen for f in findings if f.hop == "authorization-server-metadata")


# --- one fault ----------------------------------------------------------------------------------


class Fault(NamedTuple):
    """The broken part, and the doctor's first finding."""

    broken: Callable[[AuthSetup], None]
    hop: str
    clause: str
    seen: str


def page(what: str, *answer: object) -> Callable[[AuthSetup], None]:
    return lambda auth_setup: auth_setup.pages.__setitem__(what, Page(*answer))


def resource(name: str, value: object) -> Callable[[AuthSetup], None]:
    return lambda auth_setup: auth_setup.resource.__setitem__(name, value)


def server(name: str, value: object) -> Callable[[AuthSetup], None]:
    return lambda auth_setup: auth_setup.server.__setitem__(name, value)


def challenged(*parts: str) -> Callable[[AuthSetup], None]:
    def change(auth_setup: AuthSetup) -> None:
        auth_setup.challenge = "".join(parts).replace("ORIGIN", auth_setup.origin)

    return change


def missing(*pages: str) -> Callable[[AuthSetup], None]:
    return lambda auth_setup: [auth_setup.pages.pop(name) for name in pages] and None


def both(*changes: Callable[[AuthSetup], None]) -> Callable[[AuthSetup], None]:
    return lambda auth_setup: [change(auth_setup) for change in changes] and None


def round_and_round(auth_setup: AuthSetup) -> None:
    auth_setup.pages[RESOURCE] = Page(302, None, {"Location": auth_setup.at(RESOURCE)})


SSRF = 'MCP security best practices, "Server-Side Request Forgery (SSRF)"'
FAULTS = {
    "a wrong path": Fault(page(ENDPOINT, 404), "server", "MCP transports, Streamable HTTP", "404"),
    "403 instead of 401": Fault(page(ENDPOINT, 403), "server", "MCP authorization, Error Handling", "403"),
    "400 whatever is asked": Fault(page(ENDPOINT, 400), "server", "MCP authorization, Error Handling", "400"),
    "a server that fails": Fault(page(ENDPOINT, 500), "server", "RFC 9110, section 15.6", "500"),
    "a server that moved": Fault(
        page(ENDPOINT, 301, None, {"Location": "https://new.example/mcp"}),
        "server",
        "RFC 9110, section 15.4",
        "https://new.example/mcp",
    ),
    "metadata on another host": Fault(
        challenged('Bearer resource_metadata="https://elsewhere.example/metadata"'),
        "server",
        "RFC 9728, sections 3 and 7.3",
        "elsewhere.example",
    ),
    "no challenge and no metadata": Fault(
        both(challenged(""), missing(RESOURCE)),
        "resource-metadata",
        f"RFC 9728, section 3; {DISCOVERY}",
        "/.well-known/oauth-protected-resource answers 404",
    ),
    "no metadata where the challenge names it": Fault(
        missing(RESOURCE), "resource-metadata", "RFC 9728, section 3.2", "answers 404"
    ),
    "metadata that is a page": Fault(
        page(RESOURCE, 200, HTML), "resource-metadata", "RFC 9728, section 3.2", "answers 200 text/html"
    ),
    "metadata that is no JSON": Fault(
        page(RESOURCE, 200, HTML, {"Content-Type": "application/json"}),
        "resource-metadata",
        "RFC 9728, section 3.2",
        "cannot be read",
    ),
    "metadata behind a failing proxy": Fault(
        page(RESOURCE, 502, HTML), "resource-metadata", "RFC 9728, section 3", "HTTP 502"
    ),
    "metadata that redirects to itself": Fault(round_and_round, "resource-metadata", SSRF, "redirects more than"),
    "metadata of another resource": Fault(
        resource("resource", "https://other.example/mcp"),
        "resource-metadata",
        "RFC 9728, section 3.3; MCP authorization, Resource Parameter Implementation",
        "https://other.example/mcp",
    ),
    "no authorization server": Fault(
        resource("authorization_servers", []),
        "resource-metadata",
        "MCP authorization, Authorization Server Discovery",
        "names no authorization server",
    ),
    "an authorization server without https": Fault(
        resource("authorization_servers", ["http://login.example"]),
        "resource-metadata",
        "RFC 8414, section 2",
        "must be https",
    ),
    "an authorization server in a private network": Fault(
        resource("authorization_servers", ["https://login.example"]),
        "authorization-server-metadata",
        SSRF,
        "10.0.0.7",
    ),
    "no metadata of the authorization server": Fault(
        missing(SERVER),
        "authorization-server-metadata",
        "MCP authorization, Authorization Server Metadata Discovery",
        "/login/.well-known/openid-configuration answers 404",
    ),
    "metadata of another issuer": Fault(
        server("issuer", "https://login.example"),
        "authorization-server-metadata",
        "RFC 8414, section 3.3",
        "https://login.example",
    ),
    "no PKCE": Fault(
        server("code_challenge_methods_supported", None),
        "authorization-server-metadata",
        "MCP authorization, Authorization Code Protection",
        "PKCE",
    ),
    "PKCE that is plain": Fault(
        server("code_challenge_methods_supported", ["plain"]),
        "authorization-server-metadata",
        "MCP authorization, Authorization Code Protection",
        "S256",
    ),
    "a token endpoint without https": Fault(
        server("token_endpoint", "http://login.example/token"),
        "authorization-server-metadata",
        "MCP authorization, Communication Security",
        "token_endpoint must be https",
    ),
    "no token endpoint": Fault(
        server("token_endpoint", None), "authorization-server-metadata", "RFC 8414, section 2", "`token_endpoint`"
    ),
    "no response type code": Fault(
        server("response_types_supported", ["token"]),
        "authorization-server-metadata",
        "RFC 8414, section 2; OAuth 2.1, section 4.1",
        "`response_types_supported`",
    ),
    "no grant for people": Fault(
        server("grant_types_supported", ["client_credentials"]),
        "authorization-server-metadata",
        "RFC 8414, section 2; OAuth 2.1, section 4.1",
        "`grant_types_supported`",
    ),
    "no page to log in": Fault(missing(AUTHORIZE), "authorization", "RFC 6749, section 3.1", "404"),
    "a page to log in that nobody serves": Fault(
        server("authorization_endpoint", "http://127.0.0.1:1/authorize"),
        "authorization",
        "RFC 6749, section 3.1",
        "no server is listening there",
    ),
    "a token endpoint that fails": Fault(page(TOKEN, 500, HTML), "token", "RFC 6749, section 5.2", "500 .* text/html"),
    "a token endpoint that redirects": Fault(
        page(TOKEN, 307, None, {"Location": "/login/tokens"}), "token", SSRF, "redirects"
    ),
    "no keys at all": Fault(missing(KEYS), "keys", "RFC 7517, section 5", "404"),
    "keys that are a page": Fault(page(KEYS, 200, HTML), "keys", "RFC 7517, section 5", "not a JWK Set"),
    "a set without keys": Fault(page(KEYS, 200, {"keys": []}), "keys", "RFC 7517, section 5", "no key"),
    "keys of no use": Fault(
        page(KEYS, 200, {"keys": [{**KEY, "use": "enc"}]}), "keys", "RFC 7517, section 5", "no key"
    ),
    "keys that nobody serves": Fault(
        server("jwks_uri", "http://127.0.0.1:1/keys"), "keys", "RFC 8414, section 2", "no server is listening there"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_failed_hop_is_named_with_its_clause(there: AuthSetup, name: str) -> None:
    fault = FAULTS[name]
    fault.broken(there)
    findings = await look(there)

    failed = first_failed(findings)
    assert failed is not None
    assert (failed.hop, failed.clause) == (fault.hop, fault.clause)
    assert re.search(fault.seen, failed.seen), failed.seen
    assert failed.mend
    assert hops(findings, "failed") == [(fault.hop, fault.clause)]


async def test_later_hops_are_skipped(there: AuthSetup) -> None:
    there.pages.pop(RESOURCE)
    findings = await look(there)

    assert verdicts(findings) == [
        ("address", "ok"),
        ("server", "ok"),
        ("resource-metadata", "failed"),
        *((hop, "skipped") for hop in HOPS[3:]),
    ]
    assert findings[-1].seen == "not tried, since 'resource-metadata' failed"


async def test_independent_hops_are_still_tried(there: AuthSetup) -> None:
    there.server["code_challenge_methods_supported"] = None
    there.pages.pop(AUTHORIZE)
    findings = await look(there)

    assert [hop for hop, _ in hops(findings, "failed")] == ["authorization-server-metadata", "authorization"]
    assert verdicts(findings)[-2:] == [("token", "ok"), ("keys", "ok")]


@pytest.mark.parametrize(
    "url",
    [
        "notes.example/mcp",
        "ftp://notes.example/mcp",
        "https:///mcp",
        "https://a/mcp#b",
        "https://ada:s3cret@notes.example/mcp",
        "",
    ],
)
async def test_invalid_url_is_not_requested(there: AuthSetup, url: str) -> None:
    findings = await examine(url, Egress())

    assert hops(findings, "failed") == [("address", "MCP authorization, Canonical Server URI")]
    assert verdicts(findings)[1:] == [(hop, "skipped") for hop in HOPS[1:]]
    assert "s3cret" not in repr(findings)


async def test_unreachable_server_fails_at_address(there: AuthSetup) -> None:
    findings = await look(there, "http://127.0.0.1:1/mcp?key=s3cret")

    assert hops(findings, "failed") == [("address", "RFC 9110, section 4")]
    assert "no server is listening there" in findings[0].seen
    assert "s3cret" not in repr(findings)


async def test_untrusted_certificate_fails_at_address() -> None:
    async with auth_setup(server_tls()) as there:
        findings = await look(there)

    assert hops(findings, "failed") == [("address", "RFC 9110, section 4")]
    assert "its certificate is not trusted" in findings[0].seen


async def test_silent_server_times_out(there: AuthSetup) -> None:
    there.silent = True
    findings = await look(there, timeout=0.05)

    assert hops(findings, "failed") == [("address", "RFC 9110, section 4")]
    assert "no response within 0.05 s" in findings[0].seen


@pytest.mark.parametrize(("status", "verdict"), [(401, "failed"), (200, "warning")])
def test_unencrypted_server_with_tokens_fails(status: int, verdict: str) -> None:
    opened = ProbeResponse("server/discover", "http://notes.example/mcp", status, None, None)
    (finding,) = diagnose.assess_address("http://notes.example/mcp", opened)

    assert (finding.hop, finding.verdict) == ("address", verdict)
    assert finding.clause == "RFC 6750, section 5.3; MCP authorization, Communication Security"


# --- warnings -----------------------------------------------------------------------------------

REFRESH = "MCP authorization, Refresh Tokens"
WARNINGS = {
    "no challenge": (challenged(""), "server", f"RFC 9110, section 15.5.2; {DISCOVERY}"),
    "a challenge for passwords": (
        challenged('Basic realm="notes"'),
        "server",
        "RFC 6750, section 3; RFC 9728, section 5.1",
    ),
    "a challenge that is none": (challenged("="), "server", "RFC 6750, section 3; RFC 9728, section 5.1"),
    "offline_access in the challenge": (
        challenged(f'Bearer resource_metadata="ORIGIN{RESOURCE[4:]}", scope="notes offline_access"'),
        "server",
        REFRESH,
    ),
    "metadata elsewhere than named": (
        challenged('Bearer resource_metadata="ORIGIN/metadata", scope="notes"'),
        "resource-metadata",
        "RFC 9728, section 5.1",
    ),
    "offline_access in the metadata": (
        resource("scopes_supported", ["offline_access"]),
        "resource-metadata",
        REFRESH,
    ),
    "no scopes anywhere": (
        both(challenged(f'Bearer resource_metadata="ORIGIN{RESOURCE[4:]}"'), resource("scopes_supported", None)),
        "resource-metadata",
        "MCP authorization, Scope Selection Strategy",
    ),
    "tokens in the query": (
        resource("bearer_methods_supported", ["query"]),
        "resource-metadata",
        "MCP authorization, Token Requirements",
    ),
    "no refreshing": (
        server("grant_types_supported", ["authorization_code"]),
        "authorization-server-metadata",
        REFRESH,
    ),
    "no iss": (
        server("authorization_response_iss_parameter_supported", None),
        "authorization-server-metadata",
        "RFC 9207, section 2.3; MCP authorization, Authorization Response Validation",
    ),
    "no way to get an id": (
        server("client_id_metadata_document_supported", None),
        "registration",
        "MCP authorization, Client Registration",
    ),
    "ids that need a secret": (
        server("token_endpoint_auth_methods_supported", ["client_secret_basic"]),
        "registration",
        "MCP authorization, Client ID Metadata Documents",
    ),
    "a page to log in that fails": (page(AUTHORIZE, 500), "authorization", "RFC 6749, section 3.1"),
    "a token endpoint that wants to be left alone": (page(TOKEN, 429), "token", "RFC 6749, section 5.2"),
    "errors that look like success": (page(TOKEN, 200, {"error": "bad_code"}), "token", "RFC 6749, section 5.2"),
    "nothing for browsers": (
        lambda auth_setup: auth_setup.pages.__setitem__(SERVER, Page(200, auth_setup.server)),
        "authorization-server-metadata",
        "Fetch, CORS protocol",
    ),
}


@pytest.mark.parametrize("name", WARNINGS)
async def test_warnings_do_not_fail(there: AuthSetup, name: str) -> None:
    change, hop, clause = WARNINGS[name]
    change(there)
    findings = await look(there)

    assert hops(findings, "warning", "failed", "skipped") == [(hop, clause)]
    assert all(finding.mend for finding in findings if finding.verdict == "warning")


async def test_dynamic_registration_is_ok(there: AuthSetup) -> None:
    there.server |= {"client_id_metadata_document_supported": False, "registration_endpoint": f"{there.origin}/r"}
    findings = await look(there)

    assert [f.verdict for f in findings if f.hop == "registration"] == ["ok"]


async def test_opaque_tokens_need_no_keys(there: AuthSetup) -> None:
    del there.server["jwks_uri"]
    assert verdicts(await look(there))[-1] == ("keys", "ok")


async def test_login_page_redirect_is_not_followed(there: AuthSetup) -> None:
    there.pages[AUTHORIZE] = Page(302, None, {"Location": f"{there.origin}/password"})
    findings = await look(there)

    assert verdicts(findings) == [(hop, "ok") for hop in HOPS]
    assert "GET /password" not in [asked.what for asked in there.asked]


async def test_one_usable_issuer_suffices(there: AuthSetup) -> None:
    there.resource["authorization_servers"] = ["https://login.example", there.issuer]
    findings = await look(there)

    assert hops(findings, "failed", "warning") == [("authorization-server-metadata", SSRF)]
    assert first_failed(findings) is None


async def test_2025_03_26_server_may_issue_tokens(there: AuthSetup) -> None:
    there.challenge = "Bearer"
    there.pages.pop(RESOURCE)
    there.server["issuer"] = there.origin
    there.pages["GET /.well-known/oauth-authorization-server"] = there.pages.pop(SERVER)
    findings = await look(there)

    assert first_failed(findings) is None
    assert ("resource-metadata", f"RFC 9728, section 3; {DISCOVERY}") in hops(findings, "warning")
    assert [hop for hop, _ in verdicts(findings)][-4:] == ["registration", "authorization", "token", "keys"]


# --- with a token -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "challenge", "verdict", "words"),
    [
        (200, "", "ok", "200"),
        (401, 'Bearer error="invalid_token", error_description="it is expired"', "failed", "it is expired"),
        (403, 'Bearer error="insufficient_scope", scope="notes:write"', "failed", "notes:write"),
        (400, "", "warning", "400"),
    ],
)
async def test_token_is_tried(there: AuthSetup, status: int, challenge: str, verdict: str, words: str) -> None:
    def answer(asked: RecordedRequest) -> Page:
        known = asked.headers.get("authorization") == "Bearer t0k3n"
        return Page(status if known else 401, None, {"WWW-Authenticate": challenge if known else there.challenge})

    there.pages[ENDPOINT] = answer
    *before, last = await look(there, token="t0k3n")

    assert verdicts(before) == [(hop, "ok") for hop in HOPS]
    assert (last.hop, last.verdict) == ("retry", verdict)
    assert words in f"{last.seen} {last.mend}"
    assert {asked.what for asked in there.asked if "authorization" in asked.headers} == {ENDPOINT}
    assert "t0k3n" not in repr([*before, last])


async def test_token_follows_no_redirect(there: AuthSetup) -> None:
    there.pages[ENDPOINT] = Page(307, None, {"Location": "/other"})
    findings = await look(there, token="t0k3n")

    assert findings[-1].verdict == "skipped"
    assert [asked.what for asked in there.asked if "authorization" in asked.headers] == [ENDPOINT, ENDPOINT]


async def test_token_is_not_sent_unencrypted(there: AuthSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, there.origin if name == "http_proxy" else "")  # which plays that server, too
    findings = await look(there, "http://notes.example/mcp", token="t0k3n")

    clause = "RFC 6750, section 5.3; MCP authorization, Communication Security"
    assert hops(findings, "failed") == [("address", clause), ("retry", clause)]
    assert [asked.what for asked in there.asked] == [ENDPOINT]
    assert "authorization" not in there.asked[0].headers


async def test_silence_after_token_times_out(there: AuthSetup) -> None:
    def answer(asked: RecordedRequest) -> Page:
        there.silent = "authorization" in asked.headers
        return Page(401, None, {"WWW-Authenticate": there.challenge})

    there.pages[ENDPOINT] = answer
    *before, last = await look(there, timeout=0.2, token="t0k3n")

    assert verdicts(before) == [(hop, "ok") for hop in HOPS]
    assert (last.hop, last.verdict, last.clause) == ("retry", "failed", "RFC 9110, section 4")
