"""Refusals: the guards of a server name their reason, and policies refuse by judgement."""

from typing import Any

import pytest
from tests.founding import FEATURES
from tests.unit.transports.http.asgi import hosted, request

from trunkline import Call, CallToolResult, Context, Refusal, Server, Settings
from trunkline.errors import REFUSALS, MisuseError, RefusalCode, RegistrationError, RetryAdvice
from trunkline.testing import RawPeer


def make_server(**options: Any) -> Server:
    server = Server("judged", observers=[], **options)

    @server.tool
    async def write(text: str = "", times: int = 1) -> str:
        return text * times

    @server.prompt
    async def say(text: str) -> str:
        return text

    server.add_resource("doc://plan", "the plan")
    return server


async def ask(server: Server, method: str, params: Any) -> Any:
    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=FEATURES)
        return await peer.request(method, params)


def refused_with(answer: Any) -> tuple[int, str, str]:
    """The number, the name and the text of a refusal."""
    if "error" in answer:
        error = answer["error"]
        return error["code"], error["data"]["name"], error["message"]
    result = answer["result"]
    assert result["isError"] is True
    refusal = result["_meta"]["trunkline/refusal"]
    return refusal["code"], refusal["name"], result["content"][0]["text"]


# --- policies -----------------------------------------------------------------------------------


@pytest.mark.row("E1001", "Q04")
async def test_policy_refuses_requests_before_their_handlers() -> None:
    server, seen = make_server(), list[str]()

    @server.policy
    def no_secrets(call: Call) -> str | None:
        seen.append(call.method)
        return "the text has a secret" if "hunter2" in str(call.arguments) else None

    refusal = (1001, "policy_violation", "the text has a secret")
    assert refused_with(await ask(server, "tools/call", {"name": "write", "arguments": {"text": "hunter2"}})) == refusal
    assert refused_with(await ask(server, "prompts/get", {"name": "say", "arguments": {"text": "hunter2"}})) == refusal
    allowed = await ask(server, "tools/call", {"name": "write", "arguments": {"text": "hello"}})
    assert allowed["result"]["content"][0]["text"] == "hello"
    assert "result" in await ask(server, "resources/read", {"uri": "doc://plan"})
    assert seen == ["tools/call", "prompts/get", "tools/call", "resources/read"]


@pytest.mark.row("E1002", "Q04")
async def test_policy_judges_results() -> None:
    server = make_server()

    @server.policy(code=RefusalCode.SAFETY_VIOLATION, results=True)
    async def safe(call: Call, result: Any) -> str | None:
        return f"{call.name} is dangerous" if isinstance(result, CallToolResult) and "boom" in str(result) else None

    refused = await ask(server, "tools/call", {"name": "write", "arguments": {"text": "bo", "times": 1}})
    assert refused["result"]["content"][0]["text"] == "bo"
    refused = await ask(server, "tools/call", {"name": "write", "arguments": {"text": "boom"}})
    assert refused_with(refused) == (1002, "safety_violation", "write is dangerous")


@pytest.mark.row("E1006", "Q04")
async def test_policy_guards_input_beyond_its_schema() -> None:
    server = make_server()

    @server.policy(code=1006)
    async def bounded(call: Call) -> str | None:
        return "" if call.arguments.get("times", 0) > 10 else None  # without a text of its own

    refused = await ask(server, "tools/call", {"name": "write", "arguments": {"text": "x", "times": 11}})
    assert refused_with(refused) == (1006, "invalid_input", "the input is not acceptable")


async def test_first_policy_decides() -> None:
    server = make_server()
    server.policy(lambda call: "first")
    server.policy(code=1002)(lambda call: "second")
    assert refused_with(await ask(server, "tools/call", {"name": "write"}))[0] == 1001


async def test_policy_may_raise_a_refusal_of_its_own() -> None:
    server = make_server()

    @server.policy
    async def closed(call: Call) -> None:
        raise Refusal(1005, "closed")

    assert refused_with(await ask(server, "resources/read", {"uri": "doc://plan"})) == (
        *(1005, "permission_denied", "closed"),
    )


@pytest.mark.parametrize("answer", [True, 0, ValueError("secret")])
async def test_call_fails_if_its_policy_fails(answer: Any) -> None:
    server, ran = make_server(), list[str]()

    @server.tool
    async def run() -> None:
        ran.append("run")

    @server.policy
    def broken(call: Call) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    result = (await ask(server, "tools/call", {"name": "run"}))["result"]
    assert (result["isError"], ran) == (True, [])
    assert "secret" not in str(result)


