"""The probes of our client: one for each method of the matrix, by the name of its cell.

A probe uses a server of an official SDK (tests/interop/peers/mcp_catalog.py and ts_catalog.mjs) through our client and
raises on any deviation from the specification.
"""

import asyncio
import datetime
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.interop.host import OTHER_ROOT, ROOT, Host, Reports

from trunkline.errors import BadAnswer, PeerError, ToolFailed
from trunkline.protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, PROTOCOL_VERSION, SUBSCRIPTION_ID
from trunkline.protocol.types import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent

INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND = -32602, -32601, -32002
UPDATED = "notifications/resources/updated"
MODERN = "2026-07-28"


@dataclass
class ProbeContext:
    """The context of a probe: a host with all capabilities, and others that lack one."""

    revision: str
    host: Host
    without: dict[str, Host]  # by a capability that the client does not declare

    @property
    def modern(self) -> bool:
        return self.revision >= "2026-07-28"

    @property
    def client(self) -> Any:
        return self.host.client


Probe = Callable[[ProbeContext], Awaitable[None]]
PROBES: dict[str, Probe] = {}


def probe(cell: str) -> Callable[[Probe], Probe]:
    """Registers the probe of a cell."""

    def register(function: Probe) -> Probe:
        PROBES[cell] = function
        return function

    return register


async def refused(request: Awaitable[Any], code: int) -> None:
    """Fail unless a request fails with that error."""
    with pytest.raises(PeerError) as caught:
        await request
    assert caught.value.code == code


# --- connection --------------------------------------------------------------------------------


@probe("initialize to server")
async def initialize(line: ProbeContext) -> None:
    """The client declares its capabilities, as far as the revision has them."""
    client = line.client
    assert (client.revision, client.initialized) == (line.revision, True)
    assert (client.server_info.name, client.server_info.version) == ("everything", "1.0")
    assert client.instructions == "Try everything."
    [message] = line.host.sent("initialize")
    assert message["params"]["clientInfo"] == {"name": "host", "version": "1.0"}
    expected: dict[str, Any] = {"sampling": {}, "roots": {"listChanged": True}}
    if line.revision >= "2025-06-18":
        expected["elicitation"] = {} if line.revision == "2025-06-18" else {"form": {}, "url": {}}
    if line.revision >= "2025-11-25":
        expected["tasks"] = {"list": {}, "cancel": {}, "requests": {
            "sampling": {"createMessage": {}}, "elicitation": {"create": {}},
        }}  # fmt: skip
    assert message["params"]["capabilities"] == expected


@probe("notifications/initialized to server")
async def initialized(line: ProbeContext) -> None:
    """It comes second, and only after it may a server send requests to its client."""
    said = [entry["message"] for entry in line.host.tap.wires[0] if entry["sender"] == "client"]
    assert said[1]["method"] == "notifications/initialized"
    assert await line.host.call("ping_client") == "pong"


@probe("ping to server")
async def ping_server(line: ProbeContext) -> None:
    await line.client.ping()


@probe("ping to client")
async def ping_client(line: ProbeContext) -> None:
    before = len(line.host.asked("ping"))
    assert await line.host.call("ping_client") == "pong"
    [ping] = line.host.asked("ping")[before:]
    assert line.host.answers_to(ping["id"], by="client")[0]["result"] == {}


@probe("notifications/cancelled to server")
async def cancelled_by_client(line: ProbeContext) -> None:
    """Cancelling a call stops the tool; a late response is harmless."""
    await line.host.give_up()
    assert await line.host.call("happened", event="hang cancelled") == "hang cancelled"
    [sent] = [message for message in line.host.sent("tools/call") if message["params"]["name"] == "hang"]
    told = [message["params"]["requestId"] for message in line.host.sent("notifications/cancelled")]
    assert told.count(sent["id"]) == 1
    await line.client.ping()
    assert [one for one in line.client.pending() if one.method == "tools/call"] == []  # it may still be reading lists


@probe("notifications/cancelled to client")
async def cancelled_by_server(line: ProbeContext) -> None:
    """A server cancels its request on a timeout; the client stops the callback and sends no response."""
    assert await line.host.call("sample_impatiently", prompt="hang") == "gave up"
    await line.host.sampling_cancelled.wait()
    await line.client.ping()
    asked = line.host.asked("sampling/createMessage")[-1]
    assert line.host.answers_to(asked["id"], by="client") == []


