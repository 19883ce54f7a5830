"""A tool is listed for the callers that may call it, and for no others: both sets are the same."""

from typing import Any

import pytest

from trunkline import Context, Server, Settings
from trunkline.facts import HandlerFailed
from trunkline.testing import RawPeer, RecordingObserver


def kind_of(answer: Any) -> str | None:
    result = answer["result"]
    return result["_meta"]["trunkline/error"]["kind"] if result["isError"] else None


def is_ann(ctx: Context) -> bool:
    return ctx.principal == "ann"


async def is_bob(ctx: Context) -> bool:
    return ctx.principal == "bob"


def broken(ctx: Context) -> bool:
    raise ValueError("secret")


def served(**options: Any) -> Server:
    server = Server("t", **{"observers": [], **options})
    for name, allow in {
        "hers": is_ann,
        "anybodys": None,
        "his": is_bob,
        "nobodys": broken,
        "also hers": is_ann,
    }.items():
        server.add_tool(lambda: None, name=name.replace(" ", "_"), allow=allow)
    return server


async def listed(peer: RawPeer, **params: Any) -> list[str]:
    return [tool["name"] for tool in (await peer.result("tools/list", params))["tools"]]


@pytest.mark.row("T18")
@pytest.mark.parametrize(
    ("principal", "may"),
    [("ann", ["hers", "anybodys", "also_hers"]), ("bob", ["anybodys", "his"]), (None, ["anybodys"])],
)
async def test_denied_tools_are_not_listed(principal: str | None, may: list[str]) -> None:
    server = served()
    async with RawPeer(server, principal=principal) as peer:
        await peer.initialize()
        assert await listed(peer) == may
        answers = {entry.name: await peer.request("tools/call", {"name": entry.name}) for entry in server.tools}
    assert [name for name, answer in answers.items() if kind_of(answer) is None] == may
    refused = {kind_of(answer) for name, answer in answers.items() if name not in may and name != "nobodys"}
    assert refused == {"tool_not_allowed"}


@pytest.mark.row("T18")
async def test_raising_predicate_denies_and_is_reported() -> None:
    observer = RecordingObserver()
    async with RawPeer(served(observers=[observer])) as peer:
        await peer.initialize()
        assert "nobodys" not in await listed(peer)
        answer = await peer.request("tools/call", {"name": "nobodys"})
        assert kind_of(answer) == "tool_execution_failed"
        assert "secret" not in str(peer.transcript.said_by("server"))
    assert [str(fact.error) for fact in observer.of(HandlerFailed)] == ["secret", "secret"]


@pytest.mark.row("T12")
async def test_checks_run_in_order_name_access_arguments() -> None:
    server, asked = Server("t", observers=[]), []

    def allow(ctx: Context) -> bool:
        asked.append(ctx.request_id)
        return ctx.principal == "ann"

    @server.tool(allow=allow)
    async def tool(number: int) -> int:
        return number

    kinds = {}
    for principal in ("ann", "bob"):
        async with RawPeer(server, principal=principal) as peer:
            await peer.initialize()
            unknown = await peer.error("tools/call", {"name": "other", "arguments": {"number": "x"}})
            assert unknown["data"]["kind"] == "tool_not_found"
            assert asked == []
            kinds[principal] = kind_of(await peer.request("tools/call", {"name": "tool", "arguments": {"number": "x"}}))
            asked.clear()
    assert kinds == {"ann": "invalid_tool_arguments", "bob": "tool_not_allowed"}


@pytest.mark.row("Y04")
async def test_pages_contain_only_visible_entries() -> None:
    server = Server("t", observers=[], settings=Settings(page_size=2))
    for number in range(7):
        server.add_tool(lambda: None, name=f"tool{number}", allow=is_ann if number % 2 else None)
    pages = {}
    for principal in ("ann", "bob"):
        async with RawPeer(server, principal=principal) as peer:
            await peer.initialize()
            pages[principal], cursor = [], None
            while True:
                result = await peer.result("tools/list", {"cursor": cursor} if cursor else {})
                pages[principal].append([tool["name"] for tool in result["tools"]])
                if (cursor := result.get("nextCursor")) is None:
                    break
    assert pages["ann"] == [["tool0", "tool1"], ["tool2", "tool3"], ["tool4", "tool5"], ["tool6"]]
    assert pages["bob"] == [["tool0", "tool2"], ["tool4", "tool6"]]


async def test_shared_predicate_is_evaluated_once_per_list() -> None:
    server, asked = Server("t", observers=[]), []

    def allow(ctx: Context) -> bool:
        asked.append(ctx.session_id)
        return True

    for number in range(3):
        server.add_tool(lambda: None, name=f"tool{number}", allow=allow)
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert len(await listed(peer)) == 3
    assert len(asked) == 1


async def test_encoded_lists_are_cached_by_visible_entries() -> None:
    server = served()
    async with RawPeer(server, principal="ann") as peer:
        await peer.initialize()
        await listed(peer)
        kept = dict(server._catalog._page_cache)
        await listed(peer)
        assert all(server._catalog._page_cache[key][1] is page for key, (_, page) in kept.items())
        assert len(server._catalog._page_cache) == len(kept) == 1
