"""Requests that other processes have brought, by themselves: who brings them and who answers are played here."""

import asyncio
import gc

import pytest

from trunkline.clock import LoopClock
from trunkline.server.principals import Crossing
from trunkline.transports.http.carried import Arrivals, Carried
from trunkline.transports.http.relay_frames import Answer, Ask, FromHolder, HungUp

PATIENCE = 10.0


class Patient:
    """Holds everything, and answers nothing before its client has gone."""

    def __init__(self) -> None:
        self.begun, self.left = asyncio.Event(), asyncio.Event()

    async def carried(self, visit: Carried) -> bool:
        self.begun.set()
        await visit.hung_up()
        self.left.set()
        return True

    def renamed(self) -> None:
        pass


@pytest.fixture
def said() -> list[FromHolder]:
    return []


@pytest.fixture
async def arrivals(said: list[FromHolder]) -> Arrivals:
    """What one process has been brought that answers one request at a time."""

    async def sent() -> None:
        pass

    def reply(_: str, frame: FromHolder) -> bool:
        said.append(frame)
        return True

    return Arrivals(reply, sent, Crossing(), LoopClock(asyncio.get_running_loop()), most=1)


def ask(visit: int, size: int = 0) -> Ask:
    """A request whose body, if it has one, is still to come."""
    return Ask(visit, "POST", "s", False, [], "", "", None, None, 1000, size, b"")


async def test_what_a_process_that_is_lost_has_brought_is_waited_for_by_nobody(arrivals: Arrivals) -> None:
    host = Patient()
    arrivals.hosts.append(host)
    arrivals.heard("a", ask(1))
    await host.begun.wait()
    arrivals.lost("b")
    await asyncio.sleep(0)
    assert not host.left.is_set()
    arrivals.lost("a")
    async with asyncio.timeout(PATIENCE):
        await host.left.wait()
    await arrivals.close()


async def test_of_too_many_requests_no_body_is_waited_for(arrivals: Arrivals, said: list[FromHolder]) -> None:
    arrivals.hosts.append(Patient())
    arrivals.heard("a", ask(1, 5))
    arrivals.heard("a", ask(2, 5))
    await arrivals.close()
    assert [(frame.visit, frame.status) for frame in said if isinstance(frame, Answer)] == [(2, 503)]
    arrivals.heard("a", HungUp(1))
    arrivals.heard("a", ask(3, 0))
    arrivals.heard("a", HungUp(3))
    await arrivals.close()
    assert len(said) == 1


async def test_what_fails_in_our_own_hands_is_answered_so(
    arrivals: Arrivals, said: list[FromHolder], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Patient):
        async def carried(self, visit: Carried) -> bool:
            raise RuntimeError("broken")

    arrivals.hosts.append(Broken())
    arrivals.heard("a", ask(1))
    await arrivals.close()
    gc.collect()
    assert [frame.status for frame in said if isinstance(frame, Answer)] == [500]
    assert "broken" in caplog.text
