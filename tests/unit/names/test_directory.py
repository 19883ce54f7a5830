"""Names of servers, transports and clients, and several servers behind one listener."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.unit.transports.test_accept import listening_at, shut_down

from trunkline import Client, Server
from trunkline.errors import ConfigError, DuplicateEntry, MisuseError, NotRegistered, Refusal, TransportError
from trunkline.names.directory import Directory
from trunkline.names.table import NameEntry, NameTable
from trunkline.wire.messages import Notification


class Line:
    """A transport that remembers what it sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def named(name: str, **options: Any) -> Server:
    """A server with a tool that returns its name."""
    server = Server(name, observers=[], **options)

    @server.tool
    def who() -> str:
        return name

    return server


def test_name_is_taken_once_and_the_same_registration_again_is_fine() -> None:
    directory, server = Directory(), Server("one")
    directory.register("weather", server)
    directory.register("weather", server)
    assert (directory.find("weather"), directory.names()) == (server, ["weather"])
    with pytest.raises(DuplicateEntry, match="server 'weather' is already registered"):
        directory.register("weather", Server("other"))
    directory.register("weather", object())  # a client


async def test_name_goes_when_its_server_shuts_down() -> None:
    directory, server = Directory(), Server("one", observers=[])
    directory.register("weather", server)
    directory.register("line", Line(), server="weather")
    await server.start()
    await server.shutdown()
    assert directory.find("weather") is None
    with pytest.raises(Refusal, match="there is no server 'of line' in the directory"):
        directory.server_of("line")
    directory.register("weather", server)  # it can be registered again


async def test_name_goes_with_the_task_that_owns_it() -> None:
    directory, end = Directory(), asyncio.Event()
    task = asyncio.create_task(end.wait())
    directory.register("line", Line(), owner=task)
    end.set()
    await task
    await asyncio.sleep(0)
    assert directory.find("line", "transport") is None


def test_closed_registration_removes_only_its_own_name() -> None:
    directory = Directory()
    with directory.register("weather", Server("one")) as first:
        pass
    second = Server("two")
    directory.register("weather", second)
    first.close()
    assert directory.find("weather") is second


def test_broadcast_reaches_bound_transports_only() -> None:
    directory, lines = Directory(), [Line(), Line(), Line()]
    directory.register("weather", Server("one"))
    directory.register("notes", Server("two"))
    for number, line in enumerate(lines):
        directory.register(f"line{number}", line)
    directory.bind("line0", "weather")
    directory.bind("line1", "weather")
    directory.bind("line2", "notes")
    directory.unbind("line1")
    message = Notification("acme/changed", None)
    assert directory.broadcast("weather", message) == 1
    assert [len(line.sent) for line in lines] == [1, 0, 0]
    assert directory.server_of("line2") is directory.route("notes")


def test_unroutable_request_is_refused_with_a_suggestion() -> None:
    directory = Directory()
    directory.register("weather", Server("one"))
    with pytest.raises(
        Refusal, match=r"there is no server 'wether' in the directory\. Did you mean \"weather\""
    ) as refused:
        directory.route("wether")
    assert (refused.value.code, refused.value.refusal_code) == (-32603, 1078)
    with pytest.raises(NotRegistered, match="transport 'line' is not registered"):
        directory.bind("line", "weather")
    with pytest.raises(NotRegistered, match="server 'x' is not registered"):
        directory.register("line", Line(), server="x")
    assert directory.names("transport") == []


@pytest.mark.parametrize("name", ["", "a/b", "a b", "..", "a\n", "x" * 256, 7, "50%"])
def test_invalid_name_is_refused(name: Any) -> None:
    with pytest.raises(MisuseError, match="a name has 1 to 255 printable characters"):
        Directory().register(name, Server("one"))


async def test_watch_yields_present_names_then_changes() -> None:
    directory = Directory()
    first = directory.register("a", Server("one"))
    seen: list[tuple[str, str]] = []

    async def watch() -> None:
        async for change in directory.watch():
            seen.append((change.change, change.entry.name))
            if len(seen) == 3:
                return

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    directory.register("b", Server("two"))
    first.close()
    await asyncio.wait_for(task, PATIENCE)
    assert seen == [("added", "a"), ("added", "b"), ("removed", "a")]


