"""Files and folders as resources: reading, listing, confinement and watching."""

import asyncio
import os
import resource
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE, soon

from trunkline import Server, Settings
from trunkline.errors import RegistrationError
from trunkline.testing import ManualClock, RawPeer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("first\n")
    (root / "sub" / "b c.json").write_text("{}")
    (root / "picture.png").write_bytes(b"\x89PNG")
    (root / "odd").write_bytes(b"a\0b")
    (root / "plain").write_text("words")
    (root / "bad.txt").write_bytes(b"\xff\xfe")
    (root / "data.tar.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "secret.txt").write_text("secret")
    (root / "way out").symlink_to(tmp_path / "secret.txt")
    (root / "within").symlink_to(root / "a.txt")
    return root


def served(folder: Path, **options: Any) -> Server:
    server = Server("t", observers=[], **options)
    server.add_directory("files:///{+path}", folder)
    return server


@pytest.mark.row("RES-03", "R10")
@pytest.mark.parametrize(
    ("uri", "contents"),
    [
        ("files:///a.txt", {"mimeType": "text/plain", "text": "first\n"}),
        ("files:///within", {"mimeType": "text/plain", "text": "first\n"}),
        ("files:///sub/b%20c.json", {"mimeType": "application/json", "text": "{}"}),
        ("files:///picture.png", {"mimeType": "image/png", "blob": "iVBORw=="}),
        ("files:///odd", {"mimeType": "application/octet-stream", "blob": "YQBi"}),
        ("files:///plain", {"mimeType": "text/plain", "text": "words"}),
        ("files:///bad.txt", {"mimeType": "text/plain", "blob": "//4="}),
        ("files:///data.tar.gz", {"mimeType": "application/gzip", "blob": "H4s="}),
    ],
)
async def test_file_is_read_as_text_or_bytes_with_its_type(folder: Path, uri: str, contents: Any) -> None:
    async with RawPeer(served(folder)) as peer:
        await peer.initialize()
        result = await peer.result("resources/read", {"uri": uri})
    assert result["contents"] == [{"uri": uri, **contents}]


@pytest.mark.row("RES-08", "R09")
@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "sub/../../secret.txt", "%2e%2e/secret.txt", "way%20out", "/etc/passwd", "//etc/passwd", "a%00b"],
)
async def test_nothing_outside_the_folder_is_read_or_watched(folder: Path, path: str) -> None:
    async with RawPeer(served(folder)) as peer:
        await peer.initialize()
        for method in ("resources/read", "resources/subscribe"):
            error = await peer.error(method, {"uri": f"files:///{path}"})
            assert error["data"]["kind"] == "resource_access_denied"
        assert "secret" not in str(peer.transcript.said_by("server")).replace("secret.txt", "")


@pytest.mark.row("RES-06")
@pytest.mark.parametrize("path", ["nothing", "sub", "a.txt/b", "x" * 300, "circle"])
async def test_non_files_are_not_found(folder: Path, path: str) -> None:
    (folder / "circle").symlink_to("circle")
    async with RawPeer(served(folder)) as peer:
        await peer.initialize()
        assert (await peer.error("resources/read", {"uri": f"files:///{path}"}))["code"] == -32002


@pytest.mark.row("R01")
async def test_list_shows_the_current_files(folder: Path) -> None:
    async with RawPeer(served(folder)) as peer:
        await peer.initialize()
        first = (await peer.result("resources/list"))["resources"]
        assert first[0] == {"uri": "files:///a.txt", "name": "a.txt", "mimeType": "text/plain", "size": 6}
        assert [r["name"] for r in first] == [
            "a.txt",
            "bad.txt",
            "data.tar.gz",
            "odd",
            "picture.png",
            "plain",
            "within",
            "sub/b c.json",
        ]
        for resource in first:
            await peer.result("resources/read", {"uri": resource["uri"]})
        (folder / "sub" / "b c.json").unlink()
        assert len((await peer.result("resources/list"))["resources"]) == len(first) - 1


