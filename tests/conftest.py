"""Configuration of the whole suite: each message that our servers and clients send is checked against the official
schema.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.transcripts import check_transcript

from trunkline.testing import RawPeer, ScriptedServer, Transcript

# Here, before the tests of the pages import them.
pytest.register_assert_rewrite(*(f"tests.interop.{name}" for name in ("client_capabilities", "client_probes", "host")))

ROOT = Path(__file__).parent
UNCOUNTED = {
    *("attacks", "authorization", "browser", "chaos", "conformance"),
    *("docs", "faults", "fuzz", "http1", "interop", "model", "property"),
}
"""Folders with tests of whole programs: other tests cover the logic, and coverage measurement costs time."""

SEED = 20_260_728
"""Seed of every random choice in `make test`, which makes the same choices in each run."""

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None, print_blob=True)
settings.register_profile("suite", UNTIMED, derandomize=True, max_examples=50)
settings.register_profile("long", UNTIMED, max_examples=200)
settings.load_profile("suite")  # `--hypothesis-profile` comes later and wins

# Tests start hundreds of Node.js processes, each of which would otherwise compile every module that it imports.
os.environ.setdefault("NODE_COMPILE_CACHE", str(ROOT.parent / ".cache/node"))

# A shell starts background jobs with SIGINT ignored. Python and all child processes inherit that, and no test of Ctrl+C
# could pass. xdist starts its workers after this line, so they inherit the restored disposition.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # so does nohup with SIGHUP
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_report_header(config: pytest.Config) -> str:
    """Print the seed with which to repeat this run."""
    given = config.getoption("--hypothesis-seed", None)
    return f"seed: {SEED} (fixed)" if given is None else f"seed: {given} (repeat with `make test-long SEED={given}`)"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Start three workers for two cores: they spend over a third of their time waiting for deadlines and for other
    processes. Beside timing tests, leave it at one worker for each core.
    """
    if config.getoption("-m") != "not long":
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 3 * cores // 2


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """Seed for a test that makes random choices: fixed in `make test`, different in each `make test-long`."""
    given = pytestconfig.getoption("--hypothesis-seed", None)
    return SEED if given is None else int(given)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def pytest_collection_finish() -> None:
    """Keep the garbage collector from visiting half a million objects of pytest in each full pass."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Do not measure coverage in tests where it shows nothing, and start tests with a long time limit first, so that
    the others run beside them.
    """
    for item in items:
        if item.path.is_relative_to(ROOT) and item.path.relative_to(ROOT).parts[0] in UNCOUNTED:
            item.add_marker("no_cover")
    items[:] = long_ones_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def long_ones_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Sort tests for `--dist worksteal`, which gives each worker an unbroken part of the list and lets others steal from
    the end of it: each part starts with its share of the tests that have a time limit of their own.
    """
    long = sorted(filter(_time_limit, items), key=_time_limit, reverse=True)
    others = [item for item in items if not _time_limit(item)]
    parts = [round(len(others) * worker / workers) for worker in range(workers + 1)]
    return [
        item
        for worker in range(workers)
        for item in (*long[worker::workers], *others[parts[worker] : parts[worker + 1]])
    ]


def _time_limit(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return 0.0 if marker is None else marker.args[0]


@pytest.fixture(params=["2025-11-25", "2026-07-28"])
def revision(request: pytest.FixtureRequest) -> str:
    """The newest revision of each era, for behaviour that both share."""
    return request.param


@pytest.fixture(autouse=True)
def validate_transcripts(request: pytest.FixtureRequest) -> Iterator[list[Transcript]]:
    """After a test has passed, validate the transcripts of the connections that it closed."""
    transcripts: list[Transcript] = []
    of_clients: list[Transcript] = []
    RawPeer.taps.append(transcripts.append)
    ScriptedServer.taps.append(of_clients.append)
    yield transcripts
    RawPeer.taps.remove(transcripts.append)
    ScriptedServer.taps.remove(of_clients.append)
    if request.node.get_closest_marker("off_the_record") is None:
        for transcript in transcripts:
            check_transcript(transcript.frames, "server")
        for transcript in of_clients:
            check_transcript(transcript.frames, "client")
