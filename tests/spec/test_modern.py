"""Revision 2026-07-28 on one connection: what handlers see, and which notifications a client receives."""

import logging
from typing import Annotated, Any

import pytest
from msgspec import Meta
from pydantic import Field
from tests.modern import EVERYTHING, PREFIX, enveloped, meta, refused, result
from tests.unit.transports.http.asgi import hosted

from trunkline import Context, ResourceNotFound, Server, ToolError
from trunkline.errors import RegistrationError
from trunkline.facts import CallEnded
from trunkline.testing import RawPeer, RecordingObserver

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def said(answer: Any) -> str:
    return answer["content"][0]["text"]


async def test_handler_context_comes_from_the_request_only() -> None:
    server = Server("s")

    @server.tool
    async def see(ctx: Context) -> str:
        name = ctx.client.info.name if ctx.client.info else None
        return f"{ctx.revision} {name} {dict(ctx.client.capabilities)} {dict(ctx.trace)} {ctx.request_id}"

    async with RawPeer(server) as peer:
        await peer.initialize("2025-06-18", {"roots": {}})
        params = {"name": "see", "_meta": meta({"sampling": {}}, traceparent=TRACEPARENT)}
        answer = await peer.request("tools/call", params, id="a")
        expected = f"2026-07-28 by hand {{'sampling': {{}}}} {{'traceparent': '{TRACEPARENT}'}} a"
        assert said(answer["result"]) == expected
        assert said(await peer.result("tools/call", {"name": "see"})).startswith("2025-06-18 raw peer {'roots': {}} {}")


async def test_modern_http_has_no_session_id() -> None:
    server = Server("s")

    @server.tool(structured=False)
    async def number(ctx: Context) -> str:
        return str(ctx.session_id)

    async with hosted(server) as host:
        assert said(await result(host, "tools/call", {"name": "number", "_meta": meta()})) == "None"
    async with RawPeer(server) as peer:
        assert said(await peer.result("tools/call", enveloped(name="number"))).isdigit()


@pytest.mark.parametrize(("wanted", "heard"), [(None, []), ("debug", ["info", "error"]), ("warning", ["error"])])
async def test_log_messages_follow_the_requested_level(wanted: str | None, heard: list[str]) -> None:
    server = Server("s")
    logger = logging.getLogger("tests.spec.modern")
    handler = server.forward_logs(logger.name)

    @server.tool
    async def log(ctx: Context) -> None:
        await ctx.info("one")
        await ctx.error("two")

    @server.tool
    async def forwarded() -> None:
        logger.info("one")
        logger.error("two")

    try:
        async with RawPeer(server) as peer:
            level = {} if wanted is None else {f"{PREFIX}logLevel": wanted}
            for name in ("log", "forwarded"):
                await peer.result("tools/call", {"name": name, "_meta": meta(**level)})
                assert [message["params"]["level"] for message in peer.waiting()] == heard
    finally:
        logger.removeHandler(handler)


async def test_progress_uses_the_token_of_the_request() -> None:
    server = Server("s")

    @server.tool
    async def work(ctx: Context) -> None:
        await ctx.progress(1, 2, "half")

    async with RawPeer(server) as peer:
        await peer.result("tools/call", {"name": "work", "_meta": meta(progressToken="t")})
        [told] = peer.waiting()
        assert told["params"] == {"progressToken": "t", "progress": 1, "total": 2, "message": "half"}


@pytest.mark.parametrize(
    ("value", "kind"), [(3, int), ([1], list[int]), ("x", str), (None, int | None), ({"a": 1}, dict[str, int])]
)
async def test_plain_result_is_wrapped_for_older_clients_only(value: Any, kind: Any) -> None:
    server = Server("s")

    async def give() -> Any:
        return value

    give.__annotations__["return"] = kind
    server.add_tool(give)
    async with RawPeer(server) as peer:
        await peer.initialize()
        modern = await peer.result("tools/call", enveloped(name="give"))
        older = await peer.result("tools/call", {"name": "give"})
        assert modern.get("structuredContent") == value
        assert older["structuredContent"] == (value if isinstance(value, dict) else {"result": value})
        schemas = [
            (await peer.result("tools/list", params))["tools"][0]["outputSchema"] for params in (enveloped(), {})
        ]
        assert schemas[1]["type"] == "object"
        assert (schemas[0] == schemas[1]) is isinstance(value, dict)


