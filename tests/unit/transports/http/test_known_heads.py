"""Requests that repeat the head of an earlier one on their connection: only what the head alone decides is reused."""

from collections.abc import Collection
from typing import Any

import pytest
from tests.attacks.attacked_server import listening, protected
from tests.attacks.raw import Answer, Caller, call, request
from tests.modern import meta

from trunkline.auth.principal import Principal
from trunkline.auth.server.verifiers import BadToken, Verified, Verifier

TOKEN = "a-token-that-can-be-revoked"
MODERN = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/list"}


class Revocable(Verifier):
    """Accepts one token until it is revoked."""

    def __init__(self) -> None:
        self.revoked = False

    def verify(self, token: str, audiences: Collection[str], now: float) -> Verified:
        if self.revoked or token != TOKEN:
            raise BadToken("revoked", "invalid_credentials")
        return Verified(Principal("ada"))


def listing(**more: Any) -> bytes:
    return request("POST", "/mcp", call("tools/list", {"_meta": meta()}, ident=1), **MODERN, **more)


async def send(caller: Caller, data: bytes) -> Answer:
    caller.say(data)
    return await caller.answer("POST")


async def test_each_request_is_authenticated() -> None:
    verifier = Revocable()
    async with protected(verifier) as place, Caller(place.port) as caller:
        asked = listing(authorization=f"Bearer {TOKEN}")
        assert [(await send(caller, asked)).status for _ in range(4)] == [200] * 4
        verifier.revoked = True
        verifier.generation += 1
        assert (await send(caller, asked)).status == 401


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "evil.host"}, 403),  # of the same size
        ({"origin": "https://evil.example"}, 403),
        ({"accept": "text/html"}, 406),
        ({"content_type": "text/plain"}, 415),
        ({"mcp_method": "tools/call"}, 400),
    ],
)
async def test_changed_header_is_checked(change: dict[str, str], status: int) -> None:
    async with listening() as place, Caller(place.port) as caller:
        assert [(await send(caller, listing())).status for _ in range(3)] == [200] * 3
        changed = request("POST", "/mcp", call("tools/list", {"_meta": meta()}, ident=1), **(MODERN | change))
        assert (await send(caller, changed)).status == status


async def test_body_of_each_request_is_limited() -> None:
    async with listening(http_body_size_limit=1024) as place, Caller(place.port) as caller:
        assert [(await send(caller, listing())).status for _ in range(3)] == [200] * 3
        large = call("tools/list", {"_meta": meta(), "padding": "x" * 1024}, ident=1)
        assert (await send(caller, request("POST", "/mcp", large, **MODERN))).status == 413


async def test_responses_follow_their_own_requests() -> None:
    async with listening() as place, Caller(place.port) as caller:
        for ident in (1, 2, 10, 11, 100):
            asked = call("tools/list", {"_meta": meta()}, ident=ident)
            answer = await send(caller, request("POST", "/mcp", asked, **MODERN))
            assert (answer.status, answer.json["id"]) == (200, ident)
