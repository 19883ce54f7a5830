"""Every JSON example of the founding documents, replayed against a server and a client: with default options, and under
the profile `compat="erlmcp"`.

`founding_examples` has one file per feature. Each example names its receiver (`to`), the message, and what is expected:

- `result`, `error`: the answer to a request; `params`: what the function that answers it was called with.
- `read`: the value that the caller gets of a response, which answers the request under `answers`.
- `notified`: the params that subscribers to a notification get; `progress`: those of a progress callback.
- `dropped`: the reason for which a message is ignored; `taken`: that it is not; `phase`: the phase that it leads to.

Under the profile, `profile` is expected instead of `expect`, if it is there; a result has these members and no others.
Otherwise expected values name the members that matter. `"*"` stands for any value. Ids are replaced where a client or
server chooses them itself. What is sent in reply by default is checked against the official schema, as in all tests.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct
from tests.founding import FEATURES
from tests.limits import PATIENCE

from trunkline import Client, Context, PeerError, Server
from trunkline.facts import Dropped
from trunkline.protocol.methods import ALIASES
from trunkline.protocol.types import CreateMessageParams
from trunkline.testing import RawPeer, RecordingObserver, ScriptedServer

EXAMPLES = [
    case
    for file in sorted((Path(__file__).parent / "founding_examples").glob("*.json"))
    for example in json.loads(file.read_text())
    for case in (
        pytest.param(example, id=f"{file.stem}: {example['name']}", marks=pytest.mark.row(*example.get("rows", ()))),
        pytest.param(
            {**example, "expect": example.get("profile", example["expect"]), "compat": "erlmcp"},
            id=f"{file.stem}: {example['name']}, under the profile",
            marks=pytest.mark.off_the_record,  # the profile sends what no schema has
        ),
    )
]
TO_SERVER = [example for example in EXAMPLES if example.values[0]["to"] == "server"]
TO_CLIENT = [example for example in EXAMPLES if example.values[0]["to"] == "client"]
CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "logging": {},
    "completions": {},
    "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
}


def matches(expected: Any, found: Any) -> bool:
    """Return whether a value has all expected members."""
    if expected == "*":
        return found is not None
    if isinstance(expected, dict):
        members = {name: getattr(found, name, None) for name in expected} if isinstance(found, Struct) else found
        return isinstance(members, dict) and all(matches(value, members.get(name)) for name, value in expected.items())
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(matches, expected, found))
    return expected == found


def has_no_more(expected: Any, found: Any) -> bool:
    """Return whether a value has no other members than the expected ones."""
    if isinstance(expected, dict):
        return expected.keys() == found.keys() and all(has_no_more(expected[name], found[name]) for name in expected)
    return not isinstance(expected, list) or all(map(has_no_more, expected, found))


def make_server(observer: RecordingObserver, compat: Literal["erlmcp"] | None) -> tuple[Server, list[Any]]:
    """A server with everything that the examples name, and the input that its tool gets from the client's model."""
    server, sampled = Server("documents", observers=[observer], compat=compat), []

    @server.tool
    async def sql_query(query: str, limit: Annotated[int, Meta(ge=1, le=1000)] = 100) -> str:
        return f'[{{id:1, name:"Alice"}}, ...] {query} {limit}'

    @server.tool
    async def calculator(operation: str, a: int, b: int) -> str:
        return f"Result: {a + b if operation == 'add' else a - b}"

    @server.tool(task=True)
    async def operation_name(key: str) -> str:
        return key

    @server.tool
    async def ask_model(ctx: Context) -> str:
        sampled.append(await ctx.sample("What should I do?", max_tokens=1024))
        return "asked"

    @server.prompt
    async def code_review(language: str, style: str = "default") -> str:
        return f"Please review my {language} code for {style}"

    @server.resource("user://{username}/profile")
    async def profile(username: str) -> str:
        return username

    @server.completion(tool="sql_query", argument="query")
    async def complete(value: str, filled: dict[str, str]) -> list[str]:
        return ["OM users", *(f"{name} {given}" for name, given in filled.items())]

    server.add_resource("doc://readme", "Content here...", name="README")
    server.add_resource("weather://city", "sunny", name="weather")
    return server, sampled


def dropped(observer: RecordingObserver) -> list[str]:
    return [fact.kind for fact in observer.of(Dropped)]


@pytest.mark.row("A18")
@pytest.mark.parametrize("example", TO_SERVER)
async def test_server_accepts_the_example(example: dict[str, Any]) -> None:
    observer = RecordingObserver()
    server, sampled = make_server(observer, example.get("compat"))
    message, expect, before = example["message"], example["expect"], example.get("before")
    async with RawPeer(server) as peer:
        if message.get("method") != "initialize" and before != "initialize":
            capabilities = {**FEATURES, "sampling": {}, "roots": {"listChanged": True}}
            await peer.initialize(capabilities=capabilities, confirm=before != "initialized")
        if "answers" in example:
            call = peer.call("tools/call", {"name": "ask_model"})
            asked = await peer.receive()
            assert asked["method"] == example["answers"]["method"]
            peer.send({**message, "id": asked["id"]})
            assert (await peer.answer_to(call))["result"]["isError"] is False
            assert matches(expect["read"], sampled[0])
            return
        peer.send(message)
        if "result" in expect or "error" in expect:
            answer = await peer.receive()
            assert answer.get("id") == message.get("id")
            assert matches(expect, answer), answer
            if "compat" in example and "profile" in example and "result" in expect:
                assert has_no_more(expect["result"], answer["result"]), answer
        else:
            assert await peer.quiet() == []
            if "phase" in expect:
                assert peer.connection.session.phase.name == expect["phase"]
            assert dropped(observer) == ([expect["dropped"]] if "dropped" in expect else [])
    await server.aclose()


