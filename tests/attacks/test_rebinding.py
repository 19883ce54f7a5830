"""DNS rebinding: a web page makes a browser talk to a server on the same machine, under its own name or origin."""

from tests.attacks.attacked_server import listening
from tests.attacks.raw import Answer, Caller, Header, ask, initialize, request, tool
from tests.attacks.websocket_frames import upgrade

PORT = "{port}"
OWN_HOSTS = ["127.0.0.1", f"127.0.0.1:{PORT}", "localhost", "LocalHost:8080", f"[::1]:{PORT}", "[::1]"]
FOREIGN_HOSTS = [
    *("evil.example", f"evil.example:{PORT}", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost"),
    *("127.0.0.2", "[::2]", ""),
]
NO_HOSTS = ["[::1].evil.example", "[::1", "localhost:evil", f"localhost:{PORT}@evil.example", None]  # not even valid
OWN_ORIGINS = [None, f"http://127.0.0.1:{PORT}", "http://localhost:3000", "HTTP://LOCALHOST", "http://[::1]:8080"]
FOREIGN_ORIGINS = [
    *("http://evil.example", f"http://evil.example:{PORT}", "https://localhost.evil.example", "null", "file://", ""),
    *(
        "http://localhost@evil.example",
        f"http://localhost:{PORT}@evil.example",
        "http://[::1].evil.example",
        "localhost",
    ),
    *("chrome-extension://abcdefgh", "ftp://localhost", "javascript:alert(1)"),
]
WAYS_IN = {  # the request, and the status of an admitted one
    "POST": (("POST", "/mcp", initialize()), 200),
    "GET": (("GET", "/mcp", None), 400),
    "DELETE": (("DELETE", "/mcp", None), 400),
    "OPTIONS": (("OPTIONS", "/mcp", None), 204),
    "stream of HTTP+SSE": (("GET", "/sse", None), 200),
    "message of HTTP+SSE": (("POST", "/messages?session_id=guessed", tool("effect", what="x")), 404),
    "WebSocket": (None, 101),
    "nothing there": (("GET", "/other", None), 404),
}


async def response_head(port: int, way: str, *headers: Header, **common: str | None) -> Answer:
    """The head of the response to a request with these headers."""
    asked = WAYS_IN[way][0]
    async with Caller(port) as caller:
        caller.say(upgrade("/mcp", *headers, **common) if asked is None else request(*asked, *headers, **common))
        return await caller.head()


def named(text: str | None, port: int) -> str | None:
    return text if text is None else text.replace(PORT, str(port))


async def test_foreign_hosts_and_origins_are_refused_on_every_transport() -> None:
    wrong: list[tuple[str, str | None, str | None, int]] = []
    async with listening() as place:
        pairs = [(host, origin, 0) for host in OWN_HOSTS for origin in OWN_ORIGINS]
        pairs += [(host, origin, 403) for host in FOREIGN_HOSTS for origin in (None, OWN_ORIGINS[1])]
        pairs += [(host, origin, 400) for host in NO_HOSTS for origin in (None, OWN_ORIGINS[1])]
        pairs += [(host, origin, 403) for host in OWN_HOSTS[:3] for origin in FOREIGN_ORIGINS]
        for way, (_, welcome) in WAYS_IN.items():
            for host, origin, refused in pairs:
                shown = {"host": named(host, place.port), "origin": named(origin, place.port)}
                answer = await response_head(place.port, way, **shown)
                if answer.status != (refused or welcome):
                    wrong.append((way, host, origin, answer.status))
        assert wrong == []
        assert place.done == []


async def test_refusal_names_the_setting_that_would_allow_it() -> None:
    async with listening() as place:
        by_host = await ask(place.port, "POST", "/mcp", initialize(), host="evil.example")
        by_origin = await ask(place.port, "POST", "/mcp", initialize(), origin="http://evil.example")
    assert "allowed_hosts" in by_host.refusal["message"]
    assert "allowed_origins" in by_origin.refusal["message"]


async def test_foreign_origin_gets_no_cors_headers() -> None:
    async with listening(allowed_origins=("https://friend.example",)) as place:
        foreign = await ask(place.port, "OPTIONS", origin="http://evil.example")
        friend = await ask(place.port, "OPTIONS", origin="https://friend.example")
    assert "access-control-allow-origin" not in foreign.headers
    assert friend.headers["access-control-allow-origin"] == "https://friend.example"


async def test_allowed_host_is_accepted_behind_a_proxy() -> None:
    async with listening(allowed_hosts=("mcp.example", "*.inner.example")) as place:
        seen = [
            (await response_head(place.port, "POST", host=host)).status
            for host in ("mcp.example", "MCP.example:443", "a.inner.example", "inner.example", "xmcp.example")
        ]
    assert seen == [200, 200, 200, 403, 403]


async def test_duplicate_host_or_origin_is_refused_in_any_order() -> None:
    async with listening() as place:
        for way in WAYS_IN:
            refused = {400, 403} if way == "WebSocket" else {400}
            for first, second in (
                ("localhost", "evil.example"),
                ("evil.example", "localhost"),
                ("localhost", "localhost"),
            ):
                answer = await response_head(place.port, way, ("host", second), host=first)
                assert answer.status in refused, (way, first, second)
            answer = await response_head(place.port, way, ("origin", "http://evil.example"), origin="http://localhost")
            assert answer.status in refused, way


async def test_http_request_to_a_tcp_listener_does_nothing() -> None:
    hostile = b"\n%b\n" % request("POST", "/", tool("effect", what="posted by a page"))
    hostile += b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    async with listening("tcp://127.0.0.1:0") as place, Caller(place.port) as caller:
        caller.say(hostile)
        assert await caller.rest() == b""
        assert place.done == []
