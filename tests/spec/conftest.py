"""Fixtures of several test modules."""

from collections.abc import AsyncIterator

import pytest
from tests.spec.bank import Bank


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    made = Bank()
    yield made
    made.go.set()
    await made.server.aclose()
