"""Our client against npm's server-memory: a graph is built, searched, watched and removed."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.interop.host import Host
from tests.official import NODE, NPM_FOLDER

from trunkline.errors import PeerError
from trunkline.transports.stdio.client import Command

SERVER = NPM_FOLDER / "node_modules/@modelcontextprotocol/server-memory/dist/index.js"
GRAPH = "memory://knowledge-graph"
ADA = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
ENGINE = {"name": "Engine", "entityType": "machine", "observations": ["never built"]}
KNOWS = {"from": "Ada", "to": "Engine", "relationType": "programs"}


def command(folder: Path) -> Command:
    return Command([NODE, SERVER], env={"MEMORY_FILE_PATH": str(folder / "memory.jsonl")})


@pytest_asyncio.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    """The server with an empty memory, and our client."""
    async with Host(command(tmp_path)) as host:
        yield host


async def test_graph_is_built_searched_and_deleted(host: Host) -> None:
    """Every tool is called, and the client rebuilds its results from the output schema."""
    used: set[str] = set()

    async def use(tool: str, **arguments: Any) -> Any:
        used.add(tool)
        return (await host.client.call_tool(tool, arguments)).data

    created = await use("create_entities", entities=[ADA, ENGINE])
    assert [(entity.name, entity.entityType) for entity in created.entities] == [
        ("Ada", "person"),
        ("Engine", "machine"),
    ]
    assert len((await use("create_relations", relations=[KNOWS])).relations) == 1
    added = await use("add_observations", observations=[{"entityName": "Ada", "contents": ["counts"]}])
    assert added.results[0].addedObservations == ["counts"]
    assert [entity.name for entity in (await use("search_nodes", query="never")).entities] == ["Engine"]
    assert (await use("open_nodes", names=["Ada"])).entities[0].observations == ["writes programs", "counts"]
    removed = await use("delete_observations", deletions=[{"entityName": "Ada", "observations": ["counts"]}])
    assert removed.success is True
    assert (await use("delete_relations", relations=[KNOWS])).success is True
    assert (await use("delete_entities", entityNames=["Engine"])).success is True
    graph = await use("read_graph")
    assert ([entity.name for entity in graph.entities], graph.relations) == (["Ada"], [])
    assert {tool.name async for tool in host.client.tools()} == used


async def test_graph_resource_can_be_subscribed(host: Host) -> None:
    assert [resource.uri async for resource in host.client.resources()] == [GRAPH]
    with host.listening("notifications/resources/updated") as news:
        await host.client.subscribe(GRAPH)
        await host.call("create_entities", entities=[ADA])
        assert (await anext(news)).params.uri == GRAPH
    [content] = await host.client.read_resource(GRAPH)
    assert '"name": "Ada"' in content.text


async def test_schema_violation_is_refused(host: Host) -> None:
    with pytest.raises(PeerError, match="observations"):
        await host.call("create_entities", entities=[{"name": "Ada", "entityType": "person"}])


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_works_in_every_older_revision(revision: str, tmp_path: Path) -> None:
    async with Host(command(tmp_path), revision) as host:
        assert host.client.revision == revision
        await host.call("create_entities", entities=[ADA])
        assert "writes programs" in await host.call("read_graph")
