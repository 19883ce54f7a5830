"""The ten gaps that the founding plan lists, with one test for each."""

import pytest

from trunkline import Server
from trunkline.protocol.lifecycle import Phase
from trunkline.testing import RawPeer


@pytest.fixture
def server() -> Server:
    server = Server("gaps", version="1.2.3", instructions="Mind the gap.")

    @server.tool
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.resource("doc://readme", mime_type="text/markdown")
    def readme() -> str:
        """Read me."""
        return "# Hello"

    @server.prompt
    def greet(who: str) -> str:
        """Greets somebody."""
        return f"Hello, {who}!"

    return server


@pytest.mark.row("GAP-01", "Z13")
async def test_initialize_returns_server_info_and_capabilities(server: Server) -> None:
    async with RawPeer(server) as peer:
        result = await peer.initialize("2025-06-18", {"roots": {}})
    assert result["protocolVersion"] == "2025-06-18"
    assert result["serverInfo"] == {"name": "gaps", "version": "1.2.3"}
    assert result["instructions"] == "Mind the gap."
    assert result["capabilities"] == {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
        "logging": {},
    }


@pytest.mark.row("GAP-02", "Z13", "PH12")
async def test_ping_is_answered_before_and_after_initialize(server: Server) -> None:
    async with RawPeer(server) as peer:
        assert await peer.result("ping") == {}
        await peer.initialize()
        assert await peer.result("ping") == {}


@pytest.mark.row("GAP-03", "Z13")
async def test_session_phases_follow_the_handshake(server: Server) -> None:
    async with RawPeer(server) as peer:
        session = peer.connection.session
        assert session.phase is Phase.CONNECTING
        early = await peer.error("tools/list")
        assert (early["code"], early["data"]["kind"]) == (-32600, "server_not_initialized")
        await peer.initialize(confirm=False)
        assert session.phase is Phase.INITIALIZING
        peer.notify("notifications/initialized")
        assert (await peer.result("tools/list"))["tools"]
        assert session.phase is Phase.READY
        again = await peer.error(
            "initialize",
            {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
        )
        assert (again["code"], again["data"]["kind"]) == (-32600, "already_initialized")
    assert session.phase is Phase.CLOSED


@pytest.mark.row("GAP-04", "Z13")
async def test_resources_read(server: Server) -> None:
    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("resources/read", {"uri": "doc://readme"})
        missing = await peer.error("resources/read", {"uri": "doc://nope"})
    assert result == {"contents": [{"uri": "doc://readme", "mimeType": "text/markdown", "text": "# Hello"}]}
    assert (missing["code"], missing["data"]["uri"]) == (-32002, "doc://nope")


@pytest.mark.row("GAP-05", "Z13")
async def test_resources_subscribe(server: Server) -> None:
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert await peer.result("resources/subscribe", {"uri": "doc://readme"}) == {}
        server.notify_updated("doc://readme")
        told = await peer.quiet()
        assert await peer.result("resources/unsubscribe", {"uri": "doc://readme"}) == {}
        server.notify_updated("doc://readme")
        assert await peer.quiet() == []
    assert [(message["method"], message["params"]) for message in told] == [
        ("notifications/resources/updated", {"uri": "doc://readme"})
    ]


@pytest.mark.row("GAP-06", "Z13")
async def test_tools_call(server: Server) -> None:
    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("tools/call", {"name": "add", "arguments": {"a": 5, "b": 3}})
        wrong = await peer.result("tools/call", {"name": "add", "arguments": {"a": "five"}})
        unknown = await peer.error("tools/call", {"name": "subtract"})
    assert result == {
        "content": [{"type": "text", "text": "8"}],
        "structuredContent": {"result": 8},
        "isError": False,
    }
    assert wrong["isError"] is True
    assert (unknown["code"], unknown["data"]["kind"]) == (-32602, "tool_not_found")


@pytest.mark.row("GAP-07", "Z13")
async def test_prompts_get(server: Server) -> None:
    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("prompts/get", {"name": "greet", "arguments": {"who": "you"}})
        missing = await peer.error("prompts/get", {"name": "greet"})
    assert result["messages"] == [{"role": "user", "content": {"type": "text", "text": "Hello, you!"}}]
    assert (missing["code"], missing["data"]["argument"]) == (-32602, "who")


async def notifications_after(server: Server, change) -> list[str]:
    """The notifications that a ready client receives after one change."""
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.quiet()
        change()
        return [message["method"] for message in await peer.quiet()]


@pytest.mark.row("GAP-08", "Z13")
async def test_resources_list_changed(server: Server) -> None:
    def change() -> None:
        server.add_resource("doc://new", "new")

    assert await notifications_after(server, change) == ["notifications/resources/list_changed"]


@pytest.mark.row("GAP-09", "Z13")
async def test_tools_list_changed(server: Server) -> None:
    def change() -> None:
        server.remove_tool("add")

    assert await notifications_after(server, change) == ["notifications/tools/list_changed"]


@pytest.mark.row("GAP-10", "Z13")
async def test_prompts_list_changed(server: Server) -> None:
    def change() -> None:
        server.add_prompt("Say {word}.", name="say")

    assert await notifications_after(server, change) == ["notifications/prompts/list_changed"]
