"""Ways to disable a control that several controls share."""

from collections.abc import Callable
from typing import Any

import pytest

Patch = Callable[[pytest.MonkeyPatch], None]
Rows = dict[str, dict[str, Patch]]


def replaced(owner: Any, name: str, value: Any) -> Patch:
    """Replace a function or constant."""
    return lambda patch: patch.setattr(owner, name, value)


def both(*patches: Patch) -> Patch:
    """Apply several replacements."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        for one in patches:
            one(patch)

    return apply


def forced(owner: Any, **arguments: Any) -> Patch:
    """A class whose instances always get these arguments."""
    original = owner.__init__

    def init(self: Any, *args: Any, **given: Any) -> None:
        original(self, *args, **(given | arguments))

    return lambda patch: patch.setattr(owner, "__init__", init)


def shared(owner: Any, name: str) -> Patch:
    """A class whose instances share one table, instead of one each."""
    original = owner.__init__
    table: dict[Any, Any] = {}

    def init(self: Any, *args: Any, **given: Any) -> None:
        original(self, *args, **given)
        setattr(self, name, table)

    return lambda patch: patch.setattr(owner, "__init__", init)
