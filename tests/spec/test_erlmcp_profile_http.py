"""Errors of the HTTP layer under the profile `compat="erlmcp"`: founding numbers, with the statuses of the specification."""

from typing import Any

import pytest
from tests.founding import FEATURES, REQUESTED
from tests.spec.test_http_routes import own_connections, under_asgi
from tests.unit.transports.http.asgi import Host, hosted, request

from trunkline import Server, Settings
from trunkline.auth import Principal, ResourceServer, StaticTokens
from trunkline.testing import ManualClock

pytestmark = pytest.mark.off_the_record  # the profile sends codes that no schema has

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


def initialize(capabilities: Any = FEATURES) -> dict[str, Any]:
    info = {"name": "t", "version": "1"}
    return request("initialize", {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info})


async def begin_session(host: Host, capabilities: Any) -> str:
    begun = await host.ask("POST", initialize(capabilities))
    assert begun.status == 200
    ident = begun.headers["mcp-session-id"]
    await host.ask("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, mcp_session_id=ident)
    return ident


@pytest.mark.row("E32051e", "E32053e")
@pytest.mark.parametrize("serving", [own_connections, under_asgi])
async def test_status_and_challenge_are_those_of_the_specification(serving: Any) -> None:
    replies: dict[Any, Any] = {}
    for compat in (None, "erlmcp"):
        auth = ResourceServer(StaticTokens({"known": Principal("ada")}))
        async with serving(Server("t", auth=auth, compat=compat, observers=[])) as site:
            for token in (None, "unknown"):
                refused = await site.ask("POST", "/mcp", json=initialize(), headers=ACCEPT, token=token)
                challenge = refused.headers["www-authenticate"].replace(site.base, "")
                replies[compat, token] = (refused.status, challenge, refused.json["error"]["code"])
    for token, number in ((None, -32051), ("unknown", -32053)):
        status, challenge, code = replies[None, token]
        assert (status, code) == (401, -32600)
        assert replies["erlmcp", token] == (status, challenge, number)


@pytest.mark.row("E32019e", "E32020e")
async def test_session_that_requested_the_profile_has_founding_numbers() -> None:
    async with hosted(Server("t", observers=[])) as host:
        asked, other = await begin_session(host, REQUESTED), await begin_session(host, FEATURES)
        for ident, codes in ((asked, (-32019, -32020)), (other, (-32600, -32600)), (None, (-32600, -32600))):
            media = await host.ask("POST", request("ping"), mcp_session_id=ident, content_type="text/plain")
            accept = await host.ask("POST", request("ping"), mcp_session_id=ident, accept="image/png")
            assert (media.status, accept.status) == (415, 406)
            assert (media.json["error"]["code"], accept.json["error"]["code"]) == codes


async def test_modern_request_has_no_founding_numbers() -> None:
    async with hosted(Server("t", compat="erlmcp", observers=[])) as host:
        for version, code in (("2026-07-28", -32600), ("2025-11-25", -32019), (None, -32019)):
            refused = await host.ask("POST", "{}", content_type="text/plain", mcp_protocol_version=version)
            assert (refused.status, refused.json["error"]["code"]) == (415, code)


async def test_server_without_sessions_has_founding_numbers() -> None:
    for compat, code in ((None, -32600), ("erlmcp", -32019)):
        server = Server("t", compat=compat, settings=Settings(http_sessions=False), observers=[])
        async with hosted(server) as host:
            refused = await host.ask("POST", "{}", content_type="text/plain", mcp_session_id="any")
            assert refused.json["error"]["code"] == code


@pytest.mark.row("E32010e", "Q02")
@pytest.mark.parametrize("serving", [own_connections, under_asgi])
async def test_request_above_the_http_rate_has_the_founding_number(serving: Any) -> None:
    server = Server("t", compat="erlmcp", settings=Settings(http_rate="1/min"), clock=ManualClock(), observers=[])
    async with serving(server) as site:
        assert (await site.ask("POST", "/mcp", json=initialize(), headers=ACCEPT)).status == 200
        refused = await site.ask("POST", "/mcp", json=initialize(), headers=ACCEPT)
    assert (refused.status, refused.headers["retry-after"]) == (429, "60")
    error = refused.json["error"]
    assert (error["code"], error["data"]["kind"]) == (-32010, "rate_limit_exceeded")
    assert (error["data"]["retryAfterMs"], error["data"]["refusal"]["code"]) == (60_000, 1003)
