"""Facts as records of the standard library's logging."""

import logging

import pytest
from msgspec.structs import replace

from trunkline import Server
from trunkline.facts import Closed, Dropped, HandlerFailed, MessageUnreadable, Observers
from trunkline.observers.logs import LogObserver
from trunkline.testing import RawPeer

WHERE = {"connection": 1, "at": 0.0}
FAILED = HandlerFailed(**WHERE, request=7, method="tools/call", reference="abc", error=ValueError("reason"))


@pytest.mark.row("R16")
def test_failure_is_logged_with_reference_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    LogObserver().on(FAILED)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("trunkline", "ERROR")
    assert record.getMessage() == "tools/call failed (request 7, reference abc)"
    assert "ValueError: reason" in caplog.text


def test_failure_is_logged_with_target(caplog: pytest.LogCaptureFixture) -> None:
    LogObserver().on(replace(FAILED, target="audit"))
    LogObserver().on(replace(FAILED, target="a:\x1b[2J\n" + 300 * "x"))
    assert caplog.messages[0] == "tools/call of 'audit' failed (request 7, reference abc)"
    assert len(caplog.messages[1]) < 300
    assert caplog.messages[1].isprintable()


def test_unusable_messages_are_rate_limited(caplog: pytest.LogCaptureFixture) -> None:
    observer = LogObserver()
    for at in (0.0, 1.0, 9.9, 10.0, 25.0):
        observer.on(MessageUnreadable(connection=1, at=at, why="not JSON\n", excerpt=b"Hello\x1b"))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    first, second, third = caplog.messages
    assert first == third == r"unusable message: not JSON\n (connection 1, began with b'Hello\x1b')"
    assert second == first + "; 2 more since the last warning"


def test_unusable_message_without_an_excerpt_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    LogObserver().on(MessageUnreadable(connection=1, at=0.0, why="no id"))
    assert caplog.messages == ["unusable message: no id (connection 1)"]


@pytest.mark.row("N08")
def test_other_facts_are_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "trunkline"):
        observer = LogObserver()
        observer.on(Dropped(**WHERE, why="nobody wants it", kind="unwanted"))
        observer.on(Closed(**WHERE, reason="enough"))
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG"]
    assert caplog.messages[0] == "dropped: nobody wants it (unwanted)"
    assert "enough" in caplog.messages[1]


@pytest.mark.parametrize(("level", "all_of_it"), [(logging.DEBUG, True), (logging.INFO, False)])
def test_failures_only_without_debug_level(level: int, caplog: pytest.LogCaptureFixture, *, all_of_it: bool) -> None:
    with caplog.at_level(level, "trunkline"):
        assert bool(Observers([LogObserver()])) is all_of_it


@pytest.mark.row("R16", "X11")
async def test_traceback_is_logged_but_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("t")

    @server.tool
    async def fails() -> str:
        raise ValueError("a secret reason")

    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("tools/call", {"name": "fails"})
    assert "a secret reason" in caplog.text
    assert "a secret reason" not in str(peer.transcript.frames)
    assert result["_meta"]["trunkline/error"]["reference"] in caplog.text
