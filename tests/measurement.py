"""Plugin that measures coverage: `pytest -p tests.measurement --coverage`. The data goes to `.cache/coverage`.

It measures the import of the package, tests and fixtures; not collection, what pytest does between tests, and what has
the marker `no_cover`. With pytest-cov, the marker has no effect in the workers of xdist: each of them measures twice,
and the marker stops one of the two.
"""

import contextlib
import importlib
import os
import pkgutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from coverage import Coverage

ROOT = Path(__file__).parents[1]
DATA = ROOT / ".cache/coverage/data"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that turns measurement on."""
    parser.addoption("--coverage", action="store_true", help="measure coverage")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start before conftest.py imports the package, in the processes that run tests."""
    options = early_config.known_args_namespace
    if options.coverage and ("PYTEST_XDIST_WORKER" in os.environ or not getattr(options, "numprocesses", None)):
        early_config.pluginmanager.register(Measurement(), "measurement")


class Measurement:
    """Coverage measurement of one process."""

    def __init__(self) -> None:
        self._coverage = Coverage(config_file=str(ROOT / "pyproject.toml"), data_file=str(DATA), data_suffix=True)
        self._measuring = False
        self._measure(True)

    def _measure(self, wanted: bool) -> None:
        if wanted is not self._measuring:
            self._measuring = wanted
            (self._coverage.start if wanted else self._coverage.stop)()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Import the whole package, then stop."""
        package = importlib.import_module("trunkline")
        for module in pkgutil.walk_packages(package.__path__, "trunkline."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        self._measure(False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, request: pytest.FixtureRequest) -> Generator[None, object, object]:
        """Measure the set-up of a fixture."""
        with self._measured(request.node):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Measure a test."""
        with self._measured(pyfuncitem):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure the end of fixtures."""
        with self._measured(item):
            return (yield)

    @contextlib.contextmanager
    def _measured(self, node: pytest.Item | pytest.Collector) -> Iterator[None]:
        """Measure unless the node has the marker."""
        before = self._measuring
        self._measure(node.get_closest_marker("no_cover") is None)
        try:
            yield
        finally:
            self._measure(before)

    def pytest_unconfigure(self) -> None:
        """Save what was measured."""
        self._measure(False)
        self._coverage.save()