@pytest.mark.row("R01")
async def test_subfolders_are_listed_in_order_without_links(tmp_path: Path) -> None:
    for name in ("b/2", "a/1", "c/3", "a/x/9", "z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    async with RawPeer(served(tmp_path)) as peer:
        await peer.initialize()
        names = [r["name"] for r in (await peer.result("resources/list"))["resources"]]
    assert names == ["z", "a/1", "a/x/9", "b/2", "c/3"]


AWKWARD_NAMES = [
    b"%61.txt",
    b"sub%2ffile",
    b"C:x.txt",
    b"a?b#c.txt",
    b"a\\..\\b",
    b"\\x",
    b"caf\xe9.txt",
    b"line\nbreak",
    b"data:,x.txt",
    b"100%",
    b"[1] {2}",
]


@pytest.mark.parametrize("pattern", ["files:///{+path}", "files:///{path}"])
@pytest.mark.parametrize("name", AWKWARD_NAMES)
async def test_listed_file_of_any_name_is_readable_and_watchable(tmp_path: Path, name: bytes, pattern: str) -> None:
    path = tmp_path / os.fsdecode(name)
    path.write_text("found")
    looks = ManualPolling(tmp_path, pattern)
    async with RawPeer(looks.server) as peer:
        await peer.initialize()
        (_, found) = (await peer.result("resources/list"))["resources"]  # after the one of its own
        assert found["name"] == name.decode(errors="replace")
        read = await peer.result("resources/read", {"uri": found["uri"]})
        assert [contents["text"] for contents in read["contents"]] == ["found"]
        await peer.result("resources/subscribe", {"uri": found["uri"]})
        os.utime(path, ns=(1, 1))
        assert await looks.poll(peer) == [found["uri"]]


async def test_file_type_is_guessed_from_url_like_names(tmp_path: Path) -> None:
    (tmp_path / "data:,x?y#z.json").write_text("{}")
    async with RawPeer(served(tmp_path)) as peer:
        await peer.initialize()
        (found,) = (await peer.result("resources/list"))["resources"]
        assert found["mimeType"] == "application/json"


async def test_file_with_non_utf8_name_is_listed(tmp_path: Path) -> None:
    server = Server("t")
    server.add_file("notes://menu", tmp_path / os.fsdecode(b"caf\xe9.txt"))
    async with RawPeer(server) as peer:
        await peer.initialize()
        (found,) = (await peer.result("resources/list"))["resources"]
        assert found["name"] == "caf\ufffd.txt"


async def test_path_with_dot_dot_is_denied(folder: Path) -> None:
    async with RawPeer(served(folder)) as peer:
        await peer.initialize()
        for method in ("resources/read", "resources/subscribe"):
            error = await peer.error(method, {"uri": "files:///sub/../a.txt"})
            assert error["data"]["kind"] == "resource_access_denied"


async def test_uri_without_path_names_no_file(folder: Path) -> None:
    server = Server("t")
    server.add_directory("files:{?path}", folder)
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.error("resources/read", {"uri": "files:"}))["code"] == -32002
        read = await peer.result("resources/read", {"uri": "files:?path=sub/b%20c.json"})
        assert read["contents"][0]["text"] == "{}"


async def test_folder_may_be_unlisted(folder: Path) -> None:
    server = Server("t")
    server.add_directory("files:///{path}", folder, listed=False, name="mine", mime_type="text/x-mine")
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.result("resources/list"))["resources"] == []
        (template,) = (await peer.result("resources/templates/list"))["resourceTemplates"]
        assert (template["name"], template["mimeType"]) == ("mine", "text/x-mine")
        read = await peer.result("resources/read", {"uri": "files:///a.txt"})
        assert read["contents"][0]["mimeType"] == "text/x-mine"


@pytest.mark.row("R10")
async def test_single_file_has_its_own_uri(folder: Path) -> None:
    server = Server("t")
    server.add_file("notes://today", folder / "a.txt", description="Today")
    server.add_file("notes://later", folder / "later.md", mime_type="text/markdown")
    async with RawPeer(server) as peer:
        await peer.initialize()
        listed = (await peer.result("resources/list"))["resources"]
        assert listed[0] == {"uri": "notes://today", "name": "a.txt", "mimeType": "text/plain", "description": "Today"}
        read = await peer.result("resources/read", {"uri": "notes://today"})
        assert read["contents"] == [{"uri": "notes://today", "mimeType": "text/plain", "text": "first\n"}]
        assert (await peer.error("resources/read", {"uri": "notes://later"}))["code"] == -32002
        (folder / "later.md").write_text("# Later")
        assert (await peer.result("resources/read", {"uri": "notes://later"}))["contents"][0]["text"] == "# Later"


