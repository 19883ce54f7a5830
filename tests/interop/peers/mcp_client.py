"""The official Python SDK as a client of the everything-server: fills in a matrix of what works between the two.

    python mcp_client.py [--wire FILE] REVISION SERVER-ARGV... < cells.json > matrix.json

Run by the peer's own Python. The cells come in as a JSON list; a cell is a method or a capability and the side that
receives or declares it, such as "tools/list to server" or "client sampling". What comes out is an object with an entry
for every cell that has a probe, `{"ok": true}` or `{"ok": false, "why": "..."}`. With --wire, every message that the
first connection carried is kept in a file, one JSON object per line.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import anyio
import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.message import SessionMessage

PATIENCE = 5.0  # seconds that one probe may take; a good one takes milliseconds
CAPABILITIES = {"sampling": {}, "roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}}
ROOT = types.Root(uri="file:///workspace", name="workspace")

RESOURCE_NOT_FOUND = -32002


class Wire:
    """A message stream that keeps a copy of what passes."""

    def __init__(self, stream: Any, sender: str, kept: list[dict[str, Any]]) -> None:
        self._stream = stream
        self._sender = sender
        self._kept = kept

    def _keep(self, item: SessionMessage | Exception) -> None:
        if isinstance(item, SessionMessage):
            message = item.message.model_dump(mode="json", by_alias=True, exclude_unset=True)
            self._kept.append({"sender": self._sender, "message": message})

    async def send(self, item: SessionMessage) -> None:
        self._keep(item)
        await self._stream.send(item)

    async def receive(self) -> SessionMessage | Exception:
        item = await self._stream.receive()
        self._keep(item)
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@dataclass
class Connection:
    """One conversation with the server, and what the server said in it on its own account."""

    session: ClientSession = field(init=False)
    handshake: types.InitializeResult = field(init=False)
    wire: list[dict[str, Any]] = field(default_factory=list)
    notices: list[Any] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)  # what the SDK could not read
    sampling_cancelled: anyio.Event = field(default_factory=anyio.Event)
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def on_message(self, message: Any) -> None:
        """Notes a notification; the SDK calls it with faults of the transport too."""
        (self.faults if isinstance(message, Exception) else self.notices).append(message)
        self._news.set()
        self._news = anyio.Event()

    async def heard(self, method: str) -> Any:
        """The params of the oldest such notification, once there is one. Each is given out once."""
        while True:
            for notice in self.notices:
                if notice.method == method:
                    self.notices.remove(notice)
                    return notice.params
            await self._news.wait()

    async def nothing_heard(self, method: str) -> None:
        """Fails if such a notification came. A ping first: whatever was sent before its answer has arrived."""
        await self.session.send_ping()
        equal([notice for notice in self.notices if notice.method == method], [])

    async def call(self, name: str, **arguments: Any) -> str:
        """The text that a tool returns; a failure of the tool is a failure of the probe."""
        result = await self.session.call_tool(name, arguments)
        text = "".join(block.text for block in result.content if isinstance(block, types.TextContent))
        if result.is_error:
            raise AssertionError(f"tool {name} failed: {text}")
        return text

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The requests of one kind that the server has made."""
        return [m["message"] for m in self.wire if m["sender"] == "server" and m["message"].get("method") == method]

    # --- what the host application would answer ------------------------------------------------

    async def on_sampling(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        """Echoes the prompt. Never answers "hang", and reports progress first where it is asked for."""
        content = params.messages[-1].content
        prompt = content.text if isinstance(content, types.TextContent) else ""
        if prompt == "hang":
            try:
                await anyio.sleep_forever()
            finally:
                self.sampling_cancelled.set()
        token = (context.meta or {}).get("progress_token")
        if token is not None:
            await self.session.send_progress_notification(token, 1, total=2)
        reply = types.TextContent(type="text", text=f"echo: {prompt}")
        return types.CreateMessageResult(role="assistant", content=reply, model="parrot", stop_reason="endTurn")

    async def on_elicitation(self, _: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Does what the message says: "accept", "decline" or "cancel"."""
        if params.message != "accept":
            return types.ElicitResult(action=params.message)
        content = None if isinstance(params, types.ElicitRequestURLParams) else {"name": "Ada", "age": 36}
        return types.ElicitResult(action="accept", content=content)

    async def on_roots(self, _: ClientRequestContext) -> types.ListRootsResult:
        """The one root there is."""
        return types.ListRootsResult(roots=[ROOT])


@dataclass
class Peer:
    """What a probe works with."""

    argv: list[str]
    revision: str
    connection: Connection

    @property
    def session(self) -> ClientSession:
        return self.connection.session

    def connected_without(self, capability: str) -> Any:
        """Another conversation, in which the client does not declare one of its capabilities."""
        capabilities = deepcopy(CAPABILITIES)
        *parents, leaf = capability.split(".")
        branch: dict[str, Any] = capabilities
        for name in parents:
            branch = branch[name]
        del branch[leaf]
        return connected(self.argv, self.revision, capabilities)


@asynccontextmanager
async def connected(argv: list[str], revision: str, capabilities: dict[str, Any]) -> AsyncIterator[Connection]:
    """Starts a server and shakes hands with it, in a revision and with capabilities of our choice."""
    connection = Connection()
    server = StdioServerParameters(command=argv[0], args=argv[1:], env=dict(os.environ))
    async with (
        stdio_client(server) as (incoming, outgoing),
        ClientSession(
            Wire(incoming, "server", connection.wire),
            Wire(outgoing, "client", connection.wire),
            sampling_callback=connection.on_sampling,
            elicitation_callback=connection.on_elicitation,
            list_roots_callback=connection.on_roots,
            message_handler=connection.on_message,
        ) as connection.session,
    ):
        # The SDK's own initialize() offers its newest revision only, so this is the same in three steps.
        params = types.InitializeRequestParams(
            protocol_version=revision,
            capabilities=types.ClientCapabilities.model_validate(capabilities),
            client_info=types.Implementation(name="official", version="1.0"),
        )
        request = types.InitializeRequest(params=params)
        connection.handshake = await connection.session.send_request(request, types.InitializeResult, PATIENCE)
        connection.session.adopt(connection.handshake)
        await connection.session.send_notification(types.InitializedNotification())
        yield connection


# --- the probes --------------------------------------------------------------------------------

Probe = Callable[[Peer], Awaitable[None]]
PROBES: dict[str, Probe] = {}


def probe(cell: str) -> Callable[[Probe], Probe]:
    """Registers the probe of a cell."""

    def register(function: Probe) -> Probe:
        PROBES[cell] = function
        return function

    return register


def equal(seen: Any, expected: Any) -> None:
    """Fails with a sentence unless both are equal."""
    if seen != expected:
        raise AssertionError(f"{seen!r} instead of {expected!r}")


def contains(seen: Any, expected: Any) -> None:
    """Fails with a sentence unless one is in the other."""
    if expected not in seen:
        raise AssertionError(f"{expected!r} is not among {seen!r}")


@probe("initialize to server")
async def initialize(peer: Peer) -> None:
    handshake = peer.connection.handshake
    equal(handshake.protocol_version, peer.revision)
    equal(handshake.server_info.name, "everything")
    equal(handshake.instructions, "Try everything.")


@probe("notifications/initialized to server")
async def initialized(peer: Peer) -> None:
    """Only after it may a server ask anything of its client."""
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
    """The tool is stopped, and its call is never answered."""
    started = anyio.Event()

    async def on_progress(*_: object) -> None:
        started.set()

    async with anyio.create_task_group() as group:
        group.start_soon(peer.session.call_tool, "hang", {}, None, on_progress)
        await started.wait()
        group.cancel_scope.cancel()
    contains(await peer.connection.call("happened", event="hang cancelled"), "hang cancelled")
    sent = [entry["message"] for entry in peer.connection.wire if entry["sender"] == "client"]
    call = next(m["id"] for m in reversed(sent) if m.get("params", {}).get("name") == "hang")
    received = [entry["message"] for entry in peer.connection.wire if entry["sender"] == "server"]
    equal([m for m in received if "method" not in m and m.get("id") == call], [])


@probe("notifications/cancelled to client")
async def cancelled_by_server(peer: Peer) -> None:
    """A server whose patience is at an end says so, and the SDK stops its callback."""
    equal(await peer.connection.call("sample_impatiently", prompt="hang"), "gave up")
    await peer.connection.sampling_cancelled.wait()


@probe("notifications/progress to server")
async def progress_of_client(peer: Peer) -> None:
    """The client reports progress of a sampling request; the server hears it."""
    equal(json.loads(await peer.connection.call("sample_attentively", prompt="hello")), [1.0])


@probe("notifications/progress to client")
async def progress_of_server(peer: Peer) -> None:
    reports: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    await peer.session.call_tool("count", {"steps": 3}, progress_callback=on_progress)
    await peer.session.send_ping()
    equal([report[:2] for report in reports], [(1.0, 3.0), (2.0, 3.0), (3.0, 3.0)])
    has_messages = peer.revision >= "2025-03-26"
    equal([report[2] for report in reports], [f"step {step}" if has_messages else None for step in (1, 2, 3)])


@probe("tools/list to server")
async def tools_list(peer: Peer) -> None:
    tools = {tool.name: tool for tool in (await peer.session.list_tools()).tools}
    contains(tools, "add")
    equal(tools["add"].description, "Adds two numbers.")
    equal(sorted(tools["add"].input_schema["required"]), ["a", "b"])


@probe("tools/call to server")
async def tools_call(peer: Peer) -> None:
    equal(await peer.connection.call("add", a=2, b=3), "5")
    failed = await peer.session.call_tool("fail", {})
    equal(failed.is_error, True)
    contains(failed.content[0].text, "on purpose")
    await refused(peer.session.call_tool("no such tool", {}), types.INVALID_PARAMS)


@probe("notifications/tools/list_changed to client")
async def tools_changed(peer: Peer) -> None:
    async def names() -> list[str]:
        return [tool.name for tool in (await peer.session.list_tools()).tools]

    await comes_and_goes(peer, "tools", "spare", names)


@probe("resources/list to server")
async def resources_list(peer: Peer) -> None:
    resources = {resource.uri: resource for resource in (await peer.session.list_resources()).resources}
    contains(resources, "test://static")
    equal(resources["test://static"].mime_type, "text/plain")


@probe("resources/templates/list to server")
async def resource_templates_list(peer: Peer) -> None:
    listed = await peer.session.list_resource_templates()
    contains([template.uri_template for template in listed.resource_templates], "test://item/{id}")


@probe("resources/read to server")
async def resources_read(peer: Peer) -> None:
    static = (await peer.session.read_resource("test://static")).contents[0]
    equal((static.uri, static.mime_type, static.text), ("test://static", "text/plain", "static text"))
    equal((await peer.session.read_resource("test://item/7")).contents[0].text, "item 7")
    equal((await peer.session.read_resource("test://binary")).contents[0].blob, "AAEC")
    await refused(peer.session.read_resource("test://nowhere"), RESOURCE_NOT_FOUND)


@probe("notifications/resources/list_changed to client")
async def resources_changed(peer: Peer) -> None:
    async def uris() -> list[str]:
        return [resource.uri for resource in (await peer.session.list_resources()).resources]

    await comes_and_goes(peer, "resources", "test://spare", uris)


@probe("resources/subscribe to server")
async def resources_subscribe(peer: Peer) -> None:
    """Only a subscriber is told, and only of the resource that it subscribed to."""
    await peer.connection.call("touch", uri="test://static")
    await peer.connection.nothing_heard("notifications/resources/updated")
    await peer.session.subscribe_resource("test://static")
    await peer.connection.call("touch", uri="test://binary")
    await peer.connection.call("touch", uri="test://static")
    equal((await peer.connection.heard("notifications/resources/updated")).uri, "test://static")
    await peer.session.unsubscribe_resource("test://static")


@probe("notifications/resources/updated to client")
async def resource_updated(peer: Peer) -> None:
    await peer.session.subscribe_resource("test://item/7")
    await peer.connection.call("touch", uri="test://item/7")
    equal((await peer.connection.heard("notifications/resources/updated")).uri, "test://item/7")
    await peer.session.unsubscribe_resource("test://item/7")


@probe("resources/unsubscribe to server")
async def resources_unsubscribe(peer: Peer) -> None:
    await peer.session.subscribe_resource("test://static")
    await peer.session.unsubscribe_resource("test://static")
    await peer.connection.call("touch", uri="test://static")
    await peer.connection.nothing_heard("notifications/resources/updated")


@probe("prompts/list to server")
async def prompts_list(peer: Peer) -> None:
    prompts = {prompt.name: prompt for prompt in (await peer.session.list_prompts()).prompts}
    contains(prompts, "greet")
    equal([(a.name, a.required) for a in prompts["greet"].arguments or []], [("who", True)])


@probe("prompts/get to server")
async def prompts_get(peer: Peer) -> None:
    message = (await peer.session.get_prompt("greet", {"who": "Ada"})).messages[0]
    equal((message.role, message.content.text), ("user", "Say hello to Ada."))
    await refused(peer.session.get_prompt("no such prompt"), types.INVALID_PARAMS)


@probe("notifications/prompts/list_changed to client")
async def prompts_changed(peer: Peer) -> None:
    async def names() -> list[str]:
        return [prompt.name for prompt in (await peer.session.list_prompts()).prompts]

    await comes_and_goes(peer, "prompts", "spare", names)


@probe("completion/complete to server")
async def completion_complete(peer: Peer) -> None:
    prompt = types.PromptReference(type="ref/prompt", name="greet")
    completed = await peer.session.complete(prompt, {"name": "who", "value": "A"})
    equal(completed.completion.values, ["Ada", "Alan"])


@probe("logging/setLevel to server")
async def logging_set_level(peer: Peer) -> None:
    """What is below the level stays away."""
    await peer.session.set_logging_level("warning")
    await peer.connection.call("log", level="info", text="quiet")
    await peer.connection.nothing_heard("notifications/message")
    await peer.connection.call("log", level="error", text="loud")
    equal((await peer.connection.heard("notifications/message")).level, "error")


@probe("notifications/message to client")
async def log_message(peer: Peer) -> None:
    await peer.session.set_logging_level("debug")
    await peer.connection.call("log", level="notice", text="hello")
    message = await peer.connection.heard("notifications/message")
    equal((message.level, message.logger, message.data), ("notice", "everything", {"text": "hello"}))


@probe("sampling/createMessage to client")
async def sampling(peer: Peer) -> None:
    reply = json.loads(await peer.connection.call("sample", prompt="hello"))
    equal(reply, {"text": "echo: hello", "model": "parrot"})


@probe("roots/list to client")
async def roots_list(peer: Peer) -> None:
    equal(json.loads(await peer.connection.call("list_roots")), [[str(ROOT.uri), ROOT.name]])


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
    equal(sorted(form["properties"]), ["age", "name"])
    if peer.revision >= "2025-11-25":
        equal(await peer.connection.call("elicit_url", message="accept"), "accept")
        asked = peer.connection.asked("elicitation/create")[-1]["params"]
        equal((asked["mode"], asked["url"], asked["elicitationId"]), ("url", "https://example.com/form", "form-1"))


@probe("notifications/elicitation/complete to client")
async def elicitation_complete(peer: Peer) -> None:
    await peer.connection.call("elicit_url", message="accept")
    await peer.connection.call("finish_elicitation")
    equal((await peer.connection.heard("notifications/elicitation/complete")).elicitation_id, "form-1")


async def comes_and_goes(peer: Peer, kind: str, key: str, listed: Callable[[], Awaitable[list[str]]]) -> None:
    """An entry is hidden and shown again: each time the client is told, and the list has changed."""
    contains(await listed(), key)
    await peer.connection.call("hide", kind=kind)
    await peer.connection.heard(f"notifications/{kind}/list_changed")
    equal(key in await listed(), False)
    await peer.connection.call("show", kind=kind)
    await peer.connection.heard(f"notifications/{kind}/list_changed")
    contains(await listed(), key)


async def refused(request: Awaitable[Any], code: int) -> None:
    """Fails unless a request is answered with that error."""
    try:
        answer = await request
    except MCPError as error:
        equal(error.code, code)
    else:
        raise AssertionError(f"{answer!r} instead of error {code}")


# --- capabilities ------------------------------------------------------------------------------


def declared(capabilities: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The capabilities that are on, as paths: `tools.listChanged`, and `logging` where there is nothing below."""
    for name, value in capabilities.items():
        if isinstance(value, dict) and value:
            yield from declared(value, f"{prefix}{name}.")
        elif value is not False and value is not None:
            yield f"{prefix}{name}"


def server_capability(path: str) -> Probe:
    """That the server declares a capability; what it promises is for the probes of its methods."""

    async def declares(peer: Peer) -> None:
        capabilities = peer.connection.handshake.capabilities.model_dump(by_alias=True, exclude_none=True)
        contains(list(declared(capabilities)), path)

    return declares


def client_capability(path: str, tool: str, method: str, **arguments: Any) -> Probe:
    """That the server knows what the client declares, and asks nothing of a client that does not declare it."""

    async def respects(peer: Peer) -> None:
        contains(list(declared(json.loads(await peer.connection.call("client_capabilities")))), path)
        async with peer.connected_without(path.removesuffix(".listChanged")) as other:
            try:
                result = await other.session.call_tool(tool, arguments)
            except MCPError:
                pass  # as good a refusal as a failed tool
            else:
                equal(result.is_error, True)
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
    "client roots.listChanged": client_capability("roots.listChanged", "list_roots", "roots/list"),
    "client elicitation": client_capability("elicitation", "elicit", "elicitation/create", message="accept"),
    "client elicitation.form": client_capability("elicitation.form", "elicit", "elicitation/create", message="accept"),
    "client elicitation.url": client_capability(
        "elicitation.url", "elicit_url", "elicitation/create", message="accept"
    ),
}


# --- the matrix --------------------------------------------------------------------------------

Matrix = dict[str, dict[str, Any]]


async def tried(function: Probe, peer: Peer) -> dict[str, Any]:
    """The outcome of one probe."""
    try:
        with anyio.fail_after(PATIENCE):
            await function(peer)
    except Exception as error:
        return {"ok": False, "why": reason(error)}
    faults = [reason(fault) for fault in peer.connection.faults]
    peer.connection.faults.clear()
    return {"ok": False, "why": f"the SDK could not read: {faults}"} if faults else {"ok": True}


def reason(error: BaseException) -> str:
    """Why something failed, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"nothing came within {PATIENCE} s"
    return str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"


async def fill(matrix: Matrix, cells: list[str], argv: list[str], revision: str, wire: Path | None) -> None:
    """Tries every cell that has a probe, over one connection."""
    async with connected(argv, revision, CAPABILITIES) as connection:
        peer = Peer(argv, revision, connection)
        for cell in cells:
            if cell in PROBES:
                matrix[cell] = await tried(PROBES[cell], peer)
        offered = connection.handshake.capabilities.model_dump(by_alias=True, exclude_none=True)
        for path in declared(offered):
            matrix.setdefault(f"server {path}", {"ok": False, "why": "declared, but not a cell of the matrix"})
    if wire:
        wire.write_text("".join(json.dumps(entry) + "\n" for entry in connection.wire))


def main() -> None:
    """Reads the cells, prints the matrix."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wire", type=Path)
    parser.add_argument("revision")
    parser.add_argument("server", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    cells: list[str] = json.load(sys.stdin)
    matrix: Matrix = {}
    try:
        anyio.run(fill, matrix, cells, options.server, options.revision, options.wire)
    except Exception as error:
        lost = {"ok": False, "why": f"the connection was lost: {reason(error)}"}
        matrix |= {cell: lost for cell in cells if cell in PROBES and cell not in matrix}
    print(json.dumps(matrix))


if __name__ == "__main__":
    main()
