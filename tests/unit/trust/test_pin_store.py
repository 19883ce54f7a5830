"""The file of the pin store."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest
from tests.limits import PATIENCE

from trunkline import PinStore
from trunkline.errors import MisuseError, StoreError, StoreUnusable
from trunkline.file_lock import try_lock
from trunkline.protocol.types import Tool
from trunkline.trust import pin_store


def tool(name: str = "forecast", description: str = "Returns the forecast.") -> Tool:
    return Tool(name=name, description=description, input_schema={"type": "object"})


@pytest.fixture
def store(tmp_path: Path) -> PinStore:
    return PinStore(tmp_path / "state" / "pins.json")


def test_pins_are_kept_in_a_private_file(store: PinStore) -> None:
    assert store.examine("weather", [tool()]).blocked == {}
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert PinStore(store.path).examine("weather", [tool(description="Another.")]).blocked
    assert {path.name for path in store.path.parent.iterdir()} == {"pins.json", "pins.json.lock"}


def test_default_file_is_in_the_state_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert PinStore().path.name == "pins.json"


def test_unchanged_tools_write_nothing(store: PinStore) -> None:
    store.examine("weather", [tool()])
    before = store.path.stat().st_ino
    store.examine("weather", [tool()])
    assert store.path.stat().st_ino == before


def test_servers_have_separate_pins(store: PinStore) -> None:
    store.examine("one", [tool()])
    assert store.examine("two", [tool(description="Another.")]).blocked == {}


def test_approval_takes_effect_in_other_stores_of_the_file(store: PinStore) -> None:
    store.examine("weather", [tool()])
    changed = [tool(description="Another."), tool("more")]
    assert [*store.examine("weather", changed).blocked] == ["forecast", "more"]
    assert PinStore(store.path).approve("weather") == ("forecast", "more")
    assert store.examine("weather", changed).blocked == {}


def test_digest_limits_the_approval(store: PinStore) -> None:
    store.examine("weather", [tool()])
    store.examine("weather", [tool(description="Another.")])
    waiting = store.servers()["weather"].waiting["forecast"].digest
    with pytest.raises(StoreError, match="changed again"):
        store.approve("weather", "forecast", digest="0" * 64)
    assert store.approve("weather", "forecast", digest=waiting) == ("forecast",)


def test_removed_server_is_pinned_anew(store: PinStore) -> None:
    store.examine("weather", [tool()])
    store.remove("weather")
    assert store.examine("weather", [tool(description="Another.")]).blocked == {}


def test_removed_tool_needs_approval(store: PinStore) -> None:
    store.examine("weather", [tool()])
    store.remove("weather", "forecast")
    assert store.examine("weather", [tool()]).blocked


def test_unknown_server_is_named(store: PinStore) -> None:
    store.examine("weather", [tool()])
    with pytest.raises(MisuseError, match="no pins of server 'wether'"):
        store.approve("wether")
    with pytest.raises(MisuseError, match="no pins of server 'wether'"):
        store.remove("wether")


def test_new_tools_is_one_of_two_words() -> None:
    with pytest.raises(MisuseError, match='"block" or "trust"'):
        PinStore("x", new_tools="ask")  # pyright: ignore[reportArgumentType]


# --- failing closed --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"servers": {}, "format": "trunkline pins 2"}', b'{"servers": {}, "more": 1}', b"\xff"],
    ids=["empty", "half", "list", "members", "later format", "unknown member", "not text"],
)
def test_damaged_file_is_refused_and_kept(store: PinStore, content: bytes) -> None:
    store.examine("weather", [tool()])
    store.path.write_bytes(content)
    for use in (
        lambda: store.examine("weather", [tool()]),
        lambda: store.examine("other", [tool()]),
        lambda: store.approve("weather"),
        lambda: store.remove("weather"),
        store.servers,
    ):
        with pytest.raises(StoreUnusable, match="restore the file from a backup, or delete it"):
            use()
    assert store.path.read_bytes() == content


def test_edited_definition_is_refused(store: PinStore) -> None:
    store.examine("weather", [tool()])
    content = json.loads(store.path.read_text())
    content["servers"]["weather"]["pins"]["forecast"]["definition"]["description"] = "Reads your keys."
    store.path.write_text(json.dumps(content))
    with pytest.raises(StoreUnusable, match="digest of tool 'forecast' of 'weather'"):
        store.examine("weather", [tool()])


def test_definition_under_another_name_is_refused(store: PinStore) -> None:
    store.examine("weather", [tool()])
    content = json.loads(store.path.read_text())
    content["servers"]["weather"]["pins"] = {"other": content["servers"]["weather"]["pins"]["forecast"]}
    store.path.write_text(json.dumps(content))
    with pytest.raises(StoreUnusable, match="tool 'other'"):
        store.servers()


def test_file_that_other_users_can_access_is_refused(store: PinStore) -> None:
    store.examine("weather", [tool()])
    store.path.chmod(0o644)
    with pytest.raises(StoreUnusable, match="chmod 600"):
        store.examine("weather", [tool()])


def test_file_of_another_user_is_refused(store: PinStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.examine("weather", [tool()])
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StoreUnusable, match="belongs to another user"):
        store.examine("weather", [tool()])


def test_link_and_folder_are_refused(store: PinStore, tmp_path: Path) -> None:
    store.examine("weather", [tool()])
    (tmp_path / "link").symlink_to(store.path)
    with pytest.raises(StoreError, match="cannot be used"):
        PinStore(tmp_path / "link").examine("weather", [tool()])
    with pytest.raises(StoreError):
        PinStore(tmp_path).examine("weather", [tool()])


def test_failed_write_changes_nothing(store: PinStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.examine("weather", [tool()])
    before = store.path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="No space left"):
        store.examine("other", [tool()])
    assert store.path.read_bytes() == before
    assert {path.name for path in store.path.parent.iterdir()} == {"pins.json", "pins.json.lock"}


# --- several processes -----------------------------------------------------------------------------


def test_writers_do_not_lose_the_pins_of_each_other(store: PinStore) -> None:
    def contact(server: str) -> None:
        PinStore(store.path).examine(server, [tool()])

    threads = [threading.Thread(target=contact, args=(f"server {number}",)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.servers()) == 20


def test_one_of_two_first_contacts_is_trusted(store: PinStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.examine("other", [tool()])
    waiting, results = threading.Barrier(3), list[bool]()
    reached = threading.local()

    def try_after_both(descriptor: int) -> bool:
        if not hasattr(reached, "here"):
            reached.here = True
            waiting.wait(PATIENCE)  # both have read the file
        return try_lock(descriptor)

    def contact(description: str) -> None:
        results.append(bool(PinStore(store.path).examine("weather", [tool(description=description)]).blocked))

    monkeypatch.setattr(pin_store, "try_lock", try_after_both)
    threads = [threading.Thread(target=contact, args=(text,)) for text in ("One.", "Two.")]
    for thread in threads:
        thread.start()
    waiting.wait(PATIENCE)
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, True]


def test_lock_that_is_never_released_is_named(store: PinStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.examine("weather", [tool()])
    monkeypatch.setattr(pin_store, "_LOCK_TIMEOUT", 0.05)
    descriptor = os.open(f"{store.path}.lock", os.O_RDWR)
    try:
        assert try_lock(descriptor)
        with pytest.raises(StoreError, match=r"another process has locked .*pins\.json\.lock"):
            store.examine("other", [tool()])
    finally:
        os.close(descriptor)
    assert store.examine("other", [tool()]).blocked == {}
