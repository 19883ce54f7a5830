"""Pagination: every list of the specification, in pages."""

from pathlib import Path
from typing import Any

import pytest

from trunkline import Server, Settings
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import ManualClock, RawPeer

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
LISTS = {
    "tools/list": ("tools", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
    "prompts/list": ("prompts", "name"),
}
every_list = pytest.mark.parametrize("method", LISTS)


def add(server: Server, method: str, number: int) -> str:
    """Add an entry to the list of a method; return its key."""
    match method:
        case "tools/list":
            server.add_tool(lambda: None, name=(key := f"tool{number}"))
        case "resources/list":
            server.add_resource(key := f"doc://{number}", "text")
        case "resources/templates/list":
            server.add_resource(key := f"doc://{number}/{{page}}", lambda page: page)
        case _:
            server.add_prompt("text", name=(key := f"prompt{number}"))
    return key


def filled(method: str, count: int, clock: ManualClock | None = None, **settings: Any) -> tuple[Server, list[str]]:
    server = Server("t", settings=Settings(**settings), resources=True, clock=clock)
    return server, [add(server, method, number) for number in range(count)]


async def page(peer: RawPeer, method: str, **params: Any) -> tuple[list[str], str | None]:
    """The keys on a page, and the cursor of the next."""
    member, key = LISTS[method]
    result = await peer.result(method, params)
    assert result.keys() <= {member, "nextCursor"}
    return [item[key] for item in result[member]], result.get("nextCursor")


@pytest.mark.row("PAG-01", "Y05", "R02")
@every_list
@pytest.mark.parametrize("revision", REVISIONS)
async def test_list_has_configured_page_size(revision: str, method: str) -> None:
    server, keys = filled(method, 5, page_size=2)
    async with RawPeer(server) as peer:
        await peer.initialize(revision)
        first, cursor = await page(peer, method)
        second, following = await page(peer, method, cursor=cursor)
        third, end = await page(peer, method, cursor=following)
    assert [first, second, third] == [keys[:2], keys[2:4], keys[4:]]
    assert end is None
    assert isinstance(cursor, str)
    assert cursor != following


@pytest.mark.row("Y01")
async def test_all_five_lists_have_pages() -> None:
    server = Server("t", settings=Settings(page_size=2))
    keys = {method: [add(server, method, number) for number in range(3)] for method in LISTS if method != "tools/list"}

    @server.tool(task=True)
    async def work() -> str:
        return "done"

    for number in range(2):
        add(server, "tools/list", number)
    async with RawPeer(server) as peer:
        await peer.initialize()
        made = [await peer.result("tools/call", {"name": "work", "task": {}}) for _ in range(3)]
        keys["tools/list"] = ["work", "tool0", "tool1"]
        keys["tasks/list"] = [result["task"]["taskId"] for result in made]
        for method, (member, key) in {**LISTS, "tasks/list": ("tasks", "taskId")}.items():
            first = await peer.result(method)
            second = await peer.result(method, {"cursor": first["nextCursor"]})
            assert [len(first[member]), len(second[member])] == [2, 1]
            assert {item[key] for item in [*first[member], *second[member]]} == set(keys[method])
            assert "nextCursor" not in second
    await server.aclose()


@pytest.mark.row("Y05")
@every_list
async def test_default_page_size_is_a_thousand(method: str) -> None:
    server, keys = filled(method, 1001)
    async with RawPeer(server) as peer:
        await peer.initialize()
        first, cursor = await page(peer, method)
        assert first == keys[:1000]
        assert await page(peer, method, cursor=cursor) == (keys[1000:], None)


@pytest.mark.row("Y05")
async def test_120_tools_need_three_pages_of_50_and_one_by_default() -> None:
    for settings, sizes in [({"page_size": 50}, [50, 50, 20]), ({}, [120])]:
        server, _ = filled("tools/list", 120, **settings)
        async with RawPeer(server) as peer:
            await peer.initialize()
            seen, cursor = [], None
            for _ in sizes:
                keys, cursor = await page(peer, "tools/list", **({} if cursor is None else {"cursor": cursor}))
                seen.append(len(keys))
        assert seen == sizes
        assert cursor is None


@every_list
async def test_empty_list_is_one_empty_page(method: str) -> None:
    server = Server("t", tools=True, resources=True, prompts=True)
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert await page(peer, method) == ([], None)


@pytest.mark.row("Y04")
@every_list
async def test_iteration_sees_each_entry_once_despite_changes(method: str) -> None:
    server, keys = filled(method, 250, page_size=60)
    registry = {"prompts/list": server.prompts, "tools/list": server.tools, "resources/list": server.resources}
    async with RawPeer(server) as peer:
        await peer.initialize()
        seen, cursor = await page(peer, method)
        registry.get(method, server.templates).remove(keys[10])  # seen already
        while cursor is not None:
            keys.append(add(server, method, len(keys)))
            found, cursor = await page(peer, method, cursor=cursor)
            seen += found
        peer.waiting()
    assert seen == keys


@pytest.mark.row("X14", "Y03")
@every_list
async def test_limit_sets_page_size(method: str) -> None:
    server, keys = filled(method, 3)
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await page(peer, method, limit=1))[0] == keys[:1]
        found, cursor = await page(peer, method, limit=2)
        assert found == keys[:2]
        assert await page(peer, method, limit=2, cursor=cursor) == (keys[2:], None)


