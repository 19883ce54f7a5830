"""Messages of unexpected exceptions: on which connections peers see them, and on which they do not."""

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trunkline import Client, Context, PeerError, ProtocolError, Server, Settings, ToolError
from trunkline.errors import ToolFailed
from trunkline.facts import CallEnded, CallStarted, HandlerFailed
from trunkline.testing import Faults, RawPeer, RecordingObserver

SECRET = "password hunter2 was refused"


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
def revision(request: pytest.FixtureRequest) -> str:
    return request.param


class RefusedByBank(Exception):
    """An exception of a handler."""


class UnprintableError(Exception):
    """An exception that cannot be converted to a string."""

    def __str__(self) -> str:
        raise ValueError


def make_server(**options: Any) -> Server:
    server = Server("bank", **options)

    @server.tool
    async def audit() -> str:
        raise RefusedByBank(SECRET)

    @server.tool
    def plain() -> str:
        raise RefusedByBank(SECRET)

    @server.tool
    async def silent() -> str:
        raise RefusedByBank

    @server.tool
    async def unspeakable() -> str:
        raise UnprintableError

    @server.tool
    async def deliberate() -> str:
        raise ToolError("the balance is 100")

    @server.tool(task="required")
    async def slow() -> str:
        raise RefusedByBank(SECRET)

    @server.tool
    async def wrong() -> int:
        return "seven"  # type: ignore[return-value]

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            await ctx.sample("hello")
        except PeerError as error:
            return error.message
        return "sampled"

    @server.resource("bank://accounts/{number}")
    async def account(number: str) -> str:
        raise RefusedByBank(f"{SECRET} for {number}")

    @server.prompt
    async def letter(name: str = "") -> str:
        raise RefusedByBank(f"{SECRET}{name}")

    @server.completion(prompt="letter", argument="name")
    async def names(value: str) -> list[str]:
        raise RefusedByBank(SECRET)

    return server


async def told(client: Client, tool: str = "audit", **options: Any) -> str:
    with pytest.raises(ToolFailed) as failed:
        await client.call_tool(tool, **options)
    return failed.value.result.text


# --- a client in the same process ----------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["audit", "plain", "slow"])
async def test_in_process_client_sees_exception(tool: str, revision: str) -> None:
    async with Client(make_server(), revision=revision) as client:
        assert await told(client, tool) == f"RefusedByBank: {SECRET}"


async def test_in_process_client_sees_nothing_if_disabled(revision: str) -> None:
    async with Client(make_server(expose_errors=False), revision=revision) as client:
        for tool in ("audit", "plain", "slow"):
            assert SECRET not in await told(client, tool)


REQUESTS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "resources/read": lambda client: client.read_resource("bank://accounts/7"),
    "prompts/get": lambda client: client.get_prompt("letter"),
    "completion/complete": lambda client: client.complete("prompt", "letter", "name"),
}


@pytest.mark.parametrize("method", REQUESTS)
async def test_errors_of_other_handlers_are_exposed_too(method: str, revision: str) -> None:
    async with Client(make_server(), revision=revision) as client:
        with pytest.raises(PeerError) as refused:
            await REQUESTS[method](client)
    assert refused.value.message.startswith(f"RefusedByBank: {SECRET}")
    assert refused.value.data["reference"]


async def test_exposed_error_has_no_traceback() -> None:
    async with Client(make_server()) as client:
        result = await client.call_tool("audit", raise_on_error=False)
    assert result.meta is not None
    assert result.meta["trunkline/error"]["kind"] == "tool_execution_failed"
    assert result.meta["trunkline/error"]["reference"]
    assert [word for word in ("Traceback", __file__, "line ") if word in str(msgspec.to_builtins(result))] == []


async def test_exception_without_message_is_exposed_by_type() -> None:
    async with Client(make_server()) as client:
        assert await told(client, "silent") == "RefusedByBank"
        assert (await told(client, "unspeakable")).startswith("the tool failed; the log has the details under ")
        assert await told(client, "deliberate") == "the balance is 100"


async def test_invalid_result_is_explained() -> None:
    async with Client(make_server()) as client:
        assert (await told(client, "wrong")).startswith("BadResult: ")


async def test_idempotent_call_repeats_exposed_error(revision: str) -> None:
    async with Client(make_server(), revision=revision) as client:
        for _ in range(2):
            assert await told(client, "audit", idempotency_key="1") == f"RefusedByBank: {SECRET}"


async def test_errors_are_exposed_through_faulty_channel() -> None:
    async with Client(Faults().on(make_server())) as client:
        assert await told(client) == f"RefusedByBank: {SECRET}"


async def test_in_process_server_sees_client_exceptions() -> None:
    async def sampling(_: Any) -> str:
        raise RefusedByBank(SECRET)

    old = "2025-11-25"  # in the modern era the server does not learn that its input request failed
    async with Client(make_server(), revision=old, sampling=sampling) as client:
        assert (await client.call_tool("ask")).data == f"RefusedByBank: {SECRET}"
    hidden = Settings(expose_errors=False)
    async with Client(make_server(), revision=old, sampling=sampling, settings=hidden) as client:
        assert SECRET not in (await client.call_tool("ask")).data


