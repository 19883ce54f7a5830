"""Failures of providers: what they mean for the peer, and whether another attempt may succeed."""

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from math import isfinite
from typing import Any, Final

from msgspec import Struct

from trunkline.errors import ModelNotAvailable, SamplingFailed, SamplingRateLimited, SamplingTimeout
from trunkline.errors.text import printable
from trunkline.wire import codec

__all__ = ["Backoff", "Cause", "Problem", "problem_of_event", "problem_of_status", "read_retry_after", "to_error"]

_MAX_DETAIL: Final = 500  # characters of a provider's explanation
_NOT_FOUND: Final = 404
_REQUEST_TIMEOUT: Final = 408
_TOO_MANY_REQUESTS: Final = 429
_REDIRECTS: Final = range(300, 400)
_SERVER_ERRORS: Final = range(500, 600)
_LONGEST_RETRY_AFTER: Final = 86_400.0  # seconds; a larger value is no plan


class Cause(Enum):
    """Why a provider produced no message."""

    FAILED = SamplingFailed
    TIMED_OUT = SamplingTimeout
    NO_MODEL = ModelNotAvailable
    RATE_LIMITED = SamplingRateLimited


class Problem(Struct, frozen=True):
    """A failed attempt. `summary` is for the peer, `detail` for the host only."""

    cause: Cause
    summary: str
    detail: str = ""
    retryable: bool = False
    retry_after: float | None = None  # seconds, if the provider gives a time


_CAUSES_BY_CODE: Final[Mapping[str, tuple[Cause, bool]]] = {
    "model_not_found": (Cause.NO_MODEL, False),
    "not_found_error": (Cause.NO_MODEL, False),
    "insufficient_quota": (Cause.RATE_LIMITED, False),  # an empty account: waiting does not help
    "rate_limit_exceeded": (Cause.RATE_LIMITED, True),
    "rate_limit_error": (Cause.RATE_LIMITED, True),
    "timeout_error": (Cause.TIMED_OUT, True),
    "overloaded_error": (Cause.FAILED, True),
    "server_error": (Cause.FAILED, True),
    "api_error": (Cause.FAILED, True),
}
"""The cause of an error by its `code` or `type`, and whether another attempt may succeed."""

_SUMMARIES: Final[Mapping[Cause, str]] = {
    Cause.FAILED: "failed",
    Cause.TIMED_OUT: "took too long",
    Cause.NO_MODEL: "does not have the model",
    Cause.RATE_LIMITED: "refuses further requests for now",
}


class _Error(Struct):
    message: Any = None
    type: Any = None
    code: Any = None


class _ErrorBody(Struct):
    error: _Error | str | None = None


_read_error_body: Final = codec.json_decoder(_ErrorBody)


def problem_of_event(event: bytes) -> Problem:
    """Return the problem that an event reports in its member `error`."""
    try:
        return _problem_of(_read_error_body(event).error or "")
    except (codec.DecodeError, UnicodeError, RecursionError):
        return _problem_of("an error of an unknown shape")


def problem_of_status(status: int, headers: Mapping[str, str], body: bytes, now: float) -> Problem:
    """Return the problem of a response with an error status. `now` is the time of day, for dates in headers."""
    try:
        stated = _read_error_body(body).error
    except (codec.DecodeError, UnicodeError, RecursionError):
        stated = body[:_MAX_DETAIL].decode(errors="replace")
    if status in _REDIRECTS:
        detail = "redirects are not followed, since the key is for one origin only; set base_url to the final address"
        return Problem(Cause.FAILED, f"answered HTTP {status}", detail)
    named = _problem_of(stated or "")
    cause, retryable = named.cause, named.retryable
    if cause is Cause.FAILED:
        cause, retryable = _cause_of_status(status)
    if headers.get("x-should-retry", "").lower() == "false":
        retryable = False
    summary = f"{_SUMMARIES[cause]} (HTTP {status})"
    return Problem(cause, summary, named.detail, retryable, read_retry_after(headers, now))


def _problem_of(error: _Error | str) -> Problem:
    if isinstance(error, str):
        return Problem(Cause.FAILED, _SUMMARIES[Cause.FAILED], printable(error, max_length=_MAX_DETAIL))
    cause, retryable = Cause.FAILED, False
    for name in (error.code, error.type):
        if isinstance(name, str) and name in _CAUSES_BY_CODE:
            cause, retryable = _CAUSES_BY_CODE[name]
            break
    detail = error.message if isinstance(error.message, str) else ""
    return Problem(cause, _SUMMARIES[cause], printable(detail, max_length=_MAX_DETAIL), retryable)


def _cause_of_status(status: int) -> tuple[Cause, bool]:
    if status == _NOT_FOUND:
        return Cause.NO_MODEL, False
    if status == _TOO_MANY_REQUESTS:
        return Cause.RATE_LIMITED, True
    if status == _REQUEST_TIMEOUT:
        return Cause.TIMED_OUT, True
    return Cause.FAILED, status in _SERVER_ERRORS


def read_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds after which the provider accepts another request; None if it does not say."""
    milliseconds = _read_number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    seconds = _read_number(value)
    if seconds is not None or not value:
        return seconds
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    at = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return min(max(0.0, at.timestamp() - now), _LONGEST_RETRY_AFTER)


def _read_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return min(max(0.0, number), _LONGEST_RETRY_AFTER) if isfinite(number) else None


class Backoff(Struct, frozen=True):
    """Delays between attempts: doubled each time, with jitter, and never shorter than the provider asks for."""

    retries: int = 2
    first_delay: float = 0.5  # seconds
    longest_delay: float = 8.0

    def delay(self, attempt: int, problem: Problem, jitter: float) -> float | None:
        """Return the seconds to wait after a failed attempt, counted from 1; None if it was the last. `jitter` is a
        random number from 0 to 1."""
        if not problem.retryable or attempt > self.retries:
            return None
        own = min(self.first_delay * 2.0 ** (attempt - 1), self.longest_delay) * (1 - jitter / 2)
        return own if problem.retry_after is None else problem.retry_after


def to_error(problem: Problem, provider: str) -> SamplingFailed:
    """Return the exception for a problem."""
    message = f"{provider} {problem.summary}"
    if problem.cause is Cause.RATE_LIMITED:
        return SamplingRateLimited(message, detail=problem.detail, retry_after=problem.retry_after)
    return problem.cause.value(message, detail=problem.detail)