@probe("notifications/progress to client")
async def progress_of_server(line: ProbeContext) -> None:
    reports = Reports()
    assert (await line.client.call_tool("count", {"steps": 3}, on_progress=reports)).text == "done"
    assert [(report.progress, report.total) for report in reports] == [(1, 3), (2, 3), (3, 3)]
    if line.revision >= "2025-03-26":
        assert [report.message for report in reports] == ["step 1", "step 2", "step 3"]


# --- connection, modern era --------------------------------------------------------------------


@probe("server/discover to server")
async def discover(line: ProbeContext) -> None:
    """It replaces the handshake: the client learns the server's identity from it, and sends its own with every request."""
    client = line.client
    assert (client.revision, client.server_info.name, client.server_info.version) == (MODERN, "everything", "1.0")
    assert client.instructions == "Try everything."
    assert line.host.sent("initialize") == []
    expected: dict[str, Any] = {"sampling": {}, "roots": {}, "elicitation": {"form": {}, "url": {}}}
    expected["extensions"] = {"io.modelcontextprotocol/tasks": {}}
    for message in (*line.host.sent("server/discover"), *line.host.sent("subscriptions/listen")):
        meta = message["params"]["_meta"]
        assert (meta[PROTOCOL_VERSION], meta[CLIENT_CAPABILITIES]) == (MODERN, expected)
        assert meta[CLIENT_INFO] == {"name": "host", "version": "1.0"}


@probe("subscriptions/listen to server")
async def subscriptions_listen(line: ProbeContext) -> None:
    """Only listeners to a resource receive its updates; a new listen replaces the former."""
    with line.host.listening(UPDATED) as news:
        await line.host.call("touch", uri="test://static")
        await line.client.subscribe("test://static")
        await line.host.call("touch", uri="test://binary")
        await line.host.call("touch", uri="test://static")
        assert (await anext(news)).params.uri == "test://static"
        await line.client.unsubscribe("test://static")
        await line.host.call("touch", uri="test://static")
        await line.host.nothing_heard(news)
    *_, former, last = line.host.sent("subscriptions/listen")
    assert former["params"]["notifications"]["resourceSubscriptions"] == ["test://static"]
    assert "resourceSubscriptions" not in last["params"]["notifications"]
    assert former["id"] in [message["params"]["requestId"] for message in line.host.sent("notifications/cancelled")]


@probe("notifications/subscriptions/acknowledged to client")
async def subscriptions_acknowledged(line: ProbeContext) -> None:
    """Each listen is acknowledged under its own id, before the client continues."""
    told = line.host.heard("notifications/subscriptions/acknowledged")
    listens = line.host.sent("subscriptions/listen")
    assert [one["params"]["_meta"][SUBSCRIPTION_ID] for one in told] == [one["id"] for one in listens]
    assert told[0]["params"]["notifications"] == listens[0]["params"]["notifications"]


# --- tools -------------------------------------------------------------------------------------


@probe("tools/list to server")
async def tools_list(line: ProbeContext) -> None:
    """One page, and all of them."""
    first = await line.client.list_tools(cursor=None)
    assert first.next_cursor == "8"
    tools = {tool.name: tool for tool in (await line.client.list_tools()).tools}
    assert [tool.name async for tool in line.client.tools()] == list(tools)
    assert len(tools) > 2 * len(first.tools)
    assert tools["add"].description == "Adds two numbers."
    assert tools["add"].input_schema["required"] == ["a", "b"]


@probe("tools/call to server")
async def tools_call(line: ProbeContext) -> None:
    assert (await line.client.call_tool("add", {"a": 2, "b": 3}, returns=int)).data == 5
    with pytest.raises(ToolFailed, match="failed on purpose"):
        await line.client.call_tool("fail")
    with pytest.raises(PeerError, match="unknown tool"):  # some refuse the call, some say that it failed
        await line.client.call_tool("no such tool")
    await shows_every_kind_of_content(line)
    if line.revision >= "2025-06-18":
        await rebuilds_structured_content(line)


async def shows_every_kind_of_content(line: ProbeContext) -> None:
    shown = (await line.client.call_tool("show_all", {"revision": line.revision})).content
    kinds: list[type] = [TextContent, ImageContent, EmbeddedResource]
    kinds += [AudioContent] if line.revision >= "2025-03-26" else []
    kinds += [ResourceLink] if line.revision >= "2025-06-18" else []
    assert [type(block) for block in shown] == kinds
    assert (shown[0].text, shown[0].annotations.audience, shown[0].annotations.priority) == ("words", ["user"], 0.5)
    assert (shown[2].resource.uri, shown[2].resource.text) == ("test://static", "static text")


