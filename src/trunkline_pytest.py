"""The pytest plugin of Trunkline: fixtures for tests of MCP servers.

pytest imports this module in every test run of an environment in which Trunkline is installed. So it lies beside the
package, imports nothing of it before a fixture is used, and leaves the measurement of coverage alone.

An async fixture belongs to the plugin that runs the test, since both must share an event loop. The public fixtures are
plain functions that choose: the fixture for anyio if the test uses its backend, else the one for the loop scope that
pytest-asyncio runs the test in.
"""

import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

if TYPE_CHECKING:
    from trunkline import BlockingClient, Client, Server
    from trunkline.testing import ManualClock

__all__ = ["StartProcess", "updates_snapshots"]

StartProcess = Callable[..., Awaitable["Client"]]
"""The type of the fixture `mcp_server_process`."""

_ASYNCIO_FIXTURES: Final = "trunkline-asyncio-fixtures"

updates_snapshots: bool = False
"""Whether snapshots are written instead of compared."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("trunkline", "MCP servers")
    group.addoption("--mcp-snapshot-update", action="store_true", help="write the catalog snapshots of MCP servers")


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures for pytest-asyncio, if that is in use."""
    global updates_snapshots
    updates_snapshots = bool(config.getoption("--mcp-snapshot-update"))
    plugin = sys.modules.get("pytest_asyncio.plugin")
    if plugin is not None and config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(_make_asyncio_fixtures(), _ASYNCIO_FIXTURES)


# --- for every test ------------------------------------------------------------------------------


@pytest.fixture
def mcp_server(request: pytest.FixtureRequest) -> "Server":
    """The server under test: the one `Server` that the test module defines or imports. Override this fixture to choose
    or to build another one."""
    module = cast("ModuleType", cast("Any", request).module)
    server_type: Any = getattr(sys.modules.get("trunkline.server.server"), "Server", ())
    members: dict[str, Any] = vars(module)
    found = {id(value): name for name, value in members.items() if isinstance(value, server_type)}
    if len(found) == 1:
        return members[next(iter(found.values()))]
    names = ", ".join(found.values()) or "no Server"
    return pytest.fail(
        f"the module {module.__name__} has {names}; write a fixture mcp_server that returns the server to test",
        pytrace=False,
    )


@pytest.fixture
def mcp_client_options() -> Mapping[str, Any]:
    """The options of `mcp_client` and `mcp_blocking_client`: those of `trunkline.testing.connect`. Override this
    fixture to set some."""
    return {}


@pytest.fixture
def mcp_client(request: pytest.FixtureRequest) -> "Client":
    """A connected client of `mcp_server` in this process; it raises the exceptions of handlers."""
    return _async_fixture(request, "client")


@pytest.fixture
def mcp_server_process(request: pytest.FixtureRequest) -> StartProcess:
    """A function that starts a server as a process and returns a connected client: `await
    mcp_server_process("server.py")`. It takes a file, also one beside the test, or a command, and the options of
    `Client`."""
    return _async_fixture(request, "process")


@pytest.fixture
def mcp_blocking_client(
    mcp_server: "Server", mcp_client_options: Mapping[str, Any]
) -> "Generator[BlockingClient, None, None]":
    """A connected client of `mcp_server` in this process, for tests that are plain functions."""
    from trunkline import BlockingClient
    from trunkline.testing import connect

    with BlockingClient(connect(mcp_server, **mcp_client_options)) as client:
        yield client


@pytest.fixture
def mcp_http_server(mcp_server: "Server") -> Generator[str, None, None]:
    """The URL of `mcp_server`, which listens on a free port in the background."""
    from trunkline.testing import serve_http

    with serve_http(mcp_server) as url:
        yield url


@pytest.fixture
def manual_clock() -> "ManualClock":
    """A clock that the test advances, for `Server(clock=...)` and `Client(clock=...)`."""
    from trunkline.testing import ManualClock

    return ManualClock()


# --- for async tests -----------------------------------------------------------------------------


async def _open_client(mcp_server: "Server", mcp_client_options: Mapping[str, Any]) -> "AsyncGenerator[Client, None]":
    from trunkline.testing import connect

    async with connect(mcp_server, **mcp_client_options) as client:
        yield client


async def _open_processes(request: pytest.FixtureRequest) -> AsyncGenerator[StartProcess, None]:
    from trunkline import Client

    async with AsyncExitStack() as stack:

        async def start(target: Any, **options: Any) -> "Client":
            return await stack.enter_async_context(Client(_find_program(target, request.path.parent), **options))

        yield start


def _find_program(target: Any, folder: Path) -> Any:
    """Return the path of a file beside the test, or the target unchanged if it is something else."""
    if isinstance(target, str | Path) and not Path(target).exists() and (folder / target).is_file():
        return folder / target
    return target


_MAKERS: Final[Mapping[str, Any]] = {"client": _open_client, "process": _open_processes}
_SCOPES: Final = ("function", "class", "module", "package", "session")

_mcp_anyio_client = pytest.fixture(_open_client, name="_mcp_anyio_client")
_mcp_anyio_process = pytest.fixture(_open_processes, name="_mcp_anyio_process")


def _make_asyncio_fixtures() -> ModuleType:
    """Return a plugin with the async fixtures for pytest-asyncio, one for each scope that its loops have."""
    import pytest_asyncio

    fixtures = ModuleType(_ASYNCIO_FIXTURES)
    for scope in _SCOPES:
        for what, make in _MAKERS.items():
            name = f"_mcp_{scope}_{what}"
            setattr(fixtures, name, pytest_asyncio.fixture(_copy(make), loop_scope=scope, name=name))
    return fixtures


def _copy(function: FunctionType) -> FunctionType:
    """Return a copy of a function, since pytest-asyncio marks those that it runs."""
    return FunctionType(function.__code__, function.__globals__, function.__name__)


def _async_fixture(request: pytest.FixtureRequest, what: str) -> Any:
    """Return the value of an async fixture, run by the plugin that runs the test."""
    if "anyio_backend" in request.fixturenames:
        return request.getfixturevalue(f"_mcp_anyio_{what}")
    if not inspect.iscoroutinefunction(inspect.unwrap(getattr(request, "function", _open_client))):
        return pytest.fail("this test is a plain function; use mcp_blocking_client, or write async def", pytrace=False)
    if not request.config.pluginmanager.hasplugin(_ASYNCIO_FIXTURES):
        return pytest.fail("async tests need a plugin: pip install pytest-asyncio, or use anyio", pytrace=False)
    mark = request.node.get_closest_marker("asyncio")
    scope = None if mark is None else mark.kwargs.get("loop_scope")
    scope = scope or request.config.getini("asyncio_default_test_loop_scope") or "function"
    return request.getfixturevalue(f"_mcp_{scope}_{what}")
