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


# --- requests that differ in their ids and arguments only ------------------------------------------


def calling(tool: str = "effect", /, ident: int = 1, name: str | None = None, **arguments: Any) -> bytes:
    """A call of a tool; `name` is the one in the body."""
    params = {"name": name or tool, "arguments": arguments, "_meta": meta()}
    headers = MODERN | {"mcp_method": "tools/call", "mcp_name": tool}
    return request("POST", "/mcp", call("tools/call", params, ident=ident), **headers)


async def test_repeated_calls_have_their_own_ids_and_arguments() -> None:
    async with listening() as place, Caller(place.port) as caller:
        for ident in (1, 2, 3, 4, 50, 600, 7, 8):
            tool, name = ("effect", "what") if ident % 2 else ("much", "size")
            value: Any = f"effect {ident}" if ident % 2 else ident
            answer = await send(caller, calling(tool, ident, **{name: value}))
            text = value if ident % 2 else "x" * ident
            assert (answer.json["id"], answer.json["result"]["content"][0]["text"]) == (ident, text)


@pytest.mark.parametrize(
    ("part", "other", "status", "code"),
    [
        (b'{"what": "x"}', b'{"what": "x", "what": "y"}', 400, -32600),
        (b'{"what": "x"}', b'{"what": "x"', 400, -32700),
        (b'{"what": "x"}', b'{"what": "\xff"}', 400, -32700),
        (b'{"what": "x"}', b'{}, "name": "wait"', 400, -32600),
        (b'"name": "effect"', b'"name": "wait"', 400, -32020),
        (b'"id": 9', b'"id": 09', 400, -32700),
        (b'"id": 9', b'"id": null', 400, -32600),
        (b'"2.0"', b'"2.1"', 400, -32600),
        (b"protocolVersion", b"protocolversion", 400, -32602),
        (b'": "2026-07-28"', b'": "2025-11-25"', 400, -32020),
        (b"tools/call", b"tools/list", 400, -32020),
        (b'{"what": "x"}', b'{"what": 5}', 200, None),  # a failed result
    ],
)
async def test_body_of_each_call_is_checked(part: bytes, other: bytes, status: int, code: int | None) -> None:
    async with listening() as place, Caller(place.port) as caller:
        for ident in range(4):
            assert (await send(caller, calling(ident=ident, what="x"))).status == 200
        head, _, body = calling(ident=9, what="x").partition(b"\r\n\r\n")
        assert body.count(part) == 1
        changed = body.replace(part, other)
        length = b"content-length: %d"
        answer = await send(caller, head.replace(length % len(body), length % len(changed)) + b"\r\n\r\n" + changed)
        assert (answer.status, answer.json.get("error", {}).get("code")) == (status, code)
        assert place.done == ["x"] * 4
        assert (await send(caller, calling(what="y"))).status == 200


async def test_tools_may_go_while_a_client_repeats_its_call() -> None:
    async with listening() as place, Caller(place.port) as caller:
        for ident in range(4):
            assert (await send(caller, calling(ident=ident, what="x"))).status == 200
        place.server.tools.remove("effect")
        assert (await send(caller, calling(what="x"))).json["error"]["code"] == -32602
        for entry in list(place.server.tools):
            place.server.tools.remove(entry.name)
        answer = await send(caller, calling(what="x"))
        assert (answer.status, answer.json["error"]["code"]) == (404, -32601)


async def test_many_heads_in_turn_are_answered() -> None:
    async with listening() as place, Caller(place.port) as caller:
        for ident in range(30):
            answer = await send(caller, calling(f"tool-{ident % 7}", ident, name="other" if ident % 5 == 4 else None))
            assert answer.json["id"] == ident
            assert answer.json["error"]["code"] == (-32020 if ident % 5 == 4 else -32602)
