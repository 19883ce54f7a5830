"""Progress: reports of a call for clients that sent a progress token."""

import asyncio
import threading
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.processes import eventually

from trunkline import Context, Server, Settings
from trunkline.errors import MisuseError
from trunkline.facts import Dropped
from trunkline.testing import ManualClock, RawPeer, RecordingObserver


def call_params(name: str, token: Any = None) -> dict[str, Any]:
    return {"name": name, **({} if token is None else {"_meta": {"progressToken": token}})}


class ProgressServer:
    """A server whose tool reports the given values, one after the other."""

    def __init__(self, **options: Any) -> None:
        self.observer = RecordingObserver()
        self.server = Server("t", observers=[self.observer], **options)
        self.reports: asyncio.Queue[Any] = asyncio.Queue()
        self.contexts: list[Context] = []

        @self.server.tool
        async def work(ctx: Context) -> str:
            self.contexts.append(ctx)
            while (report := await self.reports.get()) is not None:
                await ctx.progress(*report)
            return "done"

    def report(self, *report: Any) -> None:
        self.reports.put_nowait(report)

    def finish(self) -> None:
        self.reports.put_nowait(None)

    def dropped(self) -> list[str]:
        return [fact.kind for fact in self.observer.of(Dropped)]


@pytest.mark.row("PRG-01", "N10")
@pytest.mark.parametrize("token", ["t-1", 7, 0, ""], ids=repr)
async def test_progress_is_reported_in_order_and_before_the_result(token: str | int) -> None:
    worker = ProgressServer()
    async with RawPeer(worker.server) as peer:
        await peer.initialize()
        for step in (1, 2, 3):
            worker.report(step, 3, f"step {step}")
        worker.finish()
        call = peer.call("tools/call", call_params("work", token))
        messages = [await peer.receive() for _ in range(4)]
    assert [message.get("method") for message in messages] == ["notifications/progress"] * 3 + [None]
    assert [message["params"] for message in messages[:3]] == [
        {"progressToken": token, "progress": step, "total": 3, "message": f"step {step}"} for step in (1, 2, 3)
    ]
    assert messages[3]["id"] == call


@pytest.mark.row("N11", "X33")
async def test_total_is_optional_and_numbers_may_be_fractions() -> None:
    worker = ProgressServer()
    async with RawPeer(worker.server) as peer:
        await peer.initialize()
        for step in (0, 0.5, 45.5):
            worker.report(step)
        worker.finish()
        await peer.result("tools/call", call_params("work", "t"))
        assert [message["params"] for message in peer.waiting()] == [
            {"progressToken": "t", "progress": step} for step in (0, 0.5, 45.5)
        ]


@pytest.mark.row("PRG-02", "N12")
async def test_non_growing_progress_is_dropped_and_reported() -> None:
    worker = ProgressServer()
    async with RawPeer(worker.server) as peer:
        await peer.initialize()
        for step in (1, 3, 2, 3, 4):
            worker.report(step)
        worker.finish()
        await peer.result("tools/call", call_params("work", "t"))
        assert [message["params"]["progress"] for message in peer.waiting()] == [1, 3, 4]
    assert worker.dropped() == ["progress_value_invalid"] * 2


@pytest.mark.row("PRG-02")
@pytest.mark.parametrize("value", ["half", None, float("nan"), float("inf"), 1j])
async def test_progress_and_total_are_numbers(value: Any) -> None:
    server, refused = Server("t", observers=[]), []

    @server.tool
    async def work(ctx: Context) -> None:
        for told in ((value, None), (1, value)):
            try:
                ctx.progress(*told)
            except MisuseError as error:
                refused.append(str(error))

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "work", "_meta": {"progressToken": 1}})
        told = [message for message in peer.transcript.said_by("server") if "method" in message]
    assert refused == [f"progress values are finite numbers, not {value!r}"] * (1 if value is None else 2)
    assert [message["params"]["progress"] for message in told] == ([1] if value is None else [])


@pytest.mark.row("PRG-01")
async def test_no_progress_is_sent_without_a_token() -> None:
    worker = ProgressServer()
    async with RawPeer(worker.server) as peer:
        await peer.initialize()
        worker.report(1)
        worker.finish()
        await peer.result("tools/call", call_params("work"))
        assert peer.waiting() == []
    assert worker.contexts[0].progress_token is None


@pytest.mark.row("PRG-01")
@pytest.mark.parametrize("token", [True, 1.5, {"a": 1}], ids=repr)
async def test_invalid_token_is_ignored(token: Any) -> None:
    worker = ProgressServer()
    async with RawPeer(worker.server) as peer:
        await peer.initialize()
        worker.report(1)
        worker.finish()
        await peer.request("tools/call", call_params("work", token))
        assert peer.waiting() == []


@pytest.mark.row("PRG-03", "N13")
async def test_progress_after_response_is_dropped_and_reported() -> None:
    worker = ProgressServer()
    async with RawPeer(worker.server) as peer:
        await peer.initialize()
        worker.finish()
        await peer.result("tools/call", call_params("work", "t"))
        await worker.contexts[0].progress(1)
        assert await peer.quiet() == []
    assert worker.dropped() == ["progress_token_expired"]


