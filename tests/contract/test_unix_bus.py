"""The bus on Unix sockets beyond the contract: sockets, folders, and lost connections."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, islice
from pathlib import Path

import pytest
import uvloop
from tests.contract.buses import IDENTITY, BusGroup, Listener, check_order
from tests.contract.connections import turns, until
from tests.limits import PATIENCE
from tests.processes import no_descriptor_left, nothing_left

from trunkline.errors import StoreUnavailable, StoreUnusable
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.signed_frames import FrameSigner
from trunkline.stores.unix_bus import bus as unix_bus
from trunkline.stores.unix_bus import links
from trunkline.stores.unix_bus.bus import UnixBus, socket_folder
from trunkline.stores.unix_bus.links import FrameDecoder, add_length_prefix

OTHER = StoreIdentity("fedcba9876543210", IDENTITY.secret, 0.0)


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BusGroup]:
    group = BusGroup("unix", tmp_path)
    yield group
    await group.leave()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return socket_folder(tmp_path / "store.db", IDENTITY)


@contextmanager
def listening(place: Path) -> Iterator[socket.socket]:
    """A socket that listens and does nothing, like a stopped process."""
    place.parent.mkdir(0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(place))
        line.listen(8)
        yield line
    place.unlink(missing_ok=True)
    with suppress(OSError):  # other sockets exist
        place.parent.rmdir()


def fill(place: Path, callers: ExitStack) -> None:
    """Connect until the backlog is full."""
    with suppress(BlockingIOError):
        while True:
            caller = callers.enter_context(socket.socket(socket.AF_UNIX))
            caller.setblocking(False)
            caller.connect(str(place))


def index(listener: Listener, what: str, name: str, message: bytes) -> int:
    return listener.told.index((what, name, message))


async def until_it_ends(line: socket.socket) -> None:
    """Wait for the other side to close the connection; it may only send a welcome before."""
    line.setblocking(False)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE):
        assert await loop.sock_recv(line, 100) in {b"", add_length_prefix(b"")}
        assert await loop.sock_recv(line, 100) == b""


# --- folders and sockets -----------------------------------------------------------------------------------


def test_socket_folder_moves_to_tmp_for_long_paths(tmp_path: Path) -> None:
    short = Path("/var/lib/x/state.db")
    assert socket_folder(short, IDENTITY) == Path("/var/lib/x/state.db-bus-01234567")
    long = tmp_path / ("x" * 80) / "state.db"
    assert socket_folder(long, IDENTITY).parent == Path("/tmp").resolve()
    assert socket_folder(long, IDENTITY) != socket_folder(long.with_name("other.db"), IDENTITY)
    for folder in (socket_folder(short, IDENTITY), socket_folder(long, IDENTITY)):
        assert len(os.fsencode(folder / ("+" + 16 * "n"))) <= 103
        assert folder not in {socket_folder(short, OTHER), socket_folder(long, OTHER)}
    other = tmp_path / "link"
    other.symlink_to(long.parent)
    assert socket_folder(other / "state.db", IDENTITY) == socket_folder(long, IDENTITY)


async def test_bus_with_long_path_works_and_cleans_up(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 80)
    group = BusGroup("unix", deep)
    one, two = await group.join("one"), await group.join("two")
    one.send("two", b"x")
    await until(lambda: two.messages("one"))
    await group.leave()
    assert not socket_folder(deep / "store.db", IDENTITY).exists()


async def test_folder_and_sockets_are_private(group: BusGroup, folder: Path) -> None:
    await group.join("one")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [(place.name, stat.S_IMODE(place.stat().st_mode)) for place in folder.iterdir()] == [("one", 0o600)]


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
async def test_foreign_folder_is_refused_and_unchanged(tmp_path: Path, kind: str) -> None:
    folder = socket_folder(tmp_path / "store.db", IDENTITY)
    if kind == "a file":
        folder.touch(0o600)
    elif kind == "a link":
        (tmp_path / "theirs").mkdir(0o700)
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.mkdir(0o700)
        folder.chmod(0o750)
    with nothing_left(), pytest.raises(StoreUnusable, match="private folder"):
        await UnixBus(tmp_path / "store.db").open("one", Listener(), IDENTITY)
    assert folder.exists()


async def test_uncreatable_folder_raises_unavailable() -> None:
    with nothing_left(), pytest.raises(StoreUnavailable, match="No such file"):
        await UnixBus(Path("/nowhere/store.db")).open("one", Listener(), IDENTITY)


async def test_sockets_of_dead_processes_are_removed(group: BusGroup, folder: Path) -> None:
    folder.mkdir(0o700)
    for name in ("dead", "+dead", "+new", ".later"):
        with socket.socket(socket.AF_UNIX) as line:
            line.bind(str(folder / name))
    os.utime(folder / "+dead", (0, 0))
    (folder / "a-file").touch()
    one = await group.join("one")
    assert not one.met_ones
    (folder / ".later").rename(folder / "later")
    assert not one.send("later", b"x")
    assert {place.name for place in folder.iterdir()} == {"one", "+new", "a-file"}
    for name in ("+new", "a-file"):
        (folder / name).unlink()


async def test_join_races_removal_of_folder(group: BusGroup) -> None:
    async def come_and_go(name: str) -> None:
        for number in range(30):
            listener = await group.join(f"{name}-{number}")
            await listener.bus.close()

    await asyncio.gather(*map(come_and_go, ("a", "b", "c")))


# --- connections -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1000])
def test_messages_are_whole_for_any_chunking(size: int) -> None:
    messages = [b"", b"x", b"", bytes(300), b"y" * 5]
    stream = b"".join(map(add_length_prefix, messages))
    frames = FrameDecoder()
    assert [m for at in range(0, len(stream), size) for m in frames.feed(stream[at : at + size])] == messages
    assert not frames.is_oversized


async def test_overloaded_reader_loses_messages_and_both_know(group: BusGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_UNSENT_BYTES", 300_000)
    one, two = await group.join("one"), await group.join("two")
    numbers = count()
    for size in [1_000, 1_000, 20_000] * 10:
        for number in islice(numbers, 100):
            one.send("two", (b"%d" % number).ljust(size))
        await turns()
    await until(lambda: one.send("two", b"%d" % next(numbers)) and int(two.messages("one")[-1]) >= 3000)
    assert 100 < check_order(two.told, "one") < 2000
    assert one.lost_ones == {"two"}


async def test_stalled_reader_blocks_no_sender(group: BusGroup, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "STALL_TIMEOUT", 0.05)
    monkeypatch.setattr(unix_bus, "PEER_TIMEOUT", 0.02)
    with listening(folder / "stopped") as stopped:
        one, two = await group.join("one"), await group.join("two")
        assert one.met_ones == {"stopped", "two"}
        one.bus.publish(bytes(4 << 20))
        assert not one.lost_ones
        await asyncio.wait_for(one.bus.sent(), PATIENCE)
        assert one.lost_ones == {"stopped"}
        await until(lambda: two.messages("one") == [bytes(4 << 20)])
        assert one.send("stopped", b"x")  # it is alive, and may read again
        stopped.close()
        await until(lambda: not one.send("stopped", b"x"))


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connection_reset_while_opening_is_closed_once(
    make_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second close would hit an unrelated descriptor with the same number."""
    dialled: list[socket.socket] = []

    async def scenario() -> None:
        with listening(folder / "killed") as listener:

            def connect(place: Path) -> socket.socket:
                line = connected(place)
                listener.close()
                dialled.append(line)
                return line

            monkeypatch.setattr(unix_bus, "_connect", connect)
            bus = UnixBus(tmp_path / "store.db")
            await bus.open("a", Listener(), IDENTITY)
            await bus.close()

    connected = unix_bus._connect
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), PATIENCE))
    assert [line.fileno() for line in dialled] == [-1]


