"""Requests that are answered with questions: the same functions answer them, and the request goes out again."""

import asyncio
from typing import Any

import pytest

from trunkline import Client
from trunkline.client import multi_round
from trunkline.errors import BadAnswer, InputFailed, RequestTimeout
from trunkline.testing import ManualClock, ScriptedServer

DONE = {"content": [{"type": "text", "text": "done"}]}
FORM = {
    "mode": "form",
    "message": "sure?",
    "requestedSchema": {"type": "object", "properties": {"sure": {"type": "boolean"}}},
}
STATE = 'ä "\\\u0001 \U0001f600 {}'


def needs(*keys: str, state: str | None = None, method: str = "elicitation/create") -> dict[str, Any]:
    asked = {key: {"method": method, "params": FORM} for key in keys}
    told: dict[str, Any] = {"resultType": "input_required"}
    return told | ({"inputRequests": asked} if keys else {}) | ({} if state is None else {"requestState": state})


async def sure(_form: Any) -> dict[str, Any]:
    return {"sure": True}


def modern() -> ScriptedServer:
    return ScriptedServer(modern=True)


@pytest.mark.row("MRT-10", "MRT-11")
async def test_next_round_has_new_id_same_params_answers_and_state() -> None:
    server = modern()
    async with Client(server, elicitation=sure) as client:
        calling = asyncio.create_task(client.call_tool("act", {"a": [1, None]}, meta={"mine": 1}))
        first = await server.line.request("tools/call")
        server.line.reply(first, needs("one", "two", state=STATE))
        second = await server.line.request("tools/call")
        server.line.reply(second, {"resultType": "complete", **DONE})
        assert (await calling).text == "done"
    assert second["id"] != first["id"]
    answer = {"action": "accept", "content": {"sure": True}}
    added = {"inputResponses": {"one": answer, "two": answer}, "requestState": STATE}
    assert second["params"] == first["params"] | added


@pytest.mark.row("MRT-10")
async def test_round_without_state_sends_none() -> None:
    server = modern()
    async with Client(server, elicitation=sure) as client:
        calling = asyncio.create_task(client.call_tool("act"))
        server.line.reply(await server.line.request("tools/call"), needs("one", state="s"))
        beside = asyncio.create_task(client.call_tool("other"))
        messages = [await server.line.request("tools/call") for _ in range(2)]
        again, other = sorted(messages, key=lambda message: message["params"]["name"])
        assert "requestState" in again["params"]
        assert not {"requestState", "inputResponses"} & other["params"].keys()
        server.line.reply(other, {"resultType": "complete", **DONE})
        await beside
        server.line.reply(again, needs("two"))  # and now there is no state any more
        last = await server.line.request("tools/call")
        assert "requestState" not in last["params"]
        assert list(last["params"]["inputResponses"]) == ["two"]
        server.line.reply(last, {"resultType": "complete", **DONE})
        await calling


async def test_result_without_type_is_complete() -> None:
    server = modern()
    async with Client(server) as client:
        calling = asyncio.create_task(client.call_tool("act"))
        server.line.reply(await server.line.request("tools/call"), DONE)
        assert (await calling).text == "done"


BAD = [
    {"resultType": "task", **DONE},
    {"resultType": 5, **DONE},
    {"resultType": "input_required"},
    {"resultType": "input_required", "requestState": 5},
    {"resultType": "input_required", "inputRequests": {"a": {}}},
    {"resultType": "input_required", "inputRequests": {}, "ttlMs": "x"},
]


@pytest.mark.parametrize("result", BAD)
async def test_result_of_unknown_type_is_rejected(result: dict[str, Any]) -> None:
    server = modern()
    async with Client(server, elicitation=sure) as client:
        calling = asyncio.create_task(client.call_tool("act"))
        server.line.reply(await server.line.request("tools/call"), result)
        with pytest.raises(BadAnswer):
            await calling


@pytest.mark.row("MRT-02")
async def test_lists_cannot_require_input() -> None:
    server = modern()
    async with Client(server, elicitation=sure) as client:
        calling = asyncio.create_task(client.list_prompts())
        server.line.reply(await server.line.request("prompts/list"), needs("one"))
        with pytest.raises(BadAnswer, match="input_required"):
            await calling


async def fails(_form: Any) -> Any:
    raise ValueError("not today")


@pytest.mark.row("MRT-13")
@pytest.mark.parametrize(
    ("asked", "options", "why"),
    [
        (needs("a"), {"elicitation": fails}, "not today"),
        (needs("a"), {}, "elicitation"),
        (needs("a", method="sampling/createMessage"), {"elicitation": sure}, "sampling.* does not support"),
        (needs("a", method="roots/list"), {"elicitation": sure}, "roots.* does not support"),
        (needs("a", method="tools/list"), {"elicitation": sure}, "which is no input request"),
    ],
)
async def test_failed_input_ends_the_call(asked: dict[str, Any], options: dict[str, Any], why: str) -> None:
    server = modern()
    async with Client(server, **options) as client:
        calling = asyncio.create_task(client.call_tool("act"))
        server.line.reply(await server.line.request("tools/call"), asked)
        with pytest.raises(InputFailed, match=why):
            await calling
        assert server.line.waiting() == []


async def test_failed_input_cancels_the_others() -> None:
    server, stopped = modern(), asyncio.Event()

    async def answer(form: Any) -> Any:
        if form.message == "fail":
            raise ValueError("not today")
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with Client(server, elicitation=answer) as client:
        calling = asyncio.create_task(client.call_tool("act"))
        asked = needs("waits")
        failing = {"method": "elicitation/create", "params": {**FORM, "message": "fail"}}
        asked["inputRequests"]["fails"] = failing
        server.line.reply(await server.line.request("tools/call"), asked)
        with pytest.raises(InputFailed):
            await calling
        assert stopped.is_set()


@pytest.mark.row("MRT-09")
async def test_deferred_request_is_repeated_until_its_timeout() -> None:
    server, clock = modern(), ManualClock()
    async with Client(server, clock=clock) as client:
        calling = asyncio.create_task(client.call_tool("act", timeout=0.3))
        first = await server.line.request("tools/call")
        server.line.reply(first, needs(state="later"))
        again = await server.line.request("tools/call")
        assert again["params"] == first["params"] | {"requestState": "later"}
        server.line.reply(again, needs(state="later"))
        await asyncio.sleep(0)
        clock.advance(0.3)
        with pytest.raises(RequestTimeout):
            await calling
        assert server.line.waiting() == []


async def test_endless_input_rounds_are_refused() -> None:
    server = modern()
    async with Client(server, elicitation=sure) as client:
        calling = asyncio.create_task(client.call_tool("act"))
        for _ in range(multi_round.MAX_ROUNDS + 1):
            server.line.reply(await server.line.request("tools/call"), needs("one"))
        with pytest.raises(BadAnswer, match="still requires input"):
            await calling


@pytest.mark.row("MRT-12")
async def test_result_after_input_is_not_cached() -> None:
    server = modern()
    read = {"resultType": "complete", "contents": [], "ttlMs": 60_000, "cacheScope": "private"}
    async with Client(server, elicitation=sure) as client:
        reading = asyncio.create_task(client.read_resource("x://y"))
        server.line.reply(await server.line.request("resources/read"), needs("one"))
        server.line.reply(await server.line.request("resources/read"), read)
        await reading
        reading = asyncio.create_task(client.read_resource("x://y"))
        server.line.reply(await server.line.request("resources/read"), read)
        await reading
        await client.read_resource("x://y")  # which was kept
        assert server.line.waiting() == []
