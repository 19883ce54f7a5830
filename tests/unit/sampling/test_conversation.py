"""One conversation of an agent, with tools, an image and a refusal, through every provider."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.unit.sampling.model_server import DIALECTS, KEY, PIXEL, Dialect, Exchange, Turn, Use, asked, image, serving

from trunkline import Client, Context, SamplingMessage, Server, TextContent
from trunkline.errors import SamplingFailed
from trunkline.protocol.meta import USAGE
from trunkline.protocol.types import CreateMessageResult, ProgressParams, Tool, ToolUseContent
from trunkline.sampling import LMStudio, MockModel, Ollama, http_provider

EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS, ids=[each.name for each in DIALECTS])

ASKS_TOOLS = Turn(["Let me ", "look."], [Use("weather_now", {"city": "Rome"}), Use("add", {"a": 1, "b": 2})], "toolUse")
CONCLUDES = Turn(["It is sunny, ", "and 1 + 2 = 3."])
REFUSES = Turn(["I cannot ", "help with that."], reason="refusal")


def make_agent() -> tuple[Server, list[CreateMessageResult]]:
    """A server whose tool has a conversation with the client's model."""
    server, replies = Server("agent", observers=[]), list[CreateMessageResult]()

    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    def weather(city: str) -> list[Any]:
        """Shows the weather."""
        return [TextContent(f"sunny in {city}"), image()]

    server.add_tool(add)
    server.add_tool(weather, name="weather.now")  # providers do not allow the dot

    @server.tool
    async def talk(ctx: Context) -> str:
        """Has the conversation."""
        replies.clear()  # in the modern era, a handler runs again for each answer
        functions = {"add": add, "weather.now": weather}
        messages: list[Any] = [
            SamplingMessage("user", [TextContent("What is in this picture, and 1 + 2?"), image()]),
        ]
        tools: list[Any] = ["add", "weather.now", Tool(name="unused", input_schema={"type": "object"})]
        reply = await ctx.sample(messages, tools=tools, tool_choice="auto", system_prompt="Be brief.", temperature=2)
        while reply.tool_uses:
            replies.append(reply)
            results = [use.result(functions[use.name](**use.input)) for use in reply.tool_uses]
            messages += [reply.message, SamplingMessage.of_results(results)]
            reply = await ctx.sample(messages, tools=tools)
        replies.append(reply)
        replies.append(await ctx.sample([*messages, reply.message, "Now something forbidden."]))
        return "done"

    return server, replies


async def converse(provider: Any, revision: str | None = None) -> list[CreateMessageResult]:
    server, replies = make_agent()
    async with asyncio.timeout(PATIENCE), Client(server, sampling=provider, revision=revision) as client:
        assert (await client.call_tool("talk")).data == "done"
    return replies


def check_replies(replies: list[CreateMessageResult], refusal: str) -> None:
    first, second, third = replies
    assert (first.stop_reason, first.text) == ("toolUse", "Let me look.")
    assert [(use.name, use.input) for use in first.tool_uses] == [
        ("weather.now", {"city": "Rome"}),
        ("add", {"a": 1, "b": 2}),
    ]
    assert len({use.id for use in first.tool_uses}) == 2
    assert (second.stop_reason, second.text, second.model) == ("endTurn", "It is sunny, and 1 + 2 = 3.", "model-1")
    assert (third.stop_reason, third.text) == (refusal, "I cannot help with that.")


@pytest.mark.row("S07", "S08", "S09", "S10", "S11", "S12", "S15")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@EVERY_DIALECT
async def test_agent_converses_through_provider(dialect: Dialect, revision: str) -> None:
    calls = (
        ASKS_TOOLS
        if dialect.name != "Ollama"
        else ASKS_TOOLS._replace(uses=[Use("weather.now", {"city": "Rome"}), Use("add", {"a": 1, "b": 2})])
    )
    async with serving(dialect, calls, CONCLUDES, REFUSES) as model:
        replies = await converse(model.provider(), revision)
        await asyncio.wait_for(model.exchanges[-1].ended.wait(), PATIENCE)  # closed with the client
        check_replies(replies, "refusal" if dialect.has_refusals else "endTurn")
        assert [reply.meta for reply in replies] == [{USAGE: {"inputTokens": 11, "outputTokens": 7}}] * 3
        sent = [exchange.body for exchange in model.exchanges]
        assert len(sent) == 3
        assert [dialect.key_of(exchange) for exchange in model.exchanges] == [KEY] * 3
        assert all(PIXEL in str(body) for body in sent)
        assert str(sent[1]).count(PIXEL) == 2  # that of the tool too
        assert "sunny in Rome" in str(sent[1])


@pytest.mark.row("S13", "S15")
async def test_agent_converses_through_mock() -> None:
    calls = [
        TextContent("Let me look."),
        ToolUseContent("1", "weather.now", {"city": "Rome"}),
        ToolUseContent("2", "add", {"a": 1, "b": 2}),
    ]
    refusal = CreateMessageResult("assistant", TextContent("I cannot help with that."), "model-1", "refusal")
    model = MockModel(calls, "It is sunny, and 1 + 2 = 3.", refusal, model="model-1")
    check_replies(await converse(model), "refusal")
    assert [len(request.messages) for request in model.requests] == [1, 3, 5]


