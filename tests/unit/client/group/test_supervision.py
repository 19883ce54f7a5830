"""A group in a supervision tree."""

import asyncio
from pathlib import Path

from tests.limits import PATIENCE
from tests.processes import light

from trunkline import ClientGroup, MemberState, Server, Settings
from trunkline.supervision.child_table import ChildState
from trunkline.supervision.supervisor import Supervisor

QUICK = Settings(stop_timeout=0.2, backoff_first=30.0)
ABSENT = ["no-such-program"]


async def test_members_are_visible_by_name_in_the_tree(tmp_path: Path) -> None:
    group = ClientGroup(
        {
            "bank": light(tmp_path / "effects"),
            "absent": ABSENT,
            "later": ABSENT,
            "wrong": {"command": "${SURELY_NOT_SET}"},
        },
        lazy=["later"],
        settings=QUICK,
    )
    async with Supervisor("host") as supervisor:
        supervisor.add("clients", group)
        async with asyncio.timeout(PATIENCE):
            await supervisor.wait_for("clients", ChildState.RUNNING)
        shown = {child.name: (child.kind, child.state) for child in supervisor.describe().walk()}
        assert shown == {
            "host": ("supervisor", ChildState.RUNNING),
            "host/clients": ("group", ChildState.RUNNING),
            "host/clients/bank": ("connection", ChildState.RUNNING),
            "host/clients/absent": ("connection", ChildState.BACKOFF),
            "host/clients/later": ("connection", ChildState.STOPPED),
            "host/clients/wrong": ("connection", ChildState.DEGRADED),
        }
        absent, wrong = supervisor.describe().impaired()
        assert "no program 'no-such-program'" in absent.last_failure
        assert "SURELY_NOT_SET" in wrong.last_failure
        assert (await group.call_tool("bank__echo", {"text": "hello"})).text == "hello"
    assert {*group.states.values()} == {MemberState.CLOSED}


async def test_lost_connections_of_a_member_count_as_restarts(tmp_path: Path) -> None:
    async with ClientGroup({"bank": light(tmp_path / "effects")}, settings=QUICK) as group:
        await group["bank"].list_tools()
        await asyncio.gather(group.call_tool("bank__pay", {"text": "1", "dies": True}), return_exceptions=True)
        await group.call_tool("bank__echo", {"text": "hello"})
        [bank] = group.describe().children
        assert (bank.name, bank.state, bank.restarts) == ("group/bank", ChildState.RUNNING, 1)
    assert group.describe().state is ChildState.STOPPED


async def test_failed_member_of_a_group_degrades_the_health_of_its_server() -> None:
    server, group = Server("host"), ClientGroup({"absent": ABSENT}, settings=QUICK)
    await server.start()
    server.supervise("clients", group)
    async with asyncio.timeout(PATIENCE):
        while group.states["absent"] is not MemberState.FAILED:
            await asyncio.sleep(0.005)
    health = await server.check_health()
    assert "server/clients/absent is backoff" in health.components["supervision"].reason
    await server.aclose()
    assert group.states["absent"] is MemberState.CLOSED
