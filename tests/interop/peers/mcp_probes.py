"""The probes: one for each cell of the matrix, by its name.

A probe uses the everything-server through the official SDK and raises on any deviation from the specification. A
cell is a method and the side that receives it, or a capability and the side that declares it.
"""

import json
import os
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from mcp import types
from mcp_connection import MODERN, ROOT, Connection, capabilities_in, contains, equal, plain
from mcp_transports import Refusal, connected

RESOURCE_NOT_FOUND = -32002
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"


@dataclass
class Peer:
    """The context of a probe."""

    server: list[str]
    revision: str
    connection: Connection

    @property
    def session(self) -> Any:
        return self.connection.session

    @property
    def modern(self) -> bool:
        return self.revision >= MODERN

    def connected_without(self, capability: str) -> Any:
        """Another connection, on which the client lacks one of its capabilities."""
        capabilities = capabilities_in(self.revision)
        *parents, leaf = capability.split(".")
        branch: dict[str, Any] = capabilities
        for name in parents:
            branch = branch[name]
        del branch[leaf]
        return connected(self.server, self.revision, capabilities)


Probe = Callable[[Peer], Awaitable[None]]
PROBES: dict[str, Probe] = {}


def probe(cell: str) -> Callable[[Probe], Probe]:
    """Registers the probe of a cell."""

    def register(function: Probe) -> Probe:
        PROBES[cell] = function
        return function

    return register


@probe("initialize to server")
async def initialize(peer: Peer) -> None:
    handshake = peer.connection.handshake
    equal(handshake["protocolVersion"], peer.revision)
    equal(handshake["serverInfo"]["name"], "everything")
    equal(handshake["instructions"], "Try everything.")


@probe("notifications/initialized to server")
async def initialized(peer: Peer) -> None:
    """Only after it may a server send requests to its client."""
    equal(await peer.connection.call("ping_client"), "pong")


@probe("ping to server")
async def ping_server(peer: Peer) -> None:
    await peer.session.send_ping()


@probe("ping to client")
async def ping_client(peer: Peer) -> None:
    before = len(peer.connection.asked("ping"))
    equal(await peer.connection.call("ping_client"), "pong")
    equal(len(peer.connection.asked("ping")), before + 1)


@probe("notifications/cancelled to server")
async def cancelled_by_client(peer: Peer) -> None:
    """The tool stops, and its call gets no response."""
    started = anyio.Event()

    async def on_progress(*_: object) -> None:
        started.set()

    await peer.connection.give_up(partial(peer.session.call_tool, "hang", {}, None, on_progress), started)
    contains(await peer.connection.call("happened", event="hang cancelled"), "hang cancelled")
    sent = peer.connection.sent_by("client")
    call = next(m["id"] for m in reversed(sent) if m.get("params", {}).get("name") == "hang")
    equal([m for m in peer.connection.sent_by("server") if "method" not in m and m.get("id") == call], [])


@probe("notifications/cancelled to client")
async def cancelled_by_server(peer: Peer) -> None:
    """A server cancels its request on a timeout, and the SDK stops its callback."""
    equal(await peer.connection.call("sample_impatiently", prompt="hang"), "gave up")
    await peer.connection.sampling_cancelled.wait()


@probe("notifications/progress to server")
async def progress_of_client(peer: Peer) -> None:
    """The client reports progress of a sampling request; the server receives it."""
    equal(json.loads(await peer.connection.call("sample_attentively", prompt="hello")), [1.0])


@probe("notifications/progress to client")
async def progress_of_server(peer: Peer) -> None:
    reports: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    await peer.session.call_tool("count", {"steps": 3}, progress_callback=on_progress)
    await peer.connection.alive()
    equal([report[:2] for report in reports], [(1.0, 3.0), (2.0, 3.0), (3.0, 3.0)])
    has_messages = peer.revision >= "2025-03-26"
    equal([report[2] for report in reports], [f"step {step}" if has_messages else None for step in (1, 2, 3)])


@probe("server/discover to server")
async def discover(peer: Peer) -> None:
    """It replaces the handshake."""
    contains(peer.connection.handshake["supportedVersions"], peer.revision)
    equal(plain(peer.session.server_info)["name"], "everything")
    equal(peer.session.instructions, "Try everything.")
    equal([message for message in peer.connection.sent_by("client") if message["method"] == "initialize"], [])


