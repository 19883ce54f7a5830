"""The pytest plugin, in test runs of its own."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.limits import PATIENCE

ROOT = Path(__file__).parents[3]
ASYNCIO = ("-p", "pytest_asyncio.plugin")
ANYIO = ("-p", "anyio.pytest_plugin")

SHOP = '''
from trunkline import Server

events = []


async def lifespan(server):
    events.append("opened")
    yield "pool"
    events.append("closed")


server = Server("shop", lifespan=lifespan, observers=[])


@server.tool
async def price(item: str) -> float:
    """Look up a price."""
    return {"tea": 3.5}[item]


if __name__ == "__main__":
    server.run()
'''

ASYNC_TESTS = """
import asyncio
import pytest
from shop import events, server
from trunkline import Client

{mark}


async def test_client(mcp_client):
    assert isinstance(mcp_client, Client)
    assert events == ["opened"]
    assert (await mcp_client.call_tool("price", {{"item": "tea"}})).data == 3.5
    assert asyncio.get_running_loop() is mcp_client._runtime._loop


async def test_handler_exception(mcp_client):
    assert events == ["opened", "closed", "opened"]
    with pytest.raises(KeyError):
        await mcp_client.call_tool("price", {{"item": "milk"}})


async def test_process(mcp_server_process):
    client = await mcp_server_process("shop.py")
    assert (await client.call_tool("price", {{"item": "tea"}})).data == 3.5


async def test_http(mcp_http_server):
    async with Client(mcp_http_server) as client:
        assert (await client.call_tool("price", {{"item": "tea"}})).data == 3.5
"""

PLAIN_TESTS = """
import pytest
from shop import server
from trunkline import BlockingClient, Client, Server
from trunkline.testing import ManualClock


def test_blocking_client(mcp_blocking_client):
    assert mcp_blocking_client.call_tool("price", {"item": "tea"}).data == 3.5
    with pytest.raises(KeyError):
        mcp_blocking_client.call_tool("price", {"item": "milk"})


def test_http(mcp_http_server):
    assert mcp_http_server.startswith("http://127.0.0.1:")
    with BlockingClient(mcp_http_server) as client:
        assert client.call_tool("price", {"item": "tea"}).data == 3.5


def test_clock(manual_clock):
    assert isinstance(manual_clock, ManualClock)


class TestOther:
    @pytest.fixture
    def mcp_server(self):
        other = Server("other", observers=[])

        @other.tool
        def fail() -> str:
            raise KeyError

        return other

    @pytest.fixture
    def mcp_client_options(self):
        return {"raise_exceptions": False, "title": "Test"}

    def test_overridden_fixtures(self, mcp_blocking_client):
        result = mcp_blocking_client.call_tool("fail", raise_on_error=False)
        assert result.text == "KeyError"
"""

WRONG_TESTS = """
from trunkline import Server

one, two = Server("one"), Server("two")


def test_plain(mcp_client):
    pass


def test_two_servers(mcp_blocking_client):
    pass


async def test_no_plugin(mcp_client):
    pass
"""


def run(folder: Path, *options: str, mode: str = "strict") -> str:
    (folder / "shop.py").write_text(SHOP, "utf-8")
    (folder / "pytest.ini").write_text(
        f"[pytest]\nasyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\n", "utf-8"
    )
    command = [sys.executable, "-m", "pytest", "-p", "trunkline_pytest", "-p", "no:cacheprovider", "-q", *options]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "", "PYTHONPATH": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "mode", "mark"),
    [
        pytest.param(ASYNCIO, "auto", "", id="asyncio auto"),
        pytest.param(ASYNCIO, "strict", "pytestmark = pytest.mark.asyncio", id="asyncio strict"),
        pytest.param(ASYNCIO, "strict", "pytestmark = pytest.mark.asyncio(loop_scope='module')", id="asyncio module"),
        pytest.param((*ANYIO, *ASYNCIO), "strict", "pytestmark = pytest.mark.anyio", id="anyio"),
    ],
)
def test_async_fixtures_share_the_loop_of_the_test(
    tmp_path: Path, options: tuple[str, ...], mode: str, mark: str
) -> None:
    if "anyio" in mark:
        mark += "\n\n\n@pytest.fixture(scope='module')\ndef anyio_backend():\n    return 'asyncio'"
    (tmp_path / "test_shop.py").write_text(ASYNC_TESTS.format(mark=mark), "utf-8")
    said = run(tmp_path, *options, mode=mode)
    assert "4 passed in" in said, said


def test_plain_tests_need_no_other_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(PLAIN_TESTS, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    said = run(tmp_path, "-W", "ignore::pytest.PytestConfigWarning")
    assert "4 passed in" in said, said


def test_wrong_use_of_a_fixture_is_explained(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(WRONG_TESTS, "utf-8")
    said = run(tmp_path, "-W", "ignore::pytest.PytestConfigWarning")
    assert "this test is a plain function; use mcp_blocking_client, or write async def" in said
    assert "the module test_shop has one, two; write a fixture mcp_server that returns the server to test" in said
    assert "async tests need a plugin: pip install pytest-asyncio, or use anyio" in said
    assert "3 errors in" in said, said


def test_plugin_imports_nothing_of_the_package() -> None:
    program = """
import sys
import pytest
before = set(sys.modules)
import trunkline_pytest
print(sorted(name for name in set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "['trunkline_pytest']\n", done.stderr


def test_plugin_is_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"trunkline_pytest": "trunkline_pytest"}
    assert "src/trunkline_pytest.py" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
