"""The benchmark's HTTP driver prints no figure for a server that answers wrongly."""

import os
import sys
from pathlib import Path

import pytest
from bench.authentication import TOKEN
from bench.driver import BenchError, Question, WrongAnswer, cpu_ns
from bench.http_driver import HttpServerProcess, message_of, told_in
from bench.valkey import store_option
from bench.workers import Figure, WorkersProcess
from tests.processes import children, eventually, gone

BARE = [sys.executable, str(Path(__file__).parents[2] / "bench" / "peers" / "bare_http.py")]
BARE_WORKERS = [sys.executable, str(Path(BARE[1]).with_name("bare_workers.py"))]
SERVER = [sys.executable, str(Path(__file__).parents[2] / "bench" / "server.py")]


def echo(expected: str) -> Question:
    return Question(
        "tools/call",
        lambda n: {"name": "echo", "arguments": {"text": f"hello {n}"}},
        lambda n, result: result["content"][0]["text"] == expected.format(n=n),
    )


@pytest.mark.parametrize("window", [1, 4])
def test_correct_server_is_measured(window: int) -> None:
    with HttpServerProcess(BARE) as server:
        sample = server.ask(echo("hello {n}"), count=20, window=window)

    assert sample.cost > 0
    assert sample.answer_bytes > len("hello 20")


def test_forwarded_calls_are_measured(tmp_path: Path) -> None:
    with store_option("valkey", sys.executable, str(tmp_path)) as kept:
        env = os.environ | kept | {"BENCH_WORKERS": "2"}
        with WorkersProcess(SERVER, env, workers=2, carried=True, figure="cpu") as server:
            sample = server.ask(echo("hello {n}"), count=8, window=2)
            lines = [line.headers for line in server._lines]

    assert sample.cost > 0
    assert len(set(lines)) == 2


@pytest.mark.parametrize("figure", ["elapsed", "busiest"])
def test_calls_to_bare_workers_are_measured(figure: Figure) -> None:
    env = os.environ | {"BENCH_WORKERS": "2"}
    with WorkersProcess(BARE_WORKERS, env, workers=2, carried=False, figure=figure) as server:
        sample = server.ask(echo("hello {n}"), count=40, window=4)
        pids = children(server.pid)
        spent = [cpu_ns(pid) for pid in pids]

    assert sample.cost > 0
    assert min(spent) > 1_000_000  # both had two of the four connections, and a call takes more than a millisecond
    for pid in pids:
        eventually(lambda pid=pid: gone(pid))


@pytest.mark.parametrize(("script", "verified"), [("server.py", True), ("asgi_server.py", False)])
def test_other_forms_of_our_server_are_measured(script: str, verified: bool) -> None:
    env = os.environ | ({"BENCH_VERIFIED": "1"} if verified else {})
    command = [sys.executable, str(Path(SERVER[1]).with_name(script))]
    with HttpServerProcess(command, env, token=TOKEN if verified else None) as server:
        sample = server.ask(echo("hello {n}"), count=8, window=2)

    assert sample.cost > 0


def test_wrong_response_is_detected() -> None:
    with HttpServerProcess(BARE) as server, pytest.raises(WrongAnswer, match="hello"):
        server.ask(echo("good bye {n}"), count=5, window=2)


def test_failed_start_is_reported_with_stderr() -> None:
    with (
        pytest.raises(BenchError, match="out of order"),
        HttpServerProcess([sys.executable, "-c", "raise SystemExit('out of order')"]),
    ):
        pass


def test_subscribers_are_notified_and_sessions_counted() -> None:
    touch = Question(
        "tools/call",
        lambda _: {"name": "touch", "arguments": {"text": "bench://static"}},
        lambda _, result: result["content"][0]["text"] == "ok",
    )
    with HttpServerProcess(SERVER) as server:
        server.subscribe(3)
        told = server.tell(touch, 2)
        server.open_sessions(5)

        assert told.cost > 0
        assert server.memory() > 0


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n{"id":1}',
        b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{"i\r\n5\r\nd":1}\r\n0\r\n\r\n',
        b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 40\r\n\r\nid: 1\ndata:\n\nevent: message\ndata: {"id":1}\n\n',
    ],
    ids=["plain", "chunked", "events"],
)
def test_message_is_found_in_json_and_sse_responses(answer: bytes) -> None:
    assert message_of(answer) == b'{"id":1}\n'


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_only_complete_events_with_message_count(end: bytes) -> None:
    first = end.join([b"id: 0-0", b"retry: 1000", b"data: ", b"", b""])  # it may come with the notification, or before
    told = end.join([b"event: message", b"id: 0-1", b'data: {"id":1}', b"", b""])
    pieces = [b"%x\r\n%b\r\n" % (len(event), event) for event in (first, told, told)]

    heard = [told_in(b"".join(pieces[:count])) for count in range(4)]

    assert heard == [[], [], [b'{"id":1}'], [b'{"id":1}', b'{"id":1}']]
    assert told_in(pieces[1][: pieces[1].index(b"}") + 1]) == []