async def rebuilds_structured_content(line: ProbeContext) -> None:
    result = await line.client.call_tool("weigh", {"who": "Ada"})
    assert result.structured == {"who": "Ada", "parts": [{"kilos": 1.5, "at": "2025-11-25T10:30:00Z"}]}
    at = datetime.datetime(2025, 11, 25, 10, 30, tzinfo=datetime.UTC)
    assert (result.data.who, result.data.parts[0].kilos, result.data.parts[0].at) == ("Ada", 1.5, at)
    with pytest.raises(BadAnswer, match="parts"):
        await line.client.call_tool("misweigh", {"who": "Ada"})


@probe("notifications/tools/list_changed to client")
async def tools_changed(line: ProbeContext) -> None:
    await hide_and_show(line, "tools", "spare", lambda: (tool.name async for tool in line.client.tools()))


async def hide_and_show(line: ProbeContext, kind: str, key: str, listed: Callable[[], AsyncIterator[str]]) -> None:
    """An entry is hidden and shown again: each time the client gets a notification and the changed list."""
    with line.host.listening(f"notifications/{kind}/list_changed") as news:
        for tool, there in (("hide", False), ("show", True)):
            assert (key in [one async for one in listed()]) is not there
            await line.host.call(tool, kind=kind)
            await anext(news)
            assert (key in [one async for one in listed()]) is there


# --- resources ---------------------------------------------------------------------------------


@probe("resources/list to server")
async def resources_list(line: ProbeContext) -> None:
    resources = {resource.uri: resource async for resource in line.client.resources()}
    assert list(resources) == ["test://static", "test://binary", "test://spare"]
    assert resources["test://static"].mime_type == "text/plain"


@probe("resources/templates/list to server")
async def resource_templates_list(line: ProbeContext) -> None:
    listed = [template.uri_template async for template in line.client.resource_templates()]
    assert listed == ["test://item/{id}", "test://by/{who}"]


@probe("resources/read to server")
async def resources_read(line: ProbeContext) -> None:
    [static] = await line.client.read_resource("test://static")
    assert (static.uri, static.mime_type, static.text) == ("test://static", "text/plain", "static text")
    assert (await line.client.read_resource("test://item/7"))[0].text == "item 7"
    assert (await line.client.read_resource("test://binary"))[0].blob == "AAEC"
    await refused(line.client.read_resource("test://nowhere"), INVALID_PARAMS if line.modern else RESOURCE_NOT_FOUND)


@probe("notifications/resources/list_changed to client")
async def resources_changed(line: ProbeContext) -> None:
    await hide_and_show(line, "resources", "test://spare", lambda: (one.uri async for one in line.client.resources()))


@probe("resources/subscribe to server")
async def resources_subscribe(line: ProbeContext) -> None:
    """A subscriber gets updates of its resource alone."""
    with line.host.listening(UPDATED) as news:
        await line.host.call("touch", uri="test://static")
        await line.client.subscribe("test://static")
        assert line.client.subscriptions == ("test://static",)
        await line.host.call("touch", uri="test://binary")
        await line.host.call("touch", uri="test://static")
        assert (await anext(news)).params.uri == "test://static"
        await line.client.unsubscribe("test://static")
        await line.host.nothing_heard(news)


