"""Which era a server speaks: judged by what it answers, on a line of any kind."""

import asyncio
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Server, Settings
from trunkline.client.era_probe import EraVerdict, classify_error, classify_result, supported_revisions
from trunkline.errors import HandshakeFailed, PeerError
from trunkline.facts import CallStarted
from trunkline.protocol.client_envelope import PROBE_ID
from trunkline.protocol.revisions import HANDSHAKE, Revision
from trunkline.protocol.types import DiscoverResult
from trunkline.testing import ScriptedServer

ALL = tuple(Revision)
MODERN = "2026-07-28"


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ([MODERN], EraVerdict.MODERN),
        (["2031-01-01", MODERN, "2025-11-25"], EraVerdict.MODERN),
        (["2025-11-25"], EraVerdict.HANDSHAKE),
        ([], EraVerdict.HANDSHAKE),
    ],
)
def test_listed_revisions_decide_the_era(told: list[str], verdict: EraVerdict) -> None:
    assert classify_result(DiscoverResult(supported_versions=told, capabilities={}), ALL) is verdict


def test_no_common_revision_fails_the_handshake() -> None:
    with pytest.raises(HandshakeFailed, match="the server supports 2031-01-01, and the client supports"):
        classify_result(DiscoverResult(supported_versions=["2031-01-01"], capabilities={}), ALL)
    with pytest.raises(HandshakeFailed):
        classify_result(DiscoverResult(supported_versions=[MODERN], capabilities={}), HANDSHAKE)


@pytest.mark.parametrize(
    ("code", "data", "verdict"),
    [
        (-32601, None, EraVerdict.HANDSHAKE),
        (-32600, {"supported": [MODERN]}, EraVerdict.HANDSHAKE),
        (-32022, {"supported": [MODERN]}, EraVerdict.RETRY),
        (-32022, {"supported": ["2025-06-18"]}, EraVerdict.HANDSHAKE),
        (-32022, {"supported": "all"}, EraVerdict.HANDSHAKE),
        (-32022, {"supported": [5]}, EraVerdict.HANDSHAKE),
        (-32022, None, EraVerdict.HANDSHAKE),
        (-32000, {"kind": "http_error", "status": 404}, EraVerdict.HANDSHAKE),
        (-32000, {"kind": "http_error", "status": 500}, EraVerdict.HANDSHAKE),
        (-32000, {"kind": "http_error", "status": "x"}, EraVerdict.HANDSHAKE),
        (-32000, {"kind": "other", "status": 500}, EraVerdict.HANDSHAKE),
    ],
)
def test_error_code_and_named_revisions_decide_the_era(code: int, data: Any, verdict: EraVerdict) -> None:
    assert classify_error(PeerError(code, "no", data), ALL) is verdict


@pytest.mark.parametrize(
    ("code", "data"),
    [
        (-32020, None),
        (-32021, None),
        (-32022, {"supported": ["2031-01-01"]}),
        (-32000, {"kind": "http_error", "status": 401}),
        (-32000, {"kind": "http_error", "status": 503}),
    ],
)
def test_some_errors_fail_the_handshake(code: int, data: Any) -> None:
    with pytest.raises(HandshakeFailed):
        classify_error(PeerError(code, "no", data), ALL)


def test_supported_revisions_are_read_from_error_data() -> None:
    assert supported_revisions(PeerError(1, "no", {"supported": ["a", 5]})) == {"a"}
    assert supported_revisions(PeerError(1, "no", ["supported"])) == set()


# --- on a line -------------------------------------------------------------------------------------------


def by_hand() -> ScriptedServer:
    return ScriptedServer(
        modern=True, answered=["subscriptions/listen", "initialize", "ping"], capabilities={"tools": {}}
    )


def methods(server: ScriptedServer) -> list[str]:
    return [message["method"] for message in server.line.transcript.said_by("client")]


async def opened(server: ScriptedServer, *answers: Any, **options: Any) -> Client:
    """A client whose questions are answered in turn, by a result or by an error; None: not at all."""
    client = Client(server, **options)
    opening = asyncio.create_task(client.open())
    line = await server.connected(1)
    for answer in answers:
        request = await line.request("server/discover")
        if isinstance(answer, PeerError):
            line.error(request, answer.code, answer.message, answer.data)
        elif answer is not None:
            line.reply(request, answer)
    return await opening


DISCOVERED = {"resultType": "complete", "supportedVersions": [MODERN], "capabilities": {"tools": {}}}


async def test_modern_server_gets_no_initialize() -> None:
    server = by_hand()
    client = await opened(server, DISCOVERED | {"instructions": "be kind"})
    assert (client.revision, client.instructions) == (MODERN, "be kind")
    await client.close()
    assert methods(server) == ["server/discover"]


@pytest.mark.row("VER-06")
async def test_server_naming_our_revision_is_probed_again() -> None:
    server = by_hand()
    client = await opened(server, PeerError(-32022, "no", {"supported": [MODERN]}), DISCOVERED)
    assert client.revision == MODERN
    await client.close()
    assert methods(server) == ["server/discover"] * 2


@pytest.mark.parametrize(
    "answer",
    [
        PeerError(-32601, "what?"),
        PeerError(-32022, "no", {"supported": ["2025-11-25"]}),
        {"supportedVersions": ["2025-11-25"], "capabilities": {}},
        {"hello": 1},
        [],
    ],
)
async def test_any_other_response_leads_to_initialize(answer: Any) -> None:
    server = by_hand()
    client = await opened(server, answer)
    assert client.revision == "2025-11-25"
    await client.close()
    assert methods(server) == ["server/discover", "initialize", "notifications/initialized"]


async def test_probe_timeout_leads_to_initialize() -> None:
    server = by_hand()
    client = await opened(server, None, settings=Settings(probe_timeout=0.02))
    server.line.send({"jsonrpc": "2.0", "id": "probe", "result": DISCOVERED})
    await client.ping()
    assert client.revision == "2025-11-25"
    await client.close()


async def test_handshake_only_client_does_not_probe() -> None:
    server = by_hand()
    async with Client(server, revision="2025-11-25") as client:
        assert client.revision == "2025-11-25"
    assert methods(server) == ["initialize", "notifications/initialized"]


async def test_refusing_modern_server_gets_no_initialize() -> None:
    server = by_hand()
    with pytest.raises(HandshakeFailed, match="refuses server/discover"):
        await opened(server, PeerError(-32021, "needs sampling", {"requiredCapabilities": {"sampling": {}}}))
    assert methods(server) == ["server/discover"]


async def test_idle_modern_server_is_pinged_by_discover() -> None:
    asked = asyncio.Event()

    class Watching:
        immediate = True

        def on(self, fact: Any) -> None:
            if isinstance(fact, CallStarted) and fact.method == "server/discover" and fact.request != PROBE_ID:
                asked.set()

    server = Server("quiet", observers=[Watching()])
    listener = await server.listen("tcp://127.0.0.1:0")
    async with (
        Client(listener.address, settings=Settings(keepalive_interval=0.02)) as client,
        asyncio.timeout(PATIENCE),
    ):
        await asked.wait()
        assert (client.revision, client.losses) == (MODERN, 0)
    await server.aclose()
