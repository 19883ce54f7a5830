"""Failures of providers as values: causes, Retry-After, and delays between attempts."""

import pytest

from trunkline.errors import SamplingFailed, SamplingRateLimited
from trunkline.sampling.problems import (
    Backoff,
    Cause,
    Problem,
    problem_of_event,
    problem_of_status,
    read_retry_after,
    to_error,
)

NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT
PASSING = Problem(Cause.FAILED, "failed", retryable=True)


@pytest.mark.row("S16")
@pytest.mark.parametrize(
    ("status", "body", "cause", "retryable"),
    [
        (500, b"", Cause.FAILED, True),
        (400, b'{"error": {"code": "model_not_found", "message": "no such model"}}', Cause.NO_MODEL, False),
        (404, b'{"error": "model \\"x\\" not found"}', Cause.NO_MODEL, False),
        (429, b'{"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}', Cause.RATE_LIMITED, False),
        (429, b'{"error": {"type": "requests", "code": "rate_limit_exceeded"}}', Cause.RATE_LIMITED, True),
        (429, b"not JSON", Cause.RATE_LIMITED, True),
        (408, b"{}", Cause.TIMED_OUT, True),
        (504, b"<html>", Cause.FAILED, True),
        (200, b'{"error": {"code": 5, "type": null, "message": {}}}', Cause.FAILED, False),
        (302, b"", Cause.FAILED, False),
        (401, b'{"error": 5}', Cause.FAILED, False),
    ],
)
def test_status_has_cause(status: int, body: bytes, cause: Cause, retryable: bool) -> None:
    found = problem_of_status(status, {}, body, NOW)
    assert (found.cause, found.retryable) == (cause, retryable)
    assert str(status) in found.summary


@pytest.mark.parametrize(
    ("event", "cause", "detail"),
    [
        (b'{"error": {"type": "timeout_error", "message": "late"}}', Cause.TIMED_OUT, "late"),
        (b'{"error": "plain\x1b[0m"}', Cause.FAILED, "an error of an unknown shape"),  # a control character in JSON
        (b'{"error": "plain\\u001b"}', Cause.FAILED, "plain\\x1b"),
        (b'{"error": 5}', Cause.FAILED, "an error of an unknown shape"),
        (b"{}", Cause.FAILED, ""),
    ],
)
def test_event_has_cause(event: bytes, cause: Cause, detail: str) -> None:
    found = problem_of_event(event)
    assert (found.cause, found.detail) == (cause, detail)


def test_detail_is_bounded() -> None:
    found = problem_of_status(400, {}, b'{"error": "' + b"x" * 10_000 + b'"}', NOW)
    assert len(found.detail) < 600


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e300"}, 86_400.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": f"Fri, 15 Jan {10**30} 08:00:30 GMT"}, None),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, 30.0),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 -0000"}, 30.0),
        ({"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, 0.0),
        ({"retry-after": "3", "retry-after-ms": "250"}, 0.25),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert read_retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("attempt", "problem", "jitter", "delay"),
    [
        (1, PASSING, 0.0, 0.5),
        (1, PASSING, 1.0, 0.25),
        (2, PASSING, 0.0, 1.0),
        (3, PASSING, 0.0, 1.5),  # the longest
        (4, PASSING, 0.0, None),
        (1, Problem(Cause.FAILED, "failed"), 0.0, None),
        (1, Problem(Cause.RATE_LIMITED, "limited", retryable=True, retry_after=20.0), 0.5, 20.0),
        (1, Problem(Cause.RATE_LIMITED, "limited", retryable=True, retry_after=0.0), 0.5, 0.0),
    ],
)
def test_delay_doubles_and_respects_provider(
    attempt: int, problem: Problem, jitter: float, delay: float | None
) -> None:
    assert Backoff(3, 0.5, 1.5).delay(attempt, problem, jitter) == delay


def test_problem_becomes_error() -> None:
    error = to_error(Problem(Cause.FAILED, "failed", "why"), "Acme")
    assert (type(error), error.message, error.detail) == (SamplingFailed, "Acme failed", "why")
    limited = to_error(Problem(Cause.RATE_LIMITED, "is busy", retry_after=1.5), "Acme")
    assert isinstance(limited, SamplingRateLimited)
    assert limited.data == {"kind": "sampling_rate_limited", "retryAfterMs": 1500}
