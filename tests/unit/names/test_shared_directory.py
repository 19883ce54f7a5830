"""Names across processes that share a store."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, MemoryStore, Server, SharedDirectory, SqliteStore
from trunkline.config import Settings
from trunkline.errors import ConfigError, DuplicateEntry, MisuseError, Refusal
from trunkline.names.shared_directory import AddressChange, compare_addresses
from trunkline.server.cluster.membership import evict_process
from trunkline.stores.store import Delete, Held, Lease, Store, Write
from trunkline.testing import FaultyStore
from trunkline.wire import codec

URL = "http://127.0.0.1:8000/mcp"
OTHER_URL = "http://127.0.0.1:9000/mcp"
PROGRAM = """
import asyncio, sys
from trunkline import SharedDirectory, SqliteStore

async def main():
    async with SharedDirectory(SqliteStore(sys.argv[1])) as directory:
        await directory.publish("weather", sys.argv[2])
        print("published", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


class Directories:
    """Directories on one file, each with a store of its own, as in several processes."""

    def __init__(self, path: Path, stack: AsyncExitStack) -> None:
        self.path = path
        self._stack = stack

    async def open(self, store: Store | None = None, **settings: Any) -> SharedDirectory:
        directory = SharedDirectory(store or SqliteStore(self.path), settings=Settings(**settings))
        return await self._stack.enter_async_context(directory)


@pytest.fixture
async def directories(tmp_path: Path) -> AsyncIterator[Directories]:
    async with asyncio.timeout(2 * PATIENCE), AsyncExitStack() as stack:
        yield Directories(tmp_path / "names.db", stack)


async def wait_for_address(directory: SharedDirectory, name: str, address: str) -> None:
    while await directory.find(name) != address:
        await asyncio.sleep(0.01)


async def owner_of(store: Store, name: str) -> str:
    """The process that has published a name."""
    item = await store.get(f"name/{name}")
    return "" if item is None else codec.json_decoder(dict[str, str])(item.value)["process"]


@pytest.mark.row("A16")
async def test_published_name_is_found_in_all_processes_until_it_is_withdrawn(directories: Directories) -> None:
    one, other = await directories.open(), await directories.open()
    publication = await one.publish("weather", URL)
    assert (await one.locate("weather"), await other.locate("weather")) == (URL, URL)
    assert await other.addresses() == {"weather": URL}
    await publication.close()
    await publication.close()
    assert (await one.find("weather"), await other.find("weather")) == (None, None)


@pytest.mark.row("A16")
async def test_unroutable_name_is_refused_with_a_suggestion(directories: Directories) -> None:
    one = await directories.open()
    async with await one.publish("weather", URL):
        with pytest.raises(Refusal, match=r"no server 'wether' in the directory\. Did you mean"):
            await one.locate("wether")


async def test_name_has_one_owner(directories: Directories) -> None:
    one, other = await directories.open(), await directories.open()
    publication = await one.publish("weather", URL)
    for directory in (one, other):
        with pytest.raises(DuplicateEntry, match="server 'weather' is already registered"):
            await directory.publish("weather", OTHER_URL)
    await publication.close()
    await other.publish("weather", OTHER_URL)
    assert await one.locate("weather") == OTHER_URL


@pytest.mark.row("A16")
async def test_names_go_with_a_directory_that_is_closed(directories: Directories) -> None:
    one = await directories.open()
    async with SharedDirectory(SqliteStore(directories.path)) as other:
        await other.publish("weather", URL)
    assert await one.addresses() == {}
    await one.publish("weather", OTHER_URL)


@pytest.mark.row("A16")
async def test_name_of_a_killed_process_is_gone_and_can_be_taken(directories: Directories) -> None:
    one = await directories.open()
    changes = one.watch()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directories.path), URL], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert await anext(changes) == AddressChange("added", "weather", URL)
        finally:
            process.send_signal(signal.SIGKILL)
    assert await anext(changes) == AddressChange("removed", "weather", URL)
    await one.publish("weather", OTHER_URL)
    assert await anext(changes) == AddressChange("added", "weather", OTHER_URL)
    await changes.aclose()


async def test_item_of_a_dead_process_is_removed_from_the_store(directories: Directories) -> None:
    await directories.open()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directories.path), URL], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "published\n"
        process.send_signal(signal.SIGKILL)
    reader = SqliteStore(directories.path)
    await reader.open()
    while await reader.get("name/weather") is not None:
        await asyncio.sleep(0.01)
    await reader.close()


