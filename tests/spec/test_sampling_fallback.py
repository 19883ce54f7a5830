"""Sampling for clients that cannot: a provider of the server answers, if it has one."""

import asyncio
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.modern import enveloped
from tests.unit.sampling.model_server import DIALECTS, Turn, serving

from trunkline import Client, Context, Server, TaskPolicy
from trunkline.errors import MisuseError, PeerError, SamplingFailed, SamplingTimeout
from trunkline.protocol.types import CreateMessageParams, CreateMessageResult, SamplingMessage, ToolUseContent
from trunkline.sampling import MockModel
from trunkline.testing import RawPeer
from trunkline.transports.http.client import connection_pool

ANSWER = {"role": "assistant", "content": {"type": "text", "text": "of the client"}, "model": "m-1"}


class NoTools(MockModel):
    """A provider without tools."""

    supports_tools = False


class Sampler:
    """A server with a tool that samples, and the outcome."""

    def __init__(self, model: MockModel | None, **options: Any) -> None:
        self.server = Server("t", sampling=model, observers=[])
        self.outcome: Any = None

        @self.server.tool
        async def ask(ctx: Context) -> str:
            try:
                self.outcome = await ctx.sample("Hello", **options)
            except Exception as error:
                self.outcome = error
            return "done"


async def called(sampler: Sampler, capabilities: Any = None, revision: str = "2025-11-25") -> Any:
    """Call the tool and return the requests that the client received."""
    async with RawPeer(sampler.server) as peer:
        await peer.initialize(revision, capabilities)
        call = peer.call("tools/call", {"name": "ask"})
        first = await peer.receive()
        if "method" in first:
            peer.reply(first, ANSWER)
            await peer.answer_to(call)
        return [message["method"] for message in peer.transcript.said_by("server") if "method" in message]


@pytest.mark.row("S14")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_server_samples_for_client_without_sampling(revision: str) -> None:
    model = MockModel("of the server")
    sampler = Sampler(model, system_prompt="Be brief.")
    assert await called(sampler, revision=revision) == []
    assert isinstance(sampler.outcome, CreateMessageResult)
    assert (sampler.outcome.text, sampler.outcome.stop_reason) == ("of the server", "endTurn")
    assert model.requests[0].system_prompt == "Be brief."


@pytest.mark.row("S14", "S02")
async def test_without_fallback_the_client_must_sample() -> None:
    sampler = Sampler(None)
    assert await called(sampler) == []
    assert isinstance(sampler.outcome, PeerError)
    assert sampler.outcome.data["kind"] == "capability_not_supported"


@pytest.mark.row("S14")
async def test_client_that_can_sample_is_asked() -> None:
    sampler = Sampler(MockModel("of the server"))
    assert await called(sampler, {"sampling": {}}) == ["sampling/createMessage"]
    assert sampler.outcome.text == "of the client"


async def test_server_samples_with_tools_for_client_without_tools() -> None:
    use = ToolUseContent("1", "ask", {})
    sampler = Sampler(MockModel(use), tools=["ask"])
    assert await called(sampler, {"sampling": {}}) == []
    assert sampler.outcome.tool_uses == [use]


async def test_fallback_without_tools_is_not_asked_to_use_them() -> None:
    sampler = Sampler(NoTools(), tools=["ask"])
    assert await called(sampler) == []
    assert isinstance(sampler.outcome, PeerError)


async def test_fallback_obeys_the_timeout_of_the_request() -> None:
    sampler = Sampler(MockModel(delay=3600), timeout=0.01)
    await called(sampler)
    assert isinstance(sampler.outcome, SamplingTimeout)
    assert sampler.outcome.message == "sampling/createMessage was not done after 0.01 s"


async def test_timeout_of_the_provider_is_its_own() -> None:
    sampler = Sampler(MockModel(delay=3600, timeout=0.01), timeout=60)
    await called(sampler)
    assert isinstance(sampler.outcome, SamplingTimeout)
    assert sampler.outcome.message == "MockModel did not answer within 0.01 s"


async def test_fallback_reports_progress() -> None:
    heard: list[tuple[float, str | None]] = []
    sampler = Sampler(MockModel("abc"), on_progress=lambda each: heard.append((each.progress, each.message)))
    await called(sampler)
    assert heard == [(3, "abc")]


