"""Counts of calls."""

from tests.limits import PATIENCE

from trunkline import CallCounts, Server, ToolError
from trunkline.testing import RawPeer


async def test_calls_are_counted_by_family_and_outcome() -> None:
    counts = CallCounts()
    server = Server("t", observers=[counts])

    @server.tool
    async def check(fine: bool) -> None:
        if not fine:
            raise ToolError("no")

    async with RawPeer(server) as peer:
        await peer.initialize()
        for fine in (True, True, False):
            await peer.request("tools/call", {"name": "check", "arguments": {"fine": fine}})
        for number in range(5):
            await peer.request(f"unknown/{number}")
    await server.observers.drain(PATIENCE)
    assert counts.calls == {("initialize", "ok"): 1, ("tools", "ok"): 2, ("tools", "failed"): 1, ("", "refused"): 5}
    assert counts.seconds.keys() == {"initialize", "tools", ""}
    assert counts.seconds["tools"] > 0