@probe("subscriptions/listen to server")
async def subscriptions_listen(peer: Peer) -> None:
    """Only listeners to a resource receive its updates."""
    updated = "notifications/resources/updated"
    await peer.connection.call("touch", uri="test://static")
    await peer.connection.nothing_heard(updated)
    async with peer.session.listen(resource_subscriptions=["test://static"]) as news:
        await peer.connection.call("touch", uri="test://binary")
        await peer.connection.call("touch", uri="test://static")
        equal((await anext(news)).uri, "test://static")
        equal((await peer.connection.heard(updated))["uri"], "test://static")
    await peer.connection.alive()  # by then the SDK has ended its listen
    await peer.connection.call("touch", uri="test://static")
    await peer.connection.nothing_heard(updated)


@probe("notifications/subscriptions/acknowledged to client")
async def subscriptions_acknowledged(peer: Peer) -> None:
    """Before any other notification, the client receives the acknowledgement, under the id of its listen."""
    async with peer.session.listen(tools_list_changed=True, resource_subscriptions=["test://item/7"]) as news:
        honored = {"toolsListChanged": True, "resourceSubscriptions": ["test://item/7"]}
        equal(plain(news.honored), honored)
        told = peer.connection.sent_by("server")
        acknowledged = next(one for one in reversed(told) if one.get("method") == ACKNOWLEDGED)["params"]
        equal(acknowledged["_meta"][SUBSCRIPTION_ID], news.subscription_id)
        equal(acknowledged["notifications"], honored)


@probe("tools/list to server")
async def tools_list(peer: Peer) -> None:
    tools = {tool["name"]: tool for tool in plain(await peer.session.list_tools())["tools"]}
    contains(tools, "add")
    equal(tools["add"]["description"], "Adds two numbers.")
    equal(sorted(tools["add"]["inputSchema"]["required"]), ["a", "b"])


@probe("tools/call to server")
async def tools_call(peer: Peer) -> None:
    equal(await peer.connection.call("add", a=2, b=3), "5")
    failed = plain(await peer.session.call_tool("fail", {}))
    equal(failed["isError"], True)
    contains(failed["content"][0]["text"], "on purpose")
    await refused(peer.session.call_tool("no such tool", {}), types.INVALID_PARAMS)


@probe("notifications/tools/list_changed to client")
async def tools_changed(peer: Peer) -> None:
    async def names() -> list[str]:
        return [tool["name"] for tool in plain(await peer.session.list_tools())["tools"]]

    await hide_and_show(peer, "tools", "spare", names)


@probe("resources/list to server")
async def resources_list(peer: Peer) -> None:
    resources = {resource["uri"]: resource for resource in plain(await peer.session.list_resources())["resources"]}
    contains(resources, "test://static")
    equal(resources["test://static"]["mimeType"], "text/plain")


@probe("resources/templates/list to server")
async def resource_templates_list(peer: Peer) -> None:
    listed = plain(await peer.session.list_resource_templates())
    contains([template["uriTemplate"] for template in listed["resourceTemplates"]], "test://item/{id}")


@probe("resources/read to server")
async def resources_read(peer: Peer) -> None:

    async def read(uri: str) -> dict[str, Any]:
        return plain(await peer.session.read_resource(uri))["contents"][0]

    equal(await read("test://static"), {"uri": "test://static", "mimeType": "text/plain", "text": "static text"})
    equal((await read("test://item/7"))["text"], "item 7")
    equal((await read("test://binary"))["blob"], "AAEC")
    code = types.INVALID_PARAMS if peer.modern else RESOURCE_NOT_FOUND
    await refused(peer.session.read_resource("test://nowhere"), code)


@probe("notifications/resources/list_changed to client")
async def resources_changed(peer: Peer) -> None:
    async def uris() -> list[str]:
        return [resource["uri"] for resource in plain(await peer.session.list_resources())["resources"]]

    await hide_and_show(peer, "resources", "test://spare", uris)


@probe("resources/subscribe to server")
async def resources_subscribe(peer: Peer) -> None:
    """Only a subscriber gets updates, and only of its resource."""
    await peer.connection.call("touch", uri="test://static")
    await peer.connection.nothing_heard("notifications/resources/updated")
    await peer.session.subscribe_resource("test://static")
    await peer.connection.call("touch", uri="test://binary")
    await peer.connection.call("touch", uri="test://static")
    equal((await peer.connection.heard("notifications/resources/updated"))["uri"], "test://static")
    await peer.session.unsubscribe_resource("test://static")


