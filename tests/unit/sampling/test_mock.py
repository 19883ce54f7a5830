"""The mock model: echo, template, error, timeout and delay."""

import asyncio

import pytest
from tests.unit.sampling.model_server import asked

from trunkline import TextContent
from trunkline.errors import MisuseError, SamplingRateLimited, SamplingTimeout
from trunkline.protocol.meta import USAGE
from trunkline.protocol.types import CreateMessageParams, CreateMessageResult, ToolUseContent
from trunkline.sampling import MockModel, SamplingProvider


@pytest.mark.row("S13")
async def test_mock_echoes_last_message() -> None:
    reply = await MockModel()(asked("Hello there"))
    assert reply == CreateMessageResult(
        "assistant", TextContent("Hello there"), "mock", "endTurn", meta={USAGE: {"inputTokens": 2, "outputTokens": 2}}
    )
    assert (await MockModel()(CreateMessageParams(messages=[], max_tokens=1))).text == ""


@pytest.mark.row("S13")
async def test_mock_fills_in_template() -> None:
    model = MockModel("You said {text}.", model="parrot")
    reply = await model(asked("hi {x}"))
    assert (reply.text, reply.model) == ("You said hi {x}.", "parrot")


@pytest.mark.row("S13")
async def test_mock_raises_error() -> None:
    model = MockModel("fine", SamplingRateLimited("busy", retry_after=1), ValueError("odd"))
    assert (await model(asked())).text == "fine"
    with pytest.raises(SamplingRateLimited, match="busy") as caught:
        await model(asked())
    assert caught.value.retry_after == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="odd"):
            await model(asked())


@pytest.mark.row("S13", "S16")
async def test_mock_times_out() -> None:
    with pytest.raises(SamplingTimeout, match=r"within 0\.01 s"):
        await MockModel(delay=3600, timeout=0.01)(asked())


@pytest.mark.row("S13")
async def test_mock_delays_its_reply() -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert (await MockModel("late", delay=0.05, timeout=60)(asked())).text == "late"
    assert loop.time() - begun >= 0.05


async def test_mock_uses_tools_and_reports_text() -> None:
    reports: list[tuple[float, str | None]] = []

    class Reporter:
        def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
            reports.append((progress, message))

    model = MockModel(ToolUseContent("1", "add", {}), [TextContent("a"), TextContent("b")])
    assert (await model(asked(), Reporter())).stop_reason == "toolUse"
    assert (await model(asked(), Reporter())).content == [TextContent("a"), TextContent("b")]
    assert reports == [(3, "a\nb")]
    assert repr(model) == "<MockModel 'mock': 2 requests>"
    await model.close()


def test_mock_is_a_provider_and_checks_its_options() -> None:
    assert isinstance(MockModel(), SamplingProvider)
    for options in ({"delay": -1}, {"timeout": 0}):
        with pytest.raises(MisuseError):
            MockModel(**options)
