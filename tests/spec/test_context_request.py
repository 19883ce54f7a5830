"""The HTTP request of a call, as handlers see it: every transport, both eras, with and without authentication."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.contract.asgi import asgi_server
from tests.unit.transports.http.asgi import call
from tests.unit.transports.http.places import places, text_of

from trunkline import Client, Context, Server, Settings
from trunkline.auth import Principal, ResourceServer, StaticTokens


def told(ctx: Context) -> dict[str, Any]:
    request = ctx.request
    if request is None:
        return {}
    return {
        "method": request.method,
        "path": request.path,
        "client": request.client_host,
        "transport": request.transport,
        "host": "Host" in request.headers,
        "same": request.principal is ctx.principal,
        "principal": getattr(request.principal, "subject", request.principal),
        "body": request.body.decode(),
        "lifespan": request.lifespan,
    }


@asynccontextmanager
async def lifespan(_: Server) -> AsyncIterator[str]:
    yield "database"


def offering(**options: Any) -> Server:
    server = Server("requests", lifespan=lifespan, **options)

    @server.tool
    async def about(ctx: Context) -> dict[str, Any]:
        return told(ctx)

    @server.tool
    def on_thread(ctx: Context) -> dict[str, Any]:
        return told(ctx)

    @server.prompt
    def asked(ctx: Context) -> str:
        return told(ctx)["path"]

    @server.resource("request://path")
    def path(ctx: Context) -> str:
        return told(ctx)["path"]

    return server


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[str]:
    listener = await server.listen("http://127.0.0.1:0/mcp")
    try:
        yield listener.address.removeprefix("http://").removesuffix("/mcp")
    finally:
        await server.aclose()


@asynccontextmanager
async def under_asgi(server: Server) -> AsyncIterator[str]:
    app = server.asgi(path="/mcp")
    async with asgi_server(app) as (host, port):
        try:
            yield f"{host}:{port}"
        finally:
            await app.aclose()


@pytest.fixture(params=[listening, under_asgi], ids=lambda way: way.__name__)
def serving(request: pytest.FixtureRequest) -> Any:
    return request.param


class Way(NamedTuple):
    """A way to call a tool over HTTP, and the request that carries the call."""

    address: str
    method: str
    path: str
    transport: str


WAYS = [
    Way("http://{}/mcp", "POST", "/mcp", "http"),
    Way("ws://{}/mcp", "GET", "/mcp", "websocket"),
    Way("http://{}/sse", "POST", "/messages", "sse"),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.transport)
@pytest.mark.parametrize("authenticated", [False, True])
async def test_handlers_see_the_request(serving: Any, way: Way, authenticated: bool, revision: str) -> None:
    auth = ResourceServer(StaticTokens({"token": Principal("ada")})) if authenticated else None
    options: dict[str, Any] = {"auth": "token"} if authenticated else {}
    async with (
        serving(offering(auth=auth)) as place,
        Client(way.address.format(place), revision=revision, **options) as client,
    ):
        for tool in ("about", "on_thread"):
            seen = (await client.call_tool(tool)).data
            assert seen == {
                "method": way.method,
                "path": way.path,
                "client": "127.0.0.1",
                "transport": way.transport,
                "host": True,
                "same": True,
                "principal": "ada" if authenticated else None,
                "body": "",
                "lifespan": "database",
            }
        assert (await client.get_prompt("asked")).messages[0].text == way.path
        assert (await client.read_resource("request://path"))[0].text == way.path


async def test_server_without_sessions_has_the_request(revision: str) -> None:
    server = offering(settings=Settings(http_sessions=False))
    async with listening(server) as place, Client(f"http://{place}/mcp", revision=revision) as client:
        assert (await client.call_tool("about")).data["path"] == "/mcp"


async def test_task_has_no_request() -> None:
    server = Server("tasks")

    @server.tool(task="required")
    async def work(ctx: Context) -> bool:
        return ctx.request is None

    async with listening(server) as place, Client(f"http://{place}/mcp") as client:
        assert (await client.call_tool("work")).data is True


async def test_other_transports_have_no_request(revision: str) -> None:
    server = offering()
    async with Client(server, revision=revision) as client:
        assert (await client.call_tool("about")).data == {}
    listener = await server.listen("tcp://127.0.0.1:0")
    async with Client(listener.address, revision=revision) as client:
        assert (await client.call_tool("about")).data == {}
    await server.aclose()


async def test_forwarded_request_has_headers_of_mcp_and_of_traces_and_the_address(tmp_path: Path) -> None:
    async with places(tmp_path) as pair:
        for place in pair:
            place.principal = "ada"

            @place.server.tool
            async def about(ctx: Context) -> str:
                request = ctx.request
                assert request is not None
                names = " ".join(sorted(request.headers))
                return f"{request.method} {request.path} {request.client_host} {request.principal} {names}"

        ident = await pair[0].session()
        headers = {"mcp_session_id": ident, "traceparent": "00-1-2-01", "x_colour": "red"}
        direct = await pair[0].ask("POST", call("about"), **headers)
        forwarded = await pair[1].ask("POST", call("about"), **headers)
        common = "POST / 127.0.0.1 ada accept content-type"
        assert text_of(direct) == f"{common} host mcp-session-id traceparent x-colour"
        assert text_of(forwarded) == f"{common} mcp-session-id traceparent"
