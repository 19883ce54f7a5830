"""Sessions and subscriptions that are never used: they expire early, and never lock out other clients."""

import asyncio
from typing import Any

import pytest
from tests.attacks.attacked_server import AttackedServer, behind_uvicorn, listening, user
from tests.attacks.raw import INITIALIZED, Answer, Caller, ask, call, initialize, request, until

from trunkline import Server, Settings
from trunkline.client_address import address_group
from trunkline.testing import RawPeer
from trunkline.transports.http.session.sessions import Stage, next_stage
from trunkline.wire.messages import Batch, Notification, Request

FEW: dict[str, Any] = {"max_sessions": 3, "max_sessions_per_principal": 3}


async def open_session(place: AttackedServer, **headers: str) -> str:
    answer = await ask(place.port, "POST", "/mcp", initialize(), **headers)
    assert answer.status == 200, answer.body
    return answer.session


async def confirm(place: AttackedServer, session: str, **headers: str) -> None:
    assert (await ask(place.port, "POST", "/mcp", INITIALIZED, mcp_session_id=session, **headers)).status == 202


async def ping(place: AttackedServer, session: str, **headers: str) -> Answer:
    return await ask(place.port, "POST", "/mcp", call("ping"), mcp_session_id=session, **headers)


async def use(place: AttackedServer, **headers: str) -> str:
    """A session that is in use."""
    session = await open_session(place, **headers)
    await confirm(place, session, **headers)
    assert (await ping(place, session, **headers)).status == 200
    return session


# --- expiry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("confirmed", "seconds"), [(False, 30.0), (True, 300.0)])
async def test_unused_session_expires_early(*, confirmed: bool, seconds: float) -> None:
    settings = {"session_confirm_timeout": 30.0, "session_unused_ttl": 300.0, "session_sweep": 1.0}
    async with listening(**settings) as place:
        used, unused = await use(place), await open_session(place)
        if confirmed:
            await confirm(place, unused)
        place.clock.advance(seconds - 5)
        assert len(place.server.connections) == 2
        place.clock.advance(10)
        await until(lambda: len(place.server.connections) == 1, "the end of the session")
        refused = await ping(place, unused)
        assert refused.status == 404
        assert refused.refusal["data"]["kind"] == "session_expired"
        assert (await ping(place, used)).status == 200


async def test_session_with_an_open_stream_does_not_expire_early() -> None:
    async with listening(session_confirm_timeout=30.0, session_sweep=1.0) as place, Caller(place.port) as caller:
        session = await open_session(place)
        caller.say(request("GET", "/mcp", None, mcp_session_id=session))
        assert (await caller.head()).status == 200
        for _ in range(5):
            place.clock.advance(20)
        assert (await ping(place, session)).status == 200


async def test_sessions_without_early_limits_expire_like_others() -> None:
    settings = {"session_confirm_timeout": None, "session_unused_ttl": None, "session_sweep": 1.0}
    async with listening(**settings) as place:
        session = await open_session(place)
        place.clock.advance(3000)
        assert (await ping(place, session)).status == 200


def test_stage_of_a_session_follows_its_messages() -> None:
    initialized, request = Notification("notifications/initialized"), Request(1, "ping")
    assert next_stage(Stage.OPENED, request) is Stage.OPENED
    assert next_stage(Stage.OPENED, None) is Stage.OPENED
    assert next_stage(Stage.OPENED, initialized) is Stage.CONFIRMED
    assert next_stage(Stage.OPENED, Batch((request, initialized))) is Stage.CONFIRMED
    assert next_stage(Stage.CONFIRMED, request) is Stage.USED
    assert next_stage(Stage.CONFIRMED, None) is Stage.USED


# --- capacity ----------------------------------------------------------------------------------------


async def test_unused_sessions_are_evicted_before_used_ones() -> None:
    async with listening(**FEW) as place:
        used = await use(place)
        confirmed, unused = await open_session(place), await open_session(place)
        await confirm(place, confirmed)
        newcomer = await open_session(place)  # replaces the one without a complete handshake
        assert (await ping(place, unused)).status == 404
        await confirm(place, newcomer)
        assert (await ping(place, newcomer)).status == 200
        another = await open_session(place)  # replaces the one that was only initialized
        assert (await ping(place, confirmed)).status == 404
        for session in (used, newcomer, another):
            assert (await ping(place, session)).status == 200