async def test_text_type_ignores_case_and_parameters(folder: Path) -> None:
    server = Server("t")
    server.add_file("notes://odd", folder / "a.txt", mime_type="Application/JSON; charset=utf-8")
    async with RawPeer(server) as peer:
        await peer.initialize()
        read = await peer.result("resources/read", {"uri": "notes://odd"})
    assert read["contents"][0]["text"] == "first\n"


@pytest.mark.row("R16")
async def test_unreadable_file_is_an_internal_error() -> None:
    server = Server("t", observers=[])
    server.add_file("proc://memory", "/proc/self/mem")
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.error("resources/read", {"uri": "proc://memory"}))["code"] == -32603


def test_invalid_files_and_folders_are_rejected(folder: Path) -> None:
    server = Server("t")
    with pytest.raises(RegistrationError, match="use add_directory"):
        server.add_file("notes://x", folder)
    with pytest.raises(RegistrationError, match="is not a folder"):
        server.add_directory("files:///{+path}", folder / "a.txt")
    for pattern in ("files:///{+name}", "files:///{a}/{+path}", "files:///", "files:{/path*}"):
        with pytest.raises(RegistrationError, match="exactly one variable"):
            server.add_directory(pattern, folder)


# --- folders that change during a read -----------------------------------------------------------------


