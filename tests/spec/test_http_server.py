"""A server over HTTP: standalone, under other ASGI servers, and mounted in third-party applications."""

import asyncio
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from django.conf import settings as django_settings
from fastapi import FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from trunkline import Client, Server, Settings
from trunkline.errors import ConfigError

App = Callable[..., Any]


def offering() -> Server:
    server = Server("mounted")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    return server


@asynccontextmanager
async def under_uvicorn(app: App, **options: Any) -> AsyncIterator[str]:
    """Run an application under a third-party ASGI server; return its address."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="websockets-sansio", **options))  # type: ignore[arg-type]
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=[place])
        try:
            yield f"127.0.0.1:{place.getsockname()[1]}"
        finally:
            await server.shutdown(sockets=[place])


def in_starlette(app: App) -> App:
    return Starlette(routes=[Mount("/tools", app=app), Route("/", lambda _: PlainTextResponse("page"))])


def in_fastapi(app: App) -> App:
    outer = FastAPI()
    outer.mount("/tools", app)
    return outer


def in_litestar(app: App) -> App:
    return Litestar(
        route_handlers=[asgi("/tools", is_mount=True, copy_scope=True)(app)], openapi_config=None, logging_config=None
    )


def in_django(app: App) -> App:
    from django.core.asgi import get_asgi_application

    if not django_settings.configured:
        django_settings.configure(
            ROOT_URLCONF=__name__, SECRET_KEY="only-here", ALLOWED_HOSTS=["*"], LOGGING_CONFIG=None
        )
    pages = get_asgi_application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path", "").startswith("/tools"):
            await app({**scope, "root_path": "/tools"}, receive, send)
        else:
            await pages(scope, receive, send)

    return application


urlpatterns: list[Any] = []
FRAMEWORKS = [in_starlette, in_fastapi, in_litestar, in_django]


@pytest.mark.row("W04")
@pytest.mark.parametrize("lifespan", ["on", "off"])
@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_mounted_application_needs_no_lifespan(
    framework: Callable[[App], App], lifespan: str, scheme: str
) -> None:
    if framework is in_django and lifespan == "on":
        lifespan = "off"  # it has none
    server = offering()
    app = server.asgi()
    async with under_uvicorn(framework(app), lifespan=lifespan) as place:
        async with Client(f"{scheme}://{place}/tools/") as client:
            assert (await client.call_tool("add", {"a": 5, "b": 3})).data == 8
            assert len(server.connections) == 1
        await app.aclose()
    assert server.connections == []


async def test_mount_serves_path_without_slash_and_http_sse(revision: str) -> None:
    app = offering().asgi()
    async with under_uvicorn(in_starlette(app)) as place:
        for address in (f"http://{place}/tools", f"http://{place}/tools/sse"):
            async with Client(address, revision=revision) as client:
                assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
        await app.aclose()


async def test_only_the_configured_path_is_served() -> None:
    app = offering().asgi(path="/deep/mcp/")
    async with under_uvicorn(app) as place:
        async with Client(f"http://{place}/deep/mcp") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["add"]
        with pytest.raises(Exception, match="the MCP endpoint is /deep/mcp"):
            async with Client(f"http://{place}/other"):
                pass


async def test_application_restarts_after_aclose(revision: str) -> None:
    app = offering().asgi()
    for _ in range(2):
        async with (
            under_uvicorn(app, lifespan="on") as place,
            Client(f"http://{place}/", revision=revision) as client,
        ):
            assert client.revision == revision
            assert (await client.call_tool("add", {"a": 1, "b": 1})).data == 2


@pytest.mark.row("W24")
async def test_server_listens_at_several_addresses(revision: str) -> None:
    server = offering()
    listeners = [
        await server.listen(where) for where in ("http://127.0.0.1:0/mcp", "http://[::1]:0/", "tcp://127.0.0.1:0")
    ]
    for listener in listeners:
        async with Client(listener.address, revision=revision) as client:
            assert client.revision == revision
            assert (await client.call_tool("add", {"a": 1, "b": 1})).data == 2
    await server.aclose()


async def test_address_in_use_is_reported() -> None:
    server = offering()
    listener = await server.listen("http://127.0.0.1:0/mcp")
    with pytest.raises(Exception, match=r"cannot listen on 127\.0\.0\.1"):
        await server.listen(listener.address)
    await server.aclose()


async def test_unencrypted_public_listener_warns() -> None:
    server = offering()
    with pytest.warns(RuntimeWarning, match="can be reached from other machines"):
        await server.listen("http://0.0.0.0:0/mcp")
    await server.aclose()


async def test_tls_context_must_match_the_url_scheme() -> None:
    with pytest.raises(ConfigError, match="do not match"):
        await offering().listen("https://127.0.0.1:0/mcp")


RUN = """
from trunkline import Server
server = Server("alone")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b

server.run("http", port=0, path="/tools")
"""


@pytest.mark.row("W21")
async def test_run_serves_until_signal(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(textwrap.dedent(RUN))
    process = await asyncio.create_subprocess_exec(sys.executable, script, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = (await process.stderr.readline()).decode()
    address = said.rpartition(" ")[2].strip()
    assert address.startswith("http://127.0.0.1:")
    assert address.endswith("/tools")
    async with Client(address, settings=Settings(auto_reconnect=False)) as client:
        assert (await client.call_tool("add", {"a": 5, "b": 3})).data == 8
        process.terminate()
        assert await process.wait() == 0
    assert await process.stderr.read() == b""


def test_missing_library_names_the_extra_to_install() -> None:
    program = """
        import asyncio, sys
        sys.modules["httptools"] = sys.modules["websockets"] = None
        from trunkline import Server
        from trunkline.errors import ConfigError
        Server("x").asgi()  # needs nothing
        try:
            asyncio.run(Server("x").listen("http://127.0.0.1:0/mcp"))
        except ConfigError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "HTTP needs httptools: pip install 'trunkline[http]'\n"
