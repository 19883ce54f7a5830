"""Failures of tools as results and as errors."""

from typing import Any

import pytest

from trunkline import Refusal, Settings
from trunkline.protocol.meta import REFUSAL, TOOL_ERROR
from trunkline.protocol.revisions import NEWEST_HANDSHAKE, Revision
from trunkline.protocol.tool_failures import (
    add_refusal,
    error_of_failure,
    failed_result,
    failure_of_error,
    is_tool_failure,
)
from trunkline.wire.messages import ErrorObject

FAILED = "tool_execution_failed"


@pytest.mark.row("X11e")
@pytest.mark.parametrize(
    ("details", "data"),
    [
        (None, {"kind": FAILED}),
        ({"kind": "tool_execution_timeout", "elapsed": 5}, {"kind": "tool_execution_timeout", "elapsed": 5}),
        ("text", {"kind": FAILED, "details": "text"}),
    ],
)
def test_failed_result_becomes_an_error_with_its_details(details: Any, data: Any) -> None:
    error = error_of_failure(failed_result("it failed", details))
    assert error is not None
    assert (error.message, error.data) == ("it failed", data)


def test_refusal_has_no_error() -> None:
    assert error_of_failure(failed_result("no", {"kind": "refused", "trunkline/refusal": {"code": 1001}})) is None


@pytest.mark.row("E32010e")
def test_rate_limit_is_an_error_and_back() -> None:
    data = {"kind": "rate_limit_exceeded", "name": "rate_limit_exceeded", "retryAfterMs": 5}
    refusal = {"code": 1003, "name": "rate_limit_exceeded", "retryAfterMs": 5}
    error = error_of_failure(failed_result("later", {**data, REFUSAL: refusal}))
    assert isinstance(error, Refusal)
    assert (error.refusal_code, error.message, error.data) == (1003, "later", data)
    made = failure_of_error(ErrorObject(1003, "later", data))
    assert made.meta == {TOOL_ERROR: data, REFUSAL: refusal}


@pytest.mark.parametrize(("code", "name"), [(1090, "rate_limit_exceeded"), (1008, "temporarily_unavailable")])
def test_refusal_of_a_handler_stays_a_result(code: int, name: str) -> None:
    assert error_of_failure(failed_result("later", {"kind": name, REFUSAL: {"code": code, "name": name}})) is None


@pytest.mark.row("E1004")
def test_guard_keeps_its_reason_as_result_and_as_error() -> None:
    busy = {"kind": "maximum_concurrent_tools_exceeded", "retryAfterMs": 1000}
    failed = add_refusal(failed_result("busy", busy), Settings(max_calls=3))
    assert failed.meta is not None
    refusal = failed.meta[REFUSAL]
    assert (refusal["code"], refusal["retryAfterMs"]) == (1004, 1000)
    assert "3 at a time" in refusal["hint"]
    error = error_of_failure(failed)
    assert error is not None
    assert error.data == {**busy, "refusal": refusal}
    assert failure_of_error(ErrorObject(-32603, "busy", error.data)) == failed


def test_failure_without_a_reason_is_no_refusal() -> None:
    for details in (None, "text", {"kind": FAILED}, {"kind": "tool_not_allowed", REFUSAL: {"code": 1090}}):
        failed = failed_result("it failed", details)
        assert add_refusal(failed, Settings()) == failed


@pytest.mark.row("X09e")
@pytest.mark.parametrize(
    ("kind", "revision", "expected"),
    [
        (FAILED, Revision.V2024_11_05, True),
        ("content_too_large", Revision.V2024_11_05, True),
        ("invalid_tool_arguments", NEWEST_HANDSHAKE, True),
        ("invalid_tool_arguments", Revision.V2025_06_18, False),
        ("sampling_failed", NEWEST_HANDSHAKE, True),
        ("rate_limit_exceeded", NEWEST_HANDSHAKE, True),
        ("tool_not_found", NEWEST_HANDSHAKE, False),
    ],
)
def test_errors_that_stand_for_a_failed_result(kind: str, revision: Revision, expected: bool) -> None:
    assert is_tool_failure(ErrorObject(-1, "m", {"kind": kind}), revision) is expected


def test_error_without_a_kind_is_no_failure_of_a_tool() -> None:
    assert not is_tool_failure(ErrorObject(-1, "m"), NEWEST_HANDSHAKE)