async def test_new_session_is_refused_when_all_are_in_use() -> None:
    async with listening(**FEW) as place:
        for _ in range(3):
            await use(place)
        refused = await ask(place.port, "POST", "/mcp", initialize())
        assert refused.status == 503
        assert refused.refusal["data"]["kind"] == "too_many_sessions"


async def test_principal_evicts_only_its_own_sessions() -> None:
    ann, bob = {"x_user": "ann"}, {"x_user": "bob"}
    async with behind_uvicorn(user, max_sessions_per_principal=2) as place:
        other = await open_session(place, **bob)
        first, second = await open_session(place, **ann), await use(place, **ann)
        third = await open_session(place, **ann)
        assert (await ping(place, first, **ann)).status == 404
        for session, headers in ((second, ann), (third, ann), (other, bob)):
            assert (await ping(place, session, **headers)).status == 200


async def test_address_limit_applies_behind_a_trusted_proxy() -> None:
    settings = {"max_sessions_per_address": 2, "trusted_proxies": ("127.0.0.1",)}
    async with listening(**settings) as place:
        for _ in range(2):
            await use(place, x_forwarded_for="192.0.2.1")
        refused = await ask(place.port, "POST", "/mcp", initialize(), x_forwarded_for="192.0.2.1")
        assert refused.status == 503
        assert "max_sessions_per_address" in refused.refusal["message"]
        await use(place, x_forwarded_for="192.0.2.2")


def test_ipv6_clients_are_counted_by_their_network() -> None:
    assert address_group("2001:db8::1") == address_group("2001:db8::ffff") == "2001:db8::/64"
    assert address_group("2001:db8:0:1::1") != address_group("2001:db8::1")
    assert address_group("fe80::1%eth0") == "fe80::/64"
    assert address_group("192.0.2.1") == "192.0.2.1"
    assert address_group("no:address") == "no:address"


async def flooded(place: AttackedServer, times: int) -> None:
    for _ in range(times):
        await open_session(place)


async def test_abandoned_handshakes_do_not_block_clients() -> None:
    async with listening(max_sessions=20) as place:
        session = await use(place)
        await flooded(place, 60)
        assert len(place.server.connections) == 20
        assert (await ping(place, session)).status == 200
        assert (await ping(place, await use(place))).status == 200


@pytest.mark.long
async def test_ten_thousand_abandoned_handshakes_do_not_block_clients() -> None:
    async with listening() as place:
        session = await use(place)
        await flooded(place, 10_100)
        assert (await ping(place, session)).status == 200
        assert (await ping(place, await use(place))).status == 200


# --- subscriptions -----------------------------------------------------------------------------------


def subscribing(most: int) -> Server:
    server = Server("t", settings=Settings(max_subscriptions=most))

    @server.resource("note:{name}")
    def note(name: str) -> str:
        return name

    return server


async def test_subscriptions_of_a_connection_are_limited() -> None:
    server = subscribing(3)
    async with RawPeer(server) as peer, RawPeer(server) as other:
        await peer.initialize()
        await other.initialize()
        for number in (1, 2, 3, 3):  # a duplicate counts once
            await peer.result("resources/subscribe", {"uri": f"note:{number}"})
        refused = await peer.error("resources/subscribe", {"uri": "note:4"})
        assert refused["data"]["kind"] == "maximum_subscriptions_exceeded"
        assert refused["data"]["maximum"] == 3
        assert "max_subscriptions" in refused["message"]
        await other.result("resources/subscribe", {"uri": "note:4"})
        await peer.result("resources/unsubscribe", {"uri": "note:1"})
        await peer.result("resources/subscribe", {"uri": "note:4"})


async def test_concurrent_subscriptions_respect_the_limit() -> None:
    server = subscribing(3)
    begun: list[str] = []
    ended: list[str] = []

    @server.on_first_subscriber
    async def watch(uri: str) -> None:
        begun.append(uri)
        await asyncio.sleep(0)

    @server.on_last_unsubscribed
    async def stop(uri: str) -> None:
        ended.append(uri)

    async with RawPeer(server) as peer:
        await peer.initialize()
        for number in range(6):
            peer.send(call("resources/subscribe", {"uri": f"note:{number}"}))
        answers = [await peer.receive() for _ in range(6)]
        assert sum("result" in answer for answer in answers) == 3
        assert len(begun) - len(ended) == 3
