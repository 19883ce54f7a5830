"""A paused server: new requests are rejected or wait, and calls in flight continue."""

import asyncio
import gc
import weakref
from functools import partial

import pytest
from tests.modern import ask, begin, enveloped, result
from tests.spec.test_shutdown import RunningServer
from tests.unit.transports.http.asgi import Answer, Host, hosted, request

from trunkline import Client, Server
from trunkline.errors import MisuseError
from trunkline.testing import RawPeer

QUICK = {"name": "quick"}


@pytest.mark.row("E1008", "F21")
@pytest.mark.parametrize("ready", [True, False])
async def test_paused_server_refuses_requests_but_answers_ping(ready: bool) -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize(confirm=ready)
        ident = peer.call("tools/call", {"name": "waits"})
        await subject.begun.wait()
        subject.server.pause()
        for params in ({"name": "quick"}, enveloped(name="quick")):
            refused = await peer.error("tools/call", params)
            assert (refused["code"], refused["data"]["kind"]) == (1008, "temporarily_unavailable")
        assert (await peer.error("tools/list"))["code"] == 1008
        assert await peer.result("ping") == {}
        subject.go.set()
        assert (await peer.answer_to(ident))["result"]["content"][0]["text"] == "done"
        subject.server.resume()
        assert (await peer.result("tools/call", {"name": "quick"}))["content"][0]["text"] == "quick"
    await subject.server.aclose()


@pytest.mark.row("F21")
async def test_new_client_of_a_paused_server_can_initialize() -> None:
    subject = RunningServer()
    await subject.server.start()
    subject.server.pause()
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        assert (await peer.error("tools/call", {"name": "quick"}))["code"] == 1008
        subject.server.resume()
        await peer.result("tools/call", {"name": "quick"})
    await subject.server.aclose()


@pytest.mark.row("F21")
@pytest.mark.parametrize("ready", [True, False])
async def test_call_queued_before_the_pause_runs(ready: bool) -> None:
    subject = RunningServer(max_calls=1)
    async with RawPeer(subject.server) as peer:
        await peer.initialize(confirm=ready)
        idents = [peer.call("tools/call", {"name": name}) for name in ("waits", "quick")]
        await subject.begun.wait()
        subject.server.pause()
        subject.go.set()
        answers = [await peer.answer_to(ident) for ident in idents]
        assert [answer["result"]["content"][0]["text"] for answer in answers] == ["done", "quick"]
    await subject.server.aclose()


@pytest.mark.row("F21")
async def test_paused_server_refuses_http_requests_of_both_eras() -> None:
    subject = RunningServer()
    async with hosted(subject.server) as host:
        session = await host.session()
        subject.server.pause()
        modern = await ask(host, "tools/call", {"name": "quick"})
        older = await host.ask("POST", request("tools/call", {"name": "quick"}), mcp_session_id=session)
        assert [answer.json["error"]["code"] for answer in (modern, older)] == [1008, 1008]
        subject.server.resume()
        assert (await result(host, "tools/call", {"name": "quick"}))["content"][0]["text"] == "quick"


@pytest.mark.row("F21")
async def test_requests_can_wait_for_resume() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        subject.server.pause(wait=True)
        idents = [peer.call("tools/call", params) for params in ({"name": "quick"}, enveloped(name="quick"))]
        assert await peer.quiet() == []
        subject.server.resume()
        for ident in idents:
            assert (await peer.answer_to(ident))["result"]["content"][0]["text"] == "quick"
    await subject.server.aclose()


@pytest.mark.row("F21")
@pytest.mark.parametrize("wait", [True, False])
async def test_one_session_can_be_paused(*, wait: bool) -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer, RawPeer(subject.server) as other:
        for each in (peer, other):
            await each.initialize()
        number = peer.connection.session_id
        assert number is not None
        subject.server.pause_session(number, wait=wait)
        subject.server.pause_session(number, wait=not wait)  # paused already
        ident = peer.call("tools/call", QUICK)
        if not wait:
            assert (await peer.answer_to(ident))["error"]["code"] == 1008
        assert await peer.quiet() == []
        assert await peer.result("ping") == {}
        await other.result("tools/call", QUICK)
        subject.server.resume_session(number)
        if wait:
            assert (await peer.answer_to(ident))["result"]["content"][0]["text"] == "quick"
        await peer.result("tools/call", QUICK)
    subject.server.pause_session(number)  # it has ended
    await subject.server.aclose()


@pytest.mark.parametrize("server_first", [True, False])
async def test_session_stays_paused_until_its_own_pause_and_the_servers_end(*, server_first: bool) -> None:
    subject = RunningServer()
    server = subject.server
    async with RawPeer(server) as peer, RawPeer(server) as other:
        for each in (peer, other):
            await each.initialize()
        number = peer.connection.session_id
        assert number is not None
        server.pause()
        server.pause_session(number)
        server.resume() if server_first else server.resume_session(number)
        assert (await peer.error("tools/call", QUICK))["code"] == 1008
        if server_first:
            await other.result("tools/call", QUICK)
        server.resume_session(number) if server_first else server.resume()
        for each in (peer, other):
            await each.result("tools/call", QUICK)
    await server.aclose()


