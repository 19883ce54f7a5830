"""Plugin that measures coverage: `pytest -p tests.measurement --coverage`. The data goes to `.cache/coverage`.

It measures the import of the package, and tests with their fixtures, but neither collection nor tests with the marker
`no_cover`. With pytest-cov, the marker has no effect in the workers of xdist: each of them measures twice, and the
marker stops one of the two.
"""

import importlib
import os
import pkgutil
from collections.abc import Generator
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
        """Import the whole package, then stop until the first test starts."""
        package = importlib.import_module("trunkline")
        for module in pkgutil.walk_packages(package.__path__, "trunkline."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        self._measure(False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure a test with its fixtures, unless it has the marker."""
        self._measure(item.get_closest_marker("no_cover") is None)
        return (yield)

    def pytest_unconfigure(self) -> None:
        """Save what was measured."""
        self._measure(False)
        self._coverage.save()
