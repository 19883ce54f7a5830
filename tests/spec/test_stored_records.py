"""Records that earlier releases have written: a server continues with what it finds in its store."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.attacks.raw import call
from tests.spec.stored_records.library import (
    BECAME,
    FINISHED,
    HERE,
    SESSION,
    WORKING,
    fill,
    make_server,
    post,
    read_all,
    tool,
    wait_until_ended,
)

from trunkline import Settings
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Put
from trunkline.transports.addresses import parse_address

DOWNTIME = 60.0  # seconds: longer than any lease
TIMES = frozenset({"created_at", "updated_at", "last_accessed", "expires_at", "until", "created", "since"})


class Restarted(NamedTuple):
    """A server on the store of an earlier release."""

    port: int
    ids: dict[str, str]

    async def post(self, message: Any) -> Any:
        return await post(self.port, self.ids[SESSION], message)


def moved(value: Any, seconds: float) -> Any:
    """A record with all its times moved."""
    if isinstance(value, dict):
        return {
            name: each + seconds if name in TIMES and isinstance(each, float) else moved(each, seconds)
            for name, each in value.items()
        }
    return [moved(each, seconds) for each in value] if isinstance(value, list) else value


def bytes_of(value: str, seconds: float) -> bytes:
    return (
        json.dumps(moved(json.loads(value), seconds)).encode()
        if value.startswith(("{", "["))
        else value.encode("latin-1")
    )


@asynccontextmanager
async def restarted(name: str, folder: Path) -> AsyncIterator[Restarted]:
    """A server of this release, a minute after one of an earlier release has crashed."""
    found = json.loads((HERE / f"{name}.json").read_text())
    later = time.time() - DOWNTIME - found["at"]
    store = SqliteStore(folder / "store")
    await store.open()
    for item in found["items"]:
        expires = None if item["expires"] is None else item["expires"] + later
        await store.commit([Put(item["key"], bytes_of(item["value"], later), expires)])
    await store.close()
    server = make_server(SqliteStore(folder / "store"), asyncio.Event())
    listener = await server.listen("http://127.0.0.1:0/mcp")
    try:
        yield Restarted(parse_address(listener.address).port, found["ids"])
    finally:
        await server.aclose()


async def test_call_in_progress_ends_for_older_releases(tmp_path: Path) -> None:
    """They know no owners: without an end they would wait for a process that was killed."""
    store, held = SqliteStore(tmp_path / "store"), asyncio.Event()
    server = make_server(store, held)
    listener = await server.listen("http://127.0.0.1:0/mcp")
    try:
        await fill(parse_address(listener.address).port, held)
        entries = [json.loads(item["value"]) for item in await read_all(store) if "/once/" in item["key"]]
    finally:
        await server.aclose()
    [entry] = [entry for entry in entries if entry["type"] == "begun"]
    assert entry["owner"]
    assert entry["until"] <= time.time() + Settings().idempotency_lease


RELEASES = sorted(file.stem for file in HERE.glob("*.json"))


@pytest.mark.parametrize("name", RELEASES)
async def test_session_is_continued(name: str, tmp_path: Path) -> None:
    async with restarted(name, tmp_path) as server:
        answer = await server.post(tool("lend", book="Persuasion"))
        assert answer["result"]["structuredContent"] == {"result": "Persuasion is lent"}


@pytest.mark.parametrize("name", RELEASES)
async def test_tasks_are_continued(name: str, tmp_path: Path) -> None:
    async with restarted(name, tmp_path) as server:
        outcomes = {}
        for task in (FINISHED, BECAME, WORKING):
            state = await wait_until_ended(server.port, server.ids[SESSION], server.ids[task])
            result = await server.post(call("tasks/result", {"taskId": server.ids[task]}))
            outcomes[task] = (state, result["result"]["structuredContent"]["result"])
        assert outcomes == {
            FINISHED: ("completed", "sorted"),
            BECAME: ("completed", "sorted"),
            WORKING: ("completed", "sorted from page 2"),
        }


@pytest.mark.parametrize("name", RELEASES)
async def test_outcomes_of_keys_are_kept(name: str, tmp_path: Path) -> None:
    async with restarted(name, tmp_path) as server:
        lent = await server.post(tool("lend", "a key", book="Emma"))
        lost = await server.post(tool("lose", "a key that failed", book="Emma"))
        became = await server.post(tool("sort", "a key of a task", task=True, pages=1))
        reused = await server.post(tool("lend", "a key", book="Persuasion"))
        unknown = await server.post(tool("hold", "a key in progress", book="Emma"))
    assert lent["result"]["structuredContent"] == {"result": "Emma is lent"}
    assert lost["result"]["isError"]
    assert became["result"]["task"]["taskId"] == server.ids[BECAME]
    assert reused["error"]["data"]["kind"] == "idempotency_key_reused"
    assert unknown["error"]["data"]["kind"] == "outcome_unknown"
