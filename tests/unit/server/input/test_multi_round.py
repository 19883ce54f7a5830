"""Input requests to a client of the modern era: rounds, state, and rejections."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from tests.modern import EVERYTHING, enveloped, meta

from trunkline import Context, Depends, Server, Settings, UrlElicitationRequired
from trunkline.errors import MisuseError
from trunkline.facts import CallEnded, HandlerFailed
from trunkline.server.input.ask import ClientLacksCapability
from trunkline.testing import RawPeer, RecordingObserver

ROOTS = {"roots": [{"uri": "file:///a"}]}
SAMPLE = {"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "m"}


@dataclass
class Who:
    name: str


def accepted(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


@asynccontextmanager
async def talking(server: Server) -> AsyncIterator[RawPeer]:
    async with RawPeer(server) as peer:
        yield peer


async def call(peer: RawPeer, name: str, capabilities: Any = EVERYTHING, **more: Any) -> Any:
    return await peer.request("tools/call", enveloped(capabilities, name=name, **more))


async def answered(peer: RawPeer, name: str, responses: Any, asked: Any, **more: Any) -> Any:
    """The next round: the same call, with the responses and the state of the last."""
    state = {"requestState": asked["result"]["requestState"]}
    return await call(peer, name, inputResponses=responses, **state, **more)


def text(answer: Any) -> str:
    assert answer["result"]["resultType"] == "complete", answer
    return answer["result"]["content"][0]["text"]


def questions(answer: Any) -> list[str]:
    assert answer["result"]["resultType"] == "input_required", answer
    return list(answer["result"]["inputRequests"])


# --- rounds ----------------------------------------------------------------------------------------


@pytest.mark.row("MRT-01")
async def test_sequential_questions_take_one_round_each() -> None:
    server = Server("s")

    @server.tool
    async def greet(ctx: Context) -> str:
        who = await ctx.elicit("Who?", Who)
        roots = await ctx.roots()
        return f"{who.data and who.data.name} {roots[0].uri}"

    async with talking(server) as peer:
        first = await call(peer, "greet")
        assert questions(first) == ["elicitation/create-1"]
        second = await answered(peer, "greet", {"elicitation/create-1": accepted(name="Al")}, first)
        assert questions(second) == ["roots/list-1"]
        assert second["result"]["requestState"] != first["result"]["requestState"]
        assert text(await answered(peer, "greet", {"roots/list-1": ROOTS}, second)) == "Al file:///a"
        assert [message for message in peer.transcript.said_by("server") if "method" in message] == []


async def test_concurrent_questions_share_one_round() -> None:
    server = Server("s")

    @server.tool
    async def both(ctx: Context) -> str:
        reply, roots = await asyncio.gather(ctx.sample("Capital?", key="capital"), ctx.roots(key="roots"))
        return f"{reply.model} {len(roots)}"

    async with talking(server) as peer:
        first = await call(peer, "both")
        assert questions(first) == ["capital", "roots"]
        assert text(await answered(peer, "both", {"capital": SAMPLE, "roots": ROOTS}, first)) == "m 1"


async def test_sync_handler_thread_ends_with_the_round() -> None:
    server, ended, went_on = Server("s"), threading.Semaphore(0), list[Exception]()

    @server.tool
    def greet(ctx: Context) -> str:
        try:
            return str(ctx.wait(ctx.elicit("Who?", Who)).data)
        except Exception as error:
            went_on.append(error)
            raise
        finally:
            ended.release()

    async with talking(server) as peer:
        first = await call(peer, "greet")
        assert questions(first) == ["elicitation/create-1"]
        assert await asyncio.to_thread(ended.acquire, timeout=10)
        assert went_on == []  # an unanswered request in this run is no error of it
        again = await answered(peer, "greet", {"elicitation/create-1": accepted(name="Al")}, first)
        assert text(again) == "Who(name='Al')"


async def test_dependency_that_asks_is_torn_down_each_round() -> None:
    server, torn = Server("s"), list[str]()

    async def user(ctx: Context) -> AsyncIterator[str]:
        answer = await ctx.elicit("Who?", Who, key="who")
        yield answer.data.name if answer.data else "nobody"
        torn.append("user")

    @server.tool
    async def greet(name: Annotated[str, Depends(user)], ctx: Context) -> str:
        return f"{name} {len(await ctx.roots(key='roots'))}"

    async with talking(server) as peer:
        first = await call(peer, "greet")
        assert questions(first) == ["who"]
        second = await answered(peer, "greet", {"who": accepted(name="Al")}, first)
        assert questions(second) == ["roots"]
        assert text(await answered(peer, "greet", {"roots": ROOTS}, second)) == "Al 1"
        assert torn == ["user"]  # the round that requested it was cancelled within it


@pytest.mark.row("MRT-02")
async def test_prompts_and_resources_may_ask() -> None:
    server = Server("s")

    @server.prompt
    async def letter(ctx: Context) -> str:
        return f"To {(await ctx.elicit('Who?', Who, key='who')).data}"

    @server.resource("x:{name}")
    async def thing(name: str, ctx: Context) -> str:
        return f"{name} {(await ctx.elicit('Who?', Who, key='who')).action}"

    async with talking(server) as peer:
        for method, params in (("prompts/get", {"name": "letter"}), ("resources/read", {"uri": "x:a"})):
            first = await peer.request(method, enveloped(EVERYTHING, **params))
            assert questions(first) == ["who"]
            assert first["result"].keys().isdisjoint({"ttlMs", "cacheScope"})
            state = first["result"]["requestState"]
            more = {"requestState": state, "inputResponses": {"who": accepted(name="Al")}}
            done = await peer.request(method, enveloped(EVERYTHING, **params, **more))
            assert done["result"]["resultType"] == "complete"


async def test_asking_in_an_unsupported_method_is_misuse() -> None:
    server = Server("s")

    @server.prompt
    async def letter(city: str) -> str:
        return city

    @server.completion(prompt="letter", argument="city")
    async def cities(ctx: Context) -> list[str]:
        return [root.uri for root in await ctx.roots()]

    async with talking(server) as peer:
        ref = {"ref": {"type": "ref/prompt", "name": "letter"}, "argument": {"name": "city", "value": ""}}
        error = await peer.error("completion/complete", enveloped(EVERYTHING, **ref))
        assert (error["code"], error["data"]["kind"]) == (-32603, "completion_failed")


# --- stored state ----------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_once_runs_once_and_returns_decoded_json(era: str) -> None:
    server, done = Server("s"), list[str]()

    async def order() -> Who:
        done.append("order")
        return Who("order 1")

    @server.tool
    async def buy(ctx: Context) -> str:
        first, second = await asyncio.gather(ctx.once("order", order), ctx.once("order", order))
        plain = await ctx.once("plain", lambda: len(done))
        answer = await ctx.elicit("Sure?", Who, key="sure")
        return f"{first} {second == first} {plain} {answer.action}"

    async with talking(server) as peer:
        if era == "modern":
            first = await call(peer, "buy")
            last = await answered(peer, "buy", {"sure": accepted(name="yes")}, first)
        else:
            await peer.initialize(capabilities={"elicitation": {}})
            ident = peer.call("tools/call", {"name": "buy"})
            peer.reply(await peer.receive(), accepted(name="yes"))
            last = await peer.answer_to(ident)
        assert last["result"]["content"][0]["text"] == "{'name': 'order 1'} True 1 accept"
        assert done == ["order"]


async def test_duplicate_question_key_is_rejected() -> None:
    server = Server("s")

    @server.tool
    async def stubborn(ctx: Context) -> str:
        while (await ctx.elicit("Say no", Who, key="again")).accepted:
            pass
        return "done"

    async with talking(server) as peer:
        first = await call(peer, "stubborn")
        last = await answered(peer, "stubborn", {"again": accepted(name="no")}, first)
        assert last["result"]["isError"] is True


@pytest.mark.row("MRT-08")
async def test_unknown_answers_ignored_and_missing_ones_asked_again() -> None:
    server = Server("s")

    @server.tool
    async def greet(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Who, key="who")).action

    async with talking(server) as peer:
        first = await call(peer, "greet")
        again = await answered(peer, "greet", {"someone": accepted(name="Al")}, first)
        assert questions(again) == ["who"]
        assert text(await call(peer, "greet", inputResponses={"who": {"action": "decline"}, "x": 3})) == "decline"


@pytest.mark.row("MRT-08")
@pytest.mark.parametrize("wrong", [5, None, {}, {"action": "maybe"}, accepted(), accepted(name=5)])
async def test_invalid_answer_is_an_error_of_the_request(wrong: Any) -> None:
    server = Server("s")

    @server.tool
    async def greet(ctx: Context) -> str:
        return str(
            (
                await ctx.elicit("Who?", {"properties": {"name": {"type": "string"}}, "required": ["name"]}, key="who")
            ).data
        )

    async with talking(server) as peer:
        answer = await call(peer, "greet", inputResponses={"who": wrong})
        assert answer["error"]["code"] == -32602


async def test_oversized_state_fails_the_call() -> None:
    observer = RecordingObserver()
    server = Server("s", observers=[observer])

    @server.tool
    async def big(ctx: Context) -> str:
        await ctx.once("much", lambda: "x" * (65 << 20))
        return (await ctx.elicit("Who?", Who)).action

    async with talking(server) as peer:
        answer = await call(peer, "big")
        assert answer["result"]["isError"] is True
    [failed] = [fact.error for fact in observer.facts if isinstance(fact, HandlerFailed)]
    assert isinstance(failed, MisuseError)
    assert failed.kind == "state_too_large"


# --- bindings of a state -----------------------------------------------------------------------------


@pytest.mark.row("MRT-05")
async def test_state_is_valid_only_for_its_request() -> None:
    server = Server("s")

    @server.tool
    async def pay(amount: int, ctx: Context) -> str:
        return (await ctx.elicit("Sure?", Who, key="sure")).action

    @server.tool
    async def give(amount: int, ctx: Context) -> str:
        return (await ctx.elicit("Sure?", Who, key="sure")).action

    async with talking(server) as peer:
        first = await call(peer, "pay", arguments={"amount": 1})
        yes = {"inputResponses": {"sure": accepted(name="x")}, "requestState": first["result"]["requestState"]}
        assert text(await call(peer, "pay", arguments={"amount": 1}, **yes)) == "accept"
        for name, amount, state in [("pay", 2, ""), ("give", 1, ""), ("pay", 1, "x"), ("pay", 1, None)]:
            more = yes | (
                {"requestState": "made up"} if state is None else {"requestState": yes["requestState"] + state}
            )
            refused = await call(peer, name, arguments={"amount": amount}, **more)
            assert (refused["error"]["code"], refused["error"]["data"]["kind"]) == (-32602, "invalid_request_state")


@pytest.mark.row("MRT-06")
async def test_state_expires() -> None:
    server = Server("s", settings=Settings(state_lifetime=1e-6))

    @server.tool
    async def greet(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Who, key="who")).action

    async with talking(server) as peer:
        first = await call(peer, "greet")
        refused = await answered(peer, "greet", {"who": accepted(name="x")}, first)
        assert refused["error"]["data"]["kind"] == "invalid_request_state"


# --- capabilities of the client ------------------------------------------------------------------------


@pytest.mark.row("VER-09")
@pytest.mark.parametrize(
    ("capabilities", "needed"),
    [
        ({}, {"elicitation": {}}),
        ({"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ({"elicitation": {}}, {"sampling": {}}),
    ],
)
async def test_missing_client_capability_is_reported(capabilities: Any, needed: Any) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.elicit("Who?", Who, key="who")
        return (await ctx.sample("Capital?")).model

    async with talking(server) as peer:
        answer = await call(peer, "ask", capabilities, inputResponses={"who": accepted(name="x")})
        assert answer["error"]["code"] == -32021
        assert answer["error"]["data"]["requiredCapabilities"] == needed


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_handler_can_catch_missing_capability_in_both_eras(era: str) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            return (await ctx.sample("Capital?")).model
        except ClientLacksCapability as lacking:
            return f"without {lacking.capability}"

    async with talking(server) as peer:
        if era == "handshake":
            await peer.initialize()
        params = {"name": "ask"} if era == "handshake" else enveloped(name="ask")
        assert (await peer.result("tools/call", params))["content"][0]["text"] == "without sampling"


@pytest.mark.row("VER-09")
async def test_required_capabilities_are_checked_before_the_tool_runs() -> None:
    server, ran = Server("s"), list[int]()

    @server.tool(asks=("sampling", "elicitation.url"))
    async def ask() -> None:
        ran.append(1)

    async with talking(server) as peer:
        assert (await call(peer, "ask", {"sampling": {}}))["error"]["code"] == -32021
        assert ran == []
        assert "error" not in await call(peer, "ask")


async def test_modern_client_receives_no_ping() -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.ping()
        return "there"

    async with talking(server) as peer:
        assert (await call(peer, "ask"))["result"]["isError"] is True


# --- URL elicitation -------------------------------------------------------------------------------


def server_with_a_gate(visited: list[int]) -> Server:
    server = Server("s")

    @server.tool
    async def gated() -> str:
        if not visited:
            raise UrlElicitationRequired.of(("Sign in", "https://x.example/in"))
        return "in"

    @server.tool
    async def to_page(ctx: Context) -> str:
        return (await ctx.elicit_url("Pay", "https://x.example/pay", key="pay")).action

    return server


async def test_required_url_becomes_a_question() -> None:
    visited: list[int] = []
    async with talking(server_with_a_gate(visited)) as peer:
        first = await call(peer, "gated")
        [(key, question)] = first["result"]["inputRequests"].items()
        assert question == {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "Sign in", "url": "https://x.example/in"},
        }
        assert questions(await answered(peer, "gated", {key: {"action": "accept"}}, first)) == [key]
        visited.append(1)
        assert text(await answered(peer, "gated", {key: {"action": "accept"}}, first)) == "in"


async def test_declined_url_ends_with_an_error() -> None:
    async with talking(server_with_a_gate([])) as peer:
        first = await call(peer, "gated")
        [key] = first["result"]["inputRequests"]
        assert (await answered(peer, "gated", {key: {"action": "decline"}}, first))["error"]["code"] == -32603
        assert (await answered(peer, "gated", {key: 5}, first))["error"]["code"] == -32602


async def test_client_without_url_elicitation_gets_an_error() -> None:
    async with talking(server_with_a_gate([])) as peer:
        for name in ("gated", "to_page"):
            answer = await call(peer, name, {"elicitation": {}})
            assert answer["error"]["data"]["requiredCapabilities"] == {"elicitation": {"url": {}}}
        asked = await call(peer, "to_page")
        assert asked["result"]["inputRequests"]["pay"]["params"] == {
            "mode": "url",
            "message": "Pay",
            "url": "https://x.example/pay",
        }


# --- facts -----------------------------------------------------------------------------------------


async def test_round_ends_with_outcome_input_required() -> None:
    observer = RecordingObserver()
    server = Server("s", observers=[observer])

    @server.tool
    async def greet(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Who, key="who")).action

    @server.tool
    async def gated() -> str:
        raise UrlElicitationRequired.of(("Sign in", "https://x.example/in"))

    async with talking(server) as peer:
        first = await call(peer, "greet")
        await answered(peer, "greet", {"who": accepted(name="x")}, first)
        await call(peer, "gated")
        assert not peer.connection.session.incoming_requests
    ended = [fact.outcome for fact in observer.facts if isinstance(fact, CallEnded)]
    assert ended == ["input_required", "ok", "input_required"]


async def test_no_notification_follows_a_finished_round() -> None:
    server = Server("s")

    @server.tool
    async def chatty(ctx: Context) -> str:
        try:
            return (await ctx.elicit("Who?", Who, key="who")).action
        finally:
            await ctx.error("too late")
            await ctx.progress(1)

    async with talking(server) as peer:
        said = {"io.modelcontextprotocol/logLevel": "debug", "progressToken": 1}
        params = {"name": "chatty", "_meta": meta(EVERYTHING, **said)}
        assert questions(await peer.request("tools/call", params)) == ["who"]
        await peer.request("tools/list", enveloped())
        assert [message for message in peer.transcript.said_by("server") if "method" in message] == []
