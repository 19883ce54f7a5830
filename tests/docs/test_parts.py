"""The parts that the manual calls exchangeable can be exchanged, from outside and without patching."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from trunkline import CallToolResult, Refusal, Server, TextContent
from trunkline.errors import RegistrationError, register_refusal
from trunkline.facts import CallEnded
from trunkline.rpc.dispatch import Feature
from trunkline.server.features import lifecycle
from trunkline.testing import ManualClock, RawPeer, RecordingObserver
from trunkline.transports.channel import ChannelInfo, MessageOrigin
from trunkline.wire.messages import Message, Request, Response


@pytest.mark.row("B10")
async def test_feature_clock_and_observer_are_replaceable() -> None:
    def fake_call(connection, call, params) -> CallToolResult:
        clock.advance(7)
        return CallToolResult([TextContent(f"faked {params.name}")])

    clock, observer = ManualClock(), RecordingObserver()
    fake = Feature("tools", {"tools/call": fake_call})
    server = Server("parts", features=[lifecycle.FEATURE, fake], clock=clock, observers=[observer], tools=True)
    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("tools/call", {"name": "anything"})
        missing = await peer.error("tools/list")
    assert result["content"][0]["text"] == "faked anything"
    assert missing["code"] == -32601
    assert [fact.seconds for fact in observer.of(CallEnded) if fact.method == "tools/call"] == [7]


class FakeChannel:
    """A minimal transport."""

    info = ChannelInfo("fake")

    def __init__(self) -> None:
        self.sent: list[Message | Sequence[Message]] = []

    def send(self, message, *, about=None) -> None:
        self.sent.append(message)

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    async def drain(self) -> None: ...

    async def close(self) -> None: ...


@pytest.mark.row("W08")
async def test_custom_channel_is_served() -> None:
    channel, server = FakeChannel(), Server("parts", clock=ManualClock())
    receiver = server.connect(channel)
    receiver.received([Request(1, "ping")], MessageOrigin())
    assert [(message.id, type(message)) for message in channel.sent] == [(1, Response)]


# --- the error flow ------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


class FakeValidators:
    """A JSON Schema library that accepts one city, and records its calls."""

    def __init__(self) -> None:
        self.compiled: list[Mapping[str, Any]] = []
        self.checked: list[Any] = []

    def compile(self, schema: Mapping[str, Any]) -> Callable[[Any], Iterator[tuple[str, str, str]]]:
        self.compiled.append(schema)
        return self.find_faults

    def find_faults(self, value: Any) -> Iterator[tuple[str, str, str]]:
        self.checked.append(value)
        if value.get("city") != "Oslo":
            yield "$.city", "fake", "only Oslo will do"


@pytest.mark.row("B10", "B11")
async def test_validator_of_tools_and_prompts_is_replaceable() -> None:
    fake = FakeValidators()
    server = Server("parts", validator=fake.compile)
    server.add_tool(lambda city: f"sunny in {city}", name="weather", input_schema=SCHEMA)
    server.add_prompt("Describe {city}.", name="text", input_schema=SCHEMA)
    server.add_prompt(lambda city: f"Describe {city}.", name="function", input_schema=SCHEMA)
    async with RawPeer(server) as peer:
        await peer.initialize()
        good = await peer.result("tools/call", {"name": "weather", "arguments": {"city": "Oslo"}})
        bad = await peer.result("tools/call", {"name": "weather", "arguments": {"city": "Rome"}})
        prompts = [
            await peer.error("prompts/get", {"name": name, "arguments": {"city": "Rome"}})
            for name in ("text", "function")
        ]
        described = await peer.result("prompts/get", {"name": "text", "arguments": {"city": "Oslo"}})
    assert fake.compiled == [SCHEMA, SCHEMA, SCHEMA]
    assert {"city": "Rome"} in fake.checked
    assert good["content"][0]["text"] == "sunny in Oslo"
    assert (bad["isError"], bad["content"][0]["text"]) == (
        True,
        "invalid arguments for tool 'weather': $.city: only Oslo will do",
    )
    fault = {"path": "$.city", "rule": "fake", "message": "only Oslo will do"}
    assert [error["data"]["errors"] for error in prompts] == [[fault], [fault]]
    assert described["messages"][0]["content"]["text"] == "Describe Oslo."


@pytest.mark.row("B11")
async def test_replaced_validator_explains_arguments_that_types_refuse() -> None:
    fake = FakeValidators()
    server = Server("parts", validator=fake.compile)

    @server.tool
    async def weather(city: str) -> str:
        """The weather."""
        return f"sunny in {city}"

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", {"name": "weather", "arguments": {"city": "Rome"}}))["isError"] is False
        assert fake.checked == []
        bad = await peer.result("tools/call", {"name": "weather", "arguments": {"city": 7}})
    assert fake.checked == [{"city": 7}]
    assert bad["content"][0]["text"] == "invalid arguments for tool 'weather': $.city: only Oslo will do"


@pytest.mark.row("B11")
def test_schema_that_the_replaced_validator_refuses_cannot_be_registered() -> None:
    def compile_schema(schema: Mapping[str, Any]) -> Any:
        raise KeyError("no such draft")

    server = Server("parts", validator=compile_schema)
    with pytest.raises(RegistrationError, match="the schema of tool 'weather' is not valid: 'no such draft'"):
        server.add_tool(lambda city: city, name="weather", input_schema=SCHEMA)
    with pytest.raises(RegistrationError, match="the schema of prompt 'text' is not valid"):
        server.add_prompt("Describe {city}.", name="text", input_schema=SCHEMA)


class FakeBreaker:
    """A circuit breaker of another library, which records the calls that it guards."""

    def __init__(self) -> None:
        self.open = False
        self.seen: list[str] = []

    @asynccontextmanager
    async def guard(self) -> AsyncIterator[None]:
        if self.open:
            self.seen.append("refused")
            raise Refusal(1009, "the fake is open")
        try:
            yield
        except Exception as error:
            self.seen.append(type(error).__name__)
            raise
        self.seen.append("passed")


@pytest.mark.row("B11")
@pytest.mark.parametrize("limits", [{}, {"max_concurrency": 1}], ids=["alone", "with another limit"])
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_circuit_breaker_is_replaceable(kind: str, limits: dict[str, Any]) -> None:
    fake, server = FakeBreaker(), Server("parts", observers=[])

    def plain(word: str) -> str:
        return {"yes": "done"}[word]

    async def waiting(word: str) -> str:
        return plain(word)

    server.add_tool(plain if kind == "plain" else waiting, name="work", breaker=fake, **limits)
    async with RawPeer(server) as peer:
        await peer.initialize()
        answers = [await peer.result("tools/call", {"name": "work", "arguments": {"word": w}}) for w in ("yes", "no")]
        fake.open = True
        refused = await peer.result("tools/call", {"name": "work", "arguments": {"word": "yes"}})
    assert [answer["isError"] for answer in answers] == [False, True]
    assert (refused["content"][0]["text"], refused["_meta"]["trunkline/refusal"]["code"]) == ("the fake is open", 1009)
    assert fake.seen == ["passed", "KeyError", "refused"]


@pytest.mark.row("B11")
@pytest.mark.parametrize("replacement", [True, False])
async def test_health_check_of_a_dependency_is_replaceable(replacement: bool) -> None:
    server = Server("parts")
    server.add_tool(lambda: "done", name="work", requires=["database"])
    server.health("database")(lambda: not replacement)
    server.health("database")(lambda: replacement)
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", {"name": "work"}))["isError"] is not replacement


@pytest.mark.row("B11")
async def test_reasons_are_added_to_the_refusals() -> None:
    register_refusal(3001, "closed_for_repairs", message="come back tomorrow", hint="at most {max_calls} at a time")
    server = Server("parts")

    @server.resource("shop://door")
    async def door() -> str:
        raise Refusal(3001)

    async with RawPeer(server) as peer:
        await peer.initialize()
        error = await peer.error("resources/read", {"uri": "shop://door"})
    assert (error["code"], error["message"]) == (3001, "come back tomorrow")
    assert error["data"]["kind"] == "closed_for_repairs"
    assert error["data"]["hint"] == f"at most {server.settings.max_calls} at a time"
