"""The suite does not depend on the machine: it controls signals, ports, seeds and time limits itself."""

import asyncio
import signal
import socket
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, settings
from tests.conftest import SEED, long_ones_first
from tests.limits import ATTEMPTS, soon
from tests.ports import HeldPort, held_port


def test_sigint_reaches_tests_in_background() -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert child.stdout == "True\n"


def test_hypothesis_has_no_deadline() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check


def test_make_test_is_reproducible(pytestconfig: pytest.Config, seed: int) -> None:
    assert settings.default is not None
    assert settings.default.database is None
    assert settings.default.derandomize is (pytestconfig.getoption("--hypothesis-profile") is None)
    assert (seed == SEED) is (pytestconfig.getoption("--hypothesis-seed") is None)


def test_each_worker_starts_with_its_share_of_long_tests(request: pytest.FixtureRequest) -> None:
    items = [pytest.Function.from_parent(request.node.parent, name=name, callobj=lambda: None) for name in "abcdefgh"]
    for item, limit in ((items[3], 400), (items[4], 600), (items[6], 500)):
        item.add_marker(pytest.mark.timeout(limit))
    assert "".join(item.name for item in long_ones_first([*items], 1)) == "egd" + "abcfh"
    assert "".join(item.name for item in long_ones_first([*items], 2)) == "ed" + "ab" + "g" + "cfh"


def test_reserved_port_refuses_connections_until_bound() -> None:
    with held_port() as port:
        for _ in range(3):
            with socket.socket() as caller:
                assert caller.connect_ex(("127.0.0.1", port)) != 0
            with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
                pass


async def test_asyncio_can_listen_on_reserved_port() -> None:
    with held_port() as port:
        for _ in range(100):
            with socket.create_server(("127.0.0.1", 0)) as other:
                assert other.getsockname()[1] != port
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()


def test_closed_reserved_port_is_free() -> None:
    port = HeldPort()
    port.close()
    port.close()
    with socket.socket() as strict:  # without SO_REUSEADDR
        strict.bind(("127.0.0.1", port.number))


async def test_fastest_attempt_is_measured() -> None:
    took = iter([5.0, 3.0, 0.5])

    async def attempt() -> float:
        return next(took)

    await soon(attempt, 1.0)
    assert list(took) == []


async def test_slow_in_every_attempt_fails() -> None:
    attempts: list[float] = []

    async def attempt() -> float:
        attempts.append(1.0)
        return 1.0

    with pytest.raises(AssertionError, match=r"no attempt took less than 1\.0 s"):
        await soon(attempt, 1.0)
    assert len(attempts) == ATTEMPTS
