"""Invalid tokens: forged, expired, for another audience, of another type, or stolen from the holder of their key."""

import asyncio
import base64
import hashlib
import hmac
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from tests.attacks.attacked_server import EPOCH, AttackedServer, opened, protected
from tests.attacks.fake_internet import KEY, OTHER_KEY, Issuer, SiteRequest, issuer, page
from tests.attacks.raw import PATIENCE, Answer, Caller, ask, initialize, request

from trunkline import Server, Settings
from trunkline.auth import Introspection, IssuerLimits, Jwt, ResourceServer, SigningKey, StaticTokens
from trunkline.errors import ConfigError
from trunkline.testing import ManualClock

US = "https://mcp.example/mcp"
NOW = EPOCH + 1000  # the time of the clock
_numbers = count(1)


@asynccontextmanager
async def trusting(**options: Any) -> AsyncIterator[tuple[Issuer, AttackedServer]]:
    """A server that trusts one issuer."""
    async with issuer() as known, protected(Jwt(known.name), public_url=US, **options) as place:
        yield known, place


async def request_with(
    place: AttackedServer, token: str, *, scheme: str = "Bearer", path: str = "/mcp", **headers: Any
) -> Answer:
    """The response to a request with a token."""
    return await ask(place.port, "POST", path, initialize(), authorization=f"{scheme} {token}", **headers)


async def accepted_tokens(place: AttackedServer, tokens: dict[str, str], **headers: Any) -> list[str]:
    """The tokens that are accepted. All others get a proper challenge."""
    found: list[str] = []
    for name, token in tokens.items():
        answer = await request_with(place, token, **headers)
        if answer.status == 200:
            found.append(name)
        else:
            assert answer.status in {400, 401}, (name, answer.status, answer.body)
            assert 'resource_metadata="' in answer.headers["www-authenticate"]
    return found


def packed(data: bytes | Any) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def with_secret(header: Any, claims: Any, secret: bytes) -> str:
    """A token signed with a shared secret, which may be public."""
    said = f"{packed(header)}.{packed(claims)}"
    return f"{said}.{packed(hmac.digest(secret, said.encode(), hashlib.sha256))}"


# --- forged ------------------------------------------------------------------------------------------


