"""Log records of a program during a call reach the client of that call."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from trunkline import Context, Server
from trunkline.facts import CallEnded
from trunkline.server.log_handler import to_mcp_level
from trunkline.testing import RawPeer

LOGGER = logging.getLogger("bridged.app")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    top = logging.getLogger("bridged")
    top.propagate = False
    yield
    top.setLevel(logging.NOTSET)
    for handler in list(top.handlers):
        top.removeHandler(handler)


def messages_to(peer: RawPeer) -> list[Any]:
    said = peer.transcript.said_by("server")
    return [message["params"] for message in said if message.get("method") == "notifications/message"]


def logging_server() -> Server:
    server = Server("t", observers=[])

    @server.tool
    async def waits(who: str) -> str:
        LOGGER.info("hello %s", who)
        await asyncio.sleep(0)
        await asyncio.create_task(later(who))
        await asyncio.to_thread(LOGGER.warning, "on a thread for %s", who)
        return who

    async def later(who: str) -> None:
        LOGGER.error("later %s", who)

    @server.tool
    def plain(who: str) -> str:
        LOGGER.info("plain %s", who)
        return who

    @server.tool(thread=False)
    def inline(who: str) -> str:
        LOGGER.info("inline %s", who)
        return who

    return server


@pytest.mark.row("LOG-01", "G04")
async def test_records_of_call_go_to_its_client() -> None:
    server = logging_server()
    server.forward_logs("bridged")
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "waits", "arguments": {"who": "a"}})
        await peer.quiet()
        assert messages_to(peer) == [
            {"level": "info", "logger": "bridged.app", "data": {"message": "hello a"}},
            {"level": "error", "logger": "bridged.app", "data": {"message": "later a"}},
            {"level": "warning", "logger": "bridged.app", "data": {"message": "on a thread for a"}},
        ]


@pytest.mark.row("G04")
@pytest.mark.parametrize("name", ["plain", "inline"])
async def test_sync_handler_records_go_to_client(name: str) -> None:
    server = logging_server()
    server.forward_logs("bridged")
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": name, "arguments": {"who": "a"}})
        await peer.quiet()
        assert [told["data"]["message"] for told in messages_to(peer)] == [f"{name} a"]


@pytest.mark.row("G04")
async def test_client_gets_records_of_own_calls_only() -> None:
    server = logging_server()
    server.forward_logs("bridged")
    async with RawPeer(server) as one, RawPeer(server) as other:
        await one.initialize()
        await other.initialize()
        calls = [
            (peer, peer.call("tools/call", {"name": name, "arguments": {"who": who}}))
            for name in ("waits", "plain", "inline")
            for peer, who in ((one, "1"), (other, "2"))
        ]
        for peer, call in calls:
            await peer.answer_to(call)
        assert {told["data"]["message"][-1] for told in messages_to(one)} == {"1"}
        assert {told["data"]["message"][-1] for told in messages_to(other)} == {"2"}
        assert len(messages_to(one)) == len(messages_to(other)) == 5


@pytest.mark.row("G04")
async def test_forwarding_can_be_toggled_while_serving() -> None:
    server = logging_server()
    async with RawPeer(server) as peer:
        await peer.initialize()
        call = {"name": "inline", "arguments": {"who": "a"}}
        await peer.result("tools/call", call)
        handler = server.forward_logs("bridged", level="INFO")
        await peer.result("tools/call", call)
        logging.getLogger("bridged").removeHandler(handler)
        await peer.result("tools/call", call)
        assert len(messages_to(peer)) == 1


@pytest.mark.row("G04")
async def test_two_servers_forward_separately() -> None:
    servers = [logging_server(), logging_server()]
    for server in servers:
        server.forward_logs("bridged")
    async with RawPeer(servers[0]) as one, RawPeer(servers[1]) as other:
        await one.initialize()
        await other.initialize()
        await one.result("tools/call", {"name": "inline", "arguments": {"who": "a"}})
        assert (len(messages_to(one)), len(messages_to(other))) == (1, 0)


@pytest.mark.row("G04")
async def test_record_has_extras_but_no_traceback() -> None:
    server = Server("t", observers=[])
    server.forward_logs("bridged")

    @server.tool
    async def fail() -> str:
        try:
            raise ValueError("secret")
        except ValueError:
            LOGGER.exception("it broke", extra={"order": 7, "thing": object(), "list": [1]})
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "fail"})
        (told,) = messages_to(peer)
    assert told["level"] == "error"
    assert told["data"].pop("thing").startswith("<object object")
    assert told["data"] == {"message": "it broke", "error": "ValueError", "order": 7, "list": [1]}


@pytest.mark.row("LOG-02", "G04")
async def test_client_and_handler_levels_apply() -> None:
    server = Server("t", observers=[])
    server.forward_logs("bridged", level=logging.DEBUG)

    @server.tool
    async def chatter() -> str:
        for level in (logging.DEBUG, logging.INFO, 25, logging.WARNING, logging.CRITICAL):
            LOGGER.log(level, "%s", level)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "chatter"})
        assert [told["level"] for told in messages_to(peer)] == ["info", "notice", "warning", "critical"]
        await peer.result("logging/setLevel", {"level": "debug"})
        await peer.result("tools/call", {"name": "chatter"})
        assert [told["level"] for told in messages_to(peer)][4:] == ["debug", "info", "notice", "warning", "critical"]


@pytest.mark.row("G04")
async def test_records_outside_of_calls_are_not_sent() -> None:
    server, late = Server("t", observers=[]), []
    handler = server.forward_logs("bridged")
    own = logging.getLogger("trunkline.something")
    own.addHandler(handler)

    @server.tool
    async def quick() -> str:
        own.error("about ourselves")
        late.append(asyncio.create_task(after()))
        return "done"

    async def after() -> None:
        await gone.wait()
        LOGGER.error("too late")

    gone = asyncio.Event()
    async with RawPeer(server) as peer:
        await peer.initialize()
        LOGGER.error("nobody's")
        await peer.result("tools/call", {"name": "quick"})
        gone.set()
        await late[0]
        await peer.quiet()
        assert messages_to(peer) == []
    own.removeHandler(handler)


@pytest.mark.row("G04")
async def test_own_records_are_never_forwarded() -> None:
    server = Server("t", observers=[])
    own = logging.getLogger("trunkline")
    handler = server.forward_logs("bridged")
    own.addHandler(handler)

    @server.tool
    async def quick() -> str:
        own.error("about ourselves")
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "quick"})
        assert messages_to(peer) == []
    own.removeHandler(handler)


@pytest.mark.row("G04")
async def test_nested_records_are_not_forwarded() -> None:
    server = Server("t", observers=[])
    server.forward_logs("bridged")

    class Chatty:
        def __str__(self) -> str:
            LOGGER.info("somebody looks at me")
            return "chatty"

    @server.tool
    async def talk() -> str:
        LOGGER.info("hello", extra={"who": Chatty()})
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "talk"})
        assert [told["data"]["message"] for told in messages_to(peer)] == ["hello"]


@pytest.mark.row("G04")
async def test_any_record_has_a_message() -> None:
    server = Server("t", observers=[])
    server.forward_logs("bridged").setFormatter(logging.Formatter("%(message)s%(file)s"))
    circle: list[Any] = []
    circle.append(circle)

    @server.tool
    async def talk() -> str:
        LOGGER.info("a file named ", extra={"circle": circle, "huge": 2**70, "file": "b\udcff.txt"})
        LOGGER.info("nothing was raised", exc_info=(None, None, None), extra={"file": ""})
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "talk"})
        first, second = (told["data"] for told in messages_to(peer))
    assert first == {
        "message": "a file named b\\udcff.txt",
        "circle": "[[...]]",
        "huge": 2**70,
        "file": "b\\udcff.txt",
    }
    assert second == {"message": "nothing was raised", "file": ""}


@pytest.mark.row("G04")
async def test_formatter_makes_the_message_without_traceback() -> None:
    server = Server("t", observers=[])
    server.forward_logs("bridged").setFormatter(logging.Formatter("<%(levelname)s> %(message)s"))

    @server.tool
    async def talk() -> str:
        try:
            raise ValueError("secret")
        except ValueError:
            LOGGER.warning("careful", exc_info=True, stack_info=True)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "talk"})
        assert messages_to(peer)[0]["data"] == {"message": "<WARNING> careful", "error": "ValueError"}


@pytest.mark.row("G04")
async def test_observer_records_do_not_cross_clients() -> None:
    class Talkative:
        immediate = True

        def on(self, fact: Any) -> None:
            if isinstance(fact, CallEnded):
                LOGGER.info("ended on %s", fact.connection)

    server, stop = Server("t", observers=[Talkative()]), threading.Event()
    server.forward_logs("bridged")

    @server.tool
    def busy(ctx: Context) -> str:
        while not stop.wait(0.0001):
            for _ in range(20):
                ctx.info({"message": "busy"})  # wakes the loop from within this call
        return "done"

    @server.tool
    def short() -> str:
        return "done"

    async with RawPeer(server) as one, RawPeer(server) as other:
        await one.initialize()
        await other.initialize()
        call = one.call("tools/call", {"name": "busy"})
        for _ in range(200):
            await other.result("tools/call", {"name": "short"})
        stop.set()
        await one.answer_to(call)
        assert {told["data"]["message"] for told in messages_to(one)} == {"busy"}
        assert messages_to(other) == []


@pytest.mark.row("G04")
async def test_unencodable_record_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    server = Server("t", observers=[])
    server.forward_logs("bridged")

    @server.tool
    async def wrong(ctx: Context) -> str:
        LOGGER.error("%d", "no number")
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", {"name": "wrong"}))["content"][0]["text"] == "done"
        assert messages_to(peer) == []


@pytest.mark.row("G04")
@pytest.mark.parametrize(
    ("number", "level"),
    [
        (0, "debug"),
        (10, "debug"),
        (20, "info"),
        (29, "notice"),
        (30, "warning"),
        (45, "error"),
        (50, "critical"),
        (60, "alert"),
        (99, "emergency"),
    ],
)
def test_logging_levels_map_to_specification(number: int, level: str) -> None:
    assert to_mcp_level(number) == level
