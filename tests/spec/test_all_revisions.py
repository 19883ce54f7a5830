"""One server, and clients of all five revisions that use everything in its catalog."""

import json
import runpy
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import trunkline
from trunkline import Client
from trunkline.errors import PeerError, ToolFailed
from trunkline.protocol.revisions import Revision
from trunkline.transports.stdio.client import Command

EXAMPLE = Path(__file__).parents[2] / "examples/demo_server.py"
LOG = "greenhouse://log"
ASKS_BY_FORMS = "2025-06-18"  # the first revision that has them
STRUCTURED = "2025-06-18"


@asynccontextmanager
async def over_stdio() -> AsyncIterator[Any]:
    yield Command([sys.executable, str(EXAMPLE)], env={"PYTHONPATH": str(Path(trunkline.__file__).parents[1])})


@asynccontextmanager
async def over_http() -> AsyncIterator[Any]:
    server: trunkline.Server = runpy.run_path(str(EXAMPLE))["server"]
    listener = await server.listen("http://127.0.0.1:0/mcp")
    yield listener.address
    await server.aclose()


class RevisionClient:
    """A client, and the messages that it received unasked."""

    def __init__(self, target: Any, revision: str) -> None:
        self.revision = revision
        self.forms: list[str] = []
        self.logs: list[Any] = []
        self.client = Client(
            target,
            revision=revision,
            elicitation=self.fill_in,
            on_log=lambda message: self.logs.append((message.level, message.data)),
            log_level="info",
        )

    def fill_in(self, form: Any) -> dict[str, Any]:
        """Answer as the user."""
        self.forms.append(form.message)
        assert [(field.name, field.kind) for field in form.fields] == [("seed", "choice"), ("packets", "integer")]
        return {"seed": "basil", "packets": 3}

    def value(self, result: Any) -> Any:
        """The value of a tool's result: structured or, in older revisions, its text."""
        if self.revision < STRUCTURED:
            assert result.structured is None
            return json.loads(result.text)
        return result.structured if self.revision >= "2026-07-28" else result.structured["result"]


@pytest.fixture(params=[over_stdio, over_http], ids=["stdio", "http"])
def serving(request: pytest.FixtureRequest) -> Callable[[], AbstractAsyncContextManager[Any]]:
    return request.param


@pytest.fixture(params=[revision.value for revision in Revision])
async def peer(
    request: pytest.FixtureRequest, serving: Callable[[], AbstractAsyncContextManager[Any]]
) -> AsyncIterator[RevisionClient]:
    async with serving() as target:
        made = RevisionClient(target, request.param)
        async with made.client:
            yield made


async def test_server_offers_its_features_in_every_revision(peer: RevisionClient) -> None:
    client = peer.client
    assert client.revision == peer.revision
    assert client.server_info is not None
    assert (client.server_info.name, client.server_info.version) == ("greenhouse", "1.0")
    assert client.instructions is not None
    await client.ping()

    await list_everything(client)
    await measure(peer)
    await water_and_watch(client)
    await read(client)
    await ask_for_a_prompt(client)
    await answer_elicitation(peer)


async def list_everything(client: Client) -> None:
    assert [tool.name async for tool in client.tools()] == ["survey", "water", "order_seeds"]
    assert [resource.uri async for resource in client.resources()] == [LOG, "greenhouse://process"]
    assert [one.uri_template async for one in client.resource_templates()] == ["greenhouse://beds/{bed}"]
    assert [prompt.name async for prompt in client.prompts()] == ["planting_plan"]


async def measure(peer: RevisionClient) -> None:
    told: list[Any] = []
    result = await peer.client.call_tool("survey", on_progress=lambda heard: told.append(heard.progress))
    assert told == [1, 2, 3]
    assert [reading["moisture"] for reading in peer.value(result)] == [35, 60, 20]
    assert peer.logs == [("warning", f"the bed of {bed} is dry") for bed in ("tomatoes", "bell peppers")]


async def water_and_watch(client: Client) -> None:
    await client.subscribe(LOG)
    updates = client.notifications("notifications/resources/updated")
    await client.call_tool("water", {"bed": "tomatoes", "litres": 3})
    assert (await anext(updates)).params.uri == LOG
    with pytest.raises(ToolFailed, match="there is no bed of roses"):
        await client.call_tool("water", {"bed": "roses", "litres": 3})
    await client.unsubscribe(LOG)


async def read(client: Client) -> None:
    [log] = await client.read_resource(LOG)
    assert (log.text or "").splitlines()[-1] == "watered tomatoes with 3 l"
    [bed] = await client.read_resource("greenhouse://beds/tomatoes")
    assert json.loads(bed.text or "") == {"bed": "tomatoes", "moisture": 65, "dry": False}
    with pytest.raises(PeerError):
        await client.read_resource("greenhouse://beds/roses")


async def ask_for_a_prompt(client: Client) -> None:
    assert (await client.complete("prompt", "planting_plan", "season", "s")).values == ["spring", "summer"]
    plan = await client.get_prompt("planting_plan", {"bed": "basil", "season": "summer"})
    assert [message.content.text for message in plan.messages] == [
        "Make a planting plan for the bed of basil in summer. It holds 60 % water now."
    ]


async def answer_elicitation(peer: RevisionClient) -> None:
    if peer.revision < ASKS_BY_FORMS:
        with pytest.raises(ToolFailed, match="elicitation"):
            await peer.client.call_tool("order_seeds")
        assert peer.forms == []
        return
    ordered = await peer.client.call_tool("order_seeds")
    assert ordered.text == "ordered 3 packets of basil"
    assert peer.forms == ["Which seeds shall be ordered?"]
