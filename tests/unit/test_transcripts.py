"""The transcript check finds invalid messages, in either era."""

import json
from typing import Any

import pytest
from tests.transcripts import check_transcript

from trunkline.protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION, SERVER_INFO, SUBSCRIPTION_ID

ENVELOPE = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}}
CLIENT_INFO = {"name": "n", "version": "1"}
INITIALIZED = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": CLIENT_INFO}


def said(*messages: tuple[str, dict[str, Any]]) -> list[tuple[str, bytes]]:
    return [(who, json.dumps({"jsonrpc": "2.0", **message}).encode()) for who, message in messages]


def asked(method: str, ident: Any = 1, /, *, modern: bool = True, **params: Any) -> tuple[str, dict[str, Any]]:
    meta = {"_meta": {**ENVELOPE, **params.pop("_meta", {})}} if modern else {}
    return "client", {"id": ident, "method": method, "params": {**params, **meta}}


def answered(ident: Any = 1, **result: Any) -> tuple[str, dict[str, Any]]:
    return "server", {"id": ident, "result": result}


def told(method: str, **params: Any) -> tuple[str, dict[str, Any]]:
    return "server", {"method": method, "params": params}


HANDSHAKE = (
    asked("initialize", 0, modern=False, protocolVersion="2025-11-25", capabilities={}, clientInfo=CLIENT_INFO),
    answered(0, **INITIALIZED),
)
LISTED = {
    "resultType": "complete",
    "tools": [],
    "ttlMs": 0,
    "cacheScope": "private",
    "_meta": {SERVER_INFO: CLIENT_INFO},
}


@pytest.mark.parametrize(
    ("line", "side"),
    [
        ([asked("tools/list"), answered(**LISTED)], "server"),
        ([*HANDSHAKE, asked("tools/list"), answered(**LISTED)], "server"),
        ([*HANDSHAKE, asked("tools/list", modern=False), answered(tools=[])], "server"),
        ([asked("server/discover", "probe"), *HANDSHAKE, asked("ping", modern=False)], "client"),
        ([asked("tools/call", name="a"), answered(resultType="input_required", requestState="s")], "server"),
        (
            [
                asked("subscriptions/listen", notifications={}),
                told("notifications/subscriptions/acknowledged", notifications={}, _meta={SUBSCRIPTION_ID: 1}),
                told("notifications/tools/list_changed", _meta={SUBSCRIPTION_ID: 1}),
                answered(resultType="complete", _meta={SUBSCRIPTION_ID: 1}),
            ],
            "server",
        ),
        (
            [
                asked("tools/call", name="a", _meta={"progressToken": "t"}),
                told("notifications/progress", progressToken="t", progress=1),
                ("client", {"method": "notifications/cancelled", "params": {"requestId": 1}}),
            ],
            "client",
        ),
    ],
)
def test_message_valid_in_its_revision_passes(line: list[Any], side: Any) -> None:
    check_transcript(said(*line), side)


@pytest.mark.parametrize(
    ("line", "side", "why"),
    [
        ([asked("tools/list"), answered(tools=[])], "server", "not valid in 2026-07-28.*resultType"),
        ([*HANDSHAKE, asked("tools/list"), answered(tools=[])], "server", "not valid in 2026-07-28"),
        ([asked("tools/call", name="a"), answered(resultType="input_required")], "server", "does not say which"),
        ([asked("tools/list"), ("server", {"id": 9, "method": "roots/list"})], "server", "never sends the request"),
        ([asked("ping")], "client", "a client never sends the request ping"),
        ([asked("tools/list"), asked("ping", 2, modern=False)], "client", "never sends the request ping"),
        (
            [
                asked("subscriptions/listen", notifications={}),
                told("notifications/subscriptions/acknowledged", notifications=5, _meta={SUBSCRIPTION_ID: 1}),
            ],
            "server",
            "not valid in 2026-07-28",
        ),
        ([*HANDSHAKE, told("notifications/subscriptions/acknowledged", notifications={})], "server", "2025-11-25"),
        ([*HANDSHAKE, asked("server/discover", modern=False)], "client", "not valid in 2025-11-25"),
    ],
)
def test_message_invalid_in_its_revision_fails(line: list[Any], side: Any, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        check_transcript(said(*line), side)