@pytest.mark.off_the_record  # of the profile
async def test_policy_judges_the_parameters_of_a_founding_task() -> None:
    server = make_server(compat="erlmcp")

    @server.tool(task=True)
    async def slow(text: str) -> str:
        return text

    @server.policy
    def no_secrets(call: Call) -> str | None:
        return f"{call.name} got a secret" if call.arguments == {"text": "hunter2"} else None

    asked = {"action": {"type": "slow", "parameters": {"text": "hunter2"}}}
    assert refused_with(await ask(server, "tasks/create", asked)) == (1001, "policy_violation", "slow got a secret")
    assert "result" in await ask(server, "tasks/create", {"action": {"type": "slow", "parameters": {"text": "x"}}})


async def test_arguments_that_are_no_object_are_empty_for_a_policy() -> None:
    server, seen = make_server(), list[Any]()
    server.policy(lambda call: seen.append(call.arguments))
    for arguments in (5, [1], None):
        await ask(server, "tools/call", {"name": "write", "arguments": arguments})
    await ask(server, "resources/read", {"uri": "doc://plan"})
    assert seen == [{}, {}, {}, {}]


def test_policy_with_another_signature_or_code_is_refused() -> None:
    server = make_server()
    for function, options in ((lambda: None, {}), (lambda call: None, {"results": True}), (5, {})):
        with pytest.raises(RegistrationError, match="must be a function that takes"):
            server.policy(**options)(function)
    with pytest.raises(MisuseError, match="1017"):
        server.policy(code=1017)(lambda call: None)


# --- guards ---------------------------------------------------------------------------------------


@pytest.mark.row("E1005", "Q04")
async def test_access_rules_name_the_reason_of_their_denial() -> None:
    server = make_server()
    server.add_tool(lambda: None, name="admin", scopes=["admin"])
    server.add_resource("doc://secret", "x", allow=lambda ctx: False)

    @server.tool
    async def archive(ctx: Context) -> None:
        ctx.require("admin")

    async with RawPeer(server, principal="somebody") as peer:
        await peer.initialize()
        scoped = [await peer.error("tools/call", {"name": name}) for name in ("admin", "archive")]
        denied = await peer.error("resources/read", {"uri": "doc://secret"})
    for error, number, name in (
        *((one, 1014, "authorization_denied") for one in scoped),
        (denied, 1005, "permission_denied"),
    ):
        assert error["code"] == -32600  # by default the code of the specification
        refusal = error["data"]["refusal"]
        assert (refusal["code"], refusal["name"], refusal["hint"]) == (number, name, REFUSALS[number].hint)


@pytest.mark.row("E1004", "Q04")
async def test_too_many_subscriptions_are_a_resource_constraint() -> None:
    server = make_server(settings=Settings(max_subscriptions=1, max_calls=7))
    server.add_resource("doc://other", "x")
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("resources/subscribe", {"uri": "doc://plan"})
        error = await peer.error("resources/subscribe", {"uri": "doc://other"})
    assert (error["code"], error["data"]["kind"]) == (-32603, "maximum_subscriptions_exceeded")
    refusal = error["data"]["refusal"]
    assert (refusal["code"], refusal["name"]) == (1004, "resource_constraints")
    assert "runs 7 at a time" in refusal["hint"]


@pytest.mark.row("E1004", "Q04", "Q08")
async def test_http_statuses_are_those_of_the_table() -> None:
    server = make_server(settings=Settings(max_sessions=1))
    async with hosted(server) as host:
        await host.ask("POST", request("ping"), mcp_session_id=await host.session())  # it is in use
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        full = await host.ask("POST", request("initialize", info))
        origin = await host.ask("POST", request("ping"), origin="https://evil.example")
        assert host.app.state is not None
        host.app.state.stop_admitting()
        stopping = await host.ask("POST", request("initialize", info))
    for reply, code in ((full, 1004), (origin, 1005), (stopping, 1008)):
        data = reply.json["error"]["data"]
        known = REFUSALS[code]
        assert (data["refusal"]["code"], reply.status) == (code, known.http_status)
        later = known.retry is RetryAdvice.AFTER_DELAY
        assert ("retry-after" in reply.headers, "retryAfterMs" in data) == (later, later)