class Swap:
    """Exchange a folder for a link to the outside, after that many system calls."""

    def __init__(self, folder: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside, self.aside = folder / "sub", folder / "aside"
        self.outside = folder.parent / "outside"
        self.outside.mkdir()
        (self.outside / "b c.json").write_text('"secret"')
        (self.outside / "unseen.json").write_text('"secret"')
        self._left = after
        for name in ("open", "stat", "fstat", "lstat", "readlink", "scandir"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        for supported in (os.supports_dir_fd, os.supports_follow_symlinks):
            supported.update((os.open, os.stat, os.readlink))

    def _counted(self, call: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            result = call(*args, **options)
            if threading.current_thread() is not threading.main_thread():  # where files are read
                self._left -= 1
                if self._left == 0:
                    self.inside.rename(self.aside)
                    self.inside.symlink_to(self.outside)
            return result

        return counted


@pytest.mark.parametrize("after", range(1, 12))
async def test_folder_replaced_by_a_link_during_a_read_is_denied(
    folder: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "link").symlink_to("sub/b c.json")
    async with RawPeer(served(folder)) as peer:
        await peer.initialize()
        Swap(folder, after, monkeypatch)
        uri = f"files:///{'link' if after % 2 else 'sub/b%20c.json'}"
        answer = await peer.request("resources/read", {"uri": uri})
        if "result" in answer:
            assert answer["result"]["contents"][0]["text"] == "{}"
        else:
            assert answer["error"]["data"]["kind"] in {"resource_access_denied", "resource_not_found"}


@pytest.mark.parametrize("after", range(1, 12))
async def test_folder_replaced_by_a_link_during_a_list_is_safe(
    folder: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RawPeer(served(folder)) as peer:
        await peer.initialize()
        Swap(folder, after, monkeypatch)
        assert "sub/unseen.json" not in await listed(peer)


@pytest.mark.long
async def test_repeated_link_swaps_never_leak_a_file(folder: Path) -> None:
    outside, aside, inside = folder.parent / "outside", folder.parent / "aside", folder / "sub"
    outside.mkdir()
    (outside / "b c.json").write_text('"secret"')
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            inside.rename(aside)
            inside.symlink_to(outside)
            inside.unlink()
            aside.rename(inside)

    swapping = threading.Thread(target=swap)
    swapping.start()
    texts: Counter[str] = Counter()
    try:
        async with RawPeer(served(folder)) as peer:
            await peer.initialize()
            for _ in range(10_000):
                answer = await peer.request("resources/read", {"uri": "files:///sub/b%20c.json"})
                texts[answer["result"]["contents"][0]["text"] if "result" in answer else "error"] += 1
    finally:
        done.set()
        swapping.join()
    assert set(texts) == {"{}", "error"}


# --- links ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("a.txt", None),
        ("./sub/../a.txt", None),
        ("sub/up", None),  # which leads to ../a.txt
        ("within", None),
        ("sub/back/a.txt", None),  # by a link to the folder itself
        ("../root/a.txt", "resource_access_denied"),  # it leaves the folder, though it would come back
        ("../secret.txt", "resource_access_denied"),
        ("sub/out/secret.txt", "resource_access_denied"),
        ("/etc/passwd", "resource_access_denied"),
        ("sub", "resource_not_found"),
        ("nothing", "resource_not_found"),
        ("pipe", "resource_not_found"),
        ("one", "resource_not_found"),  # a circle
    ],
)
async def test_links_are_followed_only_inside_the_folder(folder: Path, target: str, kind: str | None) -> None:
    (folder / "sub" / "up").symlink_to("../a.txt")
    (folder / "sub" / "back").symlink_to(folder)
    (folder / "sub" / "out").symlink_to("../..")
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    os.mkfifo(folder / "pipe")
    (folder / "the link").symlink_to(target)
    async with RawPeer(served(folder)) as peer:
        await peer.initialize()
        answer = await peer.request("resources/read", {"uri": "files:///the%20link"})
        assert ("the link" in await listed(peer)) is (kind is None)
    if kind is None:
        assert answer["result"]["contents"][0]["text"] == "first\n"
    else:
        assert answer["error"]["data"]["kind"] == kind


async def test_absolute_link_may_name_the_folder_either_way(tmp_path: Path) -> None:
    real, given = tmp_path / "real", tmp_path / "given"
    real.mkdir()
    given.symlink_to(real)
    (real / "a.txt").write_text("first")
    (real / "by real").symlink_to(real / "a.txt")
    (real / "by given").symlink_to(given / "a.txt")
    async with RawPeer(served(given)) as peer:
        await peer.initialize()
        for name in ("by%20real", "by%20given"):
            read = await peer.result("resources/read", {"uri": f"files:///{name}"})
            assert read["contents"][0]["text"] == "first"


# --- sizes ---------------------------------------------------------------------------------------------


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


async def test_file_over_the_limit_is_rejected_unread(folder: Path) -> None:
    sparse(folder / "huge.bin", 3 << 30)
    server = served(folder)
    server.add_file("notes://huge", folder / "huge.bin")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with RawPeer(server) as peer:
        await peer.initialize()
        for uri in ("files:///huge.bin", "notes://huge"):
            error = await peer.error("resources/read", {"uri": uri})
            assert error["code"] == -32602
            assert error["data"] == {
                "kind": "content_too_large",
                "size": 3 << 30,
                "maxSize": 32 << 20,
                "unit": "bytes",
            }
            assert "max_file" in error["message"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


@pytest.mark.parametrize(
    ("name", "size", "limits", "kind"),
    [
        ("it.png", 11, {"max_binary": 10}, "binary_data_too_large"),
        ("it.png", 1 << 30, {"max_binary": 10, "max_file": None}, "binary_data_too_large"),
        ("it", 11, {"max_binary": 10}, "binary_data_too_large"),  # known as binary only when it is read
        ("it.txt", 11, {"max_text": 10}, "text_too_long"),  # may be 3 characters, until it is read
        ("it.txt", 1 << 30, {"max_text": 10, "max_file": None}, "text_too_long"),
        ("it.png", 11, {"max_file": 10}, "content_too_large"),
        ("it.png", 10, {"max_file": 10, "max_binary": 10}, None),
        ("it.txt", 10, {"max_file": 10, "max_text": 10}, None),
    ],
)
async def test_each_limit_has_its_own_error(
    folder: Path, name: str, size: int, limits: dict[str, Any], kind: str | None
) -> None:
    sparse(folder / name, size)
    async with RawPeer(served(folder, settings=Settings(**limits))) as peer:
        await peer.initialize()
        answer = await peer.request("resources/read", {"uri": f"files:///{name}"})
    if kind is None:
        assert len(answer["result"]["contents"]) == 1
    else:
        assert (answer["error"]["code"], answer["error"]["data"]["kind"]) == (-32602, kind)


async def test_file_without_a_size_is_read_up_to_a_limit(folder: Path) -> None:
    (folder / "nothing.txt").touch()
    for limit in (None, 100):
        server = Server("t", observers=[], settings=Settings(max_file=limit))
        server.add_file("proc://status", "/proc/self/status")
        server.add_file("proc://nothing", folder / "nothing.txt")
        async with RawPeer(server) as peer:
            await peer.initialize()
            read = await peer.result("resources/read", {"uri": "proc://nothing"})
            assert read["contents"][0]["text"] == ""
            answer = await peer.request("resources/read", {"uri": "proc://status"})
        if limit is None:
            assert answer["result"]["contents"][0]["text"].startswith("Name:")
        else:
            assert answer["error"]["data"]["kind"] == "content_too_large"
            assert answer["error"]["data"]["maxSize"] == limit


async def test_reads_beyond_the_budget_wait_without_a_thread(folder: Path) -> None:
    settings = Settings(file_read_budget=1000, max_threads=1)
    server = served(folder, settings=settings)
    server.add_tool(lambda: "plain", name="plain", thread=True)
    for name, size in (("large.txt", 900), ("small.txt", 10), ("grows.txt", 10)):
        (folder / name).write_text("x" * size)
    async with RawPeer(server) as peer:
        await peer.initialize()
        budget = server._runtime.file_watch.reader._budget
        assert budget.try_take(500)
        ids: dict[int | str, str] = {}
        for name in ("large", "small", "grows", "dropped"):
            uri = f"files:///{'large' if name == 'dropped' else name}.txt"
            ids[peer.call("resources/read", {"uri": uri})] = name
            assert (await peer.result("tools/call", {"name": "plain"}))["isError"] is False  # on the only thread
        assert [turn[1] for turn in budget._waiters] == [900, 10, 10, 900]
        dropped = next(ident for ident, name in ids.items() if name == "dropped")
        del ids[dropped]
        peer.notify("notifications/cancelled", {"requestId": dropped})
        await peer.result("ping")
        (folder / "grows.txt").write_text("x" * 990)
        budget.give_back(500)
        answered = [await peer.receive() for _ in ids]
        assert {ids[answer["id"]]: len(answer["result"]["contents"][0]["text"]) for answer in answered} == {
            "large": 900,
            "small": 10,
            "grows": 990,
        }
        assert ids[answered[0]["id"]] == "large"
        assert budget.try_take(1000)  # all of it is free again


# --- watching ------------------------------------------------------------------------------------------


@pytest.mark.row("R18")
async def test_change_of_watched_file_is_notified(folder: Path) -> None:
    await seconds_until_notified(folder)


@pytest.mark.row("R18")
@pytest.mark.long
async def test_change_of_watched_file_is_notified_within_a_second(folder: Path) -> None:
    await soon(partial(seconds_until_notified, folder), 1.0)


async def seconds_until_notified(folder: Path) -> float:
    """Return how long it takes until a client receives the notification of a change."""
    server = served(folder)
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("resources/subscribe", {"uri": "files:///a.txt"})
        before = time.monotonic()
        with (folder / "a.txt").open("a") as file:
            file.write("and longer\n")
        told = await peer.receive()
        took = time.monotonic() - before
        assert told["method"] == "notifications/resources/updated"
        assert told["params"] == {"uri": "files:///a.txt"}
    await server.aclose()
    return took


class ManualPolling:
    """A server that polls its files when the test says so."""

    def __init__(self, folder: Path, pattern: str = "files:///{+path}") -> None:
        self.clock = ManualClock()
        self.server = Server("t", observers=[], clock=self.clock, settings=Settings(file_poll_interval=2.0))
        self.server.add_directory(pattern, folder)
        self.server.add_file("notes://today", folder / "a.txt")

    @property
    def watching(self) -> bool:
        """Return whether another poll is scheduled."""
        return self.server._runtime.file_watch._poller._timer is not None

    async def poll(self, peer: RawPeer) -> list[str]:
        """Poll once; return the URIs that were updated, or the list that has changed."""
        self.clock.advance(2.0)
        async with asyncio.timeout(PATIENCE):
            while self.server._runtime.file_watch._poller._job is not None:
                await asyncio.sleep(0)
        return [message["params"].get("uri", message["method"]) for message in await peer.quiet()]


@pytest.mark.row("R18")
async def test_only_subscribed_files_are_polled(folder: Path) -> None:
    looks = ManualPolling(folder)
    async with RawPeer(looks.server) as peer:
        await peer.initialize()
        assert not looks.watching
        for uri in ("files:///a.txt", "notes://today", "files:///new.txt", "other://thing"):
            await peer.result("resources/subscribe", {"uri": uri})
        assert await looks.poll(peer) == []
        os.utime(folder / "a.txt", ns=(1, 1))
        assert await looks.poll(peer) == ["files:///a.txt", "notes://today"]
        assert await looks.poll(peer) == []
        (folder / "new.txt").write_text("")
        assert await looks.poll(peer) == ["files:///new.txt"]
        (folder / "new.txt").unlink()
        assert await looks.poll(peer) == ["files:///new.txt"]
        await peer.result("resources/unsubscribe", {"uri": "files:///a.txt"})
        os.utime(folder / "a.txt", ns=(2, 2))
        assert await looks.poll(peer) == ["notes://today"]
        for uri in ("notes://today", "files:///new.txt"):
            await peer.result("resources/unsubscribe", {"uri": uri})
        assert not looks.watching


@pytest.mark.row("R18")
async def test_replaced_file_is_a_change(folder: Path) -> None:
    looks = ManualPolling(folder)
    os.utime(folder / "a.txt", ns=(1, 1))
    async with RawPeer(looks.server) as peer:
        await peer.initialize()
        await peer.result("resources/subscribe", {"uri": "notes://today"})
        other = folder.parent / "other.txt"
        other.write_text("other\n")
        os.utime(other, ns=(1, 1))
        other.replace(folder / "a.txt")  # as long and as old as the first one
        assert await looks.poll(peer) == ["notes://today"]


@pytest.mark.row("R18")
async def test_subscription_outlives_its_file(folder: Path) -> None:
    looks = ManualPolling(folder)
    async with RawPeer(looks.server) as peer:
        await peer.initialize()
        await peer.result("resources/subscribe", {"uri": "notes://today"})
        looks.server.remove_resource("notes://today")
        await peer.quiet()
        assert await looks.poll(peer) == []
        looks.server.add_file("notes://today", folder / "a.txt")
        looks.clock.advance(0.1)
        await peer.quiet()
        os.utime(folder / "a.txt", ns=(1, 1))
        assert "notes://today" in await looks.poll(peer)


@pytest.mark.row("R18")
async def test_link_redirected_outside_counts_as_deleted(folder: Path) -> None:
    looks = ManualPolling(folder)
    async with RawPeer(looks.server) as peer:
        await peer.initialize()
        await peer.result("resources/subscribe", {"uri": "files:///within"})
        (folder / "within").unlink()
        (folder / "within").symlink_to(folder.parent / "secret.txt")
        assert await looks.poll(peer) == ["files:///within"]
        (folder.parent / "secret.txt").write_text("changed")
        assert await looks.poll(peer) == []


@pytest.mark.row("R18")
async def test_watching_ends_with_last_subscriber_or_server(folder: Path) -> None:
    looks = ManualPolling(folder)
    async with RawPeer(looks.server) as peer:
        await peer.initialize()
        await peer.result("resources/subscribe", {"uri": "notes://today"})
        assert looks.watching
    await looks.server.aclose()
    assert not looks.watching
    async with RawPeer(looks.server) as peer:  # a closed server can serve again
        await peer.initialize()
        await peer.result("resources/subscribe", {"uri": "notes://today"})
        os.utime(folder / "a.txt", ns=(3, 3))
        assert await looks.poll(peer) == ["notes://today"]
    await looks.server.aclose()


# --- folders -------------------------------------------------------------------------------------------

LIST_CHANGED = "notifications/resources/list_changed"


def age(*folders: Path) -> None:
    """Set the times of folders so that they look unchanged for long."""
    for folder in folders:
        os.utime(folder, ns=(1, 1))


def path_of(descriptor: int) -> str:
    """The path of an open folder."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


async def listed(peer: RawPeer) -> list[str]:
    return [resource["name"] for resource in (await peer.result("resources/list"))["resources"]]


@pytest.mark.row("R19")
async def test_added_and_removed_files_are_notified(
    folder: Path,
) -> None:
    looks = ManualPolling(folder)
    async with RawPeer(looks.server) as peer, RawPeer(looks.server) as other:
        await peer.initialize()
        await other.initialize()
        await other.quiet()
        assert not looks.watching
        assert "sub/new.txt" not in await listed(peer)
        assert await looks.poll(peer) == []
        (folder / "sub" / "new.txt").write_text("")
        assert await looks.poll(peer) == [LIST_CHANGED]
        assert [message["method"] for message in await other.quiet()] == [LIST_CHANGED]
        assert "sub/new.txt" in await listed(peer)
        assert await looks.poll(peer) == []
        (folder / "sub" / "new.txt").unlink()
        assert await looks.poll(peer) == [LIST_CHANGED]
        (folder / "sub" / "deeper").mkdir()
        assert await looks.poll(peer) == []  # an empty folder shows nothing
        (folder / "sub" / "deeper" / "x").write_text("")
        assert await looks.poll(peer) == [LIST_CHANGED]
        (folder / "a.txt").write_text("other words")
        assert await looks.poll(peer) == []
    assert not looks.watching
    await looks.server.aclose()


@pytest.mark.row("R19")
async def test_unchanged_folder_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = ManualPolling(folder)
    age(folder, folder / "sub")
    read: list[str] = []
    scandir = os.scandir
    async with RawPeer(looks.server) as peer:
        await peer.initialize()
        await listed(peer)
        monkeypatch.setattr(os, "scandir", lambda opened: read.append(path_of(opened)) or scandir(opened))
        assert await looks.poll(peer) == []
        assert read == []
        (folder / "sub" / "new.txt").write_text("")
        assert await looks.poll(peer) == [LIST_CHANGED]
        assert read == [str(folder), str(folder / "sub")]
        read.clear()
        assert await looks.poll(peer) == []
        assert read != []  # a recent change, and more may follow


@pytest.mark.row("R19")
async def test_change_in_a_list_is_notified_to_other_clients(folder: Path) -> None:
    looks = ManualPolling(folder)
    async with RawPeer(looks.server) as peer, RawPeer(looks.server) as other:
        for each in (peer, other):
            await each.initialize()
            await listed(each)
        (folder / "new.txt").write_text("")
        assert "new.txt" in await listed(other)
        assert [message["method"] for message in await peer.quiet()] == [LIST_CHANGED]
        assert await looks.poll(peer) == []


@pytest.mark.row("R19")
async def test_folder_is_not_polled_without_list_changed(folder: Path) -> None:
    server = Server("t", observers=[], list_changed=False)
    server.add_directory("files:///{+path}", folder)
    async with RawPeer(server) as peer:
        await peer.initialize()
        await listed(peer)
        assert server._runtime.file_watch._poller._timer is None


@pytest.mark.row("R19")
async def test_removed_folder_is_not_polled(folder: Path) -> None:
    looks = ManualPolling(folder)
    async with RawPeer(looks.server) as peer:
        await peer.initialize()
        await listed(peer)
        looks.server.remove_resource("files:///{+path}")
        await peer.quiet()
        (folder / "new.txt").write_text("")
        assert await looks.poll(peer) == []
        assert not looks.watching


@pytest.mark.row("R19")
async def test_replaced_folder_is_not_polled(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    clock = ManualClock()
    server = Server("t", observers=[], clock=clock, settings=Settings(file_poll_interval=2.0, on_duplicate="replace"))
    looks = ManualPolling(folder)
    looks.server, looks.clock = server, clock
    server.add_directory("files:///{+path}", folder)
    async with RawPeer(server) as peer:
        await peer.initialize()
        await listed(peer)
        server.add_directory("files:///{+path}", tmp_path / "second")
        await peer.quiet()
        await listed(peer)
        (folder / "new.txt").write_text("")
        assert await looks.poll(peer) == []
        (tmp_path / "second" / "new.txt").write_text("")
        assert await looks.poll(peer) == [LIST_CHANGED]


@pytest.mark.row("R19")
async def test_list_of_deleted_folder_is_empty(folder: Path) -> None:
    looks = ManualPolling(folder)
    async with RawPeer(looks.server) as peer:
        await peer.initialize()
        await listed(peer)
        folder.rename(folder.parent / "elsewhere")
        assert await looks.poll(peer) == [LIST_CHANGED]
        assert await listed(peer) == ["a.txt"]  # the file that has a URI of its own


async def test_file_with_overlong_uri_is_not_listed(folder: Path) -> None:
    (folder / ("x" * 250)).write_text("")
    (folder / "circle").symlink_to("circle")
    async with RawPeer(served(folder, settings=Settings(max_uri=100))) as peer:
        await peer.initialize()
        names = await listed(peer)
    assert "a.txt" in names
    assert len(names) == 8
