"""The repr of public objects: short, and without secrets."""

import sys

import pytest

from trunkline import BlockingClient, Client, Context, RedisStore, Server, Settings, SqliteStore, TextContent
from trunkline.auth import Principal
from trunkline.client.results import ToolResult
from trunkline.protocol.types import ImageContent
from trunkline.testing import RawPeer


def make_server() -> Server:
    server = Server("shop")

    @server.tool(task=True)
    async def order(ctx: Context, card: str) -> str:
        return repr(ctx)

    server.add_resource("shop://stock", "nothing")
    return server


def test_server_repr_shows_its_catalog() -> None:
    assert repr(make_server()) == "<Server 'shop': tools=1, resources=1>"
    assert repr(Server("empty")) == "<Server 'empty': nothing offered>"


async def test_client_repr_shows_server_and_phase() -> None:
    client = Client(make_server(), revision="2025-11-25")
    assert repr(client) == "<Client of 'shop': new>"
    async with client:
        assert repr(client) == "<Client of 'shop': ready, 2025-11-25>"
    assert repr(client) == "<Client of 'shop': closed, 2025-11-25>"


def test_blocking_client_repr_shows_server_and_phase() -> None:
    with BlockingClient(make_server(), revision="2025-11-25") as client:
        assert repr(client) == "<BlockingClient of 'shop': ready, 2025-11-25>"
        task = client.start_tool("order", {"card": "4111"})
        task.result()
        assert repr(task) == f"<BlockingTask {task.id!r}: completed>"


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ([sys.executable, "server.py", "--token=hunter2"], "python"),
        ("https://example.org/mcp?token=hunter2", "https://example.org/mcp"),
        ("wss://example.org/mcp?token=hunter2", "wss://example.org:443/mcp"),
        ("tcp://127.0.0.1:4000", "tcp://127.0.0.1:4000"),
    ],
    ids=["command", "https", "wss", "tcp"],
)
def test_client_repr_has_no_secrets_of_its_target(target: str | list[str], shown: str) -> None:
    client = Client(target, auth="hunter2") if isinstance(target, str) and "example" in target else Client(target)
    assert "hunter2" not in repr(client)
    assert shown in repr(client)


async def test_task_repr_shows_id_status_and_message() -> None:
    async with Client(make_server()) as client:
        task = await client.start_tool("order", {"card": "4111"})
        assert repr(task).startswith(f"<Task {task.id!r}: ")
        await task.result()
        assert repr(task) == f"<Task {task.id!r}: completed>"


async def test_context_repr_omits_arguments() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        result = await peer.result("tools/call", {"name": "order", "arguments": {"card": "4111"}})
    assert result["content"][0]["text"] == "<Context: tools/call of 'order', request 2>"


async def test_connection_repr_shows_transport_and_phase() -> None:
    server = make_server()
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.quiet()
        (connection,) = server.connections
        assert repr(connection) == f"<Connection {connection.number}: memory, peer 'raw peer', ready>"


def test_tool_result_repr_is_short() -> None:
    assert repr(ToolResult([TextContent("3")], 3)) == "ToolResult(data=3, content=[TextContent])"
    picture = ImageContent("aGk=", "image/png")
    assert repr(ToolResult([picture], None)) == "ToolResult(data=None, content=[ImageContent])"
    failed = ToolResult([TextContent("no")], None, is_error=True)
    assert repr(failed) == "ToolResult(is_error=True, text='no', content=[TextContent])"
    assert len(repr(ToolResult([TextContent(10_000 * "x")], 10_000 * "x"))) < 200


def test_type_repr_shows_only_set_members() -> None:
    assert repr(TextContent("hello")) == "TextContent(text='hello')"


def test_principal_and_settings_repr_have_no_secrets() -> None:
    principal = Principal("ada", issuer="https://id.example.org", claims={"email": "ada@example.org"})
    assert repr(principal) == "Principal('ada', issuer='https://id.example.org', client='')"
    assert repr(Settings(state_keys=("hunter2" * 5,))) == "Settings(state_keys=('…',))"


def test_store_repr_shows_its_location() -> None:
    assert repr(SqliteStore("/srv/store.db")) == "<SqliteStore '/srv/store.db'>"
    assert repr(RedisStore("redis://user:hunter2@cache:6379/0")) == "<RedisStore 'cache:6379'>"