@pytest.mark.row("N13")
async def test_unknown_client_token_is_ignored_and_reported() -> None:
    worker = ProgressServer()
    async with RawPeer(worker.server) as peer:
        await peer.initialize()
        peer.notify("notifications/progress", {"progressToken": 99, "progress": 1})
        peer.notify("notifications/progress", {"progressToken": 99})
        assert await peer.quiet() == []
    assert worker.dropped() == ["invalid_progress_token", "invalid_params"]


@pytest.mark.row("N10")
@pytest.mark.parametrize(
    ("method", "params"),
    [("prompts/get", {"name": "p"}), ("resources/read", {"uri": "r://x"}), ("resources/read", {"uri": "t://x"})],
)
async def test_prompts_and_resources_report_progress_too(method: str, params: Any) -> None:
    server = Server("t")

    async def render(ctx: Context) -> str:
        await ctx.progress(1)
        return "text"

    async def read(ctx: Context, x: str) -> str:
        return await render(ctx)

    server.add_prompt(render, name="p")
    server.add_resource("r://x", render)
    server.add_resource("t://{x}", read)
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result(method, {**params, "_meta": {"progressToken": "t"}})
        assert [message["method"] for message in peer.waiting()] == ["notifications/progress"]


@pytest.mark.row("N10")
async def test_sync_handler_reports_progress_from_thread() -> None:
    server = Server("t")

    @server.tool
    def work(ctx: Context) -> str:
        for step in range(100):
            ctx.progress(step)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", call_params("work", "t"))
        messages = [await peer.receive() for _ in range(101)]
    assert [message["params"]["progress"] for message in messages[:100]] == list(range(100))
    assert messages[100]["id"] == call


@pytest.mark.row("N10")
async def test_thread_progress_precedes_result() -> None:
    server, ended = Server("t"), threading.Event()

    @server.tool
    def first() -> str:
        ended.set()
        return "done"

    @server.tool
    def second(ctx: Context) -> str:
        ended.wait(PATIENCE)
        eventually(lambda: threads._idle)  # the other call is on its way to the loop already
        ctx.progress(1)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        threads = peer.connection.threads
        call = peer.call("tools/call", call_params("second", "t"))
        peer.call("tools/call", call_params("first"))
        await asyncio.sleep(0)
        eventually(lambda: len(threads._idle) == 2)  # the loop is blocked until both have ended
        messages = [await peer.receive() for _ in range(3)]
    mine = [message for message in messages if message.get("id", call) == call]
    assert [message.get("method") for message in mine] == ["notifications/progress", None]


@pytest.mark.row("PRG-02")
async def test_message_is_omitted_in_2024_11_05() -> None:
    worker = ProgressServer()
    async with RawPeer(worker.server) as peer:
        await peer.initialize("2024-11-05")
        worker.report(1, 2, "half")
        worker.finish()
        await peer.result("tools/call", call_params("work", "t"))
        assert [message["params"] for message in peer.waiting()] == [{"progressToken": "t", "progress": 1, "total": 2}]


# --- rate limits ---------------------------------------------------------------------------------------------


@pytest.mark.row("X07")
@pytest.mark.parametrize("token", ["t", None])
async def test_progress_renews_deadline_without_token(token: str | None) -> None:
    clock = ManualClock()
    worker = ProgressServer(clock=clock)
    async with RawPeer(worker.server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", call_params("work", token))
        for step in range(5):
            await peer.quiet()
            clock.advance(59)
            worker.report(step)
        await peer.quiet()
        worker.finish()
        assert (await peer.answer_to(call))["result"]["isError"] is False


@pytest.mark.row("X07")
async def test_call_without_progress_times_out_after_a_minute() -> None:
    clock = ManualClock()
    worker = ProgressServer(clock=clock)
    async with RawPeer(worker.server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", call_params("work"))
        await peer.quiet()
        clock.advance(59.9)
        assert await peer.quiet() == []
        clock.advance(0.1)
        result = (await peer.answer_to(call))["result"]
    assert result["isError"] is True
    assert result["_meta"]["trunkline/error"] == {
        "kind": "tool_execution_timeout",
        "method": "tools/call",
        "elapsed": 60.0,
    }


@pytest.mark.row("X07")
async def test_longest_call_limits_progressing_call() -> None:
    clock = ManualClock()
    worker = ProgressServer(clock=clock, settings=Settings(longest_call=100))
    async with RawPeer(worker.server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", call_params("work", "t"))
        await peer.quiet()
        for step in range(3):
            clock.advance(33)
            worker.report(step)
            await peer.quiet()
            await peer.quiet()
        assert worker.contexts[0].deadline == 1
        clock.advance(1)
        assert "not done after 100 s" in (await peer.answer_to(call))["result"]["content"][0]["text"]
