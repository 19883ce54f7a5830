"""Task notifications of 2025-11-25: sent after the response, on the client's connection, and without blocking the task."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from trunkline import Call, Context, Server, Settings
from trunkline.testing import ManualClock, RawPeer

RELATED = "io.modelcontextprotocol/related-task"
FORM = {"type": "object", "properties": {}}


def is_about(message: Any, method: str) -> bool:
    return message.get("method") == method


async def next_message(peer: RawPeer, method: str) -> Any:
    """The next message with a method."""
    while not is_about(message := await peer.receive(), method):
        pass
    return message


# --- after the answer --------------------------------------------------------------------------------


async def waits_a_little(call: Call, next: Callable[[Call], Any]) -> Any:
    result = await next(call)
    for _ in range(20):  # turns of the loop, in which the task ends
        await asyncio.sleep(0)
    return result


@pytest.mark.parametrize("surrounded", [False, True])
async def test_no_notification_precedes_the_reply_that_names_the_task(surrounded: bool) -> None:
    server = Server("s", observers=[])
    if surrounded:
        server.middleware(waits_a_little)

    @server.tool(task=True)
    async def quick(ctx: Context) -> None:
        ctx.progress(1)

    async with RawPeer(server) as peer:
        await peer.initialize()
        asked = {"name": "quick", "task": {}, "_meta": {"progressToken": "t"}}
        number = peer.call("tools/call", asked)
        said = [await peer.receive() for _ in range(3)]
        assert said[0]["id"] == number
        assert [message["method"] for message in said[1:]] == ["notifications/progress", "notifications/tasks/status"]
        assert await peer.quiet() == []


# --- input requests on tasks/get ---------------------------------------------------------------------


class AskingServer:
    """A server whose tool requests input."""

    def __init__(self, **options: Any) -> None:
        server = self.server = Server("s", observers=[], **options)

        @server.tool(task=True)
        async def asks(ctx: Context) -> str:
            return (await ctx.elicit("Sure?", FORM)).action

    async def start(self, peer: RawPeer) -> dict[str, str]:
        """The id of a task that has requested input."""
        await peer.initialize(capabilities={"elicitation": {}})
        task = (await peer.result("tools/call", {"name": "asks", "task": {}}))["task"]
        await next_message(peer, "notifications/tasks/status")
        return {"taskId": task["taskId"]}


async def messages_with_get(peer: RawPeer, task: Any) -> list[Any]:
    """The messages that accompany tasks/get."""
    assert (await peer.result("tasks/get", task))["status"] == "input_required"
    return await peer.quiet()


@pytest.mark.row("TSK-09", "TSK-22")
async def test_polling_client_gets_a_repeated_question_as_request() -> None:
    asking = AskingServer()
    async with RawPeer(asking.server) as peer:
        task = await asking.start(peer)
        assert await messages_with_get(peer, task) == []
        [question] = await messages_with_get(peer, task)
        assert is_about(question, "elicitation/create")
        assert question["params"]["_meta"] == {RELATED: task}
        assert await messages_with_get(peer, task) == []  # once
        peer.reply(question, {"action": "decline"})
        await next_message(peer, "notifications/tasks/status")
        result = await peer.result("tasks/result", task)
        assert result["structuredContent"] == {"result": "decline"}


@pytest.mark.row("TSK-09")
async def test_waiting_client_gets_the_question_instead_of_polling_one() -> None:
    asking = AskingServer()
    async with RawPeer(asking.server) as peer:
        task = await asking.start(peer)
        await messages_with_get(peer, task)
        [first] = await messages_with_get(peer, task)
        waiting = peer.call("tasks/result", task)
        said = [await peer.receive() for _ in range(2)]
        [second] = [message for message in said if is_about(message, "elicitation/create")]
        [withdrawn] = [message for message in said if is_about(message, "notifications/cancelled")]
        assert withdrawn["params"]["requestId"] == first["id"] != second["id"]
        assert await messages_with_get(peer, task) == []  # a caller waits
        assert await messages_with_get(peer, task) == []
        peer.reply(second, {"action": "accept", "content": {}})
        assert (await peer.answer_to(waiting))["result"]["structuredContent"] == {"result": "accept"}


async def test_unanswered_question_stays_open_and_is_sent_again() -> None:
    clock = ManualClock()
    asking = AskingServer(clock=clock, settings=Settings(task_lease=600, person_timeout=60))
    async with RawPeer(asking.server) as peer:
        task = await asking.start(peer)
        await messages_with_get(peer, task)
        [first] = await messages_with_get(peer, task)
        clock.advance(61)
        assert (await next_message(peer, "notifications/cancelled"))["params"]["requestId"] == first["id"]
        await peer.quiet()
        [second] = await messages_with_get(peer, task)
        assert second["id"] != first["id"]
        peer.reply(second, {"action": "cancel"})
        await next_message(peer, "notifications/tasks/status")


async def test_question_goes_to_the_next_connection_after_disconnect() -> None:
    asking = AskingServer()
    async with RawPeer(asking.server) as peer:
        task = await asking.start(peer)
        await messages_with_get(peer, task)
        await messages_with_get(peer, task)
    async with RawPeer(asking.server) as again:
        await again.initialize(capabilities={"elicitation": {}})
        assert await messages_with_get(again, task) == []
        [question] = await messages_with_get(again, task)
        again.reply(question, {"action": "decline"})
        assert (await again.result("tasks/result", task))["structuredContent"] == {"result": "decline"}


async def test_settled_question_is_withdrawn() -> None:
    server = Server("s", observers=[])

    @server.tool(task=True)
    async def asks_twice(ctx: Context) -> str:
        first, second = ctx.elicit("1?", FORM, key="1"), ctx.elicit("2?", FORM, key="2")
        return " ".join(answer.action for answer in await asyncio.gather(first, second))

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        task = {"taskId": (await peer.result("tools/call", {"name": "asks_twice", "task": {}}))["task"]["taskId"]}
        await peer.quiet()
        await messages_with_get(peer, task)
        questions = {question["params"]["message"]: question for question in await messages_with_get(peer, task)}
        peer.reply(questions["1?"], {"action": "decline"})
        assert await messages_with_get(peer, task) == []
        assert (await peer.result("tasks/cancel", task))["status"] == "cancelled"
        assert (await peer.result("tasks/get", task))["status"] == "cancelled"
        withdrawn = await next_message(peer, "notifications/cancelled")
        assert withdrawn["params"]["requestId"] == questions["2?"]["id"]