async def test_forged_token_is_refused() -> None:
    async with trusting() as (known, place):
        good = known.token(US)
        head, body, signature = good.split(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=="))
        public = {"alg": "HS256", "kid": "k"}
        own = OTHER_KEY.public
        forged = {
            "no algorithm": f"{packed({'alg': 'none'})}.{body}.",
            "no algorithm, with the signature": f"{packed({'alg': 'None', 'kid': 'k'})}.{body}.{signature}",
            "the public key as a secret": with_secret(public, claims, json.dumps(KEY.public).encode()),
            "its point as a secret": with_secret(public, claims, (KEY.public["x"] + KEY.public["y"]).encode()),
            "an empty secret": with_secret({"alg": "HS256"}, claims, b""),
            "other claims": f"{head}.{packed(claims | {'sub': 'root'})}.{signature}",
            "an empty signature": f"{head}.{body}.",
            "a zero signature": f"{head}.{body}.{packed(bytes(64))}",
            "another key of that name": known.token(US, key=OTHER_KEY),
            "a key that it brings along": known.token(US, key=OTHER_KEY, header={"jwk": own, "kid": "other"}),
            "a key that it names": known.token(US, key=OTHER_KEY, header={"jku": f"{known.name}/mine", "kid": "o"}),
            "what nobody understands": known.token(US, header={"crit": ["b64"], "b64": False}),
            "not a token": "a.b.c",
            "two tokens": f"{good}.{good}",
            "very deep": f"{packed(b'[' * 5000)}.{packed(b'[' * 5000)}.{signature}",
            "very deep within": ".".join((head, packed(b'{"a":' * 3000), signature)),
            "nothing": "x",
        }
        known.site.pages["/mine"] = page({"keys": [own]})
        assert await accepted_tokens(place, forged) == []
        assert "/mine" not in known.site.paths
        assert await accepted_tokens(place, {"good": good}) == ["good"]


async def test_unknown_keys_cause_bounded_fetches() -> None:
    async with trusting() as (known, place):
        for number in range(30):
            unknown = SigningKey.from_jwk(OTHER_KEY.to_jwk() | {"kid": f"k{number}"})
            assert (await request_with(place, known.token(US, key=unknown))).status == 401
        assert len(known.site.at("/jwks")) <= 2
        assert await accepted_tokens(place, {"good": known.token(US)}) == ["good"]


# --- for another audience ----------------------------------------------------------------------------


async def test_token_for_another_audience_is_refused() -> None:
    async with trusting() as (known, place):
        others = {
            str(audience): known.token(audience)
            for audience in (
                *("https://other.example/mcp", "https://mcp.example/other", "https://mcp.example.evil.example/mcp"),
                *("https://mcp.example", "http://mcp.example/mcp", "https://mcp.example/mcp/deeper", "https://MCP.example/mcp"),
                *("", "*", "app", ["https://other.example"], [], [[US]], {"aud": US}, 1, True),
            )
        }  # fmt: skip
        others["none"] = known.token("", aud=None)
        others["only its client"] = known.token("", aud=None, azp=US, client_id=US)
        assert await accepted_tokens(place, others) == []
        fine = {"ours": known.token(US), "with a slash": known.token(f"{US}/"), "one of some": known.token(["x", US])}
        assert await accepted_tokens(place, fine) == list(fine)


async def test_token_of_another_issuer_is_refused() -> None:
    async with trusting() as (known, place), issuer() as evil:
        others = {
            "its own": evil.token(US, key=OTHER_KEY),
            "in the name of the known one": evil.token(US, key=OTHER_KEY, iss=known.name),
            "signed with the key of the known one": evil.token(US),
            **{name: known.token(US, iss=name) for name in (f"{known.name}/", known.name.upper(), "", "null")},
            "none": known.token(US, iss=None),
            "a list": known.token(US, iss=[known.name]),
        }
        assert await accepted_tokens(place, others) == []
        assert evil.site.asked == []


async def test_issuers_cannot_impersonate_each_other() -> None:
    async with issuer() as one, issuer() as two:
        two.site.pages["/jwks"] = page({"keys": [OTHER_KEY.public]})
        async with protected(Jwt(one.name), Jwt(two.name), StaticTokens({}), public_url=US) as place:
            crossed = {"one's, by two": one.token(US, key=OTHER_KEY), "two's, by one": two.token(US, key=KEY)}
            assert await accepted_tokens(place, crossed) == []
            fine = {"one": one.token(US), "two": two.token(US, key=OTHER_KEY)}
            assert await accepted_tokens(place, fine) == ["one", "two"]


async def test_cached_token_is_bound_to_its_audience() -> None:
    async with issuer() as known:
        clock = ManualClock()
        auth = ResourceServer(Jwt(known.name), now=lambda: EPOCH + clock.now())
        first, second = (AttackedServer(Settings(drain_timeout=0.2), clock, auth) for _ in range(2))
        async with opened(first), opened(second):
            token = known.token(f"http://localhost:{first.port}/mcp")
            assert await accepted_tokens(first, {"its own": token}) == ["its own"]
            assert await accepted_tokens(second, {"the other's": token}) == []


async def test_caller_cannot_choose_audience() -> None:
    async with issuer() as known, protected(Jwt(known.name)) as place:
        for host in ("localhost:9999", "127.0.0.1:9999", "localhost", "[::1]:9999"):
            elsewhere = {host: known.token(f"http://{host}/mcp")}
            assert await accepted_tokens(place, elsewhere, host=host) == []
            assert (
                await accepted_tokens(place, elsewhere, host=host, x_forwarded_host=host, forwarded=f"host={host}")
                == []
            )
        ours = {"ours": known.token(f"http://localhost:{place.port}/mcp")}
        assert await accepted_tokens(place, ours, host="localhost:9999") == ["ours"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "mcp.example:8443"},
        {"host": "mcp.example", "x_forwarded_port": "8443"},
        {"host": "mcp.example", "x_forwarded_prefix": "/tenant"},
        {"host": "mcp.example", "x_forwarded_proto": "http"},
        {"host": "mcp.example", "x_forwarded_host": "other.example"},
        {"host": "localhost", "x_forwarded_proto": "https"},
    ],
    ids=str,
)
async def test_proxy_headers_do_not_change_audience(headers: dict[str, str]) -> None:
    behind = {"trusted_proxies": ("127.0.0.1",), "allowed_hosts": ("mcp.example",)}
    async with issuer() as known, protected(Jwt(known.name), settings=behind) as place:
        ours = {"ours": known.token("https://mcp.example/mcp")}
        elsewhere = {
            name: known.token(name)
            for name in (
                *("https://mcp.example:8443/mcp", "http://mcp.example/mcp", "http://mcp.example:8443/mcp"),
                *("https://mcp.example/tenant/mcp", "http://mcp.example/tenant/mcp", "https://other.example/mcp"),
                "http://other.example/mcp",
                *("https://localhost/mcp", f"http://localhost:{place.port}/mcp", "http://localhost/mcp"),
            )
        }
        assert await accepted_tokens(place, elsewhere, **headers) == []
        assert await accepted_tokens(place, ours, **headers) == (["ours"] if "mcp.example" in headers["host"] else [])