def test_independent_requests_have_no_session_to_pause() -> None:
    for change in (Server("t").pause_session, Server("t").resume_session):
        with pytest.raises(MisuseError, match="a session id is the number of"):
            change(None)  # type: ignore[arg-type]


async def test_paused_server_shuts_down_in_order() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        subject.server.pause()
        assert await subject.server.shutdown() == ()
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "quick"})
    await subject.server.aclose()


# --- waiting ------------------------------------------------------------------------------------


@pytest.mark.row("F21")
async def test_pause_queue_is_bounded_and_ping_is_answered() -> None:
    subject = RunningServer(max_waiting=2)
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        subject.server.pause(wait=True)
        waiting = [peer.call("tools/call", QUICK) for _ in range(2)]
        assert (await peer.error("tools/call", QUICK))["code"] == 1008
        assert await peer.result("ping") == {}
        peer.notify("notifications/cancelled", {"requestId": waiting[0]})
        later = peer.call("tools/call", QUICK)  # for which there is room again
        assert await peer.quiet() == []
        subject.server.resume()
        assert [(await peer.receive())["id"] for _ in range(2)] == [waiting[1], later]
    await subject.server.aclose()


@pytest.mark.row("F21")
async def test_second_pause_changes_nothing() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        session = peer.connection.session_id
        for pause, resume in (
            (subject.server.pause, subject.server.resume),
            (partial(subject.server.pause_session, session), partial(subject.server.resume_session, session)),
        ):
            pause(wait=True)
            before = peer.call("tools/call", QUICK)
            pause()
            after = peer.call("tools/call", QUICK)
            assert await peer.quiet() == []
            resume()
            assert [(await peer.receive())["id"] for _ in range(2)] == [before, after]
    await subject.server.aclose()


@pytest.mark.row("F21")
async def test_paused_session_is_released_when_it_ends() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        subject.server.pause_session(peer.connection.session_id)
        connection = weakref.ref(peer.connection)
    await subject.server.aclose()
    del peer
    gc.collect()
    assert connection() is None


@pytest.mark.row("F21")
async def test_queued_request_times_out() -> None:
    subject = RunningServer(work_timeout=0.05)
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        subject.server.pause(wait=True)
        answer = await peer.result("tools/call", QUICK)
        assert answer["isError"]
        assert "was not done after" in answer["content"][0]["text"]
        subject.server.resume()
        assert await peer.quiet() == []
    await subject.server.aclose()


@pytest.mark.row("F21")
async def test_queued_request_of_a_closed_connection_never_runs() -> None:
    subject = RunningServer()
    done: list[str] = []
    subject.server.tool(lambda: done.append("done"), name="does")
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        subject.server.pause(wait=True)
        peer.call("tools/call", {"name": "does"})
        assert await peer.quiet() == []
    subject.server.resume()
    await subject.server.aclose()
    assert done == []


@pytest.mark.row("F21")
async def test_shutdown_refuses_queued_requests() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        subject.server.pause(wait=True)
        ident = peer.call("tools/call", QUICK)
        assert await subject.server.shutdown() == ()
        assert (await peer.answer_to(ident))["error"]["code"] == 1008


def in_session(host: Host, session: str, ident: int) -> Answer:
    return host.begin("POST", request("tools/call", QUICK, id=ident), mcp_session_id=session)


@pytest.mark.row("F21")
async def test_http_requests_wait_and_disconnected_ones_never_run() -> None:
    subject = RunningServer(max_waiting=2)
    async with hosted(subject.server) as host:
        session = await host.session()
        subject.server.pause(wait=True)
        modern = [begin(host, "tools/call", enveloped(**QUICK), id=number) for number in range(2)]
        older = [in_session(host, session, number) for number in range(2)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert [answer.status for answer in (*modern, *older)] == [0] * 4
        assert (await in_session(host, session, 3).finished()).json["error"]["code"] == 1008
        modern[0].gone.set()
        await modern[0].finished()
        subject.server.resume()
        for answer in (modern[1], *older):
            assert (await answer.finished()).json["result"]["content"][0]["text"] == "quick"
        assert modern[0].body == b""


@pytest.mark.row("F21")
@pytest.mark.parametrize("scheme", ["ws", "tcp"])
async def test_socket_calls_wait_or_are_refused(scheme: str) -> None:
    subject = RunningServer()
    address = (
        await subject.server.listen("tcp://127.0.0.1:0" if scheme == "tcp" else "http://127.0.0.1:0/mcp")
    ).address
    async with Client(address.replace("http", "ws")) as client:
        subject.server.pause()
        with pytest.raises(Exception, match="is refused while the session is paused"):
            await client.call_tool("quick")
        subject.server.resume()
        subject.server.pause(wait=True)
        waiting = asyncio.create_task(client.call_tool("quick"))
        await client.ping()
        assert not waiting.done()
        subject.server.resume()
        assert (await waiting).data == "quick"
    await subject.server.aclose()


@pytest.mark.row("F21")
async def test_pause_and_resume_work_from_any_thread() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        await asyncio.to_thread(subject.server.pause)
        assert (await peer.error("tools/call", QUICK))["code"] == 1008
        await asyncio.to_thread(subject.server.resume)
        await peer.result("tools/call", QUICK)
    await subject.server.aclose()
