"""The official Inspector, as a command, against our server, as a developer uses it.

It runs from its installation folder, without a browser and without a network.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interop.server_processes import served
from tests.limits import PATIENCE
from tests.official import NODE, NPM_FOLDER, ROOT

INSPECTOR = NPM_FOLDER / "node_modules/.bin/mcp-inspector"
SERVER = [sys.executable, str(Path(__file__).with_name("everything.py"))]
TOOL_FAILED = 5  # how the Inspector exits then


class Outcome(NamedTuple):
    """The outcome of a run of the Inspector."""

    status: int
    result: dict[str, Any]
    complaints: str


Inspect = Callable[..., Outcome]


@pytest.fixture(scope="module", params=["stdio", "http"])
def reached_by(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The Inspector's options for our server."""
    if request.param == "stdio":
        yield SERVER
        return
    with served([*SERVER, "http"]) as server:
        yield [f"http://{server.place()}/mcp"]


@pytest.fixture
def inspect(reached_by: list[str], tmp_path: Path) -> Inspect:
    """Run the Inspector for one method."""
    assert INSPECTOR.exists(), f"the Inspector is missing: `make {NPM_FOLDER.relative_to(ROOT)}/.ready` installs it"
    env = {"NODE_COMPILE_CACHE": os.environ["NODE_COMPILE_CACHE"], "HOME": str(tmp_path)}  # with no user settings

    def run(method: str, *options: str) -> Outcome:
        command = [NODE, INSPECTOR, "--cli", "--format", "json", *reached_by, "--method", method, *options]
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert ended.stdout, ended.stderr
        return Outcome(ended.returncode, json.loads(ended.stdout)["result"], ended.stderr)

    return run


def test_inspector_lists_tools_with_portable_schemas(inspect: Inspect) -> None:
    outcome = inspect("tools/list", "--strict")
    assert (outcome.status, outcome.complaints) == (0, "")
    tools = {tool["name"]: tool for tool in outcome.result["tools"]}
    assert tools["add"]["description"] == "Adds two numbers."
    assert tools["add"]["inputSchema"]["required"] == ["a", "b"]


def test_inspector_lists_resources(inspect: Inspect) -> None:
    outcome = inspect("resources/list")
    assert (outcome.status, outcome.complaints) == (0, "")
    uris = [resource["uri"] for resource in outcome.result["resources"]]
    assert uris == ["test://static", "test://binary", "test://spare"]


def test_inspector_lists_prompts(inspect: Inspect) -> None:
    outcome = inspect("prompts/list")
    assert (outcome.status, outcome.complaints) == (0, "")
    prompts = {prompt["name"]: prompt.get("arguments") for prompt in outcome.result["prompts"]}
    assert prompts == {"greet": [{"name": "who", "required": True}], "spare": None}


@pytest.mark.parametrize("era", ["legacy", "auto"])  # it sends initialize at once, or probes first
def test_inspector_calls_a_tool(inspect: Inspect, era: str) -> None:
    """The arguments are text on the command line; the Inspector converts them to numbers by the tool's schema."""
    outcome = inspect("tools/call", "--tool-name", "add", "--tool-arg", "a=2", "b=3", "--protocol-era", era)
    assert (outcome.status, outcome.complaints) == (0, "")
    assert outcome.result["content"] == [{"type": "text", "text": "5"}]
    assert not outcome.result.get("isError")


def test_inspector_shows_why_a_tool_failed(inspect: Inspect) -> None:
    outcome = inspect("tools/call", "--tool-name", "fail")
    assert outcome.status == TOOL_FAILED
    assert outcome.result["content"] == [{"type": "text", "text": "failed on purpose"}]