async def test_public_url_overrides_proxy_headers() -> None:
    behind = {"trusted_proxies": ("127.0.0.1",), "allowed_hosts": ("mcp.example",)}
    public = "http://mcp.example:8443/tenant/mcp"
    async with issuer() as known, protected(Jwt(known.name), public_url=public, settings=behind) as place:
        tokens = {name: known.token(name) for name in (public, "https://mcp.example/mcp")}
        for more in ({}, {"x_forwarded_prefix": "/x", "x_forwarded_proto": "https"}):
            assert await accepted_tokens(place, tokens, host="mcp.example:9", **more) == [public]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # which it does on startup
async def test_wildcard_host_needs_public_url() -> None:
    started: list[Any] = []
    told: list[str] = []
    for settings, address in (
        (Settings(allowed_hosts=("*",)), "http://127.0.0.1:0/mcp"),
        (Settings(), "http://0.0.0.0:0/mcp"),
        (Settings(allowed_hosts=("*.example",)), "http://127.0.0.1:0/mcp"),
    ):
        server = Server("s", settings=settings, auth=ResourceServer(StaticTokens({})))
        try:
            started.append(await server.listen(address))
        except ConfigError as error:
            told.append(str(error))
        await server.aclose()
    assert started == []
    assert all("public_url" in why for why in told)


# --- tokens and proofs by the hundred ----------------------------------------------------------------


def introspected(known: Issuer, **options: Any) -> Introspection:
    return Introspection(known.name, client_id="mcp", client_secret="x", endpoint=f"{known.name}/introspect", **options)


def asked_about(known: Issuer) -> list[str]:
    return [one.form["token"] for one in known.site.at("/introspect")]


def accept_good_tokens(asked: SiteRequest) -> bytes:
    """Accept tokens that begin with `good`."""
    token = asked.form["token"]
    return page({"active": True, "sub": token, "aud": US} if token.startswith("good") else {"active": False})


async def test_invented_tokens_cause_bounded_requests() -> None:
    behind = {"trusted_proxies": ("127.0.0.1",), "allowed_hosts": ("mcp.example",)}
    async with issuer() as known:
        known.site.pages["/introspect"] = accept_good_tokens
        async with protected(introspected(known), public_url=US, settings=behind) as place:
            assert (await request_with(place, "good-one", x_forwarded_for="192.0.2.1")).status == 200
            flood = [request_with(place, f"made-up-{number}", x_forwarded_for="192.0.2.1") for number in range(300)]
            answers = await asyncio.gather(*flood)
            assert Counter(answer.status for answer in answers) == {401: 60, 429: 240}
            assert len(asked_about(known)) == 61
            refused = next(answer for answer in answers if answer.status == 429)
            assert (refused.headers["retry-after"], refused.json["error"]["data"]["kind"]) == (
                "1",
                "rate_limit_exceeded",
            )
            assert (await request_with(place, "good-one", x_forwarded_for="192.0.2.1")).status == 200
            assert (await request_with(place, "good-two", x_forwarded_for="192.0.2.2")).status == 200


