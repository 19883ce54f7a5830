"""One server, and clients of each task dialect side by side: npm's tasks client in both of its generations, ours,
and the unmodified examples of the founding documents.
"""

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.founding import REQUESTED
from tests.http_peer import HttpPeer
from tests.interop.server_processes import served
from tests.limits import PATIENCE
from tests.modern import headers_of, meta
from tests.official import NODE, NPM_FOLDER, ROOT

from trunkline import Client

HERE = Path(__file__).parent
TASKS = "io.modelcontextprotocol/tasks"


@pytest.fixture(scope="module", params=[[], ["3"]], ids=["one process", "workers"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server, for all of them."""
    store = tmp_path_factory.mktemp("tasks") / "store"
    with served([sys.executable, HERE / "tasks_server.py", store, *request.param]) as server:
        yield f"http://{server.place()}/mcp"


# --- npm's client ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcomes(url: str) -> Any:
    """The outcomes of npm's client, both generations run concurrently."""
    package = NPM_FOLDER / "node_modules/@modelcontextprotocol/ext-tasks"
    assert package.exists(), f"the package is missing: `make {NPM_FOLDER.relative_to(ROOT)}/.ready` installs it"
    command = [str(NODE), str(HERE / "peers/ts_tasks.mjs"), str(NPM_FOLDER), url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def completed(result: Any, **more: Any) -> dict[str, Any]:
    return {"kind": "task", "status": "completed", "result": result, "isError": False, "last": "completed", **more}


LOOK = {"status": "working", "retentionMs": 3_600_000, "poll": 20}
UNKNOWN = {"code": -32602, "kind": "task_not_found"}
AT_ONCE = {"kind": "immediate", "status": "completed", "isError": False}
RESUMED = {"status": "completed", "isError": False, "last": "completed"}
EXPECTED: dict[str, dict[str, Any]] = {
    "v1": {  # 2025-11-25
        "operation_name": completed({"result": "value"}),
        "asks": completed({"result": "accept True"}),
        "fails": {"kind": "task", "status": "failed", "error": {"message": "it is broken"}, "last": "failed"},
        "errs": {"kind": "task", "status": "failed", "error": {"message": "it went wrong"}, "last": "failed"},
        "plain": {**AT_ONCE, "result": {"result": "at once"}},
        "cancel": {"status": "cancelled"},
        "resume": {**RESUMED, "result": {"result": "later"}},
        "snapshot": {**LOOK, "listed": "working"},
        "unknown": UNKNOWN,
    },
    "v2": {  # the extension of 2026-07-28
        "operation_name": completed("value"),
        "asks": completed("accept True"),
        "fails": {"kind": "task", "status": "completed", "isError": True, "last": "completed"},
        "errs": {
            "kind": "task",
            "status": "failed",
            "error": {"code": 7, "message": "it went wrong"},
            "last": "failed",
        },
        "plain": {**AT_ONCE, "result": "at once"},
        "cancel": {"status": "cancelled"},
        "resume": {**RESUMED, "result": "later"},
        "snapshot": {**LOOK, "listed": False},
        "unknown": UNKNOWN,
    },
}


@pytest.mark.row("J16")
@pytest.mark.parametrize(("generation", "probe"), [(v, probe) for v, probes in EXPECTED.items() for probe in probes])
def test_npm_tasks_client_works_with_our_server(outcomes: Any, generation: str, probe: str) -> None:
    assert outcomes[generation][probe] == EXPECTED[generation][probe]


# --- ours --------------------------------------------------------------------------------------------


@pytest.mark.row("J16")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_our_client_awaits_answers_and_cancels_tasks(url: str, revision: str) -> None:
    async def fill_in(_form: Any) -> dict[str, Any]:
        return {"sure": True}

    async with Client(url, revision=revision, elicitation=fill_in) as client:
        assert (await client.call_tool("operation_name", {"key": "value"})).data == "value"
        assert (await client.call_tool("asks")).data == "accept True"
        task = await client.start_tool("waits")
        assert await task.refresh() == "working"
        await task.cancel()
        assert await task.refresh() == "cancelled"


# --- the founding documents --------------------------------------------------------------------------

CREATE = """
#{
  <<"action">> => #{
    <<"type">> => <<"operation_name">>,
    <<"parameters">> => #{
      <<"key">> => <<"value">>
    }
  },
  <<"metadata">> => #{
    <<"progressToken">> => <<"progress-123">>,
    <<"timeout">> => 30000  % milliseconds
  }
}
"""
CREATED = """
#{
  <<"taskId">> => <<"task-uuid-here">>
}
"""
LIST = """
#{
  <<"cursor">> => <<"optional-cursor">>,
  <<"limit">> => 100
}
"""
LISTED = """
#{
  <<"tasks">> => [
    #{
      <<"taskId">> => <<"task-uuid">>,
      <<"status">> => <<"processing">>,  % pending|processing|completed|failed|cancelled
      <<"action">> => #{...},
      <<"result">> => undefined,
      <<"error">> => undefined,
      <<"createdAt">> => 1640995200000,
      <<"updatedAt">> => 1640995205000
    }
  ],
  <<"cursor">> => <<"next-cursor">>
}
"""
GET = """
#{
  <<"taskId">> => <<"task-uuid">>
}
"""
GOT = """
#{
  <<"task">> => #{
    <<"taskId">> => <<"task-uuid">>,
    <<"status">> => <<"completed">>,
    <<"action">> => #{...},
    <<"result">> => #{...},
    <<"error">> => undefined,
    <<"createdAt">> => 1640995200000,
    <<"updatedAt">> => 1640995305000
  }
}
"""
RESULT = """
#{
  <<"result">> => #{...}  % Task result data
}
"""
CANCEL = """
#{
  <<"taskId">> => <<"task-uuid">>,
  <<"reason">> => <<"User requested cancellation">>  % Optional
}
"""
TOLD = """
#{
  <<"taskId">> => <<"task-uuid">>,
  <<"status">> => <<"completed">>,  % pending|processing|completed|failed|cancelled
  <<"result">> => #{...},
  <<"error">> => undefined
}
"""


def read(example: str) -> Any:
    """An example as JSON: the source is Erlang."""
    text = re.sub(r"%.*", "", example).replace("#{...}", "{}").replace("#{", "{").replace("=>", ":")
    return json.loads(re.sub(r'<<("[^"]*")>>', r"\1", text).replace("undefined", "null"))


def shape(value: Any) -> Any:
    """The shape of a value, without the parts that differ between tasks."""
    match value:
        case dict():
            return {name: shape(member) for name, member in value.items() if name not in {"action", "result"}}
        case list():
            return [shape(value[0])]
        case _:
            return type(value)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def founding(http: aiohttp.ClientSession, url: str) -> HttpPeer:
    client = HttpPeer(http, url)
    await client.open(REQUESTED)
    return client


@pytest.mark.row("J01", "J03", "J08", "J10", "J11")
async def test_founding_document_examples_work_unchanged(
    founding: HttpPeer,
) -> None:
    async with founding.listening() as said:
        created = await founding.result("tasks/create", read(CREATE))
        assert shape(created) == shape(read(CREATED))
        told = [await anext(said) for _ in range(4)]
    named = {**read(GET), "taskId": created["taskId"]}
    status = [message["params"] for message in told if message["method"] == "notifications/tasks/status"]
    assert [params["status"] for params in status] == ["processing", "completed"]
    assert shape(status[-1]) == shape(read(TOLD))
    assert {params["taskId"] for params in status} == {created["taskId"]}
    progress = [message["params"] for message in told if message["method"] == "notifications/progress"]
    token = read(CREATE)["metadata"]["progressToken"]
    assert [(params["progressToken"], params["progress"]) for params in progress] == [(token, 1), (token, 2)]
    got = await founding.result("tasks/get", named)
    assert shape(got) == shape(read(GOT))
    assert got["task"]["status"] == read(GOT)["task"]["status"]
    assert got["task"]["action"] == read(CREATE)["action"]
    result = await founding.result("tasks/result", named)
    assert result.keys() == read(RESULT).keys()
    assert result["result"]["structuredContent"] == {"result": "value"}


@pytest.mark.row("J02", "J05")
async def test_list_and_cancel_examples_work_unchanged(founding: HttpPeer) -> None:
    made = [(await founding.result("tasks/create", {"action": {"type": "waits"}}))["taskId"] for _ in range(2)]
    asked = {name: value for name, value in read(LIST).items() if name != "cursor"}  # it is optional
    assert (await founding.result("tasks/list", asked)).keys() == {"tasks"}
    page = await founding.result("tasks/list", {**asked, "limit": 1})
    assert shape(page) == shape(read(LISTED))
    rest = await founding.result("tasks/list", {**read(LIST), "cursor": page["cursor"]})
    assert [task["taskId"] for task in (*page["tasks"], *rest["tasks"])] == made
    for ident in made:
        assert await founding.result("tasks/cancel", {**read(CANCEL), "taskId": ident}) == {}


# --- one task, read in each dialect ------------------------------------------------------------------


@pytest.mark.row("TXE-20")
async def test_task_looks_the_same_in_every_dialect(founding: HttpPeer, http: aiohttp.ClientSession, url: str) -> None:
    ident = (await founding.result("tasks/create", {"action": {"type": "waits"}}))["taskId"]

    async def modern(method: str) -> Any:
        params = {"taskId": ident, "_meta": meta({"extensions": {TASKS: {}}})}
        headers = {name.replace("_", "-"): value for name, value in headers_of(method, params).items()}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        accept = {"accept": "application/json, text/event-stream", "mcp-name": ident}
        async with http.post(url, json=message, headers={**headers, **accept}) as response:
            return (await response.json())["result"]

    assert (await modern("tasks/get"))["status"] == "working"
    assert (await modern("tasks/cancel")).keys() == {"resultType", "_meta"}
    assert (await modern("tasks/get"))["status"] == "cancelled"
    assert (await founding.result("tasks/get", {"taskId": ident}))["task"]["status"] == "cancelled"
    assert (await founding.ask("tasks/result", {"taskId": ident}))["error"]["code"] == -32084