@pytest.mark.row("S11", "S12")
@pytest.mark.parametrize(
    ("provider", "origin"), [(Ollama, "http://localhost:11434"), (LMStudio, "http://localhost:1234")]
)
def test_local_providers_have_local_defaults(provider: Any, origin: str) -> None:
    assert f"at {origin}" in repr(provider("m"))


@EVERY_DIALECT
async def test_connection_is_used_again(dialect: Dialect) -> None:
    async with serving(dialect, CONCLUDES) as model:
        provider = model.provider()
        for _ in range(3):
            assert (await provider(asked())).text == "It is sunny, and 1 + 2 = 3."
        assert model.connections == 1
        await provider.close()
        await asyncio.wait_for(model.exchanges[-1].ended.wait(), PATIENCE)
        assert (await provider(asked())).stop_reason == "endTurn"
        assert model.connections == 2
        await provider.close()


@EVERY_DIALECT
async def test_server_receives_text_while_model_writes(dialect: Dialect) -> None:
    server, heard = Server("t", observers=[]), list[tuple[float, str | None]]()
    waiting: list[bytes] = []

    def begin(exchange: Exchange) -> None:
        exchange.begin_stream()
        waiting.extend([*exchange.events(CONCLUDES), b""])
        send_next()

    def send_next() -> None:
        """Send events up to the next text: each is sent when the text before has been reported."""
        while waiting:
            piece = waiting.pop(0)
            model.exchanges[0].send_chunk(piece)
            if any(text.encode() in piece for text in CONCLUDES.text):
                return

    @server.tool
    async def ask(ctx: Context) -> str:
        def report(each: ProgressParams) -> None:
            heard.append((each.progress, each.message))
            send_next()

        return (await ctx.sample("Hi", on_progress=report)).text

    async with (
        serving(dialect, begin) as model,
        asyncio.timeout(PATIENCE),
        Client(server, sampling=model.provider(), revision="2025-11-25") as client,
    ):
        assert (await client.call_tool("ask")).data == "It is sunny, and 1 + 2 = 3."
    assert heard == [(13, "It is sunny, "), (27, "and 1 + 2 = 3.")]


async def test_connection_is_used_again_if_the_response_ends_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_provider, "_END_GRACE", PATIENCE)

    class EndsResponse:
        """Ends the response once its last event has arrived."""

        def progress(self, *_: object) -> None:
            model.loop.call_soon(model.exchanges[-1].send_chunk, b"")

    def begin(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.send_chunk(b"".join(exchange.events(CONCLUDES)))

    async with serving(DIALECTS[0], begin) as model:
        provider = model.provider()
        for _ in range(2):
            await provider(asked(), EndsResponse())
        assert model.connections == 1
        await provider.close()


async def test_provider_is_reached_through_a_unix_socket(tmp_path: Path) -> None:
    async with serving(DIALECTS[0], CONCLUDES, path=tmp_path / "s") as model:
        provider = model.provider()
        assert (await provider(asked())).text == "It is sunny, and 1 + 2 = 3."
        assert repr(provider) == f"<OpenAI at http+unix://{tmp_path / 's'}:/v1: 'model-1'>"
        await provider.close()


async def test_members_are_added_to_requests() -> None:
    async with serving(DIALECTS[0], CONCLUDES) as model:
        provider = model.provider(extra_body={"temperature": 0.1}, headers={"X-Team": "blue"})
        await provider(asked(temperature=2))
        await provider.close()
        assert model.exchanges[0].body["temperature"] == 0.1
        assert model.exchanges[0].headers["x-team"] == "blue"


def test_provider_works_on_several_event_loops() -> None:
    async def ask_twice(kept: Any) -> Any:
        async with serving(DIALECTS[0], CONCLUDES) as model:
            provider = kept or model.provider()
            if kept is None:
                assert (await provider(asked())).text
            else:
                with pytest.raises(SamplingFailed):  # its server is gone with the first loop
                    await provider(asked())
            await provider.close()
            return provider

    provider = asyncio.run(ask_twice(None))
    asyncio.run(ask_twice(provider))
    assert len(provider._pools) == 1  # that of the closed loop is dropped


async def test_error_of_the_progress_function_is_its_own() -> None:
    class Broken:
        def progress(self, *_: object) -> None:
            raise TimeoutError("mine")

    async with serving(DIALECTS[0], CONCLUDES) as model:
        with pytest.raises(TimeoutError, match="mine"):
            await model.provider(timeout=None)(asked(), Broken())


async def test_provider_declares_tools_unless_told_otherwise() -> None:
    declared: list[Any] = []
    server = Server("t", observers=[])

    @server.tool
    async def look(ctx: Context) -> str:
        declared.append(ctx.client.capabilities["sampling"])
        return ""

    for tools in (None, False):
        async with Client(server, sampling=MockModel(), sampling_tools=tools) as client:
            await client.call_tool("look")
    async with Client(server, sampling=lambda params: "a function") as client:
        await client.call_tool("look")
    assert declared == [{"tools": {}}, {}, {}]