async def test_repeated_invented_token_is_one_request() -> None:
    async with issuer() as known:
        known.site.pages["/introspect"] = accept_good_tokens
        async with protected(introspected(known), public_url=US) as place:
            tokens = ["made-up", "good"]
            answers = await asyncio.gather(*(request_with(place, token) for token in tokens * 50))
            assert Counter(answer.status for answer in answers) == {401: 50, 200: 50}
            assert sorted(asked_about(known)) == ["good", "made-up"]
            assert (await request_with(place, "made-up")).status == 401
            assert len(asked_about(known)) == 2


async def test_slow_issuer_has_bounded_queue() -> None:
    go_on = asyncio.Event()

    async def slow(asked: SiteRequest) -> bytes:
        await go_on.wait()
        return accept_good_tokens(asked)

    async with issuer() as known:
        known.site.pages["/introspect"] = slow
        limits = IssuerLimits(max_requests=2, max_waiting=3)
        async with protected(introspected(known, limits=limits), public_url=US) as place:
            callers = [asyncio.create_task(request_with(place, f"good-{number}")) for number in range(12)]
            done: set[asyncio.Task[Answer]] = set()
            while len(done) < 7:
                more, _ = await asyncio.wait(set(callers) - done, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                assert more
                done |= more
            assert {(one.result().status, one.result().headers.get("retry-after")) for one in done} == {(503, "5")}
            assert len(asked_about(known)) <= 2
            go_on.set()
            answers = await asyncio.gather(*callers)
            assert Counter(answer.status for answer in answers) == {200: 5, 503: 7}


# --- expired or of another type ----------------------------------------------------------------------


async def test_token_is_refused_outside_its_validity() -> None:
    async with trusting() as (known, place):
        times: dict[str, dict[str, Any]] = {
            "over": {"exp": NOW - 31},
            "over for long": {"exp": 0},
            "never over": {"exp": None},
            "over when it likes": {"exp": "2000000000"},
            "over at infinity": {"exp": 1e999},
            "true": {"exp": True},
            "not yet": {"nbf": NOW + 31},
            "made tomorrow": {"iat": NOW + 86400},
        }
        assert await accepted_tokens(place, {name: known.token(US, **claims) for name, claims in times.items()}) == []
        ending = known.token(US, exp=NOW + 5)
        assert await accepted_tokens(place, {"ending": ending}) == ["ending"]
        place.clock.advance(60)
        refused = await request_with(place, ending)
        assert (refused.status, refused.refusal["data"]["kind"]) == (401, "token_expired")


async def test_token_for_another_purpose_is_refused() -> None:
    async with trusting() as (known, place):
        others = {
            "an ID token": known.token(US, nonce="n"),
            "an ID token of a code": known.token(US, at_hash="h"),
            "a refresh token": known.token(US, typ="Refresh"),
            "an ID token of Cognito": known.token(US, token_use="id"),
            "a logout token": known.token(US, header={"typ": "logout+jwt"}),
            "an assertion": known.token(US, header={"typ": "secevent+jwt"}),
            "a proof": known.token(US, header={"typ": "dpop+jwt"}),
            "a grant": known.token(US, header={"typ": "oauth-id-jag+jwt"}),
        }
        assert await accepted_tokens(place, others) == []
        assert await accepted_tokens(place, {"access": known.token(US, header={"typ": "at+jwt"})}) == ["access"]


async def test_token_without_subject_is_refused() -> None:
    async with trusting() as (known, place):
        nobody = {str(sub): known.token(US, sub=sub) for sub in (None, "", 7, ["ada"], False)}
        assert await accepted_tokens(place, nobody) == []


async def test_token_in_url_is_refused() -> None:
    async with trusting() as (known, place):
        token = known.token(US)
        for path in ("/mcp", "/sse", "/messages"):
            for query in (f"access_token={token}", f"ACCESS_TOKEN={token}", f"x=1&%61ccess_token={token}"):
                bare = await ask(place.port, "POST", f"{path}?{query}", initialize())
                assert bare.status in {400, 401}
                both = await request_with(place, token, path=f"{path}?{query}")
                assert both.status == 400, (path, query)
                assert token not in both.body.decode() + str(both.headers)


# --- bound to a key ----------------------------------------------------------------------------------

MINE = SigningKey.generate("ES256")
THIEF = SigningKey.generate("ES256")


def proof(token: str, *, key: SigningKey = MINE, header: Any = None, **claims: Any) -> str:
    """A valid DPoP proof, apart from the given claims."""
    digest = packed(hashlib.sha256(token.encode()).digest())
    usual = {"jti": f"proof {next(_numbers)}", "htm": "POST", "htu": US, "iat": NOW, "ath": digest}
    said = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return key.sign(said, {"typ": "dpop+jwt", "jwk": key.public, **(header or {})})


def bound(known: Issuer, key: SigningKey = MINE, **claims: Any) -> str:
    return known.token(US, cnf={"jkt": key.thumbprint}, **claims)


async def test_bound_token_without_key_is_refused() -> None:
    async with trusting() as (known, place):
        token = bound(known)
        assert await accepted_tokens(place, {"as a bearer's": token}) == []
        assert await accepted_tokens(place, {"with the proof unread": token}, dpop=proof(token)) == []
        assert await accepted_tokens(place, {"without a proof": token}, scheme="DPoP") == []
        certified = known.token(US, cnf={"x5t#S256": "x"})
        assert (
            await accepted_tokens(place, {"bound to a certificate": certified, "in no way": known.token(US, cnf={})})
            == []
        )
        assert await accepted_tokens(place, {"with its proof": token}, scheme="DPoP", dpop=proof(token)) == [
            "with its proof"
        ]


async def test_proof_is_bound_to_request_key_and_token() -> None:
    async with trusting() as (known, place):
        token, other = bound(known), bound(known, sub="bob")
        used = proof(token)
        assert await accepted_tokens(place, {"once": token}, scheme="DPoP", dpop=used) == ["once"]
        private = MINE.to_jwk() | {"alg": "ES256"}
        wrong = {
            "twice": used,
            "another method": proof(token, htm="GET"),
            "no method": proof(token, htm=None),
            "another path": proof(token, htu="https://mcp.example/other"),
            "another host": proof(token, htu="https://evil.example/mcp"),
            "without TLS": proof(token, htu="http://mcp.example/mcp"),
            "no address": proof(token, htu=None),
            "another token": proof(other),
            "no token": proof(token, ath=None),
            "another key": proof(token, key=THIEF),
            "another key, in its name": proof(token, key=THIEF, header={"jwk": MINE.public}),
            "a private key": proof(token, header={"jwk": private}),
            "of another type": proof(token, header={"typ": "JWT"}),
            "old": proof(token, iat=NOW - 301),
            "from the future": proof(token, iat=NOW + 31),
            "no time": proof(token, iat=None),
            "no id": proof(token, jti=None),
        }
        for name, made in wrong.items():
            assert await accepted_tokens(place, {name: token}, scheme="DPoP", dpop=made) == [], name


# --- our own messages --------------------------------------------------------------------------------


async def test_caller_cannot_inject_headers() -> None:
    said = 'x"\r\nset-cookie: evil=1\r\n\r\n<script>'
    async with trusting(scopes=["needed"]) as (known, place):
        token = known.token(US, scp=[said, 'a", error="none', "ü"])
        async with Caller(place.port) as caller:
            caller.say(request("POST", "/mcp", initialize(), authorization=f"Bearer {token}"))
            answer = await caller.head()
        challenge = answer.headers["www-authenticate"]
        assert (answer.status, "set-cookie" in answer.headers) == (403, False)
        quoted = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', challenge)
        assert [name for name, _ in quoted] == ["error", "scope", "resource_metadata"]
    async with issuer() as known, protected(Jwt(known.name)) as place:
        for host in ('localhost"x', "localhost\\", 'localhost", error="x', "localhost:1/@evil.example"):
            answer = await ask(place.port, "POST", "/mcp", initialize(), host=host)
            assert (answer.status, "evil" in str(answer.headers)) == (400, False)
