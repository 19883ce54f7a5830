"""Fixtures of the tests of sampling providers."""

import pytest

from trunkline.transports.http.client import connection_pool


@pytest.fixture(autouse=True)
def idle_connections_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep idle connections, so that a test sees whether a provider closes them itself."""
    monkeypatch.setattr(connection_pool, "_IDLE_TIMEOUT", 3600.0)
