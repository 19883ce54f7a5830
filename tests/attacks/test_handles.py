"""Handles of a server (states, cursors, sessions) presented by another principal, or to another method or server.

Over HTTP, where `identify` names the caller: here by a header, as if a proxy had set it.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.modern import EVERYTHING, PREFIX, ask, begin, enveloped, meta
from tests.unit.transports.http.asgi import Host, request

from trunkline import Context, Server, Settings

ALICE, MALLORY, NOBODY = "alice", "mallory", None
SECRET = "x" * 40
MARK = f"{PREFIX}subscriptionId"


@dataclass
class Sure:
    sure: bool


def identify(scope: dict[str, Any]) -> str | None:
    name = dict(scope["headers"]).get(b"x-user")
    return None if name is None else name.decode()


def offering(*keys: str) -> Server:
    server = Server("s", settings=Settings(page_size=1, state_keys=keys))

    @server.tool
    async def pay(amount: int, ctx: Context) -> str:
        done = await ctx.once("reserve", lambda: ctx.principal)
        answer = await ctx.elicit("Sure?", Sure, key="sure")
        return f"{ctx.principal} paid {amount} of {done}: {answer.action}"

    @server.tool
    async def give(amount: int, ctx: Context) -> str:
        return (await ctx.elicit("Sure?", Sure, key="sure")).action

    @server.tool(allow=lambda ctx: ctx.principal is not None)
    async def hidden() -> str:
        return "hidden"

    @server.prompt
    async def letter(ctx: Context) -> str:
        return (await ctx.elicit("Sure?", Sure, key="sure")).action

    @server.resource("x:{name}", list=lambda: ["x:1", "x:2", "x:3"])
    async def thing(name: str, ctx: Context) -> str:
        return (await ctx.elicit("Sure?", Sure, key="sure")).action

    @server.prompt
    async def other() -> str:
        return "other"

    return server


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    made = Host(offering())
    made.app = made.server.asgi(identify=identify)
    yield made
    await made.app.aclose()


async def asked(host: Host, method: str, who: str | None, **params: Any) -> Any:
    answer = await ask(host, method, enveloped(EVERYTHING, **params), x_user=who)
    return answer.json


def error(answer: Any) -> Any:
    assert "error" in answer, answer
    return answer["error"]


def kind(answer: Any) -> str:
    return error(answer)["data"]["kind"]


# --- requestState ------------------------------------------------------------------------------------

YES = {"inputResponses": {"sure": {"action": "accept", "content": {"sure": True}}}}


async def state_of(host: Host, who: str | None) -> str:
    answer = await asked(host, "tools/call", who, name="pay", arguments={"amount": 1})
    return answer["result"]["requestState"]


async def test_state_is_bound_to_its_principal(host: Host) -> None:
    for owner, others in ((ALICE, (MALLORY, NOBODY)), (NOBODY, (ALICE, "None", "")), ("1", (MALLORY,))):
        state = await state_of(host, owner)
        params: dict[str, Any] = {"name": "pay", "arguments": {"amount": 1}, "requestState": state, **YES}
        for other in others:
            assert kind(await asked(host, "tools/call", other, **params)) == "invalid_request_state"
        paid = await asked(host, "tools/call", owner, **params)
        assert paid["result"]["content"][0]["text"] == f"{owner} paid 1 of {owner}: accept"


async def test_state_is_bound_to_method_name_and_arguments(host: Host) -> None:
    state = await state_of(host, ALICE)
    elsewhere: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": "pay", "arguments": {"amount": 2}}),
        ("tools/call", {"name": "pay", "arguments": {"amount": 1, "more": 1}}),
        ("tools/call", {"name": "pay", "arguments": {}}),
        ("tools/call", {"name": "give", "arguments": {"amount": 1}}),
        ("prompts/get", {"name": "letter"}),
        ("prompts/get", {"name": "pay", "arguments": {"amount": "1"}}),
        ("resources/read", {"uri": "x:pay"}),
    ]
    for method, params in elsewhere:
        answer = await asked(host, method, ALICE, **params, requestState=state, **YES)
        assert error(answer)["code"] == -32602, (method, params)
    again = {"arguments": {"amount": 1}, "name": "pay"}  # the order of members is irrelevant
    assert "result" in await asked(host, "tools/call", ALICE, **again, requestState=state, **YES)


async def test_altered_state_is_rejected(host: Host) -> None:
    state = await state_of(host, ALICE)
    altered = [state[:at] + ("A" if state[at] != "A" else "B") + state[at + 1 :] for at in range(0, len(state), 7)]
    for text in (*altered, state[:-1], state + "=", state + "A", "", "ü", " " + state):
        answer = await asked(host, "tools/call", ALICE, name="pay", arguments={"amount": 1}, requestState=text, **YES)
        assert kind(answer) == "invalid_request_state", text


async def test_state_opens_only_with_the_key(host: Host) -> None:
    params: dict[str, Any] = {"name": "pay", "arguments": {"amount": 1}, **YES}
    hosts = []
    for keys in ((SECRET,), ("y" * 40, SECRET), ("z" * 40,)):
        made = Host(offering(*keys))
        made.app = made.server.asgi(identify=identify)
        hosts.append(made)
    state = await state_of(hosts[0], ALICE)
    found = [await asked(each, "tools/call", ALICE, **params, requestState=state) for each in (*hosts, host)]
    assert ["result" in answer for answer in found] == [True, True, False, False]
    for each in hosts:
        await each.app.aclose()


# --- cursors -----------------------------------------------------------------------------------------


async def test_cursor_of_private_list_is_bound_to_its_principal(host: Host) -> None:
    for method, what in (("tools/list", "tools"), ("resources/list", "resources")):
        first = await asked(host, method, ALICE)
        assert first["result"]["cacheScope"] == "private"
        cursor = first["result"]["nextCursor"]
        for other in (MALLORY, NOBODY):
            assert kind(await asked(host, method, other, cursor=cursor)) == "invalid_cursor"
        assert len((await asked(host, method, ALICE, cursor=cursor))["result"][what]) == 1


async def test_cursor_is_bound_to_its_list(host: Host) -> None:
    lists = ("tools/list", "resources/list", "prompts/list")
    cursors = {method: (await asked(host, method, ALICE))["result"]["nextCursor"] for method in lists}
    for method in (*lists, "resources/templates/list"):
        for given, cursor in cursors.items():
            answer = await asked(host, method, ALICE, cursor=cursor)
            assert ("result" in answer) is (given == method), (given, method)


async def test_public_list_has_one_cursor_for_all(host: Host) -> None:
    first, second = [(await asked(host, "prompts/list", who))["result"] for who in (ALICE, MALLORY)]
    assert first == second
    assert first["cacheScope"] == "public"


# --- sessions, events and subscriptions ----------------------------------------------------------------


def opening() -> dict[str, Any]:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    return request("initialize", params, id=0)


async def test_session_and_events_are_hidden_from_other_principals(host: Host) -> None:
    opened = await host.ask("POST", opening(), x_user=ALICE)
    session = opened.headers["mcp-session-id"]
    for other in (MALLORY, NOBODY):
        for method in ("POST", "GET", "DELETE"):
            for event in (None, "0-0", "1-0"):
                body = request("tools/list") if method == "POST" else None
                answer = await host.ask(method, body, mcp_session_id=session, x_user=other, last_event_id=event)
                assert (answer.status, kind(answer.json)) == (404, "session_not_found")


async def test_session_adds_nothing_to_a_modern_request(host: Host) -> None:
    opened = await host.ask("POST", opening(), x_user=ALICE)
    session = opened.headers["mcp-session-id"]
    names = []
    for who in (NOBODY, ALICE):
        answer = await ask(host, "tools/call", {"name": "hidden", "_meta": meta()}, x_user=who, mcp_session_id=session)
        assert "mcp-session-id" not in answer.headers
        names.append(answer.json["result"]["isError"])
    assert names == [True, False]


async def test_subscription_id_gives_no_access_to_other_principals(host: Host) -> None:
    streams = [
        begin(host, "subscriptions/listen", enveloped(notifications={"promptsListChanged": True}), id="sub", x_user=who)
        for who in (ALICE, MALLORY)
    ]
    for stream in streams:
        assert (await stream.message())["params"]["_meta"] == {MARK: "sub"}
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "sub"}}
    for number in ("sub", 1, 2):  # ours are numbers
        cancel["params"] = {"requestId": number}
        taken = await host.ask("POST", cancel, x_user=MALLORY, mcp_protocol_version="2026-07-28")
        assert taken.status == 202
    streams[1].gone.set()
    await streams[1].finished()
    assert not streams[0].ended
    host.server.add_prompt("more", name="more")
    assert (await streams[0].message())["method"] == "notifications/prompts/list_changed"
    assert streams[1].body.count(b"data:") == 1


async def test_request_of_another_cannot_be_cancelled() -> None:
    server, go, started = Server("s"), asyncio.Event(), asyncio.Event()

    @server.tool
    async def wait() -> str:
        started.set()
        await go.wait()
        return "done"

    host = Host(server)
    host.app = server.asgi(identify=identify)
    waiting = begin(host, "tools/call", {"name": "wait", "_meta": meta()}, id=1, x_user=ALICE)
    await started.wait()
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    await host.ask("POST", cancel, x_user=MALLORY, mcp_protocol_version="2026-07-28")
    session = (await host.ask("POST", opening(), x_user=MALLORY)).headers["mcp-session-id"]
    await host.ask("POST", cancel, x_user=MALLORY, mcp_session_id=session)
    go.set()
    assert (await waiting.finished()).status == 200
    assert waiting.json["result"]["structuredContent"] == "done"
    await host.app.aclose()
