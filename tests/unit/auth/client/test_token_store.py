"""Token stores: in memory, and in files that only the user can read."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.limits import PATIENCE

from trunkline.auth.client.token_store import FileTokens, MemoryTokens, TokenStore
from trunkline.config import tokens_folder
from trunkline.errors import StoreError

KEYS = ["https://notes.example/mcp", "", "../../etc/passwd", "/absolute", "a\x00b", "ü" * 5000, "CON", "."]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tokens"


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, folder: Path) -> TokenStore:
    return MemoryTokens() if request.param == "memory" else FileTokens(folder)


# --- any store ----------------------------------------------------------------------------------


async def test_value_exists_until_deleted(store: TokenStore) -> None:
    assert await store.get("a") is None
    for value in (b"one", b"", b"\n\x00 two\n" * 1000):
        await store.put("a", value)
        assert await store.get("a") == value
    await store.put("a", None)
    await store.put("a", None)
    assert await store.get("a") is None


async def test_keys_are_separate(store: TokenStore) -> None:
    for number, key in enumerate(KEYS):
        await store.put(key, b"%d" % number)
    assert [await store.get(key) for key in KEYS] == [b"%d" % number for number in range(len(KEYS))]


async def test_lock_is_exclusive_among_tasks(store: TokenStore) -> None:
    inside, most = 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with store.locked("a"):
            inside += 1
            most = max(most, inside)
            value = int(await store.get("a") or b"0")
            await asyncio.sleep(0)
            await store.put("a", b"%d" % (value + 1))
            inside -= 1

    await asyncio.gather(*(work() for _ in range(10)))
    assert (most, await store.get("a")) == (1, b"10")


async def test_locks_of_two_keys_are_independent(store: TokenStore) -> None:
    async with asyncio.timeout(PATIENCE), store.locked("a"), store.locked("b"):
        pass


async def test_lock_is_released_after_exception(store: TokenStore) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            async with store.locked("a"):
                raise ZeroDivisionError


async def test_cancelled_waiter_leaves_the_lock(store: TokenStore) -> None:
    async with store.locked("a"):
        waiting = asyncio.ensure_future(store.locked("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(PATIENCE), store.locked("a"):
        pass


async def test_repr_has_no_values(store: TokenStore) -> None:
    await store.put("a", b"hunter2")
    assert "hunter2" not in repr(store)


# --- files --------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_files_and_folders_are_private(folder: Path) -> None:
    before = os.umask(0)
    try:
        store = FileTokens(folder)
        async with store.locked("a"):
            await store.put("a", b"x")
    finally:
        os.umask(before)
    assert [mode(folder), mode(folder.parent)] == [0o700, 0o700]
    assert {path.suffix: mode(path) for path in folder.iterdir()} == {".token": 0o600, ".lock": 0o600}


async def test_file_names_are_digests(folder: Path) -> None:
    store = FileTokens(folder)
    for key in KEYS:
        await store.put(key, b"x")
    names = [path.name for path in folder.iterdir()]
    assert len(names) == len(KEYS)
    assert all(len(name) == 64 + len(".token") and int(name[:64], 16) for name in names)


async def test_second_store_reads_values_of_the_first(folder: Path) -> None:
    await FileTokens(str(folder)).put("a", b"x")
    assert await FileTokens(folder).get("a") == b"x"


@pytest.mark.parametrize("extra", [0o040, 0o020, 0o004, 0o002, 0o001])
async def test_accessible_folder_is_refused(folder: Path, extra: int) -> None:
    store = FileTokens(folder)
    await store.put("a", b"x")
    folder.chmod(0o700 | extra)
    for attempt in (store.get("a"), store.put("a", b"y"), store.put("a", None), store.locked("a").__aenter__()):
        with pytest.raises(StoreError, match=r"other users can access .*chmod 700"):
            await attempt
    folder.chmod(0o700)
    assert await store.get("a") == b"x"


@pytest.mark.parametrize("suffix", ["token", "lock"])
async def test_accessible_file_is_refused(folder: Path, suffix: str) -> None:
    store = FileTokens(folder)
    async with store.locked("a"):
        await store.put("a", b"x")
    next(folder.glob(f"*.{suffix}")).chmod(0o640)
    with pytest.raises(StoreError, match=r"other users can access .*mode 640.*chmod 600"):
        await (store.get("a") if suffix == "token" else store.locked("a").__aenter__())


async def test_foreign_owner_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileTokens(folder)
    await store.put("a", b"x")
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(StoreError, match="belongs to another user"):
        await store.get("a")


async def test_symlinks_are_not_followed(folder: Path, tmp_path: Path) -> None:
    store = FileTokens(folder)
    await store.put("a", b"x")
    (kept,) = folder.glob("*.token")
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        await store.get("a")
    await store.put("a", b"y")  # replaces the link, and leaves its target alone
    assert await store.get("a") == b"y"
    assert (tmp_path / "elsewhere").read_bytes().endswith(b"x")


async def test_wrong_file_type_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="tokens cannot be stored in"):
        await FileTokens(tmp_path / "file").put("a", b"x")
    store = FileTokens(folder)
    await store.put("a", b"x")
    (kept,) = folder.glob("*.token")
    kept.unlink()
    kept.mkdir(0o700)
    with pytest.raises(StoreError, match="has the wrong type"):
        await store.get("a")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content + b"!",
        lambda content: b"{}" + content,
        lambda content: content.replace(b"hunter2", b"hunter3"),
        lambda content: b"\xff" * (2 << 20),
    ],
)
async def test_damaged_file_counts_as_none_with_warning(folder: Path, spoil) -> None:
    store = FileTokens(folder)
    await store.put("a", b"hunter2")
    (kept,) = folder.glob("*.token")
    kept.write_bytes(spoil(kept.read_bytes()))
    with pytest.warns(RuntimeWarning, match="is damaged") as warned:
        assert await store.get("a") is None
    assert str(kept) in str(warned[0].message)
    assert "hunter" not in str(warned[0].message)
    await store.put("a", b"again")
    assert await store.get("a") == b"again"


async def test_file_of_another_key_counts_as_none(folder: Path) -> None:
    store = FileTokens(folder)
    await store.put("a", b"x")
    (of_a,) = folder.glob("*.token")
    await store.put("b", b"y")
    (of_b,) = set(folder.glob("*.token")) - {of_a}
    of_a.rename(of_b)
    with pytest.warns(RuntimeWarning):
        assert await store.get("b") is None


async def test_oversized_value_is_refused(folder: Path) -> None:
    store = FileTokens(folder)
    with pytest.raises(StoreError, match="too large"):
        await store.put("a", bytes(1 << 20))


async def test_failed_write_keeps_old_value(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileTokens(folder)
    await store.put("a", b"old")

    def fsync(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(StoreError, match="No space left"):
            await store.put("a", b"new")
    assert await store.get("a") == b"old"
    assert [path.suffix for path in folder.iterdir()] == [".token"]


async def test_readers_see_whole_values_during_writes(folder: Path) -> None:
    store, values = FileTokens(folder), {b"a" * 50_000, b"b" * 60_000}
    await store.put("a", b"a" * 50_000)

    async def write() -> None:
        for _ in range(10):
            for value in values:
                await store.put("a", value)

    writing = asyncio.ensure_future(write())
    while not writing.done():
        assert await store.get("a") in values
    await writing


async def test_cancelled_write_completes(folder: Path) -> None:
    store = FileTokens(folder)
    writing = asyncio.ensure_future(store.put("a", b"x"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await store.get("a") == b"x"


# --- several processes --------------------------------------------------------------------------

COUNTING = """
import asyncio, sys
from trunkline.auth.client.token_store import FileTokens