async def test_evicted_process_publishes_its_names_again(directories: Directories) -> None:
    one = await directories.open(process_lease=1.0)
    await one.publish("weather", URL)
    store = SqliteStore(directories.path)
    await store.open()
    await evict_process(store, await owner_of(store, "weather"), "evictor", PATIENCE, known_dead=True)
    before = await owner_of(store, "weather")
    while await owner_of(store, "weather") == before:
        await asyncio.sleep(0.01)
    await store.close()
    assert await one.locate("weather") == URL


async def test_name_that_another_process_has_taken_is_lost(directories: Directories) -> None:
    store = FaultyStore(SqliteStore(directories.path))
    one, other = await directories.open(store, process_lease=1.0), await directories.open()
    publication = await one.publish("weather", URL)
    fault = store.hold("acquire", key="name/")  # it cannot publish again
    await evict_process(store, await owner_of(store, "weather"), "evictor", PATIENCE, known_dead=True)
    await fault.reached.wait()
    await other.publish("weather", OTHER_URL)
    fault.lift()
    await publication.lost.wait()
    await publication.close()
    assert await one.locate("weather") == OTHER_URL


class CrashingStore(SqliteStore):
    """A store with a bug: the next claim of a name raises, if it is armed."""

    armed = False

    async def acquire(
        self, name: str, holder: str, ttl: float, *, over: int | None = None, writes: Sequence[Write] = ()
    ) -> Lease | Held:
        if self.armed and name.startswith("name/"):
            self.armed = False
            raise ZeroDivisionError
        return await super().acquire(name, holder, ttl, over=over, writes=writes)


@pytest.mark.row("U04")
async def test_names_are_published_again_after_a_crash_of_the_maintenance_task(directories: Directories) -> None:
    store = CrashingStore(directories.path)
    one = await directories.open(store, backoff_first=0.01)
    await one.publish("weather", URL)
    store.armed = True
    await store.commit([Delete("name/weather")])
    async with SharedDirectory(SqliteStore(directories.path)):
        pass  # a process that comes and goes wakes the task
    await wait_for_address(one, "weather", URL)
    [task] = one.describe().children
    assert (task.name, task.restarts) == ("names/maintenance", 1)


async def test_maintenance_continues_when_the_store_is_back(directories: Directories) -> None:
    store = FaultyStore(SqliteStore(directories.path))
    one = await directories.open(store)
    await one.publish("weather", URL)
    await store.commit([Delete("name/weather")])
    fault = store.fail("scan", "get", key="name/")
    async with SharedDirectory(SqliteStore(directories.path)):
        pass
    await fault.reached.wait()
    fault.lift()
    await wait_for_address(one, "weather", URL)
    [task] = one.describe().children
    assert task.restarts == 0


async def test_server_is_reached_by_its_published_name(directories: Directories) -> None:
    one, other = await directories.open(), await directories.open()
    server = Server("weather", observers=[])

    @server.tool
    def forecast() -> str:
        return "sunny"

    listener = await server.listen("http://127.0.0.1:0/mcp")
    await one.publish("weather", listener.address)
    async with Client(await other.locate("weather")) as client:
        assert (await client.call_tool("forecast")).data == "sunny"
    await server.aclose()


async def test_store_that_is_not_shared_is_refused() -> None:
    with pytest.raises(ConfigError, match="a shared directory needs a store that processes share"):
        await SharedDirectory(MemoryStore()).open()


async def test_closed_directory_says_so(directories: Directories) -> None:
    directory = SharedDirectory(SqliteStore(directories.path))
    with pytest.raises(MisuseError, match="the shared directory is not open"):
        await directory.publish("weather", URL)
    await directory.close()


async def test_invalid_name_is_refused(directories: Directories) -> None:
    with pytest.raises(MisuseError, match="a name has 1 to 255 printable characters"):
        await (await directories.open()).publish("a/b", URL)


def test_changed_address_is_removed_and_added() -> None:
    assert compare_addresses({"a": "1", "b": "1", "c": "1"}, {"b": "1", "c": "2", "d": "1"}) == [
        AddressChange("removed", "a", "1"),
        AddressChange("removed", "c", "1"),
        AddressChange("added", "c", "2"),
        AddressChange("added", "d", "1"),
    ]
