"""Servers under the profile `compat="erlmcp"` send the responses that the founding documents print, member by member.

The responses are those of `founding_examples`, where a client has to accept them.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta
from tests.founding import FEATURES

from trunkline import Context, Server
from trunkline.protocol.types import Annotations, TextContent
from trunkline.testing import RawPeer

pytestmark = pytest.mark.off_the_record  # no official schema has these shapes

FOLDER = Path(__file__).parent / "founding_examples"
PAGED = {"limit": 1}


def printed(file: str, name: str) -> dict[str, Any]:
    """The result of an example."""
    return next(one for one in json.loads((FOLDER / f"{file}.json").read_text()) if one["name"] == name)["message"]


def make_server() -> Server:
    """A server with the tools, resources and prompts of the documents."""
    server = Server("erlmcp", version="2.2.0", observers=[], compat="erlmcp")
    query = {"type": "string", "description": "SQL query to execute"}
    limit = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    schema = {"type": "object", "properties": {"query": query, "limit": limit}, "required": ["query"]}

    @server.tool(version="1.0.0", deprecated=False, input_schema=schema, structured=False)
    async def sql_query(query: str, limit: Annotated[int, Meta(ge=1, le=1000)] = 100) -> TextContent:
        """Execute SQL queries against the database"""
        return TextContent('[{id:1, name:"Alice"}, ...]', mime_type="application/json")

    @server.tool
    async def another(ctx: Context) -> None:
        """So that there is a second page."""

    server.add_resource(
        "doc://readme",
        "Content here...",
        name="README",
        description="Application README",
        mime_type="text/markdown",
        annotations=Annotations(last_modified="2022-01-01T00:00:00Z"),
    )
    server.add_resource("weather://city", "sunny")

    @server.resource(
        "user://{username}/profile",
        name="User Profile",
        description="User profile resource",
        mime_type="application/json",
    )
    async def profile(username: str) -> str:
        return username

    @server.prompt
    async def code_review(language: str, style: str = "stricter") -> list[Any]:
        """Review code for quality issues

        Args:
            language: Programming language
            style: Code style guide
        """
        return [
            {"role": "system", "content": "You are an Erlang code reviewer..."},
            "Please review my code for...",
        ]

    @server.prompt
    async def second_prompt() -> str:
        return ""

    @server.completion(tool="sql_query", argument="query")
    async def complete(value: str) -> list[Any]:
        return [("OM users", "Complete SQL FROM clause"), *(["OM tables"] if value == "" else [])]

    return server


RESPONSES = [
    ("resources", "a list answered with cursor", "resources/list", PAGED),
    ("resources", "read answered with text and without its URI", "resources/read", {"uri": "doc://readme"}),
    ("resources", "a list of templates answered", "resources/templates/list", {}),
    ("resources", "subscribe answered with an empty object", "resources/subscribe", {"uri": "weather://city"}),
    ("tools", "a list answered with cursor, version and deprecated", "tools/list", PAGED),
    ("tools", "a call answered with text", "tools/call", {"name": "sql_query", "arguments": {"query": "SELECT"}}),
    ("prompts", "a list answered with two arguments and cursor", "prompts/list", PAGED),
    (
        "prompts",
        "get answered with the role system",
        "prompts/get",
        {"name": "code_review", "arguments": {"language": "e"}},
    ),
]


@pytest.mark.row("X14e", "X15e", "X21e", "X22e", "X37e")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25"])
@pytest.mark.parametrize(("file", "name", "method", "params"), RESPONSES, ids=[row[1] for row in RESPONSES])
async def test_server_sends_the_response_as_printed(
    file: str, name: str, method: str, params: Any, revision: str
) -> None:
    expected = printed(file, name)["result"]
    async with RawPeer(make_server()) as peer:
        await peer.initialize(revision, FEATURES)
        result = await peer.result(method, params)
    result.pop("description", None)  # of a prompt, where the documents print none
    if "cursor" in expected:  # ours is sealed, and has the name of the specification as well
        expected["cursor"] = expected["nextCursor"] = result["cursor"]
    assert result == expected


@pytest.mark.row("X15e")
async def test_server_sends_the_completion_as_printed() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize(capabilities=FEATURES)
        ref = {"type": "tool", "name": "sql_query"}
        asked = {
            "ref": ref,
            "argument": {"name": "query", "value": "SELECT * FR"},
            "context": {"arguments": {"limit": 10}},
        }
        result = await peer.result("completion/complete", asked)
        more = await peer.result("completion/complete", {"ref": ref, "argument": {"name": "query", "value": ""}})
    assert result == printed("completion", "an answer with one label")["result"]
    assert more["completions"][1] == {"value": "OM tables", "label": "OM tables"}  # without a label of its own


@pytest.mark.row("X08e")
async def test_server_sends_the_error_as_printed() -> None:
    expected = printed("errors", "a tool that the server does not have")["error"]
    async with RawPeer(make_server()) as peer:
        await peer.initialize(capabilities=FEATURES)
        error = await peer.error("tools/call", {"name": "unknown_tool"})
    assert error["code"] == expected["code"]
    assert error["data"] == {"kind": "tool_not_found", **expected["data"]}


@pytest.mark.row("X02e")
async def test_server_sends_the_notifications_as_printed() -> None:
    server = make_server()
    updated = printed("notifications", "a resource has changed, by its bare name and with metadata")
    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=FEATURES)
        await peer.result("resources/subscribe", {"uri": "weather://city"})
        server.notify_updated("weather://city", meta=updated["params"]["metadata"])
        assert await peer.receive() == updated
        server.notify_list_changed("tools")
        assert await peer.receive() == printed("notifications", "tools have changed, by its bare name")