# --- remote peers --------------------------------------------------------------------------------------

SCRIPT = """
from trunkline import Server, Settings

server = Server("bank", settings=Settings.load(), observers=[])


@server.tool
async def audit() -> str:
    raise RuntimeError("password hunter2 was refused")


server.run()
"""


@asynccontextmanager
async def listening(server: Server, address: str) -> AsyncIterator[Client]:
    try:
        listener = await server.listen(address)
        where = listener.address.replace("http://", "ws://") if "ws" in address else listener.address
        async with Client(where) as client:
            yield client
    finally:
        await server.aclose()


ADDRESSES = ["tcp://127.0.0.1:0", "http://127.0.0.1:0/mcp", "http://127.0.0.1:0/ws", "unix"]


@pytest.mark.parametrize("address", ADDRESSES)
async def test_network_peer_sees_nothing_by_default(address: str, tmp_path: Path) -> None:
    where = f"unix://{tmp_path}/s" if address == "unix" else address
    async with listening(make_server(), where) as client:
        for tool in ("audit", "slow"):
            assert SECRET not in await told(client, tool)


@pytest.mark.parametrize("address", ADDRESSES)
async def test_network_peer_sees_exposed_errors(address: str, tmp_path: Path) -> None:
    where = f"unix://{tmp_path}/s" if address == "unix" else address
    async with listening(make_server(expose_errors=True), where) as client:
        for tool in ("audit", "slow"):
            assert await told(client, tool) == f"RefusedByBank: {SECRET}"


@pytest.mark.parametrize(("value", "exposed"), [(None, False), ("off", False), ("on", True)])
async def test_environment_decides_on_stdio(value: str | None, tmp_path: Path, *, exposed: bool) -> None:
    from trunkline.transports.stdio.client import Command

    script = tmp_path / "bank.py"
    script.write_text(SCRIPT)
    env = {} if value is None else {"TRUNKLINE_EXPOSE_ERRORS": value}
    async with Client(Command([sys.executable, str(script)], env=env)) as client:
        assert (SECRET in await told(client)) is exposed


async def test_raw_peer_counts_as_remote() -> None:
    for expose, exposed in ((None, False), (False, False), (True, True)):
        async with RawPeer(make_server(expose_errors=expose)) as peer:
            await peer.initialize()
            assert (SECRET in str(await peer.result("tools/call", {"name": "audit"}))) is exposed
            error = await peer.error("resources/read", {"uri": "bank://accounts/7"})
            assert (SECRET in error["message"]) is exposed
            assert error["data"]["reference"]


def test_server_argument_overrides_settings() -> None:
    assert Server("t").settings.expose_errors is None
    assert Server("t", settings=Settings(expose_errors=True)).settings.expose_errors is True
    assert Server("t", settings=Settings(expose_errors=True), expose_errors=False).settings.expose_errors is False


# --- facts and log lines say what a call was about -------------------------------------------------------

ABOUT = [
    ("tools/call", {"name": "audit"}, "audit"),
    ("tools/call", {"name": "nowhere"}, "nowhere"),
    ("prompts/get", {"name": "letter"}, "letter"),
    ("resources/read", {"uri": "bank://accounts/7"}, "bank://accounts/7"),
    ("resources/subscribe", {"uri": "bank://accounts/7"}, "bank://accounts/7"),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "letter"}, "argument": {"name": "name", "value": ""}},
        "letter",
    ),
    ("tools/list", {}, None),
    ("tools/call", {"arguments": {}}, None),
]


@pytest.mark.parametrize(("method", "params", "target"), ABOUT, ids=lambda part: str(part)[:30])
async def test_call_facts_have_target(method: str, params: Any, target: str | None) -> None:
    observer = RecordingObserver()
    async with RawPeer(make_server(observers=[observer])) as peer:
        await peer.initialize()
        await peer.request(method, params)
    assert [fact.target for fact in observer.of(CallStarted) if fact.method == method] == [target]
    assert [fact.target for fact in observer.of(CallEnded) if fact.method == method] == [target]
    assert {fact.target for fact in observer.of(HandlerFailed)} <= {target}


async def test_failure_of_a_task_names_its_tool() -> None:
    observer = RecordingObserver()
    async with Client(make_server(observers=[observer])) as client:
        await told(client, "slow")
    assert [fact.target for fact in observer.of(HandlerFailed)] == ["slow"]


async def test_log_names_the_tool_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "audit"})
        with caplog.at_level(logging.DEBUG, "trunkline"):
            await peer.error("resources/read", {"uri": "bank://accounts/7"})
    first, second = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert first.startswith("tools/call of 'audit' failed (request ")
    assert second.startswith("resources/read of 'bank://accounts/7' failed (request ")


async def test_protocol_errors_are_unaffected() -> None:
    server = Server("t")

    @server.tool
    async def refuse() -> str:
        raise ProtocolError("not like this", code=7)

    async with Client(server) as client:
        with pytest.raises(PeerError) as refused:
            await client.call_tool("refuse")
    assert (refused.value.code, refused.value.message) == (7, "not like this")