@probe("notifications/resources/updated to client")
async def resource_updated(peer: Peer) -> None:
    async with peer.connection.watching("test://item/7"):
        await peer.connection.call("touch", uri="test://item/7")
        equal((await peer.connection.heard("notifications/resources/updated"))["uri"], "test://item/7")


@probe("resources/unsubscribe to server")
async def resources_unsubscribe(peer: Peer) -> None:
    await peer.session.subscribe_resource("test://static")
    await peer.session.unsubscribe_resource("test://static")
    await peer.connection.call("touch", uri="test://static")
    await peer.connection.nothing_heard("notifications/resources/updated")


@probe("prompts/list to server")
async def prompts_list(peer: Peer) -> None:
    prompts = {prompt["name"]: prompt for prompt in plain(await peer.session.list_prompts())["prompts"]}
    contains(prompts, "greet")
    contains(prompts["greet"]["arguments"], {"name": "who", "required": True})


@probe("prompts/get to server")
async def prompts_get(peer: Peer) -> None:
    message = plain(await peer.session.get_prompt("greet", {"who": "Ada"}))["messages"][0]
    equal((message["role"], message["content"]["text"]), ("user", "Say hello to Ada."))
    await refused(peer.session.get_prompt("no such prompt"), types.INVALID_PARAMS)


@probe("notifications/prompts/list_changed to client")
async def prompts_changed(peer: Peer) -> None:
    async def names() -> list[str]:
        return [prompt["name"] for prompt in plain(await peer.session.list_prompts())["prompts"]]

    await hide_and_show(peer, "prompts", "spare", names)


@probe("completion/complete to server")
async def completion_complete(peer: Peer) -> None:
    prompt = types.PromptReference(type="ref/prompt", name="greet")
    completed = plain(await peer.session.complete(prompt, {"name": "who", "value": "A"}))
    equal(completed["completion"]["values"], ["Ada", "Alan"])


@probe("logging/setLevel to server")
async def logging_set_level(peer: Peer) -> None:
    """Messages below the level are not sent."""
    await peer.session.set_logging_level("warning")
    await peer.connection.call("log", level="info", text="quiet")
    await peer.connection.nothing_heard("notifications/message")
    await peer.connection.call("log", level="error", text="loud")
    equal((await peer.connection.heard("notifications/message"))["level"], "error")


@probe("notifications/message to client")
async def log_message(peer: Peer) -> None:
    await peer.connection.log_from("debug")
    await peer.connection.call("log", level="notice", text="hello")
    message = await peer.connection.heard("notifications/message")
    equal(message, {"level": "notice", "logger": "everything", "data": {"text": "hello"}})
    await peer.connection.log_from("error")
    await peer.connection.call("log", level="warning", text="quiet")
    await peer.connection.nothing_heard("notifications/message")


@probe("sampling/createMessage to client")
async def sampling(peer: Peer) -> None:
    reply = json.loads(await peer.connection.call("sample", prompt="hello"))
    equal(reply, {"text": "echo: hello", "model": "parrot"})


@probe("roots/list to client")
async def roots_list(peer: Peer) -> None:
    equal(json.loads(await peer.connection.call("list_roots")), [[ROOT["uri"], ROOT["name"]]])


@probe("notifications/roots/list_changed to server")
async def roots_changed(peer: Peer) -> None:
    await peer.session.send_roots_list_changed()
    contains(await peer.connection.call("happened", event="roots changed"), "roots changed")


@probe("elicitation/create to client")
async def elicitation(peer: Peer) -> None:
    """By form, with each of the three answers; and by URL, where the revision has it."""
    accepted = json.loads(await peer.connection.call("elicit", message="accept"))
    equal(accepted, {"action": "accept", "name": "Ada", "age": 36})
    equal(json.loads(await peer.connection.call("elicit", message="decline")), {"action": "decline"})
    equal(json.loads(await peer.connection.call("elicit", message="cancel")), {"action": "cancel"})
    form = peer.connection.asked("elicitation/create")[-1]["params"]["requestedSchema"]
    equal(sorted(form["required"]), ["age", "name"])
    if peer.revision >= "2025-11-25":
        equal(await peer.connection.call("elicit_url", message="accept"), "accept")
        asked = peer.connection.asked("elicitation/create")[-1]["params"]
        equal((asked["mode"], asked["url"]), ("url", "https://example.com/form"))
        equal(asked.get("elicitationId") is None, peer.modern)