async def main():
    store = FileTokens(sys.argv[1])
    for _ in range(20):
        async with store.locked("a"):
            value = int(await store.get("a") or b"0")
            await store.put("a", b"%d" % (value + 1))

asyncio.run(main())
"""
HOLDING = """
import asyncio, sys
from trunkline.auth.client.token_store import FileTokens

async def main():
    async with FileTokens(sys.argv[1]).locked("a"):
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@contextmanager
def holder(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(folder)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


async def test_lock_is_exclusive_among_processes(folder: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", COUNTING, str(folder)]) for _ in range(2)]
    assert [process.wait(PATIENCE) for process in processes] == [0, 0]
    assert await FileTokens(folder).get("a") == b"40"


async def test_foreign_lock_times_out(folder: Path) -> None:
    with holder(folder):
        with pytest.raises(StoreError, match=r"another process has locked .* for 0\.05 s"):
            await FileTokens(folder, patience=0.05).locked("a").__aenter__()
        async with FileTokens(folder, patience=5).locked("b"):
            pass


async def test_lock_of_killed_process_is_free(folder: Path) -> None:
    with holder(folder) as process:
        waiting = asyncio.ensure_future(FileTokens(folder, patience=20).locked("a").__aenter__())
        await asyncio.sleep(0)
        assert not waiting.done()
        process.send_signal(signal.SIGKILL)
        await waiting


# --- location -----------------------------------------------------------------------------------


def test_default_folder_by_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    state = str(tmp_path / "xdg")
    assert tokens_folder({}, "linux") == str(tmp_path / ".local/state/trunkline/tokens")
    assert tokens_folder({"XDG_STATE_HOME": state}, "linux") == f"{state}/trunkline/tokens"
    assert tokens_folder({"XDG_STATE_HOME": "relative"}, "linux") == str(tmp_path / ".local/state/trunkline/tokens")
    assert tokens_folder({"XDG_STATE_HOME": state}, "darwin") == str(
        tmp_path / "Library/Application Support/trunkline/tokens"
    )
    assert tokens_folder({"LOCALAPPDATA": state}, "win32") == f"{state}/trunkline/tokens"


async def test_default_folder_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    await FileTokens().put("a", b"x")
    assert len(list((tmp_path / "trunkline/tokens").iterdir())) == 1
