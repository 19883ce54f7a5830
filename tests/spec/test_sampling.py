"""Sampling: a server uses the client's language model."""

import asyncio
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Context, ImageContent, Server, TextContent
from trunkline.errors import ConnectionClosed, MisuseError, PeerError, RequestTimeout
from trunkline.protocol.types import (
    CreateMessageResult,
    ModelHint,
    ModelPreferences,
    SamplingMessage,
    Tool,
    ToolChoice,
    ToolUseContent,
)
from trunkline.server.input.ask import ClientLacksCapability
from trunkline.testing import ManualClock, RawPeer

DECLARED = {"sampling": {}}
ANSWER = {"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "m-1", "stopReason": "endTurn"}


class Sampler:
    """A server with one tool, which samples with the given params and stores the outcome."""

    def __init__(self, *arguments: Any, thread: bool = False, clock: ManualClock | None = None, **options: Any) -> None:
        self.server = Server("t", observers=[], clock=clock)
        self.outcome: Any = None

        async def ask(ctx: Context) -> str:
            try:
                self.outcome = await ctx.sample(*arguments, **options)
            except Exception as error:
                self.outcome = error
            return "done"

        def ask_on_thread(ctx: Context) -> str:
            self.outcome = ctx.wait(ctx.sample(*arguments, **options))
            return "done"

        self.server.add_tool(ask_on_thread if thread else ask, name="ask")

    async def asked(self, peer: RawPeer, answer: Any = ANSWER) -> Any:
        """Call the tool and answer its sampling request; return the request's params."""
        call = peer.call("tools/call", {"name": "ask"})
        request = await peer.receive()
        assert request["method"] == "sampling/createMessage"
        peer.reply(request, answer)
        await peer.answer_to(call)
        return request["params"]


@pytest.mark.row("SMP-01", "S01", "X34")
@pytest.mark.parametrize("thread", [False, True])
async def test_server_requests_and_client_responds(*, thread: bool) -> None:
    sampler = Sampler("Capital of France?", max_tokens=10, thread=thread)
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(capabilities=DECLARED)
        params = await sampler.asked(peer)
    assert params["messages"] == [{"role": "user", "content": {"type": "text", "text": "Capital of France?"}}]
    assert params["maxTokens"] == 10
    assert sampler.outcome == CreateMessageResult("assistant", TextContent("Paris"), "m-1", "endTurn")


@pytest.mark.row("S02")
async def test_client_without_sampling_is_not_asked() -> None:
    sampler = Sampler("x")
    async with RawPeer(sampler.server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "ask"})
        assert [message for message in peer.transcript.said_by("server") if "method" in message] == []
    assert isinstance(sampler.outcome, ClientLacksCapability)
    assert sampler.outcome.capability == "sampling"