@pytest.mark.row("PAG-04", "Y03")
@every_list
@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"limit": 0}, "invalid_page_size"),
        ({"limit": -1}, "invalid_page_size"),
        ({"limit": "x"}, "invalid_page_size"),
        ({"limit": 1.5}, "invalid_page_size"),
        ({"limit": True}, "invalid_page_size"),
        ({"limit": {"a": [1]}}, "invalid_page_size"),
        ({"limit": 1001}, "page_size_too_large"),
        ({"cursor": "junk"}, "invalid_cursor"),
        ({"cursor": ""}, "invalid_cursor"),
        ({"cursor": 5}, "invalid_params"),
    ],
)
async def test_invalid_limit_or_cursor_is_invalid_params(method: str, params: Any, kind: str) -> None:
    server, keys = filled(method, 2)
    async with RawPeer(server) as peer:
        await peer.initialize()
        error = await peer.error(method, params)
        assert error["code"] == -32602
        assert error["data"]["kind"] == kind
        assert await page(peer, method) == (keys, None)


@pytest.mark.row("Y02")
@every_list
async def test_altered_cursor_is_refused(method: str) -> None:
    server, _ = filled(method, 2, page_size=1)
    async with RawPeer(server) as peer:
        await peer.initialize()
        _, cursor = await page(peer, method)
        assert cursor is not None
        for index, character in enumerate(cursor):
            other = "A" if character != "A" else "B"
            error = await peer.error(method, {"cursor": cursor[:index] + other + cursor[index + 1 :]})
            assert error["data"]["kind"] == "invalid_cursor"


@pytest.mark.row("Y02")
async def test_cursor_of_another_list_or_server_is_refused() -> None:
    server, _ = filled("tools/list", 2, page_size=1)
    other, _ = filled("tools/list", 2, page_size=1)
    add(server, "prompts/list", 0)
    async with RawPeer(server) as peer, RawPeer(other) as stranger:
        await peer.initialize()
        await stranger.initialize()
        _, cursor = await page(peer, "tools/list")
        assert (await peer.error("prompts/list", {"cursor": cursor}))["data"]["kind"] == "invalid_cursor"
        assert (await stranger.error("tools/list", {"cursor": cursor}))["data"]["kind"] == "invalid_cursor"


@pytest.mark.row("Y03")
@every_list
async def test_cursor_expires_if_configured(method: str) -> None:
    clock = ManualClock()
    server, keys = filled(method, 4, clock, page_size=2, cursor_lifetime=60)
    async with RawPeer(server) as peer:
        await peer.initialize()
        _, early = await page(peer, method)
        clock.advance(50)
        _, late = await page(peer, method)  # though the first page is the same, it has a cursor of its own
        clock.advance(10)
        assert await page(peer, method, cursor=early) == (keys[2:], None)
        clock.advance(1)
        error = await peer.error(method, {"cursor": early})
        assert (error["code"], error["data"]["kind"]) == (-32602, "cursor_expired")
        assert await page(peer, method, cursor=late) == (keys[2:], None)


@pytest.mark.row("Y03")
async def test_template_list_cursor_expires() -> None:
    clock = ManualClock()
    server = Server("t", settings=Settings(page_size=1, cursor_lifetime=60), clock=clock)
    server.add_resource("doc://{page}", lambda page: page, list=lambda: ["doc://1", "doc://2"])
    async with RawPeer(server) as peer:
        await peer.initialize()
        first, cursor = await page(peer, "resources/list")
        assert await page(peer, "resources/list", cursor=cursor) == (["doc://2"], None)
        clock.advance(61)
        assert (await peer.error("resources/list", {"cursor": cursor}))["data"]["kind"] == "cursor_expired"
    assert first == ["doc://1"]


@pytest.mark.row("Y03")
@every_list
async def test_cursors_do_not_expire_by_default(method: str) -> None:
    clock = ManualClock()
    server, keys = filled(method, 2, clock, page_size=1)
    async with RawPeer(server) as peer:
        await peer.initialize()
        _, cursor = await page(peer, method)
        clock.advance(1e6)
        assert await page(peer, method, cursor=cursor) == (keys[1:], None)


@every_list
@pytest.mark.parametrize("lifetime", [None, 60])
async def test_cursor_works_in_other_process(method: str, lifetime: float | None, tmp_path: Path) -> None:
    settings = Settings(page_size=2, cursor_lifetime=lifetime)
    servers = [Server("t", settings=settings, store=SqliteStore(tmp_path / "shared.db")) for _ in range(2)]
    for server in servers:
        keys = [add(server, method, number) for number in range(4)]
        await server.start()
    async with RawPeer(servers[0]) as one, RawPeer(servers[1]) as other:
        await one.initialize()
        await other.initialize()
        first, cursor = await page(one, method)
        assert await page(other, method, cursor=cursor) == (keys[2:], None)
        assert first == keys[:2]
        _, cursor = await page(other, method)
        assert await page(one, method, cursor=cursor) == (keys[2:], None)
    for server in servers:
        await server.aclose()
