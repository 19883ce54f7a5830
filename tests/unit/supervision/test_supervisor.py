"""A supervisor on the event loop: tasks, connections, processes and supervisors as its children."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Server, Settings
from trunkline.errors import MisuseError, SupervisionError
from trunkline.supervision.child_table import ChildState
from trunkline.supervision.children import ProcessChild, ResourceChild
from trunkline.supervision.restart_policy import RestartPolicy
from trunkline.supervision.supervisor import ChildStatus, Supervisor
from trunkline.testing import ManualClock

RUNNING, BACKOFF, DEGRADED, ENDED = ChildState.RUNNING, ChildState.BACKOFF, ChildState.DEGRADED, ChildState.ENDED


class Puppet:
    """A child that a test ends."""

    kind = "puppet"

    def __init__(self, log: list[str] | None = None, name: str = "") -> None:
        self.log = [] if log is None else log
        self.name = name
        self.runs = 0
        self.broken: Exception | None = None  # what each start raises
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, started: Callable[[], None], /) -> None:
        self.runs += 1
        if self.broken is not None:
            raise self.broken
        self.end = asyncio.get_running_loop().create_future()
        self.log.append(f"start {self.name}")
        started()
        try:
            await self.end
        except asyncio.CancelledError:
            self.log.append(f"stop {self.name}")
            raise

    def crash(self) -> None:
        self.end.set_exception(RuntimeError("it broke"))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.row("U01")
async def test_crashed_child_is_restarted_and_others_are_not_touched() -> None:
    seen: list[tuple[str, str]] = []
    async with Supervisor("root", on_change=lambda child: seen.append((child.name, child.state.value))) as supervisor:
        puppets = {name: Puppet() for name in "abc"}
        for name, puppet in puppets.items():
            supervisor.add(name, puppet)
        await settle()
        seen.clear()
        puppets["b"].crash()
        await settle()
        assert {name: puppet.runs for name, puppet in puppets.items()} == {"a": 1, "b": 2, "c": 1}
        assert seen == [("root/b", "starting"), ("root/b", "running")]
        (_, status, _) = supervisor.describe().children
        assert (status.restarts, status.last_failure, status.state) == (1, "RuntimeError: it broke", RUNNING)


async def test_child_that_starts_again_is_impaired_until_it_runs() -> None:
    opened: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
    ways = [asyncio.get_running_loop().create_future() for _ in range(2)]
    pending = iter(ways)

    async def connect() -> asyncio.Future[None]:
        await next(pending)
        lost = asyncio.get_running_loop().create_future()
        opened.put_nowait(lost)
        return lost

    async def wait_lost(lost: asyncio.Future[None]) -> None:
        await lost

    async def close(_: asyncio.Future[None]) -> None: ...

    async with Supervisor("root") as supervisor:
        supervisor.add("a", ResourceChild("resource", connect, wait_lost, close))
        await supervisor.wait_for("a", ChildState.STARTING)
        assert supervisor.describe().impaired() == []
        ways[0].set_result(None)
        (await opened.get()).set_exception(RuntimeError("it broke"))
        assert (await supervisor.wait_for("a", ChildState.STARTING)).last_failure == "RuntimeError: it broke"
        assert [child.name for child in supervisor.describe().impaired()] == ["root/a"]
        ways[1].set_result(None)
        await supervisor.wait_for("a", RUNNING)
        assert supervisor.describe().impaired() == []


@pytest.mark.row("U05", "X32")
async def test_transient_server_and_client_are_restarted_after_a_crash_only() -> None:
    listening: asyncio.Queue[str] = asyncio.Queue()
    servers: list[Server] = []

    async def serve() -> None:
        servers.append(Server("supervised", observers=[]))
        await servers[-1].run_http_async(port=0, on_listening=listening.put_nowait)

    clients: asyncio.Queue[Client] = asyncio.Queue()

    async def connect() -> Client:
        client = Client(await listening.get(), observers=[], settings=Settings(auto_reconnect=False))
        await client.open()
        clients.put_nowait(client)
        return client

    async def wait_lost(client: Client) -> None:
        while True:
            await client.ping()
            await asyncio.sleep(0.01)

    async with asyncio.timeout(PATIENCE), Supervisor("root") as supervisor:
        supervisor.add("server", serve, restart="transient")
        supervisor.add("client", ResourceChild("connection", connect, wait_lost, Client.close), restart="transient")
        await clients.get()
        servers[0].abort(RuntimeError("it broke"))
        client = await clients.get()  # both were restarted
        assert len(servers) == 2
        await client.ping()
        await servers[1].shutdown()
        status = await supervisor.wait_for("server", ENDED)
        assert (status.restarts, status.last_failure) == (1, "RuntimeError: it broke")
        assert len(servers) == 2


@pytest.mark.row("U06")
async def test_crash_loop_ends_degraded_until_the_pause_or_a_restart_by_hand() -> None:
    clock = ManualClock()
    policy = RestartPolicy(intensity=5, period=60, pause=300)
    async with Supervisor("root", policy=policy, clock=clock) as supervisor:
        puppet = Puppet()
        supervisor.add("a", puppet)
        for _ in range(6):
            await settle()
            puppet.crash()
        await settle()
        assert supervisor.describe().impaired() == [
            ChildStatus("root/a", "puppet", DEGRADED, 5, "RuntimeError: it broke", clock.now())
        ]
        clock.advance(299)
        await settle()
        assert puppet.runs == 6
        clock.advance(1)
        await settle()
        assert puppet.runs == 7
        puppet.crash()
        await settle()
        assert (await supervisor.wait_for("a", DEGRADED)).restarts == 6
        supervisor.restart("a")
        await supervisor.wait_for("a", RUNNING)
        assert supervisor.describe().impaired() == []


async def test_failed_start_is_retried_after_its_delay() -> None:
    clock = ManualClock()
    async with Supervisor("root", clock=clock) as supervisor:
        puppet = Puppet()
        puppet.broken = OSError("the port is in use")
        supervisor.add("a", puppet)
        assert (await supervisor.wait_for("a", BACKOFF)).last_failure == "OSError: the port is in use"
        puppet.broken = None
        clock.advance(1)
        await supervisor.wait_for("a", RUNNING)
        assert puppet.runs == 2


@pytest.mark.row("U06")
async def test_escalation_fails_the_supervisor_and_its_parent_restarts_it() -> None:
    child = Supervisor("below", policy=RestartPolicy(intensity=1), on_limit="escalate")
    puppets = [Puppet(), Puppet()]
    child.add("a", puppets[0])
    child.add("b", puppets[1])
    async with Supervisor("root") as supervisor:
        supervisor.add("below", child)
        for _ in range(2):
            await settle()
            puppets[0].crash()
        await settle()
        status = supervisor.describe().children[0]
        assert (status.name, status.kind, status.state, status.restarts) == ("root/below", "supervisor", RUNNING, 1)
        assert status.last_failure == (
            "SupervisionError: root/below failed: a: it was lost 2 times within 60 s; the limit is 1; "
            "RuntimeError: it broke"
        )
        assert [each.name for each in status.walk()] == ["root/below", "root/below/a", "root/below/b"]
        assert puppets[1].runs == 2


async def test_root_that_escalates_raises_to_its_owner() -> None:
    async with Supervisor("root", policy=RestartPolicy(intensity=0), on_limit="escalate") as supervisor:
        puppet = Puppet()
        supervisor.add("a", puppet)
        await settle()
        puppet.crash()
        with pytest.raises(SupervisionError, match="root failed: a: it was lost 1 times"):
            await supervisor.wait()
        assert not supervisor.running


async def test_children_stop_in_reverse_order_of_start() -> None:
    log: list[str] = []
    async with Supervisor("root") as supervisor:
        puppets = {name: Puppet(log, name) for name in "abc"}
        for name, puppet in puppets.items():
            supervisor.add(name, puppet)
        await settle()
        puppets["a"].crash()
        await settle()
        log.clear()
    assert log == ["stop a", "stop c", "stop b"]


async def test_child_that_does_not_stop_in_time_is_abandoned(caplog: pytest.LogCaptureFixture) -> None:
    clock, release = ManualClock(), asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    log: list[str] = []
    supervisor = Supervisor("root", clock=clock)
    supervisor.add("a", Puppet(log, "a"))
    supervisor.add("b", stubborn, stop_timeout=3)
    supervisor.start()
    await settle()
    stopping = asyncio.create_task(supervisor.stop())
    await settle()
    assert log == ["start a"]
    clock.advance(3)
    await asyncio.wait_for(stopping, PATIENCE)
    assert log == ["start a", "stop a"]
    assert "root/b: it did not stop within 3 s and was abandoned" in caplog.text
    release.set()
    await settle()


async def test_process_is_restarted_after_a_crash_and_ends_with_the_supervisor() -> None:
    child = ProcessChild(sys.executable, "-c", "import time; time.sleep(600)")
    async with asyncio.timeout(PATIENCE), Supervisor("root") as supervisor:
        supervisor.add("helper", child, restart="transient")
        await supervisor.wait_for("helper", RUNNING)
        first = child.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        while child.pid in {first, None}:
            await asyncio.sleep(0.01)
        status = await supervisor.wait_for("helper", RUNNING)
        assert status.last_failure == f"SupervisionError: {sys.executable} was killed by signal 9"
        second = child.pid
    assert second is not None
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


async def test_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(mark)!r}, 'w')"
    child = ProcessChild(sys.executable, "-c", f"{program}; time.sleep(600)", grace=0.05)
    async with asyncio.timeout(PATIENCE):
        async with Supervisor("root") as supervisor:
            supervisor.add("helper", child)
            while not mark.exists():
                await asyncio.sleep(0.01)
            pid = child.pid
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_removed_child_is_stopped_and_its_name_is_free() -> None:
    async with Supervisor("root") as supervisor:
        first, second = Puppet(), Puppet()
        supervisor.add("a", first)
        await settle()
        await supervisor.remove("a")
        assert first.log[-1] == "stop "
        assert supervisor.describe().children == ()
        supervisor.add("a", second)
        await supervisor.wait_for("a", RUNNING)


async def test_path_leads_to_a_child_of_a_child() -> None:
    child = Supervisor("x")
    puppet = Puppet()
    child.add("a", puppet)
    async with Supervisor("root") as supervisor:
        supervisor.add("below", child)
        await settle()
        supervisor.restart("below/a")
        await settle()
        assert puppet.runs == 2
        assert child.path == "root/below"
        with pytest.raises(MisuseError, match="'a' is no supervisor"):
            child.restart("a/b")
        with pytest.raises(MisuseError, match="there is no child 'c'; there are: a"):
            child.restart("c")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Supervisor("a/b"), "the name of a child is a text without '/', not 'a/b'"),
        (lambda: Supervisor("a", strategy="all"), "strategy= is one of one_for_one, one_for_all, rest_for_one"),  # type: ignore[arg-type]
        (lambda: Supervisor("a", on_limit="stop"), "on_limit= is one of degrade, escalate, not 'stop'"),  # type: ignore[arg-type]
        (lambda: Supervisor("a").add("b", settle, restart="never"), "restart= is one of permanent, transient"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        make()


async def test_supervisor_starts_again_after_it_was_stopped() -> None:
    supervisor = Supervisor("root")
    puppet = Puppet()
    supervisor.add("a", puppet)
    for runs in (1, 2):
        async with supervisor:
            await supervisor.wait_for("a", RUNNING)
            assert puppet.runs == runs
        assert not supervisor.running


def test_end_of_the_loop_restarts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        supervisor = Supervisor("root")
        supervisor.add("a", Puppet())
        supervisor.start()
        await settle()

    asyncio.run(main())
    assert caplog.records == []


async def test_child_cancelled_from_outside_is_restarted_after_a_delay() -> None:
    clock = ManualClock()
    tasks: list[asyncio.Task[Any] | None] = []

    async def work() -> None:
        tasks.append(asyncio.current_task())
        await asyncio.Event().wait()

    async with Supervisor("root", clock=clock) as supervisor:
        supervisor.add("a", work)
        await settle()
        assert tasks[0] is not None
        tasks[0].cancel()
        assert (await supervisor.wait_for("a", BACKOFF)).last_failure == "it was cancelled"
        clock.advance(1)
        await settle()
        assert len(tasks) == 2
