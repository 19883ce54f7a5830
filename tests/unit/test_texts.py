"""Texts of a peer in exceptions and logs: nothing in them can fool a terminal or forge a line."""

import logging
import traceback

import pytest

from trunkline.errors import (
    BadAnswer,
    ConnectionClosed,
    HandshakeFailed,
    InvalidParams,
    MisuseError,
    PeerError,
    ToolError,
    ToolFailed,
    TransportError,
    TrunklineError,
)
from trunkline.errors.text import MAX_PRINTABLE, printable
from trunkline.facts import Dropped
from trunkline.observers.logs import LogObserver

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \x9b31m \x00 \r\nroot: \u202egnp.exe\u2066 \u2028"
SHOWN = r"\x1b[2J\x1b]0;owned\x07 \x9b31m \x00 \r\nroot: \u202egnp.exe\u2066 \u2028"


def test_unprintable_characters_are_escaped() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("füße, 名前 and 🎉") == "füße, 名前 and 🎉"
    assert printable("one\n\ttwo\r", multiline=True) == "one\n\ttwo\\r"


def test_long_text_is_truncated() -> None:
    assert printable("x" * 20, max_length=5) == "xxxxx… (20 characters)"
    assert printable("x" * (2 * MAX_PRINTABLE), max_length=None) == "x" * (2 * MAX_PRINTABLE)
    assert len(printable("\x1b" * 10**6)) < 5 * MAX_PRINTABLE


@pytest.mark.parametrize(
    "error",
    [
        PeerError(-32000, HOSTILE),
        BadAnswer("tools/call", HOSTILE),
        TransportError(HOSTILE),
        HandshakeFailed(HOSTILE),
        InvalidParams(HOSTILE),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_text_is_safe_for_terminal(error: TrunklineError) -> None:
    assert SHOWN in str(error)
    assert SHOWN in "".join(traceback.format_exception(error))
    assert HOSTILE in error.args[0]


@pytest.mark.parametrize(
    "error",
    [ToolFailed("bait", HOSTILE, None), ConnectionClosed("gone", last_words=HOSTILE), MisuseError(HOSTILE)],
    ids=lambda error: type(error).__name__,
)
def test_multiline_text_keeps_line_ends_only(error: TrunklineError) -> None:
    assert SHOWN.replace(r"\n", "\n") in str(error)


def test_error_attributes_keep_original_text() -> None:
    assert PeerError(-32000, HOSTILE).message == HOSTILE
    assert ConnectionClosed("gone", last_words=HOSTILE).last_words == HOSTILE
    assert str(ToolError(HOSTILE)) == HOSTILE  # which a tool of ours returns to a model


def test_dropped_message_is_safe_for_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "trunkline")
    LogObserver().on(Dropped(connection=1, at=0.0, why=HOSTILE, kind="malformed"))
    assert caplog.messages == [f"dropped: {SHOWN} (malformed)"]
