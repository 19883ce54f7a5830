"""Sessions that other processes hold, have just given up, or are about to: what clients are told then, and what it costs
that somebody makes up ids."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.unit.transports.http.asgi import Answer, call, request
from tests.unit.transports.http.places import Place, places, text_of

from trunkline.auth.principal import Principal
from trunkline.errors import StoreUnavailable
from trunkline.server.cluster.cluster import Cluster
from trunkline.stores.store import Held, Lease
from trunkline.transports.channel import ChannelClosed
from trunkline.transports.http.session.sessions import HttpSession


def kind_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["data"]["kind"]


def held(place: Place) -> HttpSession:
    """The one session that a process holds."""
    [session] = place.endpoint.sessions
    return session


def crew_of(place: Place) -> Cluster:
    crew = place.server._runtime.get_services().cluster
    assert crew is not None
    return crew


ALL = [("POST", request("ping")), ("GET", None), ("DELETE", None)]


@pytest.mark.row("D08")
@pytest.mark.parametrize(("method", "body"), ALL)
async def test_session_of_stopping_process_is_answered_503(tmp_path: Path, method: str, body: Any) -> None:
    async with places(tmp_path) as pair:
        ident = await pair[0].session()
        assert pair[0].app.state is not None
        pair[0].app.state.stop_admitting()
        await held(pair[0]).channel.close()  # as all are closed, before what is kept is written down
        for place in pair:
            assert (await place.ask(method, body, mcp_session_id=ident)).status == 503
        await pair[0].app.aclose()
        assert (await pair[1].ask("POST", request("ping"), mcp_session_id=ident)).status == 200


@pytest.mark.row("D17")
async def test_ended_session_is_deleted_for_all_processes(tmp_path: Path) -> None:
    async with places(tmp_path, max_sessions=1) as pair:
        ident = await pair[0].session()
        held(pair[0]).channel.terminate(ChannelClosed("the peer left much unread"))
        assert kind_of(await pair[1].ask("POST", request("ping"), mcp_session_id=ident)) == (404, "session_not_found")
        await pair[0].session()  # which makes room
        for place in reversed(pair):
            answer = await place.ask("POST", request("ping"), mcp_session_id=ident)
            assert kind_of(answer) == (404, "session_not_found")
        assert await pair[0].store.scan(f"session/{ident}/") == []


@pytest.mark.row("D10")
async def test_resume_without_store_is_answered_503(tmp_path: Path) -> None:
    async with places(tmp_path, 3) as three:
        ident = await three[0].session()
        three[0].go.set()
        steps = await three[0].ask("POST", call("much", token="t", count=1, size=1), mcp_session_id=ident)
        await three[0].app.aclose()
        assert (await three[1].ask("POST", request("ping"), mcp_session_id=ident)).status == 200
        scan = three[1].store.scan

        async def away(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("not now")

        three[1].store.scan = away  # type: ignore[method-assign]
        for place in three[1:]:
            answer = await place.ask("GET", mcp_session_id=ident, last_event_id="1-0")
            assert kind_of(answer) == (503, "temporarily_unavailable")
        three[1].store.scan = scan  # type: ignore[method-assign]
        again = await three[2].ask("GET", mcp_session_id=ident, last_event_id="1-0")
        assert (steps.status, again.status) == (200, 200)
        assert again.unread[-1] == steps.unread[-1]


@pytest.mark.row("D08")
@pytest.mark.parametrize("principal", [None, "ann", Principal("ann")])
async def test_failed_restore_is_retried_by_the_lease_holder(tmp_path: Path, principal: Any) -> None:
    async with places(tmp_path, 3) as three:
        for place in three:
            place.principal = principal
        ident = await three[0].session()
        await three[0].app.aclose()
        store = three[1].store
        scan, release = store.scan, store.release

        async def away(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("not now")

        store.scan = store.release = away  # type: ignore[method-assign, assignment]
        answer = await three[1].ask("POST", request("ping"), mcp_session_id=ident)
        assert kind_of(answer) == (503, "temporarily_unavailable")
        store.scan, store.release = scan, release  # type: ignore[method-assign]
        assert (await three[2].ask("POST", request("ping"), mcp_session_id=ident)).status == 200
        three[2].principal = "somebody else"
        assert (await three[2].ask("POST", request("ping"), mcp_session_id=ident)).status == 404


async def test_cancellation_of_a_call_in_this_process_needs_no_store(tmp_path: Path) -> None:
    async with places(tmp_path) as pair:
        begun, stopped = asyncio.Event(), asyncio.Event()

        @pair[0].server.tool
        async def last() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        ident = await pair[0].session()
        calling = pair[0].begin("POST", call("last"), mcp_session_id=ident)
        await begun.wait()
        crew_of(pair[0]).membership.lease.invalidate()  # as after a lease without an answer of the store

        async def away(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("not now")

        store = pair[0].store
        for name in ("get", "scan", "commit", "acquire", "renew"):
            setattr(store, name, away)
        ask = partial(pair[0].ask, "POST", mcp_session_id=ident)
        assert (await ask(request("ping"))).status == 503
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call("last")["id"]}}
        pair[0].principal = "another"
        assert (await ask(cancelled)).status == 404
        assert not stopped.is_set()
        pair[0].principal = None
        assert (await ask(cancelled)).status == 202
        async with asyncio.timeout(PATIENCE):
            await stopped.wait()
        for name in ("get", "scan", "commit", "acquire", "renew"):
            delattr(store, name)
        await calling.finished()


@pytest.mark.row("D08")
async def test_session_lost_during_its_restore_is_looked_up_again(tmp_path: Path) -> None:
    """The store is available, and the request can be answered: it is not refused."""
    async with places(tmp_path) as pair:
        ident = await pair[0].session()
        await pair[0].app.aclose()
        store, name = pair[1].store, f"session/{ident}"
        scan, lost = store.scan, list[str]()

        async def scan_after_takeover(prefix: str, **options: Any) -> Any:
            if prefix.startswith(name) and not lost:
                lost.append(name)
                held = await store.acquire(name, "another", 60.0)
                assert isinstance(held, Held)
                taken = await store.acquire(name, "another", 60.0, over=held.token)
                assert isinstance(taken, Lease)
                await store.release(taken)
            return await scan(prefix, **options)

        store.scan = scan_after_takeover  # type: ignore[method-assign]
        assert (await pair[1].ask("POST", request("ping"), mcp_session_id=ident)).status == 200
        assert lost == [name]


async def test_invented_session_id_costs_no_lease_and_no_message(tmp_path: Path) -> None:
    async with places(tmp_path) as pair:
        said: list[Any] = []
        taken: list[Any] = []
        crew_of(pair[0]).heard = lambda *message: said.append(message)  # type: ignore[method-assign]
        acquire = pair[1].store.acquire
        pair[1].store.acquire = lambda name, *rest, **more: taken.append(name) or acquire(name, *rest, **more)  # type: ignore[method-assign, func-returns-value]
        for number in range(50):
            answer = await pair[1].ask("POST", request("ping"), mcp_session_id=f"{number:043}")
            assert kind_of(answer) == (404, "session_not_found")
        assert [name for name in taken if name.startswith("session/")] == []
        assert [message for _, message in said if message[0] > 15] == []
        assert text_of(await pair[1].ask("POST", call("echo", text="x"), mcp_session_id=await pair[1].session())) == "x"
