"""Values read from `_meta`."""

import re
from typing import Any

import pytest

from trunkline.protocol import meta
from trunkline.protocol.meta import progress_token


@pytest.mark.row("L13")
@pytest.mark.parametrize("token", [1, 0, -1, "", "token"])
def test_progress_token_is_a_string_or_an_integer(token: int | str) -> None:
    assert progress_token({"progressToken": token, "other": 1}) == token


@pytest.mark.row("L13")
@pytest.mark.parametrize("given", [None, {}, {"progressToken": None}, {"other": 1}])
def test_missing_token_means_no_progress(given: dict[str, Any] | None) -> None:
    assert progress_token(given) is None


@pytest.mark.row("L13")
@pytest.mark.parametrize("token", [True, 1.5, [], {}])
def test_token_of_another_type_is_ignored(token: object) -> None:
    assert progress_token({"progressToken": token}) is None


OURS = {
    "REFUSAL",
    "TOOL_ERROR",
    "IDEMPOTENCY",
    "IDEMPOTENCY_KEY",
    "TASK_PROGRESS",
    "TASK_SUPPORT",
    "TIMEOUT_MS",
    "TAGS",
    "USAGE",
    "BACKENDS",
}

OTHERS = {"TRACE_KEYS", "TOOL_MEMBERS", "SHORTEST_ENVELOPE"}  # not a single key


def test_own_keys_avoid_reserved_prefixes() -> None:
    keys = {name: getattr(meta, name) for name in meta.__all__ if name.isupper() and name not in OTHERS}
    prefixes = {name: key.rpartition("/")[0] for name, key in keys.items()}
    assert prefixes.pop("PROGRESS_TOKEN") == ""
    assert {prefixes.pop(name) for name in OURS} == {"trunkline"}  # one label; 2025-06-18 reserves any that is `mcp`
    assert set(prefixes.values()) == {"io.modelcontextprotocol"}
    assert meta.TRACE_KEYS == (
        "traceparent",
        "tracestate",
        "baggage",
    )  # the only ones that the specification has without
    assert {key.rpartition("/")[0] for key in meta.TOOL_MEMBERS.values()} == {"trunkline"}
    label, name = r"[a-zA-Z]([a-zA-Z0-9-]*[a-zA-Z0-9])?", r"[a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?"
    assert all(re.fullmatch(rf"({label}(\.{label})*/)?{name}", key) for key in keys.values())
