"""Tasks in the words of the founding documents, for servers with `compat="erlmcp"`."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from trunkline import Context, Server, Settings, TaskPolicy
from trunkline.errors import ConfigError
from trunkline.testing import ManualClock, RawPeer


@pytest.fixture(autouse=True)
def unjudged() -> Iterator[None]:
    """No official schema knows of these words."""
    taps, RawPeer.taps = RawPeer.taps, []
    yield
    RawPeer.taps = taps


class Work:
    """A server whose tool runs until it is told to go on."""

    def __init__(self, **options: Any) -> None:
        self.go_on, self.begun, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.server = Server("founding", compat="erlmcp", observers=[], **options)

        @self.server.tool(task=True)
        async def work(ctx: Context, text: str = "done") -> str:
            self.begun.set()
            ctx.progress(1, 2)
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return text

        @self.server.tool
        async def plain() -> None:
            """Is no action."""


async def create(peer: RawPeer, *, action: str = "work", metadata: Any = None, **parameters: Any) -> Any:
    asked = {"action": {"type": action, "parameters": parameters}, "metadata": metadata or {}}
    return (await peer.result("tasks/create", asked))["taskId"]


async def test_j01_j03_j08_a_task_is_made_by_a_method_of_its_own_and_shows_all_members() -> None:
    work = Work()
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        ident = await create(peer, text="well")
        await work.begun.wait()
        task = (await peer.result("tasks/get", {"taskId": ident}))["task"]
        assert task.keys() == {"taskId", "status", "action", "result", "error", "createdAt", "updatedAt"}
        assert (task["status"], task["result"], task["error"]) == ("processing", None, None)
        assert task["action"] == {"type": "work", "parameters": {"text": "well"}}
        assert task["createdAt"] <= task["updatedAt"]
        work.go_on.set()
        while (task := (await peer.result("tasks/get", {"taskId": ident}))["task"])["status"] != "completed":
            await asyncio.sleep(0)
        assert task["result"]["structuredContent"] == {"result": "well"}


async def test_j06_j10_j11_each_state_is_told_once_and_progress_under_the_token_of_the_task() -> None:
    work = Work()
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        ident = await create(peer, metadata={"progressToken": "t"})
        await work.begun.wait()
        work.go_on.set()
        said: list[Any] = []
        while not any(message["params"].get("status") == "completed" for message in said):
            said.append(await peer.receive())
        told = [message["params"] for message in said if message["method"] == "notifications/tasks/status"]
        assert [params["status"] for params in told] == ["processing", "completed"]
        assert {params["taskId"] for params in told} == {ident}
        progress = [message["params"] for message in said if message["method"] == "notifications/progress"]
        assert [(params["progressToken"], params["progress"]) for params in progress] == [("t", 1)]


async def test_j04_j12_j14_errors_have_the_numbers_of_the_founding_documents() -> None:
    work = Work()
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        ident = await create(peer)
        assert (await peer.error("tasks/result", {"taskId": ident}))["code"] == -32089
        assert (await peer.error("tasks/get", {"taskId": "nothing"}))["code"] == -32081
        assert await peer.result("tasks/cancel", {"taskId": ident, "reason": "enough"}) == {}
        await asyncio.wait_for(work.cancelled.wait(), 10)
        assert (await peer.error("tasks/cancel", {"taskId": ident}))["code"] == -32090
        assert (await peer.error("tasks/result", {"taskId": ident}))["code"] == -32084


async def test_j02_a_page_has_its_cursor_under_that_name() -> None:
    work = Work()
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        made = [await create(peer) for _ in range(3)]
        first = await peer.result("tasks/list", {"limit": 2})
        second = await peer.result("tasks/list", {"limit": 2, "cursor": first["cursor"]})
        assert sorted(task["taskId"] for page in (first, second) for task in page["tasks"]) == sorted(made)
        assert "cursor" not in second


async def test_j07_a_task_whose_time_is_up_fails_with_its_number() -> None:
    clock = ManualClock()
    work = Work(clock=clock)
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        short, usual = await create(peer, metadata={"timeout": 50}), await create(peer)
        await work.begun.wait()
        clock.advance(0.06)
        await asyncio.wait_for(work.cancelled.wait(), 10)
        task = (await peer.result("tasks/get", {"taskId": short}))["task"]
        assert (task["status"], task["error"]["code"]) == ("failed", -32085)
        for _ in range(100):  # J15: five minutes, if nobody says otherwise
            clock.advance(3)
            await peer.quiet()
        task = (await peer.result("tasks/get", {"taskId": usual}))["task"]
        assert (task["status"], task["error"]["code"]) == ("failed", -32085)


async def test_j13_one_task_too_many_has_its_number() -> None:
    work = Work(settings=Settings(max_tasks=1))
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        await create(peer)
        asked = {"action": {"type": "work"}}
        assert (await peer.error("tasks/create", asked))["code"] == -32087


@pytest.mark.parametrize("action", ["plain", "nothing"])
async def test_an_action_is_a_tool_that_runs_as_a_task(action: str) -> None:
    async with RawPeer(Work().server) as peer:
        await peer.initialize()
        assert (await peer.error("tasks/create", {"action": {"type": action}}))["code"] == -32602


async def test_without_the_profile_there_is_no_such_method() -> None:
    server = Server("s", observers=[])
    server.add_tool(lambda: None, name="work", task=TaskPolicy())
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.error("tasks/create", {"action": {"type": "work"}}))["code"] == -32601


def test_there_is_one_profile() -> None:
    with pytest.raises(ConfigError, match="erlmcp"):
        Server("s", compat="other")  # pyright: ignore[reportArgumentType]
