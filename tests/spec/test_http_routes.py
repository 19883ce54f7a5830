"""Custom HTTP routes on our own connections, under an ASGI server, and mounted below a path."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.contract.asgi import asgi_server
from tests.limits import PATIENCE

from trunkline import Client, Refusal, ResourceNotFound, Server, Settings, ToolError
from trunkline.auth import Principal, ResourceServer, StaticTokens
from trunkline.errors import ConfigError, MisuseError, NotNow, NotPermitted, RegistrationError
from trunkline.facts import Fact, HandlerFailed
from trunkline.http import Request, Response
from trunkline.testing import ManualClock

ORIGIN = "https://page.example"
TOKENS = {"ada": Principal("ada", scopes=("notes",)), "bob": Principal("bob")}


class Reply(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return self.json["error"]["message"]


class Site:
    """A running server with routes."""

    def __init__(self, base: str, session: aiohttp.ClientSession) -> None:
        self.base = base
        self._session = session

    async def ask(self, method: str, path: str, *, token: str | None = None, **options: Any) -> Reply:
        headers = {**options.pop("headers", {}), **({} if token is None else {"authorization": f"Bearer {token}"})}
        async with asyncio.timeout(PATIENCE):
            async with self._session.request(
                method, f"{self.base}{path}", headers=headers, allow_redirects=False, **options
            ) as response:
                return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, **options: Any) -> Reply:
        return await self.ask("GET", path, **options)


Serving = Callable[[Server], Any]


@asynccontextmanager
async def own_connections(server: Server) -> AsyncIterator[Site]:
    listener = await server.listen("http://127.0.0.1:0/mcp")
    try:
        async with aiohttp.ClientSession() as session:
            yield Site(listener.address.removesuffix("/mcp"), session)
    finally:
        await server.aclose()


@asynccontextmanager
async def under_asgi(server: Server) -> AsyncIterator[Site]:
    app = server.asgi(path="/mcp")
    async with asgi_server(app) as (host, port), aiohttp.ClientSession() as session:
        try:
            yield Site(f"http://{host}:{port}", session)
        finally:
            await app.aclose()


@asynccontextmanager
async def mounted(server: Server) -> AsyncIterator[Site]:
    app = server.asgi(path="/mcp")
    outer = Starlette(routes=[Mount("/tools", app=app)])
    async with asgi_server(outer) as (host, port), aiohttp.ClientSession() as session:
        try:
            yield Site(f"http://{host}:{port}/tools", session)
        finally:
            await app.aclose()


@pytest.fixture(params=[own_connections, under_asgi, mounted], ids=lambda way: way.__name__)
def serving(request: pytest.FixtureRequest) -> Serving:
    return request.param


class Failures:
    """Observer of failures."""

    failures_only = True
    immediate = True

    def __init__(self) -> None:
        self.facts: list[HandlerFailed] = []

    def on(self, fact: Fact) -> None:
        if isinstance(fact, HandlerFailed):
            self.facts.append(fact)


# --- requests and values --------------------------------------------------------------------------


async def test_route_gets_the_request(serving: Serving) -> None:
    server = Server("shop")

    @server.route("/shops/{shop}/items/{item}", methods=["PUT"])
    async def put(request: Request) -> dict[str, Any]:
        return {
            "method": request.method,
            "path": request.path,
            "params": request.path_params,
            "query": request.query,
            "header": request.headers["X-COLOUR"],
            "json": request.json(),
            "client": request.client_host,
            "principal": request.principal,
            "transport": request.transport,
            "root": request.root_path,
        }

    async with serving(server) as site:
        reply = await site.ask("PUT", "/shops/a%20b/items/7/?size=1&size=2", json={"n": 1}, headers={"x-colour": "red"})
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.json == {
            "method": "PUT",
            "path": "/shops/a b/items/7",
            "params": {"shop": "a b", "item": "7"},
            "query": {"size": "2"},
            "header": "red",
            "json": {"n": 1},
            "client": "127.0.0.1",
            "principal": None,
            "transport": "http",
            "root": "/tools" if site.base.endswith("/tools") else "",
        }


@pytest.mark.parametrize(
    ("value", "status", "kind", "body"),
    [
        ("text", 200, "text/plain; charset=utf-8", b"text"),
        (b"\0", 200, "application/octet-stream", b"\0"),
        (bytearray(b"\0"), 200, "application/octet-stream", b"\0"),
        ({"a": 1}, 200, "application/json", b'{"a":1}'),
        ([1], 200, "application/json", b"[1]"),
        (5, 200, "application/json", b"5"),
        (None, 204, None, b""),
        (Response.html("<p>", status=404), 404, "text/html; charset=utf-8", b"<p>"),
        (Response(status=303, headers={"location": "/other"}), 303, None, b""),
    ],
)
async def test_values_become_responses(value: Any, status: int, kind: str | None, body: bytes) -> None:
    server = Server("values")
    server.add_route("/", lambda _: value, thread=False)
    for serving in (own_connections, under_asgi):
        async with serving(server) as site:
            reply = await site.get("/")
            assert (reply.status, reply.headers.get("content-type"), reply.body) == (status, kind, body)


async def test_plain_function_runs_on_a_thread() -> None:
    server, threads = Server("threads"), []

    async def later() -> str:
        return "later"

    server.add_route("/thread", lambda _: threads.append(threading.get_ident()))
    server.add_route("/loop", lambda _: threads.append(threading.get_ident()), thread=False)
    server.add_route("/later", lambda _: later())
    async with own_connections(server) as site:
        await site.get("/thread")
        await site.get("/loop")
        assert (await site.get("/later")).body == b"later"
    assert threads[0] != threading.get_ident()
    assert threads[1] == threading.get_ident()


async def test_repeated_response_headers_are_sent(serving: Serving) -> None:
    server = Server("cookies")

    @server.route("/")
    async def cookies(request: Request) -> Response:
        return Response("x", headers=[("set-cookie", "a=1"), ("set-cookie", "b=2")])

    async with serving(server) as site:
        assert (await site.get("/")).headers.getall("set-cookie") == ["a=1", "b=2"]


async def test_route_reads_the_lifespan() -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[str]:
        yield "database"

    server = Server("life", lifespan=lifespan)

    @server.route("/")
    def read(request: Request) -> str:
        return request.lifespan

    async with under_asgi(server) as site:
        assert (await site.get("/")).body == b"database"


# --- methods and other paths ----------------------------------------------------------------------


def simple(**options: Any) -> Server:
    server = Server("simple", **options)
    server.add_route("/version", lambda _: "1.0", thread=False)
    return server


async def test_get_answers_head(serving: Serving) -> None:
    async with serving(simple()) as site:
        reply = await site.ask("HEAD", "/version")
        assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", "3")


async def test_other_methods_get_405_with_allow(serving: Serving) -> None:
    async with serving(simple()) as site:
        reply = await site.ask("POST", "/version", data=b"x")
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
        options = await site.ask("OPTIONS", "/version")
        assert (options.status, options.headers["allow"], options.body) == (204, "GET, HEAD, OPTIONS", b"")


async def test_mcp_and_health_work_beside_routes(serving: Serving, revision: str) -> None:
    server = simple()
    server.add_tool(lambda: "8", name="eight")
    server.add_route("/{page}", lambda request: request.path_params["page"], thread=False)
    async with serving(server) as site:
        async with Client(f"{site.base}/mcp", revision=revision) as client:
            assert (await client.call_tool("eight")).data == "8"
        assert (await site.get("/livez")).json["ok"] is True
        assert (await site.get("/version")).body == b"1.0"
        assert (await site.get("/about")).body == b"about"
        missing = await site.get("/about/us")
        assert (missing.status, missing.message) == (404, "not found: the MCP endpoint is /mcp")


async def test_route_can_be_added_while_serving(serving: Serving) -> None:
    server = Server("late")
    async with serving(server) as site:
        assert (await site.get("/late")).status == 404
        server.add_route("/late", lambda _: "now")
        assert (await site.get("/late")).body == b"now"
        with pytest.raises(RegistrationError, match="the server uses this path for MCP"):
            server.add_route("/mcp", lambda _: "")


async def test_routes_are_ignored_on_other_transports() -> None:
    server = simple()
    server.add_tool(lambda: "8", name="eight")
    async with Client(server) as client:
        assert (await client.call_tool("eight")).data == "8"


# --- Host, Origin and CORS ------------------------------------------------------------------------


async def test_host_and_origin_are_checked(serving: Serving) -> None:
    server = simple(settings=Settings(allowed_origins=(ORIGIN,)))
    server.add_route("/public", lambda _: "x", public=True)
    async with serving(server) as site:
        for path in ("/version", "/public"):
            assert (await site.get(path, headers={"host": "evil.example"})).status == 403
            assert (await site.get(path, headers={"origin": "https://evil.example"})).status == 403
            allowed = await site.get(path, headers={"origin": ORIGIN})
            assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, ORIGIN)


async def test_preflight_names_methods_of_the_route(serving: Serving) -> None:
    server = simple(settings=Settings(allowed_origins=(ORIGIN,)), auth=protected())
    async with serving(server) as site:
        asked = {"origin": ORIGIN, "access-control-request-headers": "x-colour"}
        reply = await site.ask("OPTIONS", "/version", headers=asked)
        assert reply.status == 204
        assert reply.headers["access-control-allow-origin"] == ORIGIN
        assert reply.headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS"
        assert reply.headers["access-control-allow-headers"] == "x-colour"


# --- authentication -------------------------------------------------------------------------------


def protected(**options: Any) -> ResourceServer:
    return ResourceServer(StaticTokens(TOKENS), **options)


async def test_routes_need_the_credentials_of_mcp(serving: Serving) -> None:
    server = Server("protected", auth=protected())

    @server.route("/who")
    def who(request: Request) -> str:
        return request.principal.subject

    @server.route("/", public=True)
    def page(request: Request) -> str:
        return f"public {request.principal}"

    @server.route("/notes", scopes=["notes"])
    def notes(request: Request) -> str:
        return "notes"

    async with serving(server) as site:
        refused = await site.get("/who")
        assert refused.status == 401
        assert "oauth-protected-resource" in refused.headers["www-authenticate"]
        assert refused.headers["www-authenticate"].partition('metadata="')[2].partition('"')[0].endswith("/mcp")
        assert (await site.get("/who", token="wrong")).status == 401
        assert (await site.get("/who", token="ada")).body == b"ada"
        assert (await site.ask("POST", "/who")).status == 401
        assert (await site.ask("POST", "/who", token="ada")).status == 405
        assert (await site.get("/")).body == b"public None"
        assert (await site.ask("POST", "/")).status == 405
        assert (await site.get("/notes", token="ada")).body == b"notes"
        lacking = await site.get("/notes", token="bob")
        assert (lacking.status, lacking.message) == (403, "route '/notes' needs the scope 'notes'")
        assert 'error="insufficient_scope"' in lacking.headers["www-authenticate"]
        assert 'scope="notes"' in lacking.headers["www-authenticate"]


async def test_identified_callers_reach_routes() -> None:
    server = Server("identified")
    server.add_route("/who", lambda request: request.principal)
    server.add_route("/page", lambda request: f"{request.principal}", public=True)
    app = server.asgi(path="/mcp", identify=lambda scope: "ada")
    async with asgi_server(app) as (host, port), aiohttp.ClientSession() as session:
        site = Site(f"http://{host}:{port}", session)
        assert (await site.get("/who")).body == b"ada"
        assert (await site.get("/page")).body == b"None"
        await app.aclose()


async def test_scopes_need_authentication() -> None:
    server = Server("open")
    server.add_route("/notes", lambda _: "", scopes=["notes"])
    assert server.scoped() == ["route '/notes'"]
    with pytest.raises(ConfigError, match="route '/notes' needs scopes"):
        await server.listen("http://127.0.0.1:0/mcp")
    await server.aclose()


async def test_strict_server_needs_a_rule_for_each_route() -> None:
    server = Server("strict", auth=protected(strict=True))
    server.add_route("/a", lambda _: "")
    server.add_route("/b", lambda _: "", public=True)
    server.add_route("/c", lambda _: "", scopes=())
    assert server.undeclared() == ["route '/a'"]
    with pytest.raises(MisuseError, match="no access rule for route '/a'"):
        await server.start()


# --- errors ---------------------------------------------------------------------------------------


async def test_exception_gives_500_with_an_incident(serving: Serving) -> None:
    failures = Failures()
    server = Server("failing", observers=[failures])

    @server.route("/thread")
    def on_thread(request: Request) -> str:
        raise ValueError("secret")

    @server.route("/async")
    async def on_loop(request: Request) -> str:
        raise ValueError("secret")

    @server.route("/exit", thread=False)
    def exits(request: Request) -> str:
        raise SystemExit(3)

    @server.route("/exit-thread")
    def exits_on_thread(request: Request) -> str:
        raise SystemExit(3)

    @server.route("/cancelled")
    async def cancelled(request: Request) -> str:
        raise asyncio.CancelledError

    @server.route("/stop")
    def stops(request: Request) -> str:
        raise StopIteration

    @server.route("/unencodable")
    def unencodable(request: Request) -> object:
        return object()

    paths = ["/thread", "/async", "/exit", "/exit-thread", "/cancelled", "/stop", "/unencodable"]
    async with serving(server) as site:
        for path in paths:
            reply = await site.get(path)
            reference = reply.json["error"]["data"]["reference"]
            assert (reply.status, reply.message) == (
                500,
                f"the route failed; the log has the details under {reference}",
            )
            assert (failures.facts[-1].reference, failures.facts[-1].method) == (reference, f"GET {path}")
    assert len(failures.facts) == len(paths)


async def test_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("logging")
    server.add_route("/", lambda _: 1 / 0)
    async with own_connections(server) as site:
        reference = (await site.get("/")).json["error"]["data"]["reference"]
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage() == f"GET / failed (reference {reference})"


async def test_errors_can_be_exposed() -> None:
    server = Server("exposing", expose_errors=True, observers=[])
    server.add_route("/", lambda _: 1 / 0)
    async with own_connections(server) as site:
        assert (await site.get("/")).message == "ZeroDivisionError: division by zero"


@pytest.mark.row("Q08")
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ToolError("no such city"), 400, "no such city"),
        (ResourceNotFound("note://1"), 404, "there is no resource at 'note://1'"),
        (NotPermitted("this"), 403, "access denied: the caller is not authorized for this"),
        (Refusal(1090, "closed on Sundays"), 403, "closed on Sundays"),
        (NotNow("busy", retry_after=1.5), 503, "busy"),
    ],
)
async def test_errors_for_the_caller_have_a_status(error: Exception, status: int, message: str) -> None:
    server = Server("errors")

    @server.route("/")
    async def fail(request: Request) -> None:
        raise error

    for serving in (own_connections, under_asgi):
        async with serving(server) as site:
            reply = await site.get("/")
            assert (reply.status, reply.message) == (status, message)
            assert reply.headers.get("retry-after") == ("2" if status == 503 else None)


@pytest.mark.row("Q08")
async def test_open_circuit_breaker_says_when_to_retry(serving: Serving) -> None:
    server = Server("orders", clock=ManualClock(), observers=[])
    database = server.breaker("database", open_seconds=60)

    @server.route("/orders")
    async def orders(request: Request) -> str:
        async with database.guard():
            return "none"

    async with serving(server) as site:
        assert (await site.get("/orders")).status == 200
        database.open()
        refused = await site.get("/orders")
        assert (refused.status, refused.headers["retry-after"]) == (503, "60")


@pytest.mark.row("Q08")
@pytest.mark.parametrize("code", [1003, 1004])
async def test_overload_without_a_time_is_repeated_soon(code: int) -> None:
    server = Server("errors")

    @server.route("/")
    async def fail(request: Request) -> None:
        raise Refusal(code)

    async with own_connections(server) as site:
        reply = await site.get("/")
    assert (reply.status, reply.headers["retry-after"]) == ({1003: 429, 1004: 503}[code], "1")
    assert reply.json["error"]["data"]["retryAfterMs"] == 1000


async def test_invalid_json_gives_400(serving: Serving) -> None:
    server = Server("json")
    server.add_route("/", lambda request: request.json(), methods=["POST"])
    async with serving(server) as site:
        reply = await site.ask("POST", "/", data=b"{")
        assert reply.status == 400
        assert "the body is not valid JSON" in reply.message


# --- limits ---------------------------------------------------------------------------------------


async def test_body_size_is_limited(serving: Serving) -> None:
    server = Server("limits", settings=Settings(http_body_size_limit=2048))
    server.add_route("/", lambda request: str(len(request.body)), methods=["POST"])

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * 2000
        yield b"x" * 2000

    async with serving(server) as site:
        assert (await site.ask("POST", "/", data=b"x" * 2048)).body == b"2048"
        assert (await site.ask("POST", "/", data=b"x" * 2049)).status == 413
        assert (await site.ask("POST", "/", data=chunks())).status == 413


@pytest.mark.parametrize("on_thread", [True, False])
async def test_slow_route_gives_504(on_thread: bool) -> None:
    clock, begun, release = ManualClock(), asyncio.Event(), threading.Event()
    server, cancelled = Server("slow", clock=clock), []
    loop = asyncio.get_running_loop()

    def block(request: Request) -> None:
        loop.call_soon_threadsafe(begun.set)
        release.wait(PATIENCE)

    async def wait(request: Request) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    server.add_route("/", block if on_thread else wait, timeout=3.0)
    async with own_connections(server) as site:
        asking = asyncio.ensure_future(site.get("/"))
        await begun.wait()
        clock.advance(2.9)
        assert not asking.done()
        clock.advance(0.2)
        reply = await asking
        assert (reply.status, reply.message) == (504, "GET / was not done after 3 s")
        release.set()
    assert cancelled == ([] if on_thread else [1])


@pytest.mark.row("Q08")
async def test_routes_in_progress_are_limited() -> None:
    server = Server("full", settings=Settings(max_connections=1))
    begun, release = asyncio.Event(), asyncio.Event()

    @server.route("/")
    async def wait(request: Request) -> str:
        begun.set()
        await release.wait()
        return "done"

    async with under_asgi(server) as site:
        first = asyncio.ensure_future(site.get("/"))
        await begun.wait()
        refused = await site.get("/")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "max_connections" in refused.message
        release.set()
        assert (await first).body == b"done"


async def test_stopping_server_refuses_routes() -> None:
    app = simple().asgi(path="/mcp")
    async with asgi_server(app) as (host, port), aiohttp.ClientSession() as session:
        site = Site(f"http://{host}:{port}", session)
        assert (await site.get("/version")).status == 200
        app.close_idle_streams()
        refused = await site.get("/version")
        assert (refused.status, refused.message) == (503, "the server is shutting down")
        await app.aclose()


async def test_shutdown_waits_for_routes() -> None:
    server = Server("stopping")
    begun, release = asyncio.Event(), asyncio.Event()

    @server.route("/")
    async def wait(request: Request) -> str:
        begun.set()
        await release.wait()
        return "done"

    async with own_connections(server) as site:
        asking = asyncio.ensure_future(site.get("/"))
        await begun.wait()
        closing = asyncio.ensure_future(server.aclose())
        await server.stopping()
        release.set()
        assert (await asking).body == b"done"
        await closing


async def test_shutdown_cancels_routes_after_the_drain_timeout() -> None:
    server = Server("stopping", settings=Settings(drain_timeout=0.05))
    begun, ended = asyncio.Event(), asyncio.Event()

    @server.route("/")
    async def wait(request: Request) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    async with own_connections(server) as site:
        asking = asyncio.ensure_future(site.get("/"))
        await begun.wait()
        await server.aclose()
        await asyncio.wait_for(ended.wait(), PATIENCE)
        with pytest.raises(aiohttp.ClientError):
            await asking


async def test_route_ends_although_the_client_disconnects() -> None:
    server = Server("leaving")
    begun, release, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @server.route("/")
    async def wait(request: Request) -> str:
        begun.set()
        await release.wait()
        ended.set()
        return "done"

    async with own_connections(server) as site:
        asking = asyncio.ensure_future(site.get("/"))
        await begun.wait()
        asking.cancel()
        await asyncio.wait([asking])
        release.set()
        await asyncio.wait_for(ended.wait(), PATIENCE)
        server.add_route("/next", lambda _: "next")
        assert (await site.get("/next")).body == b"next"


# --- registration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/sse", "/messages", "/livez", "/readyz", "/readyz/0"])
def test_own_paths_are_refused(path: str) -> None:
    with pytest.raises(RegistrationError, match="the server uses this path for"):
        Server("x").add_route(path, lambda _: "")


async def test_paths_of_features_that_are_off_are_free() -> None:
    server = Server("x", settings=Settings(legacy_sse=False, health=False))
    for path in ("/sse", "/livez", "/.well-known/oauth-protected-resource"):
        server.add_route(path, lambda request: request.path, thread=False)
    async with own_connections(server) as site:
        for path in ("/sse", "/livez", "/.well-known/oauth-protected-resource"):
            assert (await site.get(path)).body == path.encode()


def test_authorization_metadata_is_reserved() -> None:
    with pytest.raises(RegistrationError, match="authorization metadata"):
        Server("x", auth=protected()).add_route("/.well-known/oauth-protected-resource/mcp", lambda _: "")


async def test_route_at_the_mcp_path_is_refused_at_start() -> None:
    server = Server("x")
    server.add_route("/mcp", lambda _: "")
    with pytest.raises(RegistrationError, match="route '/mcp': the server uses this path for MCP"):
        server.asgi(path="/mcp")
    with pytest.raises(RegistrationError, match="route '/mcp': the server uses this path for MCP"):
        await server.listen("http://127.0.0.1:0/mcp")
    await server.aclose()


@pytest.mark.parametrize(
    ("path", "function", "options", "why"),
    [
        ("version", print, {}, "such as '/version'"),
        ("/a", 5, {}, "needs a function of the request, not 5"),
        ("/a", lambda: "", {}, "must take one argument, the request"),
        ("/a", print, {"public": True, "scopes": ["x"]}, "public, so it cannot need scopes"),
        ("/a", print, {"methods": 5}, "methods= must be a list of methods, not 5"),
        ("/a", print, {"timeout": 0}, "timeout= must be a number above 0"),
        ("/a", print, {"auth": False}, "a route has no option 'auth'"),
    ],
)
def test_invalid_route_is_refused(path: str, function: Any, options: Any, why: str) -> None:
    with pytest.raises(RegistrationError, match=why):
        Server("x").add_route(path, function, **options)


def test_decorator_needs_a_path() -> None:
    with pytest.raises(RegistrationError, match="needs a path"):
        Server("x").route(print)  # type: ignore[arg-type]


def test_decorator_returns_the_function() -> None:
    def version(request: Request) -> str:
        return "1"

    assert Server("x").route("/version")(version) is version