@probe("notifications/resources/updated to client")
async def resource_updated(line: ProbeContext) -> None:
    """A callback gets it, too."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    stop = line.client.on(UPDATED, lambda params: heard.put_nowait(params.uri))
    await line.client.subscribe("test://item/7")
    await line.host.call("touch", uri="test://item/7")
    assert await heard.get() == "test://item/7"
    stop()
    await line.host.call("touch", uri="test://item/7")
    await line.client.unsubscribe("test://item/7")
    assert heard.empty()


@probe("resources/unsubscribe to server")
async def resources_unsubscribe(line: ProbeContext) -> None:
    with line.host.listening(UPDATED) as news:
        await line.client.subscribe("test://static")
        await line.client.unsubscribe("test://static")
        assert line.client.subscriptions == ()
        await line.host.call("touch", uri="test://static")
        await line.host.nothing_heard(news)


# --- prompts, completion, logging --------------------------------------------------------------


@probe("prompts/list to server")
async def prompts_list(line: ProbeContext) -> None:
    prompts = {prompt.name: prompt async for prompt in line.client.prompts()}
    assert list(prompts) == ["greet", "spare"]
    assert [(one.name, bool(one.required)) for one in prompts["greet"].arguments] == [("who", True), ("thing", False)]


@probe("prompts/get to server")
async def prompts_get(line: ProbeContext) -> None:
    said, shown = (await line.client.get_prompt("greet", {"who": "Ada"})).messages
    assert (said.role, said.content.text) == ("user", "Say hello to Ada.")
    assert (shown.role, shown.content.resource.text) == ("assistant", "static text")
    await refused(line.client.get_prompt("no such prompt"), INVALID_PARAMS)


@probe("notifications/prompts/list_changed to client")
async def prompts_changed(line: ProbeContext) -> None:
    await hide_and_show(line, "prompts", "spare", lambda: (one.name async for one in line.client.prompts()))


@probe("completion/complete to server")
async def completion_complete(line: ProbeContext) -> None:
    """For a prompt, for a template, and with arguments that are filled in already."""
    client = line.client
    assert (await client.complete("prompt", "greet", "who", "A")).values == ["Ada", "Alan"]
    assert (await client.complete("resource", "test://by/{who}", "who", "G")).values == ["Grace"]
    if line.revision >= "2025-06-18":
        narrowed = await client.complete("prompt", "greet", "thing", context={"who": "Grace"})
        assert (narrowed.values, narrowed.total, narrowed.has_more) == (["compiler"], 1, False)


@probe("logging/setLevel to server")
async def logging_set_level(line: ProbeContext) -> None:
    """Messages below the level are not sent."""
    with line.host.listening("notifications/message") as news:
        await line.client.set_log_level("warning")
        await line.host.call("log", level="info", text="quiet")
        await line.host.call("log", level="error", text="loud")
        assert (await anext(news)).params.level == "error"
        await line.host.nothing_heard(news)


@probe("notifications/message to client")
async def log_message(line: ProbeContext) -> None:
    await line.client.set_log_level("debug")
    with line.host.listening("notifications/message") as news:
        await line.host.call("log", level="notice", text="hello")
        message = (await anext(news)).params
    assert (message.level, message.logger, message.data) == ("notice", "everything", {"text": "hello"})


# --- requests of servers to clients ------------------------------------------------------------


@probe("sampling/createMessage to client")
async def sampling(line: ProbeContext) -> None:
    reply = json.loads(await line.host.call("sample", prompt="hello"))
    assert reply == {"text": "echo: hello", "model": "parrot"}


@probe("notifications/progress to server")
async def progress_to_server(line: ProbeContext) -> None:
    heard = json.loads(await line.host.call("sample_watching", prompt="count"))
    words = ["half", "whole"] if line.revision >= "2025-03-26" else [None, None]
    assert heard == [[1, 2, words[0]], [2, 2, words[1]]]


@probe("roots/list to client")
async def roots_list(line: ProbeContext) -> None:
    assert json.loads(await line.host.call("list_roots")) == [[ROOT.uri, ROOT.name]]


@probe("notifications/roots/list_changed to server")
async def roots_changed(line: ProbeContext) -> None:
    await line.client.set_roots([OTHER_ROOT])
    assert await line.host.call("happened", event="roots changed") == "roots changed"
    assert json.loads(await line.host.call("list_roots")) == [[OTHER_ROOT.uri, OTHER_ROOT.name]]
    await line.client.set_roots([ROOT])


@probe("elicitation/create to client")
async def elicitation(line: ProbeContext) -> None:
    """By form, with each of the three answers; and by URL, where the revision has it."""
    accepted = json.loads(await line.host.call("elicit", message="accept"))
    assert accepted == {"action": "accept", "name": "Ada", "age": 36, "likes": "tea"}
    assert json.loads(await line.host.call("elicit", message="decline")) == {"action": "decline"}
    assert json.loads(await line.host.call("elicit", message="cancel")) == {"action": "cancel"}
    form: Any = line.host.questions[-1]
    assert [(field.name, field.kind, field.required) for field in form.fields] == [
        ("name", "text", True),
        ("age", "integer", True),
        ("likes", "choice", False),
    ]
    if line.revision >= "2025-11-25":
        assert await line.host.call("elicit_url", message="accept") == "accept"
        assert await line.host.call("elicit_url", message="decline") == "decline"
        page: Any = line.host.questions[-1]
        known_as = None if line.modern else "form-1"
        assert (page.url, page.host, page.elicitation_id) == ("https://example.com/form", "example.com", known_as)


@probe("notifications/elicitation/complete to client")
async def elicitation_complete(line: ProbeContext) -> None:
    with line.host.listening("notifications/elicitation/complete") as news:
        await line.host.call("elicit_url", message="accept")
        await line.host.call("finish_elicitation")
        assert (await anext(news)).params.elicitation_id == "form-1"