@pytest.mark.row("SMP-02", "S03", "S06")
async def test_all_parameters_are_sent() -> None:
    sampler = Sampler(
        [
            "first",
            SamplingMessage("assistant", TextContent("second")),
            SamplingMessage("user", ImageContent("aGk=", "image/png")),
        ],
        max_tokens=1024,
        system_prompt="Be brief.",
        include_context="thisServer",
        model_preferences=ModelPreferences(
            hints=[ModelHint("small"), ModelHint("large")], cost_priority=0, speed_priority=0.5, intelligence_priority=1
        ),
        temperature=2.0,
        stop_sequences=["\n\n", "END", "A"],
        metadata={"trace": 1},
    )
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(capabilities={"sampling": {"context": {}}})
        params = await sampler.asked(peer)
    assert [message["role"] for message in params["messages"]] == ["user", "assistant", "user"]
    assert params["messages"][2]["content"] == {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    assert params["systemPrompt"] == "Be brief."
    assert params["includeContext"] == "thisServer"
    assert params["modelPreferences"] == {
        "hints": [{"name": "small"}, {"name": "large"}],
        "costPriority": 0,
        "speedPriority": 0.5,
        "intelligencePriority": 1,
    }
    assert params["temperature"] == 2
    assert params["stopSequences"] == ["\n\n", "END", "A"]
    assert params["metadata"] == {"trace": 1}


async def test_model_preferences_accept_a_mapping() -> None:
    sampler = Sampler("x", model_preferences={"cost_priority": 0.5, "speedPriority": 1, "hints": [{"name": "small"}]})
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        params = await sampler.asked(peer)
    assert params["modelPreferences"] == {"hints": [{"name": "small"}], "costPriority": 0.5, "speedPriority": 1}


@pytest.mark.row("SMP-10")
@pytest.mark.parametrize(
    ("revision", "declared", "sent"),
    [
        ("2025-11-25", {"sampling": {}}, False),
        ("2025-11-25", {"sampling": {"context": {}}}, True),
        ("2025-06-18", {"sampling": {}}, True),
    ],
)
async def test_include_context_needs_a_capable_client(revision: str, declared: Any, *, sent: bool) -> None:
    sampler = Sampler("x", include_context="allServers")
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(revision, declared)
        assert ("includeContext" in await sampler.asked(peer)) is sent


@pytest.mark.row("S04", "S05", "S06")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"model_preferences": ModelPreferences(cost_priority=1.1)}, id="s04 cost"),
        pytest.param({"model_preferences": ModelPreferences(speed_priority=-0.1)}, id="s04 speed"),
        pytest.param({"model_preferences": ModelPreferences(intelligence_priority=2)}, id="s04 intelligence"),
        pytest.param({"model_preferences": {"cost_priority": 1.1}}, id="s04 cost in a mapping"),
        pytest.param({"model_preferences": {"price_priority": 1}}, id="unknown preference"),
        pytest.param({"temperature": 2.1}, id="s05 too hot"),
        pytest.param({"temperature": -0.1}, id="s05 too cold"),
        pytest.param({"max_tokens": "10"}, id="s06 text"),
        pytest.param({"stop_sequences": [1]}, id="s06 number"),
    ],
)
async def test_out_of_range_values_are_rejected_before_sending(options: Any) -> None:
    sampler = Sampler("x", **options)
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(capabilities=DECLARED)
        await peer.result("tools/call", {"name": "ask"})
        assert [message for message in peer.transcript.said_by("server") if "method" in message] == []
    assert isinstance(sampler.outcome, MisuseError)


@pytest.mark.row("SMP-05")
async def test_tools_are_sent_only_to_clients_that_declare_them() -> None:
    options = {"tools": [Tool(name="f", input_schema={"type": "object"})], "tool_choice": ToolChoice(mode="required")}
    sampler = Sampler("x", **options)
    async with RawPeer(sampler.server) as able, RawPeer(sampler.server) as unable:
        await able.initialize(capabilities={"sampling": {"tools": {}}})
        answer = {**ANSWER, "content": [{"type": "tool_use", "id": "u1", "name": "f", "input": {"a": 1}}]}
        params = await sampler.asked(able, {**answer, "stopReason": "toolUse"})
        assert params["tools"][0]["name"] == "f"
        assert params["toolChoice"] == {"mode": "required"}
        assert sampler.outcome.content == [ToolUseContent("u1", "f", {"a": 1})]
        await unable.initialize(capabilities=DECLARED)
        await unable.result("tools/call", {"name": "ask"})
        assert isinstance(sampler.outcome, ClientLacksCapability)
        assert sampler.outcome.capability == "sampling.tools"


@pytest.mark.row("SMP-07")
async def test_refusal_keeps_the_clients_error_code() -> None:
    sampler = Sampler("x")
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(capabilities=DECLARED)
        call = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        peer.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -1, "message": "rejected", "data": [1]}})
        await peer.answer_to(call)
    assert isinstance(sampler.outcome, PeerError)
    assert (sampler.outcome.code, sampler.outcome.message, sampler.outcome.data) == (-1, "rejected", [1])


@pytest.mark.row("X07")
@pytest.mark.parametrize("timeout", [None, 7.0])
async def test_timed_out_request_is_cancelled_at_the_client(
    timeout: float | None,
) -> None:
    clock = ManualClock()
    sampler = Sampler("x", clock=clock, timeout=timeout)
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(capabilities=DECLARED)
        call = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        clock.advance((timeout or 60) - 0.01)
        assert await peer.quiet() == []
        clock.advance(0.01)
        cancelled = await peer.receive()
        assert (cancelled["method"], cancelled["params"]["requestId"]) == ("notifications/cancelled", asked["id"])
        await peer.answer_to(call)
        peer.reply(asked, ANSWER)  # too late: dropped
        assert await peer.quiet() == []
    assert isinstance(sampler.outcome, RequestTimeout)
    assert (sampler.outcome.method, sampler.outcome.elapsed) == ("sampling/createMessage", timeout or 60)