async def test_unreachable_peer_is_not_gone(group: BusGroup, folder: Path) -> None:
    with ExitStack() as callers, listening(folder / "full"):
        fill(folder / "full", callers)
        one = await group.join("one")
        assert one.met_ones == {"full"}
        before = len(one.told)
        for _ in range(100):
            assert one.send("full", b"x")
            await asyncio.sleep(0)
        await until(lambda: len(one.told) > before)
        assert one.told[before:] == [("lost", "full", b"")]  # once: an immediate retry does not keep it busy
        assert one.send("full", b"x")
        await asyncio.wait_for(one.bus.close(), 1)


async def test_unreachable_peer_learns_of_loss_on_reconnect(
    group: BusGroup, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages of that time were dropped when the other side learnt of the loss, so it must not wait for them."""
    monkeypatch.setattr(links, "MAX_UNSENT_BYTES", 1000)
    monkeypatch.setattr(unix_bus, "LOSS_REPORT_INTERVAL", 1.0)
    one, two = await group.join("one"), await group.join("two")
    (folder / "two").rename(folder / ".two")
    (folder / "two").symlink_to(folder / "two")  # connecting to it fails, and not because the process has gone
    for _ in range(3):
        one.send("two", bytes(1000))
    await until(lambda: "two" in one.lost_ones and "one" in two.lost_ones)
    assert one.send("two", b"lost")
    assert two.send("one", b"over a line that is whole")
    await until(lambda: one.messages("two"))
    sent, heard = len(two.told), len(one.told)
    await until(lambda: ("lost", "two", b"") in one.told[heard:])
    (folder / "two").unlink()
    (folder / ".two").rename(folder / "two")
    await until(lambda: one.send("two", b"x") and b"x" in two.messages("one"))
    assert ("lost", "one", b"") in two.told[sent : index(two, "heard", "one", b"x")]


async def test_newest_connection_of_a_process_counts(group: BusGroup, folder: Path) -> None:
    one = await group.join("one")
    signer = FrameSigner(IDENTITY, "other")
    first, second, third = [
        [add_length_prefix(signer.sign("one", text)) for text in (b"", b"%d" % n)] for n in range(3)
    ]
    with listening(folder / "other"), socket.socket(socket.AF_UNIX) as old, socket.socket(socket.AF_UNIX) as new:
        for line in (old, new):
            line.connect(str(folder / "one"))
        old.sendall(b"".join(first))
        await until(lambda: one.messages("other") == [b"0"])
        new.sendall(b"".join(third))
        await until(lambda: one.messages("other") == [b"0", b"2"])
        assert "other" in one.lost_ones
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(str(folder / "one"))
            late.sendall(b"".join(second))
            for line in (late, old):
                await until_it_ends(line)
        assert one.messages("other") == [b"0", b"2"]


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", add_length_prefix(b"no hello"), add_length_prefix(b"")])
async def test_foreign_client_is_disconnected(group: BusGroup, folder: Path, said: bytes) -> None:
    one = await group.join("one")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(folder / "one"))
        stranger.sendall(said)
        await until_it_ends(stranger)
    assert not one.told


async def test_slow_readers_do_not_block_close(group: BusGroup, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_bus, "PEER_TIMEOUT", 0.05)
    with listening(folder / "stopped"), nothing_left():
        one = await group.join("one")
        one.send("stopped", bytes(4 << 20))
        await asyncio.wait_for(one.bus.close(), PATIENCE)


@pytest.mark.parametrize("count", range(5))
async def test_connection_that_waits_during_close_is_closed(group: BusGroup, folder: Path, count: int) -> None:
    one = await group.join("one")
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(folder / "one"))
        await turns(count)
        await one.bus.close()
        with suppress(ConnectionResetError):  # it was not accepted yet
            await until_it_ends(caller)


async def test_cancelled_close_leaves_no_socket_behind(group: BusGroup, folder: Path) -> None:
    with nothing_left():
        one = await group.join("one")
        closing = asyncio.create_task(one.bus.close())
        await turns(1)
        closing.cancel()
        await asyncio.wait([closing])
    assert not folder.exists() or not [*folder.iterdir()]


async def test_connections_are_accepted_again_once_descriptors_are_free(group: BusGroup, folder: Path) -> None:
    one = await group.join("one")
    with socket.socket(socket.AF_UNIX) as caller:
        with no_descriptor_left():
            caller.connect(str(folder / "one"))
            await turns(3)
        caller.sendall(add_length_prefix(b"no frame"))
        await until_it_ends(caller)
    assert not one.told
