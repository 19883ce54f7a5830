"""Clients for tests: exceptions of handlers, and blocking tests."""

import asyncio

import pytest

from trunkline import BlockingClient, Client, Context, Server, TaskPolicy, ToolError
from trunkline.errors import MisuseError, PeerError, ToolFailed
from trunkline.testing import RecordingObserver, connect


class OutOfStock(Exception):
    """An exception of the program under test."""


@pytest.fixture
def shop() -> Server:
    server = Server("shop", observers=[])

    @server.tool
    async def price(item: str) -> float:
        if item == "gold":
            raise ToolError("not for sale")
        raise OutOfStock(item)

    @server.tool(thread=True)
    def stock(item: str) -> int:
        raise OutOfStock(item)

    @server.resource("shop://{shelf}")
    async def shelf(shelf: str) -> str:
        raise OutOfStock(shelf)

    @server.prompt
    async def offer(item: str) -> str:
        raise OutOfStock(item)

    return server


async def test_exception_of_a_handler_reaches_the_test(shop: Server, revision: str) -> None:
    async with connect(shop, revision=revision) as client:
        with pytest.raises(OutOfStock, match="tea") as raised:
            await client.call_tool("price", {"item": "tea"})
        assert raised.traceback[-1].name == "price"
        with pytest.raises(OutOfStock, match="milk"):
            await client.call_tool("stock", {"item": "milk"}, raise_on_error=False)
        with pytest.raises(OutOfStock, match="left"):
            await client.read_resource("shop://left")
        with pytest.raises(OutOfStock, match="jam"):
            await client.get_prompt("offer", {"item": "jam"})
        with pytest.raises(OutOfStock, match="salt"):
            await client.request("tools/call", {"name": "price", "arguments": {"item": "salt"}})


async def test_concurrent_calls_raise_their_own_exceptions(shop: Server) -> None:
    async with connect(shop) as client:
        calls = [client.call_tool("price", {"item": str(number)}) for number in range(20)]
        failures = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(failure) for failure in failures] == [str(number) for number in range(20)]


async def test_errors_for_the_client_are_those_of_the_wire(shop: Server) -> None:
    async with connect(shop) as client:
        with pytest.raises(ToolFailed, match="not for sale"):
            await client.call_tool("price", {"item": "gold"})
        with pytest.raises(ToolFailed, match="item"):
            await client.call_tool("price", {"thing": "gold"})
        assert (await client.call_tool("price", {"item": "gold"}, raise_on_error=False)).is_error
        with pytest.raises(PeerError, match="nowhere"):
            await client.get_prompt("nowhere")


async def test_exceptions_stay_on_the_server_on_request(shop: Server) -> None:
    async with connect(shop, raise_exceptions=False) as client:
        with pytest.raises(ToolFailed, match="OutOfStock: tea"):
            await client.call_tool("price", {"item": "tea"})


async def test_exception_of_a_task_reaches_the_test(revision: str) -> None:
    server = Server("t", observers=[])

    @server.tool(task=TaskPolicy("required"))
    async def long(ctx: Context) -> str:
        raise OutOfStock("long")

    async with connect(server, revision=revision) as client:
        task = await client.start_tool("long")
        with pytest.raises(OutOfStock, match="long"):
            await task.result()


async def test_observer_is_removed_when_the_client_closes(shop: Server) -> None:
    client = connect(shop)
    assert not shop.observers.hear_failures
    async with client:
        await client.open()
        assert shop.observers.hear_failures
    assert not shop.observers.hear_failures
    await client.close()


def test_exceptions_of_another_process_cannot_be_raised() -> None:
    with pytest.raises(MisuseError, match="in this process"):
        connect(["server"], raise_exceptions=True)


def test_blocking_client_wraps_a_client(shop: Server) -> None:
    with BlockingClient(connect(shop)) as client, pytest.raises(OutOfStock, match="tea"):
        client.call_tool("price", {"item": "tea"})
    with pytest.raises(MisuseError, match="title= belongs to"):
        BlockingClient(Client(shop), title="no")


async def test_observer_can_be_added_and_removed(shop: Server) -> None:
    observer, queued = RecordingObserver(), RecordingObserver()
    queued.immediate = False
    removals = [shop.observers.add(observer), shop.observers.add(queued)]
    async with Client(shop) as client:
        await client.list_tools()
    await shop.observers.drain(None)
    assert [type(fact) for fact in observer.facts] == [type(fact) for fact in queued.facts]
    seen = len(observer.facts)
    assert seen
    for remove in removals:
        remove()
    assert not shop.observers
    async with Client(shop) as client:
        await client.list_tools()
    assert len(observer.facts) == seen
