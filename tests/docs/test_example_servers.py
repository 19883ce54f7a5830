"""The example servers, tested with the kit that users have."""

import runpy
from pathlib import Path

import pytest

from trunkline import Server
from trunkline.errors import ToolFailed
from trunkline.testing import assert_catalog_unchanged, connect, fuzz_tools
from trunkline_pytest import StartProcess

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> Server:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["server"]


@pytest.mark.parametrize("name", ["calculator", "code_review", "documents", "sql_query"])
async def test_catalog_of_example_is_pinned(name: str) -> None:
    await assert_catalog_unchanged(load(name), name=name)


async def test_calculator_runs_as_a_process(mcp_server_process: StartProcess) -> None:
    client = await mcp_server_process(EXAMPLES / "calculator.py")
    result = await client.call_tool("calculator", {"operation": "add", "a": 5, "b": 3})
    assert result.text == "Result: 8"
    with pytest.raises(ToolFailed, match="Nothing can be divided by 0"):
        await client.call_tool("calculator", {"operation": "divide", "a": 5, "b": 0})


def test_calculator_withstands_fuzzing() -> None:
    fuzz_tools(load("calculator"), examples=15)


async def test_code_review_completes_languages() -> None:
    async with connect(load("code_review")) as client:
        assert (await client.complete("prompt", "code_review", "language", "p")).values == ["python"]
