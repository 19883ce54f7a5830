"""Fixtures of all conformance tests: one server, and one run of the suite per revision."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conformance.suite import Run, run, serving
from tests.sharing import computed_once


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The URL of the server for all scenarios of all revisions."""
    with serving() as address:
        yield address


@pytest.fixture(scope="session")
def server_run(shared_folder: Path) -> Callable[[str], Run]:
    """The run of a revision's requirement set against a server, computed by the first test that needs it."""

    def run_suite(revision: str) -> Run:
        with serving() as address:
            output = shared_folder / f"conformance-{revision}"
            return run("server", "--url", address, "--requirements", revision, output=output)

    return lambda revision: Run(*computed_once(shared_folder, f"conformance-{revision}", lambda: run_suite(revision)))
