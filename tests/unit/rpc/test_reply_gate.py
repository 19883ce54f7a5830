"""Reply gate: closed by a change, and open again once a reply has found no change that is pending."""

import asyncio

from trunkline.rpc.reply_gate import ReplyGate


async def test_gate_opens_after_the_changes() -> None:
    pending: list[asyncio.Future[object] | None] = [asyncio.get_running_loop().create_future(), None]
    expected = pending[0]
    gate = ReplyGate(lambda: pending.pop(0))
    assert gate.open
    gate.close()
    assert not gate.open
    assert gate.find_pending() is expected
    assert not gate.open
    assert gate.find_pending() is None
    assert gate.open
