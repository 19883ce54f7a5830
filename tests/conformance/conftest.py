"""Fixtures of all conformance tests: one server, and one run of the suite per revision."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from tests.conformance.suite import Run, run, serving


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The URL of the server for all scenarios of all revisions."""
    with serving() as address:
        yield address


@pytest.fixture(scope="session")
def server_run(url: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The run of a revision's requirement set against the server, computed by the first test that needs it."""

    @cache
    def by_revision(revision: str) -> Run:
        output = tmp_path_factory.mktemp(f"server-{revision}")
        return run("server", "--url", url, "--requirements", revision, output=output)

    return by_revision