def test_lookup_touches_only_the_name_in_question() -> None:
    class Counting(str):
        compared = 0
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            Counting.compared += 1
            return str.__eq__(self, other)  # type: ignore[arg-type]

        __hash__ = str.__hash__

    table = NameTable()
    for number in range(10_000):
        table.register(NameEntry("server", Counting(f"s{number}"), number))
    Counting.compared = 0
    assert table.find("server", Counting("s9999")) is not None
    table.unregister("server", Counting("s5000"), 5000)
    assert Counting.compared < 50


# --- one listener -------------------------------------------------------------------------------


async def test_two_servers_behind_one_listener_never_cross() -> None:
    directory = Directory()
    servers = [named("weather"), named("notes")]
    for server in servers:
        directory.register(server.name, server)
    async with await directory.listen("http://127.0.0.1:0/") as listener:
        assert listener.url_of("weather").endswith("/weather/mcp")

        async def ask(name: str) -> None:
            async with Client(listener.url_of(name), observers=[]) as client:
                for _ in range(20):
                    assert (await client.call_tool("who", {})).data == name

        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(ask(name) for name in ("weather", "notes") * 4))
        for server in servers:
            await server.aclose()


async def test_names_come_and_go_while_connections_are_open() -> None:
    directory, weather = Directory(), named("weather")
    directory.register("weather", weather)
    async with asyncio.timeout(PATIENCE), await directory.listen("http://127.0.0.1:0/") as listener:
        host, port = listener.address.removeprefix("http://").rstrip("/").split("/")[0].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))

        async def status(path: str) -> int:
            body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            head += "accept: application/json, text/event-stream\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            return int(answer.split()[1])

        assert await status("/notes/mcp") == 404
        assert await status("/weather/mcp") not in {404, 503}
        may_start = asyncio.Event()

        async def lifespan(_: Server) -> AsyncGenerator[None]:
            await may_start.wait()
            yield

        notes = named("notes", lifespan=lifespan)
        directory.register("notes", notes)
        assert await status("/notes/mcp") == 503  # it is starting
        may_start.set()
        while await status("/notes/mcp") == 503:
            pass
        async with Client(listener.url_of("notes"), observers=[]) as client:
            assert (await client.call_tool("who", {})).data == "notes"
        await weather.shutdown()
        assert await status("/weather/mcp") == 404
        assert await status("/notes/mcp") not in {404, 503}
        writer.close()
        await notes.aclose()


async def test_websocket_is_routed_by_path_too() -> None:
    directory, weather = Directory(), named("weather")
    directory.register("weather", weather)
    async with await directory.listen("http://127.0.0.1:0/") as listener:
        async with Client(listener.url_of("weather").replace("http", "ws", 1), observers=[]) as client:
            assert (await client.call_tool("who", {})).data == "weather"
        with pytest.raises(TransportError, match="404"):
            async with Client(listener.url_of("none").replace("http", "ws", 1), observers=[]):
                pass
        await weather.aclose()


@pytest.mark.row("U02")
async def test_dead_socket_of_a_shared_listener_is_opened_again() -> None:
    directory, weather = Directory(), named("weather")
    directory.register("weather", weather)
    async with asyncio.timeout(PATIENCE), await directory.listen("http://127.0.0.1:0/") as listener:
        port = int(listener.address.rstrip("/").rpartition(":")[2])
        with listening_at(("127.0.0.1", port)) as listening:
            shut_down(listening)
        while True:
            try:
                async with Client(listener.url_of("weather"), observers=[]) as client:
                    assert (await client.call_tool("who", {})).data == "weather"
                    break
            except TransportError:
                await asyncio.sleep(0.01)
        await weather.aclose()


async def test_server_that_cannot_start_does_not_harm_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: Server) -> Any:
        raise RuntimeError("no database")
        yield

    directory, weather = Directory(), named("weather")
    directory.register("broken", named("broken", lifespan=broken))
    directory.register("weather", weather)
    async with await directory.listen("http://127.0.0.1:0/") as listener:
        async with Client(listener.url_of("weather"), observers=[]) as client:
            assert (await client.call_tool("who", {})).data == "weather"
        assert "cannot serve 'broken' at /broken/mcp" in caplog.text
        await weather.aclose()


async def test_address_without_paths_is_refused() -> None:
    with pytest.raises(ConfigError, match="several servers share a listener at http://"):
        await Directory().listen("tcp://127.0.0.1:0")
    with pytest.raises(ConfigError, match="do not match"):
        await Directory().listen("https://127.0.0.1:0")
