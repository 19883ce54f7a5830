"""Our client against npm's server-everything: all of its tools and other features, over every transport."""

import asyncio
import gzip
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from tests.interop.host import OTHER_ROOT, ROOT, Host, Reports
from tests.interop.server_processes import served
from tests.official import NODE, NPM_FOLDER

from trunkline.errors import PeerError
from trunkline.protocol.types import EmbeddedResource, ImageContent, ResourceLink, TextContent
from trunkline.transports.channel import Connector
from trunkline.transports.http.client.connector import HttpConnector
from trunkline.transports.stdio.client import Command

SERVER = NPM_FOLDER / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
TEXT, BLOB = "demo://resource/dynamic/text/{resourceId}", "demo://resource/dynamic/blob/{resourceId}"
MESSAGE, UPDATED = "notifications/message", "notifications/resources/updated"
URL_NEEDED, METHOD_NOT_FOUND = -32042, -32601

FILLED = {"name": "Ada", "number": 5}  # a default of 3.14 is right, but the official schema of answers has no fractions

pytestmark = pytest.mark.asyncio(loop_scope="module")


LINES = {"stdio": None, "streamableHttp": "mcp", "sse": "sse"}  # as the server calls them, and its paths


@pytest.fixture(scope="module", params=LINES)
def connector(request: pytest.FixtureRequest) -> Iterator[Connector]:
    """The connector to the server."""
    path = LINES[request.param]
    if path is None:
        yield Command([NODE, SERVER])
        return
    with served([NODE, SERVER, request.param], {"PORT": "0"}) as server:
        yield HttpConnector(f"http://{server.place()}/{path}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host(connector: Connector) -> AsyncIterator[Host]:
    """The server and our client."""
    async with Host(connector) as host:
        await host.call("get-roots-list")  # it would send the request later otherwise, in the middle of a test
        yield host


USED = {
    "echo": ({"message": "hello"}, "Echo: hello"),
    "get-sum": ({"a": 2, "b": 3.5}, "The sum of 2 and 3.5 is 5.5."),
    "get-env": ({}, '"PATH":'),
    "get-tiny-image": ({}, "Here's the image"),
    "get-annotated-message": ({"messageType": "success"}, "Operation completed successfully"),
    "get-resource-links": ({"count": 2}, "Here are 2 resource links"),
    "get-resource-reference": ({"resourceType": "Text", "resourceId": 1}, "Returning resource reference"),
    "get-structured-content": ({"location": "Chicago"}, "Light rain"),
    "get-roots-list": ({}, "Current MCP Roots"),
    "gzip-file-as-resource": ({"name": "a.gz", "data": "data:text/plain,hi", "outputType": "resource"}, ""),
    "trigger-long-running-operation": ({"duration": 0.01, "steps": 1}, "Long running operation completed"),
    "trigger-sampling-request": ({"prompt": "hello", "maxTokens": 5}, "LLM sampling result"),
    "trigger-elicitation-request": ({}, "User provided the requested information"),
    "trigger-url-elicitation": ({"url": "https://example.com/a"}, "User completed the URL elicitation flow"),
}
"""Each tool, its arguments, and the expected text."""

USED_BELOW = {
    "simulate-research-query",
    "toggle-simulated-logging",
    "toggle-subscriber-updates",
    "trigger-elicitation-request-async",
    "trigger-sampling-request-async",
}


async def test_every_offered_tool_is_used(host: Host) -> None:
    assert {tool.name async for tool in host.client.tools()} == USED.keys() | USED_BELOW


@pytest.mark.parametrize("name", USED)
async def test_tool_can_be_called(host: Host, name: str) -> None:
    arguments, said = USED[name]
    host.answer = FILLED
    assert said in (await host.client.call_tool(name, arguments)).text


async def test_handshake_reports_server_info(host: Host) -> None:
    assert (host.client.server_info.name, host.client.revision) == ("mcp-servers/everything", "2025-11-25")
    assert "everything" in host.client.instructions.lower()


async def test_annotations_and_images_are_decoded(host: Host) -> None:
    result = await host.client.call_tool("get-annotated-message", {"messageType": "error", "includeImage": True})
    said, shown = result.content
    assert isinstance(said, TextContent)
    assert (said.annotations.priority, said.annotations.audience) == (1.0, ["user", "assistant"])
    assert isinstance(shown, ImageContent)
    assert (shown.mime_type, b64decode(shown.data)[:4]) == ("image/png", b"\x89PNG")


async def test_structured_content_becomes_an_object(host: Host) -> None:
    data = (await host.client.call_tool("get-structured-content", {"location": "New York"})).data
    assert (data.temperature, data.conditions, data.humidity) == (33, "Cloudy", 82)


async def test_invalid_arguments_are_refused_by_the_tool(host: Host) -> None:
    with pytest.raises(PeerError, match="location"):
        await host.client.call_tool("get-structured-content", {"location": "Atlantis"})


async def test_resource_links_can_be_read(host: Host) -> None:
    result = await host.client.call_tool("get-resource-links", {"count": 4})
    links = [block for block in result.content if isinstance(block, ResourceLink)]
    assert [link.name for link in links] == ["Blob Resource 1", "Text Resource 2", "Blob Resource 3", "Text Resource 4"]
    [content] = await host.client.read_resource(links[1].uri)
    assert (content.uri, content.text[:10]) == (links[1].uri, "Resource 2")


async def test_embedded_resource_is_returned(host: Host) -> None:
    result = await host.client.call_tool("get-resource-reference", {"resourceType": "Blob", "resourceId": 3})
    [embedded] = [block.resource for block in result.content if isinstance(block, EmbeddedResource)]
    assert b64decode(embedded.blob).startswith(b"Resource 3")


async def test_long_operation_reports_progress(host: Host) -> None:
    reports = Reports()
    arguments = {"duration": 0.05, "steps": 5}
    await host.client.call_tool("trigger-long-running-operation", arguments, on_progress=reports)
    assert [(report.progress, report.total) for report in reports] == [(step, 5) for step in range(1, 6)]


async def test_long_operation_can_be_cancelled(host: Host) -> None:
    """The caller has stopped waiting, and the server's late response is harmless."""
    reports = Reports()
    arguments = {"duration": 0.1, "steps": 20}
    call = asyncio.create_task(host.client.call_tool("trigger-long-running-operation", arguments, on_progress=reports))
    await reports.begun.wait()
    call.cancel()
    await asyncio.wait([call])
    await host.client.ping()
    assert host.client.pending() == []
    [told] = host.sent("notifications/cancelled")
    assert "requestId" in told["params"]


async def test_sampling_is_answered(host: Host) -> None:
    said = (await host.client.call_tool("trigger-sampling-request", {"prompt": "Hello?"})).text
    answered = json.loads(said.partition("\n")[2])
    assert (answered["model"], answered["role"], answered["stopReason"]) == ("parrot", "assistant", "endTurn")
    assert answered["content"]["text"].endswith("Hello?")


async def test_form_with_every_kind_of_field_is_answered(host: Host) -> None:
    """The form's defaults fill in members that our callback omits."""
    host.answer = filled = {**FILLED, "check": True, "titledMultipleSelectEnum": ["fish-2"], "birthdate": "1815-12-10"}
    result = await host.client.call_tool("trigger-elicitation-request")
    answer = json.loads(result.text.partition("Raw result: ")[2])
    defaults = {"integer": 42, "legacyTitledEnum": "pet-1", "titledSingleSelectEnum": "hero-1"}
    assert answer["action"] == "accept"
    assert answer["content"].items() >= (filled | defaults).items()
    form: Any = host.questions[-1]
    kinds = {field.name: field.kind for field in form.fields}
    assert kinds["check"] == "yes_no"
    assert kinds["titledMultipleSelectEnum"] == kinds["untitledMultipleSelectEnum"] == "choices"
    assert kinds["titledSingleSelectEnum"] == kinds["untitledSingleSelectEnum"] == "choice"
    titles = {field.name: [choice.title for choice in field.choices] for field in form.fields}
    assert titles["legacyTitledEnum"] == ["Cats", "Dogs", "Birds", "Fish", "Reptiles"]
    assert titles["titledMultipleSelectEnum"] == ["Tuna", "Salmon", "Trout"]


async def test_form_can_be_declined(host: Host) -> None:
    host.answer = None
    assert "User declined" in (await host.client.call_tool("trigger-elicitation-request")).text


async def test_required_url_is_opened(host: Host) -> None:
    """The error names the elicitation; the application decides what to do, and calls again."""
    arguments = {"url": "https://example.com/b", "errorPath": True}
    with pytest.raises(PeerError) as caught:
        await host.client.call_tool("trigger-url-elicitation", arguments)
    assert caught.value.code == URL_NEEDED
    assert caught.value.data["elicitations"][0]["url"] == "https://modelcontextprotocol.io"
    assert "User completed" in (await host.client.call_tool("trigger-url-elicitation", arguments)).text


async def test_roots_are_listed_again_after_a_change(host: Host) -> None:
    await host.client.set_log_level("debug")
    assert ROOT.uri in (await host.client.call_tool("get-roots-list")).text
    with host.listening(MESSAGE) as news:
        await host.client.set_roots([OTHER_ROOT])
        while not str((await anext(news)).params.data).startswith("Roots updated: 1 root"):
            pass
    assert OTHER_ROOT.uri in (await host.client.call_tool("get-roots-list")).text
    await host.client.set_roots([ROOT])


async def test_zipped_files_become_a_resource(host: Host) -> None:
    """The list changes, and the link in the result leads to its new entry."""
    with host.listening("notifications/resources/list_changed") as news:
        arguments = {"name": "b.gz", "data": "data:text/plain,hello", "outputType": "resourceLink"}
        [link] = (await host.client.call_tool("gzip-file-as-resource", arguments)).content
        await anext(news)
    assert link.uri in [resource.uri async for resource in host.client.resources()]
    [content] = await host.client.read_resource(link.uri)
    assert gzip.decompress(b64decode(content.blob)) == b"hello"


async def test_resources_and_templates_are_listed_and_read(host: Host) -> None:
    documents = [one async for one in host.client.resources() if one.uri.startswith("demo://resource/static/document/")]
    assert "architecture.md" in [document.name for document in documents]
    [content] = await host.client.read_resource(documents[0].uri)
    assert content.mime_type == "text/markdown"
    assert {template.uri_template async for template in host.client.resource_templates()} == {TEXT, BLOB}
    with pytest.raises(PeerError, match="not found"):
        await host.client.read_resource("demo://resource/nowhere")


async def test_subscriber_receives_updates(host: Host) -> None:
    uri = TEXT.format(resourceId=1)
    with host.listening(UPDATED) as news:
        await host.client.subscribe(uri)
        await host.client.call_tool("toggle-subscriber-updates")
        assert (await anext(news)).params.uri == uri
        await host.client.call_tool("toggle-subscriber-updates")
        await host.client.unsubscribe(uri)


async def test_log_messages_respect_the_level(host: Host) -> None:
    uri = TEXT.format(resourceId=2)
    with host.listening(MESSAGE) as news:
        await host.client.set_log_level("emergency")
        await host.client.subscribe(uri)  # and the server logs that, at level info
        await host.client.set_log_level("debug")
        await host.client.call_tool("toggle-simulated-logging")
        while "-level message" not in (said := str((await anext(news)).params.data)):
            assert uri not in said  # it may belong to an earlier action: over HTTP, streams overtake each other
        await host.client.call_tool("toggle-simulated-logging")
        await host.client.unsubscribe(uri)


async def test_prompts_are_listed_and_rendered(host: Host) -> None:
    names = [prompt.name async for prompt in host.client.prompts()]
    assert names == ["simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"]
    [message] = (await host.client.get_prompt("args-prompt", {"city": "Paris", "state": "Texas"})).messages
    assert message.content.text == "What's weather in Paris, Texas?"
    _, shown = (await host.client.get_prompt("resource-prompt", {"resourceType": "Text", "resourceId": "7"})).messages
    assert shown.content.resource.uri == TEXT.format(resourceId=7)
    with pytest.raises(PeerError, match="city"):
        await host.client.get_prompt("args-prompt", {})


async def test_arguments_are_completed(host: Host) -> None:
    client = host.client
    assert (await client.complete("prompt", "completable-prompt", "department", "S")).values == ["Sales", "Support"]
    narrowed = await client.complete("prompt", "completable-prompt", "name", "", context={"department": "Sales"})
    assert narrowed.values == ["David", "Eve", "Frank"]
    assert (await client.complete("resource", TEXT, "resourceId", "12")).values == ["12"]


async def test_task_requested_by_the_server_is_hosted(host: Host) -> None:
    """It polls its task every second."""
    host.answer = {"name": "Ada", "favoriteColor": "Blue"}
    sampled, filled_in = await asyncio.gather(
        host.call("trigger-sampling-request-async", prompt="hello"), host.call("trigger-elicitation-request-async")
    )
    assert "echo: Resource trigger-sampling-request-async context: hello" in sampled
    assert "- Favorite Color: Blue" in filled_in


@pytest.mark.parametrize("connector", ["streamableHttp"], indirect=True)
async def test_task_only_tool_is_called_like_any_other(host: Host) -> None:
    """Its input request comes during tasks/result. It takes four seconds, on any transport."""
    host.answer = {"interpretation": "snake"}
    assert "python (snake)" in await host.call("simulate-research-query", topic="python", ambiguous=True)
    [waited] = host.sent("tasks/result")
    related = {"io.modelcontextprotocol/related-task": {"taskId": waited["params"]["taskId"]}}
    assert related in [asked["params"].get("_meta") for asked in host.asked("elicitation/create")]


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_works_in_every_older_revision(revision: str, connector: Connector) -> None:
    async with Host(connector, revision) as host:
        assert host.client.revision == revision
        assert ROOT.uri in await host.call(
            "get-roots-list"
        )  # it would send the request later otherwise, and wait for the response
        assert await host.call("echo", message="hello") == "Echo: hello"
        assert "echo: Resource" in await host.call("trigger-sampling-request", prompt="hello")
        assert "simple-prompt" in [prompt.name async for prompt in host.client.prompts()]
        assert TEXT in [template.uri_template async for template in host.client.resource_templates()]
