"""Session hijack: an attacker has the id of another client's session, or tries to guess one."""

import re
from typing import Any

from tests.attacks.attacked_server import AttackedServer, behind_uvicorn, listening, user
from tests.attacks.raw import Answer, Caller, ask, begin, initialize, request, text_of, tool, until

ALICE, MALLORY, NOBODY = {"x_user": "alice"}, {"x_user": "mallory"}, {}
NOT_FOUND = "session_not_found"


def kind(answer: Answer) -> Any:
    return answer.refusal["data"]["kind"]


async def called(port: int, session: str, what: str, **headers: Any) -> Answer:
    return await ask(port, "POST", "/mcp", tool("effect", what=what), mcp_session_id=session, **headers)


async def test_session_of_another_principal_is_not_found() -> None:
    async with behind_uvicorn(user) as place:
        session = await begin(place.port, **ALICE)
        for thief in (MALLORY, NOBODY):
            stolen = [
                await called(place.port, session, "stolen", **thief),
                await begun(place, "GET", session, **thief),
                await begun(place, "GET", session, last_event_id="0-0", **thief),
                await ask(place.port, "DELETE", mcp_session_id=session, **thief),
            ]
            assert [(answer.status, kind(answer)) for answer in stolen] == [(404, NOT_FOUND)] * 4
        assert place.done == []
        assert text_of((await called(place.port, session, "mine", **ALICE)).json) == "mine"


async def begun(place: AttackedServer, method: str, session: str, **headers: Any) -> Answer:
    """A response that must not become a stream, which would have no end."""
    async with Caller(place.port) as caller:
        caller.say(request(method, "/mcp", None, mcp_session_id=session, **headers))
        answer = await caller.head()
        assert answer.status != 200, f"{method} was let in"
        answer.body = await caller.exactly(int(answer.headers["content-length"]))
        return answer


async def test_events_of_another_principal_are_not_replayed() -> None:
    async with behind_uvicorn(user) as place:
        session = await begin(place.port, **ALICE)
        async with Caller(place.port) as alice:  # receives one event of two, and loses the connection
            alice.say(request("POST", "/mcp", tool("flood", size=10, times=1), mcp_session_id=session, **ALICE))
            assert (await alice.head()).status == 200
            assert [message async for message in alice.messages()][-1]["result"]["isError"] is False
        for thief in (MALLORY, NOBODY):
            answer = await begun(place, "GET", session, last_event_id="1-0", **thief)
            assert (answer.status, kind(answer)) == (404, NOT_FOUND)


async def test_events_of_another_session_are_not_replayed() -> None:
    async with behind_uvicorn(user) as place:
        first, second = await begin(place.port, **ALICE), await begin(place.port, **ALICE)
        async with Caller(place.port) as caller:
            caller.say(request("POST", "/mcp", tool("flood", size=10, times=1), mcp_session_id=first, **ALICE))
            assert (await caller.head()).status == 200
            assert len([message async for message in caller.messages()]) == 2
        async with Caller(place.port) as caller:
            caller.say(request("POST", "/mcp", tool("wait", who="x"), mcp_session_id=second, **ALICE))
            await until(lambda: place.started, "the call")
            answer = await begun(place, "GET", second, last_event_id="1-0", **ALICE)
            assert answer.status == 400


async def test_http_sse_token_is_bound_to_its_principal() -> None:
    async with behind_uvicorn(user) as place, Caller(place.port) as alice:
        alice.say(request("GET", "/sse", None, **ALICE))
        assert (await alice.head()).status == 200
        messages = alice.messages()
        path = await anext(messages)
        for thief in (MALLORY, NOBODY):
            stolen = await ask(place.port, "POST", path, initialize(), **thief)
            assert (stolen.status, kind(stolen)) == (404, NOT_FOUND)
        assert (await ask(place.port, "POST", path, initialize(), **ALICE)).status == 202
        assert "result" in await anext(messages)


async def test_expiry_is_reported_only_to_the_principal() -> None:
    async with behind_uvicorn(user, session_ttl=100.0, session_sweep=10.0) as place:
        session = await begin(place.port, **ALICE)
        place.clock.advance(200)
        assert kind(await called(place.port, session, "x", **MALLORY)) == NOT_FOUND
        assert kind(await called(place.port, session, "x", **ALICE)) == "session_expired"


async def test_session_ids_are_unpredictable() -> None:
    async with listening() as place:
        known = [await begin(place.port) for _ in range(20)]
        assert all(re.fullmatch(r"[\x21-\x7e]{32,}", session) for session in known)
        assert len({session[place_] for session in known for place_ in range(32)}) > 32, "each place has few letters"
        for session in known[:3]:
            near = [
                session[:-1],
                session + "A",
                session.swapcase(),
                f" {session[1:]}",
                session[::-1],
                "*",
                "%",
                "0",
                "1",
            ]
            for guess in near:
                answer = await called(place.port, guess, "guessed")
                assert (answer.status, kind(answer)) == (404, NOT_FOUND), guess
    assert place.done == []