async def test_removed_error_codes_are_never_sent() -> None:
    server = Server("s")

    @server.resource("x:{name}")
    async def read(name: str) -> str:
        raise ResourceNotFound(f"x:{name}")

    async with RawPeer(server) as peer:
        await peer.initialize()
        for uri in ("x:a", "y:b"):
            modern = await peer.error("resources/read", enveloped(uri=uri))
            assert (modern["code"], modern["data"]["uri"]) == (-32602, uri)
            assert (await peer.error("resources/read", {"uri": uri}))["code"] == -32002


async def test_outcomes_are_observed_and_have_error_kinds() -> None:
    observer = RecordingObserver()
    server = Server("s", observers=[observer])

    @server.tool(structured=False)
    async def give(what: str) -> Any:
        if what == "failure":
            raise ToolError("no")
        if what == "fault":
            raise RuntimeError("secret")
        return {object()} if what == "nonsense" else "good"

    async with RawPeer(server) as peer:
        for what in ("good", "failure", "fault", "nonsense"):
            told = await peer.result("tools/call", enveloped(name="give", arguments={"what": what}))
            assert (told["resultType"], told["isError"]) == ("complete", what != "good")
            assert f"{PREFIX}serverInfo" in told["_meta"]
            assert "secret" not in str(told)
        assert (await peer.error("tools/call", enveloped(name="none")))["code"] == -32602
    outcomes = [fact.outcome for fact in observer.facts if isinstance(fact, CallEnded)]
    assert outcomes == ["ok", "failed", "failed", "failed", "error"]


async def test_unencodable_result_fails_in_each_era() -> None:
    server = Server("s")

    @server.middleware
    async def spoil(call: Any, following: Any) -> Any:
        result = await following(call)
        result.meta = {"own/key": object()}
        return result

    @server.tool
    async def give() -> int:
        return 1

    server.add_resource("x:a", "text")
    async with RawPeer(server) as peer:
        error = await peer.error("resources/read", enveloped(uri="x:a"))
        assert error["code"] == -32603
        told = await peer.result("tools/call", enveloped(name="give"))
        assert (told["resultType"], told["isError"]) == ("complete", True)
        assert (await peer.result("resources/list", enveloped()))["resultType"] == "complete"


async def test_handshake_features_do_not_affect_modern_requests() -> None:
    server = Server("s")

    @server.tool
    async def old(ctx: Context) -> str:
        ctx.close_stream()
        await ctx.elicitation_complete("x")
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=EVERYTHING)
        assert said(await peer.result("tools/call", enveloped(EVERYTHING, name="old"))) == "done"
        assert peer.waiting() == []
    async with hosted(server) as host:
        assert said(await result(host, "tools/call", {"name": "old", "_meta": meta()})) == "done"


def test_asks_option_must_be_a_list() -> None:
    async def tool() -> None: ...

    with pytest.raises(RegistrationError, match="asks"):
        Server("s").add_tool(tool, asks="sampling")


async def routed(region: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})]) -> str:
    return region


async def routed_by_field(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    return region


@pytest.mark.row("HTT-53")
@pytest.mark.parametrize("tool", [routed, routed_by_field])
async def test_header_parameter_is_in_schema_and_ignored_on_stdio(tool: Any) -> None:
    server = Server("s")
    server.add_tool(tool, name="routed")
    params = {"name": "routed", "arguments": {"region": "eu"}}
    async with RawPeer(server) as peer:
        listed = await peer.result("tools/list", enveloped())
        assert listed["tools"][0]["inputSchema"]["properties"]["region"]["x-mcp-header"] == "Region"
        assert said(await peer.result("tools/call", enveloped(**params))) == "eu"
    async with hosted(server) as host:
        assert said(await result(host, "tools/call", enveloped(**params), mcp_param_region="eu")) == "eu"
        assert await refused(host, "tools/call", enveloped(**params)) == (400, -32020)
