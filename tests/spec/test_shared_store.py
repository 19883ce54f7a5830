"""Several processes with one store act as one server, whichever of them a request reaches: on one SQLite file, and with
one Valkey. Clients speak raw HTTP, or are our own behind a round-robin proxy. Killed processes are real ones.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.processes import PATIENCE
from tests.spec.durable_server import ServerProcess, SessionPeer, Stream
from tests.spec.server_group import GroupServer, RoundRobin, server_group

from trunkline import Client
from trunkline.protocol.revisions import Revision

NOTE = "note://a"
UPDATED = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": NOTE}}
ASKS = {"elicitation": {}, "sampling": {}}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


@pytest.fixture(params=["sqlite", "valkey"])
async def three(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[GroupServer]]:
    """Three servers on one store of either kind."""
    async with server_group(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[list[GroupServer]]:
    """Two servers on one file."""
    async with server_group("sqlite", tmp_path, 2) as made:
        yield made


async def everywhere(http: aiohttp.ClientSession, urls: list[str], capabilities: Any = None) -> list[SessionPeer]:
    """One client with a session from the first address, at each of the addresses."""
    first = await SessionPeer(http, urls[0]).open(capabilities)
    return [first, *(first.at(url) for url in urls[1:])]


def urls_of(made: list[GroupServer]) -> list[str]:
    return [branch.url for branch in made]


def text_of(answer: Any) -> str:
    return answer["result"]["content"][0]["text"]


# --- sessions ----------------------------------------------------------------------------------------


@pytest.mark.row("D03")
async def test_session_works_through_any_process(three: list[GroupServer], http: aiohttp.ClientSession) -> None:
    peers = await everywhere(http, urls_of(three), ASKS)
    for peer in peers * 2:
        assert text_of(await peer.tool("add", a=1, b=2)) == "3"
    assert [branch.calls for branch in three] == [6, 0, 0]  # one process owns the session and runs the calls

    params = {"name": "steps", "_meta": {"progressToken": "t"}}
    async with peers[1].post("tools/call", params) as response:
        *told, answer = await Stream(response).messages(4)
    assert [one["params"]["progress"] for one in told] == [1, 2, 3]
    assert text_of(answer) == "done"

    for peer in peers:
        assert "result" in await peer.call("resources/subscribe", {"uri": NOTE})
    async with peers[1].stream() as stream:
        other = await SessionPeer(http, three[2].url).open()
        await other.tool("change", uri=NOTE)
        assert await stream.messages(1) == [UPDATED]

    async with http.delete(three[2].url, headers=peers[0].headers()) as response:
        assert response.status == 204
    for peer in peers:
        assert await peer.refusal() == (404, "session_not_found")


@pytest.mark.row("D03")
@pytest.mark.parametrize(
    ("tool", "result", "text"),
    [
        ("confirm", {"action": "accept", "content": {"sure": True}}, "accept True"),
        ("think", {"role": "assistant", "content": {"type": "text", "text": "so"}, "model": "m"}, "so"),
    ],
)
async def test_question_of_one_process_is_answered_through_another(
    three: list[GroupServer], http: aiohttp.ClientSession, tool: str, result: Any, text: str
) -> None:
    peers = await everywhere(http, urls_of(three), ASKS)
    async with peers[1].post("tools/call", {"name": tool}) as response:
        stream = Stream(response)
        [question] = await stream.messages(1)
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": result}
        async with http.post(three[2].url, json=answer, headers=peers[0].headers()) as taken:
            assert taken.status == 202
        assert text_of((await stream.messages(1))[0]) == text


@pytest.mark.row("D03")
async def test_call_is_cancelled_through_another_process(pair: list[GroupServer], http: aiohttp.ClientSession) -> None:
    peers = await everywhere(http, urls_of(pair))
    params = {"name": "waits", "_meta": {"progressToken": "t"}}
    async with peers[1].post("tools/call", params, ident=77) as response:
        await Stream(response).messages(1)
        async with peers[0].post("notifications/cancelled", {"requestId": 77}) as taken:
            assert taken.status == 202
        async with asyncio.timeout(PATIENCE):
            await pair[0].cancelled.wait()
            assert (await Stream(response).event()) == ("", None)


@pytest.mark.row("D10")
async def test_stream_is_resumed_through_another_process(pair: list[GroupServer], http: aiohttp.ClientSession) -> None:
    peers = await everywhere(http, urls_of(pair))
    params = {"name": "waits", "_meta": {"progressToken": "t"}}
    async with peers[0].post("tools/call", params) as response:
        position, _ = await next_message(Stream(response))
    pair[0].go.set()
    async with peers[1].stream(position) as stream:
        assert text_of((await stream.messages(1))[0]) == "done"


@pytest.mark.row("D03")
async def test_task_is_followed_through_any_process(pair: list[GroupServer], http: aiohttp.ClientSession) -> None:
    peers = await everywhere(http, urls_of(pair))
    other = await SessionPeer(http, pair[1].url).open()
    for asking, looking in ((peers[1], peers[0]), (peers[0], peers[1]), (other, other.at(pair[0].url))):
        asked = {"name": "later", "arguments": {"text": "x"}, "task": {}}
        task = (await asking.call("tools/call", asked))["result"]["task"]["taskId"]
        assert text_of(await looking.call("tasks/result", {"taskId": task})) == "x"
        assert (await asking.call("tasks/get", {"taskId": task}))["result"]["status"] == "completed"
    assert sum(branch.calls for branch in pair) == 3


async def test_concurrent_requests_get_their_own_responses(
    pair: list[GroupServer], http: aiohttp.ClientSession
) -> None:
    sessions = [await everywhere(http, urls) for urls in (urls_of(pair), urls_of(pair)[::-1]) for _ in range(3)]
    work = [(peer, number) for number in range(10) for peers in sessions for peer in peers]
    answers = await asyncio.gather(*(peer.tool("add", a=number, b=index) for index, (peer, number) in enumerate(work)))
    assert [text_of(answer) for answer in answers] == [str(number + index) for index, (_, number) in enumerate(work)]


# --- our own client ----------------------------------------------------------------------------------


@pytest.mark.row("D03")
@pytest.mark.parametrize("revision", [revision.value for revision in Revision])
async def test_clients_of_all_revisions_see_one_server(three: list[GroupServer], revision: str) -> None:
    async with AsyncExitStack() as stack:
        front = await stack.enter_async_context(RoundRobin(urls_of(three)).open())
        client = await stack.enter_async_context(
            Client(
                front.url,
                revision=revision,
                elicitation=lambda _: {"sure": True},
                sampling=lambda _: "so",
            )
        )
        for number in range(6):
            assert (await client.call_tool("add", {"a": 1, "b": number})).text == str(1 + number)
        told: list[float] = []
        await client.call_tool("steps", on_progress=lambda heard: told.append(heard.progress))
        assert told == [1, 2, 3]
        assert (await client.call_tool("think")).text == "so"
        if revision >= "2025-06-18":
            assert (await client.call_tool("confirm")).text == "accept True"
        await client.subscribe(NOTE)
        updates = client.notifications("notifications/resources/updated")
        for branch in three:
            branch.server.notify_updated(NOTE)
            async with asyncio.timeout(PATIENCE):
                assert (await anext(updates)).params.uri == NOTE


# --- killed processes --------------------------------------------------------------------------------


@pytest.fixture
def processes(tmp_path: Path) -> Any:
    made = [ServerProcess(tmp_path / "many") for _ in range(3)]
    yield made
    for process in made:
        process.end()


@pytest.mark.row("D08")
async def test_session_continues_after_its_holder_is_killed(
    processes: list[ServerProcess], http: aiohttp.ClientSession
) -> None:
    peers = await everywhere(http, [process.url for process in processes])
    for peer in peers:
        assert "result" in await peer.call("ping")
    assert "result" in await peers[2].call("resources/subscribe", {"uri": NOTE})
    silent = asyncio.ensure_future(lost(peers[1], "hang"))
    params = {"name": "hang", "_meta": {"progressToken": "t"}}
    async with peers[2].post("tools/call", params, ident=9) as response:
        stream = Stream(response)
        position, first = await next_message(stream)
        assert (first["params"]["progress"], (await next_message(stream))[1]["params"]["progress"]) == (1, 2)
        processes[0].kill()
        assert await silent == (200, "outcome_unknown")
        assert await stream.event() == ("", None)
    for peer in peers[1:]:
        assert "result" in await peer.call("ping")
    async with peers[1].stream(position) as stream:
        told, ended = await stream.messages(2)
    assert told["params"]["progress"] == 2
    assert (ended["id"], ended["error"]["data"]["kind"]) == (9, "outcome_unknown")
    async with peers[2].stream() as stream:
        assert await stream.messages(1) == [UPDATED]  # no watch was open for a moment
        await peers[1].tool("change", uri=NOTE)
        assert await stream.messages(1) == [UPDATED]


@pytest.mark.row("D08")
async def test_client_continues_after_its_front_process_is_killed(
    processes: list[ServerProcess], http: aiohttp.ClientSession
) -> None:
    peers = await everywhere(http, [process.url for process in processes], {"roots": {}})
    async with peers[1].post("tools/call", {"name": "ask"}, ident=5) as response:
        position, question = await next_message(Stream(response))
        processes[1].kill()
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": [{"uri": "file:///here"}]}}
    async with peers[2].stream(position) as stream:
        async with http.post(processes[2].url, json=answer, headers=peers[2].headers()) as taken:
            assert taken.status == 202
        [result] = await stream.messages(1)
    assert (result["id"], text_of(result)) == (5, "file:///here")


async def lost(peer: SessionPeer, tool: str) -> tuple[int, str]:
    """The status and the error kind for a lost call."""
    async with peer.post("tools/call", {"name": tool}) as response:
        return response.status, (await response.json())["error"]["data"]["kind"]


async def next_message(stream: Stream) -> tuple[str, Any]:
    """The next message and its event id."""
    position, message = await stream.event()
    while message is None:
        assert position, "the stream has ended"
        position, message = await stream.event()
    return position, message