@pytest.mark.row("K18")
async def test_late_response_does_not_answer_another_request() -> None:
    clock, answers = ManualClock(), []
    server = Server("t", clock=clock)

    @server.tool
    async def ask_twice(ctx: Context) -> str:
        with pytest.raises(RequestTimeout):
            await ctx.sample("first", timeout=1)
        answers.append((await ctx.sample("second")).model)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=DECLARED)
        call = peer.call("tools/call", {"name": "ask_twice"})
        first = await peer.receive()
        clock.advance(1)
        await peer.receive()  # cancelled
        second = await peer.receive()
        peer.reply(first, {**ANSWER, "model": "late"})
        peer.reply(second, {**ANSWER, "model": "right"})
        await peer.answer_to(call)
    assert answers == ["right"]


@pytest.mark.row("CAP-09")
async def test_early_request_waits_for_initialized() -> None:
    sampler = Sampler("x")
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(capabilities=DECLARED, confirm=False)
        call = peer.call("tools/call", {"name": "ask"})
        assert await peer.quiet() == []
        assert await peer.quiet() == []
        peer.notify("notifications/initialized")
        asked = await peer.receive()
        assert asked["method"] == "sampling/createMessage"
        peer.reply(asked, ANSWER)
        await peer.answer_to(call)
    assert sampler.outcome.model == "m-1"


@pytest.mark.row("CAP-09")
async def test_waiting_for_initialized_keeps_the_call_deadline() -> None:
    clock = ManualClock()
    sampler = Sampler("x", clock=clock)
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(capabilities=DECLARED, confirm=False)
        call = peer.call("tools/call", {"name": "ask"})
        await peer.quiet()
        await peer.quiet()
        clock.advance(60)
        assert "not done after 60 s" in (await peer.answer_to(call))["result"]["content"][0]["text"]


async def test_request_fails_when_client_disconnects() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize(capabilities=DECLARED)
        params = {"messages": [], "maxTokens": 1}
        task = asyncio.create_task(peer.connection.request("sampling/createMessage", params))
        await peer.receive()
    with pytest.raises(ConnectionClosed, match="closed"):
        await task


async def test_early_request_fails_when_client_disconnects() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize(capabilities=DECLARED, confirm=False)
        task = asyncio.create_task(peer.connection.request("sampling/createMessage"))
        await peer.quiet()
        await peer.quiet()
    with pytest.raises(ConnectionClosed):
        await task


async def test_request_from_a_thread_fails_when_client_disconnects() -> None:
    server, outcome = Server("t"), asyncio.Queue()
    loop = asyncio.get_running_loop()

    @server.tool
    def ask(ctx: Context) -> str:
        try:
            ctx.wait(ctx.sample("x"))
        except ConnectionClosed as error:
            loop.call_soon_threadsafe(outcome.put_nowait, error)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=DECLARED)
        peer.call("tools/call", {"name": "ask"})
        await peer.receive()
    async with asyncio.timeout(PATIENCE):
        await outcome.get()


@pytest.mark.row("N10")
async def test_server_receives_client_progress() -> None:
    heard: list[Any] = []
    sampler = Sampler("x", on_progress=heard.append)
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(capabilities=DECLARED)
        call = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        token = asked["params"]["_meta"]["progressToken"]
        for progress in (1, 3, 2, 4):
            peer.notify("notifications/progress", {"progressToken": token, "progress": progress, "total": 4})
        peer.reply(asked, ANSWER)
        await peer.answer_to(call)
    assert [(told.progress, told.total) for told in heard] == [(1, 4), (3, 4), (4, 4)]


@pytest.mark.row("N10")
async def test_client_progress_renews_the_request_deadline() -> None:
    clock = ManualClock()
    sampler = Sampler("x", clock=clock, on_progress=lambda told: None)
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(capabilities=DECLARED)
        call = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        for progress in range(3):
            clock.advance(50)
            peer.notify("notifications/progress", {"progressToken": asked["id"], "progress": progress + 1})
            assert await peer.quiet() == []
        peer.reply(asked, ANSWER)
        await peer.answer_to(call)
    assert sampler.outcome.model == "m-1"
