"""Requests that come to one process and are answered by another, seen closely: two servers on one file, each behind an
application of its own, on the loop of the test. Sessions are opened at the first."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.unit.transports.http.asgi import Answer, call, request
from tests.unit.transports.http.places import ORIGIN, Place, places, rest, text_of

from trunkline.auth.principal import Principal
from trunkline.server.run.process import make_asgi_app
from trunkline.stores.signed_frames import FrameSigner
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Held
from trunkline.transports.http.authenticator import Admitted, CallbackAuthenticator
from trunkline.transports.http.forwarding.frames import HOLDER_KIND, INGRESS_KIND
from trunkline.transports.http.request import HttpRequest


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[list[Place]]:
    async with places(tmp_path) as made:
        yield made


# --- the same answers ---------------------------------------------------------------------------------


WRONG: dict[str, dict[str, Any]] = {
    "406": {"method": "POST", "body": request("ping"), "accept": "text/html"},
    "406 of a GET": {"method": "GET", "accept": "application/json"},
    "415": {"method": "POST", "body": request("ping"), "content_type": "text/plain"},
    "413": {"method": "POST", "body": b" " * 70_000},
    "not JSON": {"method": "POST", "body": b"{"},
    "no message": {"method": "POST", "body": {"jsonrpc": "2.0"}},
    "an unknown method": {"method": "POST", "body": request("no/such")},
    "an unknown revision": {"method": "POST", "body": request("ping"), "mcp_protocol_version": "1999-01-01"},
    "a notification": {"method": "POST", "body": {"jsonrpc": "2.0", "method": "notifications/initialized"}},
    "a position that is not known": {"method": "GET", "last_event_id": "77-1"},
    "another method": {"method": "PUT"},
    "a request with an envelope": {
        "method": "POST",
        "body": request("server/discover", {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}),
    },
}


@pytest.mark.row("D03")
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_forwarded_response_equals_direct_response(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async with places(tmp_path, http_body_size_limit=65_536) as pair:
        ident = await pair[0].session()
        answers = [await place.ask(**{"mcp_session_id": ident, **wrong}) for place in pair]
    first, second = ((one.status, one.headers, one.body) for one in answers)
    assert first == second


@pytest.mark.row("D03")
async def test_session_is_used_and_deleted_through_any_process(pair: list[Place]) -> None:
    ident = await pair[0].session()
    for place in (pair[1], pair[0], pair[1]):
        assert text_of(await place.ask("POST", call("echo", text="x"), mcp_session_id=ident)) == "x"
    assert (await pair[1].ask("DELETE", mcp_session_id=ident)).status == 204
    for place in pair:
        assert (await place.ask("POST", request("ping"), mcp_session_id=ident)).status == 404


async def test_long_bodies_are_forwarded_in_chunks(tmp_path: Path) -> None:
    async with places(tmp_path, unsent_high=100_000) as pair:
        ident = await pair[0].session()
        text = "".join(f"{number}," for number in range(300_000))
        assert text_of(await pair[1].ask("POST", call("echo", text=text), mcp_session_id=ident)) == text


async def test_forwarded_response_has_cors_headers(pair: list[Place]) -> None:
    ident = await pair[0].session()
    answer = await pair[1].ask("POST", request("ping"), mcp_session_id=ident, origin=ORIGIN)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)


# --- who asks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("principal", [None, "ann", 7, ("ann", 7), Principal("ann", issuer="i", scopes=("a", "b"))])
async def test_handler_gets_principal_of_forwarded_request(pair: list[Place], principal: Any) -> None:
    for place in pair:
        place.principal = principal
    ident = await pair[0].session()
    seen = [text_of(await one.ask("POST", call("who"), mcp_session_id=ident)) for one in pair]
    assert seen[0] == seen[1]
    assert seen[0].startswith(repr(principal))


async def test_principal_of_the_request_replaces_that_of_the_session(pair: list[Place]) -> None:
    pair[0].principal = Principal("ann", scopes=("much",))
    pair[1].principal = Principal("ann")
    ident = await pair[0].session()
    assert text_of(await pair[0].ask("POST", call("scoped"), mcp_session_id=ident)) == "allowed"
    refused = await pair[1].ask("POST", call("scoped"), mcp_session_id=ident)
    assert (refused.status, 'scope="much"' in refused.headers["www-authenticate"]) == (403, True)
    pair[0].principal = pair[1].principal
    again = await pair[0].ask("POST", call("scoped"), mcp_session_id=ident)
    assert (again.status, again.headers, again.body) == (refused.status, refused.headers, refused.body)


@pytest.mark.row("D03")
@pytest.mark.parametrize("other", [None, "bob", ("ann", 8), Principal("bob")])
async def test_session_of_another_principal_is_not_found_by_forwarding(pair: list[Place], other: Any) -> None:
    pair[0].principal = pair[1].principal = ("ann", 7)
    ident = await pair[0].session()
    assert (await pair[1].ask("POST", request("ping"), mcp_session_id=ident)).status == 200
    for place in pair:
        place.principal = other
        for method, body in (("POST", request("ping")), ("GET", None), ("DELETE", None)):
            assert (await place.ask(method, body, mcp_session_id=ident)).status == 404
        place.principal = ("ann", 7)
    assert (await pair[1].ask("POST", request("ping"), mcp_session_id=ident)).status == 200


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_credentials_are_not_forwarded(pair: list[Place], method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in pair:
        place.principal = Principal("ann", scopes=("much",))
    ident = await pair[0].session()
    sent: list[bytes] = []
    sign = FrameSigner.sign
    monkeypatch.setattr(FrameSigner, "sign", lambda signer, to, *parts: sent.extend(parts) or sign(signer, to, *parts))
    secrets = {name: f"secret-of-{name}" for name in ("authorization", "cookie", "dpop", "x_api_key", "x_other")}
    body = call("scoped") if method == "POST" else None
    answer = await pair[1].ask(method, body, mcp_session_id=ident, **secrets)
    assert answer.status in {200, 204}
    if method == "POST":
        assert text_of(answer) == "allowed"
    assert any(ident.encode() in part for part in sent)
    assert not any(b"secret-of" in part for part in sent)


class Brief(CallbackAuthenticator):
    """Lets everybody in for a moment."""

    def authenticate(self, request: HttpRequest, path: str) -> Admitted:
        return Admitted("ann", 0.05)


async def test_forwarded_stream_ends_when_credentials_expire(pair: list[Place]) -> None:
    pair[0].principal = "ann"
    ident = await pair[0].session()
    server = pair[1].server
    ready = server._runtime.get_services
    pair[1].app = make_asgi_app(
        server,
        lambda: ready().clock,
        "/",
        Brief(lambda _: "ann"),
        lambda: None,
        session_backend=lambda: ready().durable_sessions,
        forwarder=server._get_forwarder,
        health=None,
    )
    stream = await pair[1].ask("GET", mcp_session_id=ident)
    assert (stream.status, stream.ended) == (200, True)


# --- streams ------------------------------------------------------------------------------------------


async def test_slow_reader_of_forwarded_stream_slows_the_handler(tmp_path: Path) -> None:
    async with places(tmp_path, unsent_high=20_000) as pair:
        ident = await pair[0].session()
        answer = pair[1].begin("POST", call("much", token="t", count=300, size=1000), mcp_session_id=ident)
        await answer.message()
        answer.reading.clear()
        pair[0].go.set()
        before = -1
        while pair[0].said != before:  # until nothing moves any more
            before = pair[0].said
            for _ in range(100):
                await asyncio.sleep(0)
            await asyncio.sleep(0.02)
        assert before < 150  # some wait at either end, and on the way
        answer.reading.set()
        told = [one["params"]["progress"] for one in await rest(answer) if "params" in one]
    assert told == sorted(told)
    assert told[-1] == 299
    assert answer.largest <= 20_000


@pytest.mark.row("W06")
async def test_stream_is_resumed_through_another_process(pair: list[Place]) -> None:
    ident = await pair[0].session()
    answer = pair[1].begin("POST", call("waits", token="t"), mcp_session_id=ident)
    first = await answer.event()
    while not first.data:
        first = await answer.event()
    answer.gone.set()
    await answer.finished()
    pair[0].go.set()
    for place in (pair[1], pair[0]):
        again = await place.ask("GET", mcp_session_id=ident, last_event_id=first.id)
        assert [one["result"]["content"][0]["text"] for one in await rest(again)] == ["done"]


@pytest.mark.row("W06")
async def test_events_after_a_disconnect_wait_for_the_next_reader(pair: list[Place]) -> None:
    ident = await pair[0].session()
    await pair[1].ask("POST", request("resources/subscribe", {"uri": "note://one"}), mcp_session_id=ident)
    stream = pair[1].begin("GET", mcp_session_id=ident)
    await stream.event()
    stream.gone.set()
    await stream.finished()
    await pair[1].ask("POST", call("change"), mcp_session_id=ident)
    again = pair[0].begin("GET", mcp_session_id=ident)
    assert (await again.message())["method"] == "notifications/resources/updated"
    again.gone.set()
    await again.finished()


async def test_reopened_standalone_stream_replaces_the_former_one(pair: list[Place]) -> None:
    ident = await pair[0].session()
    await pair[1].ask("POST", request("resources/subscribe", {"uri": "note://one"}), mcp_session_id=ident)
    older = pair[1].begin("GET", mcp_session_id=ident)
    await older.event()
    newer = pair[0].begin("GET", mcp_session_id=ident)
    await newer.event()
    assert (await older.finished()).ended
    await pair[1].ask("POST", call("change"), mcp_session_id=ident)
    assert (await newer.message())["method"] == "notifications/resources/updated"
    newer.gone.set()
    await newer.finished()


@pytest.mark.parametrize("kind", [INGRESS_KIND, HOLDER_KIND])
async def test_request_whose_frame_is_lost_is_answered(pair: list[Place], kind: bytes) -> None:
    """A bus should tell of each loss. If it does not, the front finds out that the holder does not work on it."""
    ident = await pair[0].session()
    bus: Any = pair[1 if kind == INGRESS_KIND else 0].server._runtime.get_services().cluster.membership._bus  # type: ignore[union-attr]
    send, lost = bus.send, list[bytes]()

    def lose_first(to: str, message: bytes) -> bool:
        if lost or message[:1] != kind:
            return send(to, message)
        lost.append(message)
        return True

    bus.send = lose_first
    async with asyncio.timeout(PATIENCE):
        answer = await pair[1].ask("POST", call("echo", text="x"), mcp_session_id=ident)
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (200, "outcome_unknown")
    assert text_of(await pair[1].ask("POST", call("echo", text="x"), mcp_session_id=ident)) == "x"


async def test_request_longer_than_the_check_interval_is_answered(pair: list[Place]) -> None:
    ident = await pair[0].session()
    asked = pair[1].begin("POST", call("quietly", id=7), mcp_session_id=ident)
    await pair[0].begun.wait()
    relay: Any = pair[1].server._forwarder
    relay._check_pending()
    assert "result" in (await pair[1].ask("POST", request("ping"), mcp_session_id=ident)).json  # goes the same way
    pair[0].go.set()
    assert text_of(await asked.finished()) == "done"


# --- the end of either --------------------------------------------------------------------------------


async def test_stopping_ingress_waits_for_replies_and_ends_idle_streams(pair: list[Place]) -> None:
    ident = await pair[0].session()
    listening = pair[1].begin("GET", mcp_session_id=ident)
    await listening.event()
    asked = pair[1].begin("POST", call("quietly"), mcp_session_id=ident)
    await pair[0].begun.wait()
    ending = asyncio.ensure_future(pair[1].server.aclose())
    pair[1].app.close_idle_streams()
    assert (await listening.finished()).ended
    done, _ = await asyncio.wait([ending], timeout=0.2)
    assert not done
    pair[0].go.set()
    assert text_of(await asked.finished()) == "done"
    async with asyncio.timeout(PATIENCE):
        await ending
    assert (await pair[0].ask("POST", request("ping"), mcp_session_id=ident)).status == 200


@pytest.mark.row("D08")
async def test_stopping_holder_answers_then_hands_sessions_over(
    pair: list[Place],
) -> None:
    ident = await pair[0].session()
    asked = pair[1].begin("POST", call("quietly"), mcp_session_id=ident)
    await pair[0].begun.wait()
    ending = asyncio.ensure_future(pair[0].app.aclose())
    await asyncio.sleep(0)
    pair[0].go.set()
    assert text_of(await asked.finished()) == "done"
    async with asyncio.timeout(PATIENCE):
        await ending
    assert text_of(await pair[1].ask("POST", call("echo", text="x"), mcp_session_id=ident)) == "x"


@pytest.mark.row("D08")
async def test_interrupted_calls_at_shutdown_keep_the_session(tmp_path: Path) -> None:
    async with places(tmp_path, drain_timeout=0.05) as pair:
        ident = await pair[0].session()
        asked = [pair[one].begin("POST", call("quietly", id=one), mcp_session_id=ident) for one in (0, 1)]
        while pair[0].waiting < len(pair):
            await pair[0].begun.wait()
            pair[0].begun.clear()
        await pair[0].server.aclose()
        for answer in asked:
            await answer.finished()
            assert (answer.status, answer.json["error"]["data"]["kind"]) == (200, "outcome_unknown")
        assert (await pair[1].ask("POST", request("ping"), mcp_session_id=ident)).status == 200


@pytest.mark.row("Q08")
async def test_session_missing_at_its_holder_is_answered_503(pair: list[Place]) -> None:
    ident = await pair[0].session()
    assert pair[0].app.state is not None
    pair[0].app.state.close()  # it still counts as the one that has the session
    for method, body in (("POST", request("ping")), ("GET", None), ("DELETE", None)):
        answer = await pair[1].ask(method, body, mcp_session_id=ident)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_holder_refuses_requests_over_its_limit(tmp_path: Path) -> None:
    async with places(tmp_path, max_connections=1) as pair:
        ident = await pair[0].session()
        asked = pair[1].begin("POST", call("quietly"), mcp_session_id=ident)
        await pair[0].begun.wait()
        for body in (request("ping"), call("echo", text="x" * 600_000)):
            turned = await pair[1].ask("POST", body, mcp_session_id=ident)
            assert (turned.status, turned.headers["retry-after"]) == (503, "1")
        pair[0].go.set()
        assert text_of(await asked.finished()) == "done"


# --- HTTP+SSE -----------------------------------------------------------------------------------------


async def opened(place: Place) -> tuple[Answer, str]:
    """A stream of HTTP+SSE, and the address to post to."""
    stream = place.begin("GET", path="/sse")
    return stream, (await stream.event()).data.decode()


@pytest.mark.row("W06")
async def test_http_sse_post_is_forwarded_to_its_stream(pair: list[Place]) -> None:
    for place in pair:
        place.principal = "ann"
    stream, address = await opened(pair[0])
    query = address.partition("?")[2]
    hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    for place, body in ((pair[1], request("initialize", hello, id=0)), (pair[0], request("ping", id=1))):
        assert (await post(place, query, body)).status == 202
        assert (await stream.message())["id"] == body["id"]
    pair[1].principal = "bob"
    assert (await post(pair[1], query, request("ping"))).status == 404
    stream.gone.set()
    await stream.finished()
    pair[1].principal = "ann"
    assert (await post(pair[1], query, request("ping"))).status == 404


async def test_http_sse_stream_ends_when_its_process_gets_a_new_id(tmp_path: Path) -> None:
    async with places(tmp_path, process_lease=1.5) as [place, _]:
        stream, address = await opened(place)
        name = address.rpartition(".")[2]
        store = SqliteStore(place.path)
        await store.open()
        held = await store.acquire(f"process/{name}", "somebody", 60.0)
        assert isinstance(held, Held)
        await store.acquire(f"process/{name}", "somebody", 60.0, over=held.token)  # who takes it for dead
        await store.close()
        assert (await stream.finished()).ended
        other, address = await opened(place)
        assert not address.endswith(name)
        other.gone.set()
        await other.finished()


@pytest.mark.parametrize("query", ["session_id=x.0123456789abcdef", "session_id=x.", "session_id=", ""])
async def test_http_sse_post_for_unknown_stream_is_not_forwarded(pair: list[Place], query: str) -> None:
    assert (await post(pair[1], query, request("ping"))).status == 404


async def post(place: Place, query: str, body: Any) -> Answer:
    return await place.ask("POST", body, path=f"/messages?{query}")