class Caller:
    """A client, the server that a test plays, and the arguments of the client's callbacks."""

    def __init__(self, compat: Literal["erlmcp"] | None, **options: Any) -> None:
        self.server = ScriptedServer(**options)
        self.observer = RecordingObserver()
        self.sampled: list[CreateMessageParams] = []
        self.client = Client(self.server, sampling=self.sample, roots=[], observers=[self.observer], compat=compat)

    async def sample(self, params: CreateMessageParams) -> str:
        self.sampled.append(params)
        return "Here's what I recommend..."

    async def respond(self, example: dict[str, Any]) -> Any:
        """Wait for the request that an example answers, and answer it with the example."""
        asked = await self.server.line.request(example["answers"]["method"])
        self.server.line.send({**example["message"], "id": asked["id"]})


@asynccontextmanager
async def calling(compat: Literal["erlmcp"] | None = None, **options: Any) -> AsyncIterator[Caller]:
    caller = Caller(compat, capabilities=CAPABILITIES, answered=["initialize", "ping"], **options)
    async with caller.client:
        yield caller


async def ask(client: Client, example: dict[str, Any]) -> Any:
    """Return the value that a caller gets for a request that an example answers."""
    asked = example["answers"]
    if "task" in example:
        return await getattr(client.task(asked["params"]["taskId"]), example["task"])()
    if asked["method"] == "ping":
        return await client.ping()
    return await client.request(asked["method"], asked.get("params"))


@pytest.mark.parametrize("example", [one for one in TO_CLIENT if "answers" in one.values[0]])
async def test_client_accepts_the_response(example: dict[str, Any]) -> None:
    if example["answers"]["method"] == "initialize":
        await accept_handshake(example)
        return
    async with calling(example.get("compat")) as caller:
        caller.server.answered.discard("ping")
        asking = asyncio.create_task(ask(caller.client, example))
        await caller.respond(example)
        if "then" in example:
            await caller.respond(example["then"])
        if "error" in example["expect"]:
            with pytest.raises(PeerError) as raised:
                await asking
            error = raised.value
            assert {"code": error.code, "message": error.message, "data": error.data} == example["expect"]["error"]
        else:
            found = await asking
            assert matches(example["expect"]["read"], found), found


async def accept_handshake(example: dict[str, Any]) -> None:
    caller = Caller(example.get("compat"), answered=[])
    opening = asyncio.create_task(caller.client.open())
    await caller.server.connected(1)
    await caller.respond(example)
    client, expect = await opening, example["expect"]["read"]
    read = {
        "protocol_version": client.revision.value if client.revision else None,
        "server_info": client.server_info,
        "instructions": client.instructions,
    }
    assert matches(expect, read), read
    assert client.capabilities == example["message"]["result"]["capabilities"]
    await client.close()


@pytest.mark.parametrize("example", [one for one in TO_CLIENT if "answers" not in one.values[0]])
async def test_client_accepts_the_request_or_notification(example: dict[str, Any]) -> None:
    message, expect = example["message"], example["expect"]
    method = ALIASES.get(message.get("method"), message.get("method"))
    async with calling(example.get("compat")) as caller:
        line = caller.server.line
        if "result" in expect:
            answer = await line.call(message["method"], message.get("params"), id=message["id"])
            assert matches(expect["result"], answer["result"]), answer
            assert all(matches(expect.get("params", {}), params) for params in caller.sampled)
        elif "notified" in expect:
            reader = caller.client.notifications(method)
            line.send(message)
            async with asyncio.timeout(PATIENCE):
                notice = await anext(reader)
            assert matches(expect["notified"], notice.params), notice
        elif "progress" in expect:
            await progress(caller, message, expect["progress"])
        else:
            line.send(message)
            await line.call("ping")
            assert dropped(caller.observer) == [expect["dropped"]]


async def progress(caller: Caller, message: dict[str, Any], expect: Any) -> None:
    told: list[Any] = []
    caller.server.answered.add("tools/list")
    call = asyncio.create_task(caller.client.call_tool("work", on_progress=told.append))
    asked = await caller.server.line.request("tools/call")
    token = asked["params"]["_meta"]["progressToken"]
    caller.server.line.send({**message, "params": {**message["params"], "progressToken": token}})
    caller.server.line.reply(asked, {"content": []})
    await call
    assert matches([expect], told), told


async def test_cursor_can_be_combined_with_limit() -> None:
    server, _ = make_server(RecordingObserver(), None)
    async with RawPeer(server) as peer:
        await peer.initialize()
        for method, member in (("tools/list", "tools"), ("resources/list", "resources")):
            first = await peer.result(method, {"limit": 1})
            rest = await peer.result(method, {"cursor": first["nextCursor"], "limit": 100})
            names = [item["name"] for item in (*first[member], *rest[member])]
            assert len(names) == len(set(names)) > 1
    await server.aclose()


async def test_client_follows_pages_with_a_member_named_cursor() -> None:
    async with calling() as caller:

        async def walk() -> list[str]:
            return [resource.uri async for resource in caller.client.resources()]

        walking = asyncio.create_task(walk())
        for uri, cursor in (("doc://1", "2"), ("doc://2", "3"), ("doc://3", None)):
            asked = await caller.server.line.request("resources/list")
            more = {} if cursor is None else {"cursor": cursor}
            caller.server.line.reply(asked, {"resources": [{"uri": uri, "name": uri}], **more})
        assert await walking == ["doc://1", "doc://2", "doc://3"]


def test_example_names_are_unique() -> None:
    ids = [example.id for example in EXAMPLES]
    assert len(ids) == len(set(ids)) > 120