@probe("notifications/elicitation/complete to client")
async def elicitation_complete(peer: Peer) -> None:
    await peer.connection.call("elicit_url", message="accept")
    await peer.connection.call("finish_elicitation")
    equal((await peer.connection.heard("notifications/elicitation/complete"))["elicitationId"], "form-1")


@probe("a process is killed")
async def process_killed(peer: Peer) -> None:
    """Subscriptions survive the kill of a process, unless they end with their stream. The test kills it once all
    clients are ready, and changes the resource.
    """
    folder = Path(os.environ["MEANWHILE"])
    async with peer.connection.watching("test://item/8"):
        ready = {"line": peer.server[0], "process": int(await peer.connection.call("served_by"))}
        told = folder / str(uuid.uuid4())
        told.write_text(json.dumps(ready))
        told.rename(told.with_suffix(".ready"))  # so that no reader sees half of it
        while not (folder / "done").exists():
            await anyio.sleep(0.02)
        if not peer.modern:
            equal((await peer.connection.heard("notifications/resources/updated"))["uri"], "test://item/8")
    peer.connection.notices.clear()


process_killed.patience = 150.0  # seconds, for all have to connect before


async def hide_and_show(peer: Peer, kind: str, key: str, listed: Callable[[], Awaitable[list[str]]]) -> None:
    """An entry is hidden and shown again: each time the client gets a notification and the changed list."""
    contains(await listed(), key)
    await peer.connection.call("hide", kind=kind)
    await peer.connection.heard(f"notifications/{kind}/list_changed")
    equal(key in await listed(), False)
    await peer.connection.call("show", kind=kind)
    await peer.connection.heard(f"notifications/{kind}/list_changed")
    contains(await listed(), key)


async def refused(request: Awaitable[Any], code: int) -> None:
    """Fail unless a request fails with that error."""
    try:
        answer = await request
    except Refusal as error:
        equal(error.error.code, code)
    else:
        raise AssertionError(f"{answer!r} instead of error {code}")


# --- capabilities ------------------------------------------------------------------------------


def declared(capabilities: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The declared capabilities, as paths: `tools.listChanged`, and `logging` where there is nothing below."""
    for name, value in capabilities.items():
        if isinstance(value, dict) and value:
            yield from declared(value, f"{prefix}{name}.")
        elif value is not False and value is not None:
            yield f"{prefix}{name}"


def server_capability(path: str) -> Probe:
    """Check that the server declares a capability; the probes of its methods test its meaning."""

    async def declares(peer: Peer) -> None:
        contains(list(declared(peer.connection.handshake["capabilities"])), path)

    return declares


def client_capability(path: str, tool: str, method: str, **arguments: Any) -> Probe:
    """Check that the server knows the client's capability, and sends no request to a client without it."""

    async def respects(peer: Peer) -> None:
        known = json.loads(await peer.connection.call("client_capabilities"))
        for name in path.split("."):
            contains(known, name)
            known = known[name]
        async with peer.connected_without(path.removesuffix(".listChanged")) as other:
            try:
                result = plain(await other.session.call_tool(tool, arguments))
            except Refusal:
                pass  # as good a rejection as a failed tool
            else:
                equal(result["isError"], True)
            equal(other.asked(method), [])

    return respects


for _path in (
    "tools.listChanged",
    "resources.subscribe",
    "resources.listChanged",
    "prompts.listChanged",
    "logging",
    "completions",
):
    PROBES[f"server {_path}"] = server_capability(_path)

PROBES |= {
    "client sampling": client_capability("sampling", "sample", "sampling/createMessage", prompt="hello"),
    "client roots": client_capability("roots", "list_roots", "roots/list"),
    "client roots.listChanged": client_capability("roots.listChanged", "list_roots", "roots/list"),
    "client elicitation": client_capability("elicitation", "elicit", "elicitation/create", message="accept"),
    "client elicitation.form": client_capability("elicitation.form", "elicit", "elicitation/create", message="accept"),
    "client elicitation.url": client_capability(
        "elicitation.url", "elicit_url", "elicitation/create", message="accept"
    ),
}