async def test_failure_of_the_fallback_is_a_result_for_the_model() -> None:
    server = Server("t", sampling=MockModel(SamplingFailed("the provider failed", detail="secret")), observers=[])

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample("Hello")).text

    async with RawPeer(server) as peer:
        await peer.initialize()
        failed = await peer.result("tools/call", {"name": "ask"})
    assert failed["isError"] is True
    assert failed["content"][0]["text"] == "the provider failed"
    assert failed["_meta"]["trunkline/error"] == {"kind": "sampling_failed"}


@pytest.mark.row("S14")
async def test_message_is_sampled_once_although_the_handler_runs_again() -> None:
    model = MockModel("one", "two", "three", "four")
    server, runs = Server("t", sampling=model, observers=[]), list[list[str]]()

    @server.tool(asks=["sampling", "elicitation"])
    async def ask(ctx: Context) -> str:
        texts = [(await ctx.sample("Hello")).text, (await ctx.sample("Hello", key="k")).text]
        runs.append(list(texts))
        await ctx.elicit("Sure?", bool)
        texts.append((await ctx.sample("Hello")).text)
        return " ".join(texts)

    async with asyncio.timeout(PATIENCE), Client(server, elicitation=lambda _: {"value": True}) as client:
        assert (await client.call_tool("ask")).data == "one two three"
    assert runs == [["one", "two"], ["one", "two"]]
    assert len(model.requests) == 3


async def test_modern_client_without_sampling_may_call_a_tool_that_needs_it() -> None:
    server, plain = Server("t", sampling=MockModel("hi"), observers=[]), Server("t", observers=[])
    for each in (server, plain):

        @each.tool(asks=["sampling"])
        async def ask(ctx: Context) -> str:
            return (await ctx.sample("Hello")).text

    async with RawPeer(server) as peer:
        assert (await peer.result("tools/call", enveloped(name="ask")))["content"][0]["text"] == "hi"
    async with RawPeer(plain) as peer:
        assert (await peer.error("tools/call", enveloped(name="ask")))["code"] == -32021


async def test_modern_client_must_declare_what_has_no_fallback() -> None:
    server = Server("t", sampling=MockModel("hi"), observers=[])

    @server.tool(asks=["roots"])
    async def ask() -> str:
        return ""

    async with RawPeer(server) as peer:
        assert (await peer.error("tools/call", enveloped(name="ask")))["code"] == -32021


async def test_task_samples_with_the_fallback() -> None:
    server = Server("t", sampling=MockModel("in a task"), observers=[])

    @server.tool(task=TaskPolicy("required"))
    async def ask(ctx: Context) -> str:
        return (await ctx.sample("Hello")).text

    async with RawPeer(server) as peer:
        await peer.initialize()
        task = (await peer.result("tools/call", {"name": "ask", "task": {}}))["task"]
        done = await peer.result("tasks/result", {"taskId": task["taskId"]})
    assert done["content"][0]["text"] == "in a task"
    await server.aclose()


async def test_server_closes_connections_of_its_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "_IDLE_TIMEOUT", 3600.0)
    async with serving(DIALECTS[0], Turn(["from a provider"])) as model:
        server = Server("t", sampling=model.provider(), observers=[])

        @server.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.sample("Hello")).text

        async with asyncio.timeout(PATIENCE):
            async with Client(server) as client:
                assert (await client.call_tool("ask")).data == "from a provider"
            await server.aclose()
            await model.exchanges[0].ended.wait()


def test_fallback_must_be_a_provider() -> None:
    with pytest.raises(MisuseError, match="sampling= must be a provider"):
        Server("t", sampling=lambda params: "text")  # pyright: ignore[reportArgumentType]


@pytest.mark.row("SMP-07")
async def test_client_refuses_tool_uses_without_results() -> None:
    server, raised = Server("t", observers=[]), list[PeerError]()

    @server.tool
    async def ask(ctx: Context) -> str:
        messages = [SamplingMessage("assistant", ToolUseContent("u1", "ask", {}))]
        try:
            await ctx._asker.ask("sampling/createMessage", CreateMessageParams(messages=messages, max_tokens=1))
        except PeerError as error:
            raised.append(error)
        return ""

    async with Client(server, sampling=MockModel(), revision="2025-11-25") as client:
        await client.call_tool("ask")
    assert raised[0].code == -32602
    assert "'u1'" in raised[0].message
