"""The benchmark's driver prints no figure for a server that answers wrongly."""

import sys
from pathlib import Path

import pytest
from bench.driver import BenchError, Question, ServerProcess, WrongAnswer, check_answers

BARE = Path(__file__).parents[2] / "bench" / "peers" / "bare.py"


def echo(expected: str) -> Question:
    return Question(
        "tools/call",
        lambda n: {"name": "echo", "arguments": {"text": f"hello {n}"}},
        lambda n, result: result["content"][0]["text"] == expected.format(n=n),
    )


@pytest.mark.parametrize("window", [1, 4, 100])
def test_correct_server_is_measured(window: int) -> None:
    with ServerProcess([sys.executable, str(BARE)]) as server:
        spawned = server.handshake()
        sample = server.ask(echo("hello {n}"), count=20, window=window)

    assert spawned.cost > sample.cost > 0
    assert sample.answer_bytes > len("hello 20")


def test_request_larger_than_pipe_is_answered() -> None:
    text = "x" * (1 << 20)
    question = Question(
        "tools/call", lambda _: {"arguments": {"text": text}}, lambda _, result: result["content"][0]["text"] == text
    )
    with ServerProcess([sys.executable, str(BARE)]) as server:
        server.handshake()

        assert server.ask(question, count=3, window=2).answer_bytes > len(text)


def test_wrong_response_is_detected() -> None:
    with ServerProcess([sys.executable, str(BARE)]) as server:
        server.handshake()

        with pytest.raises(WrongAnswer, match="hello 2"):
            server.ask(echo("good bye {n}"), count=5, window=2)


def test_crashed_server_is_reported_with_stderr() -> None:
    command = [sys.executable, "-c", "raise SystemExit('out of order')"]
    with ServerProcess(command) as server, pytest.raises(BenchError, match="out of order"):
        server.handshake()


RIGHT = b'{"id":1,"result":"yes"}\n{"id":2,"result":"yes"}\n'


@pytest.mark.parametrize(
    "received",
    [
        pytest.param(b'{"id":1,"result":"yes"}\n', id="missing"),
        pytest.param(b"", id="nothing"),
        pytest.param(RIGHT + b'{"id":2,"result":"yes"}\n', id="twice"),
        pytest.param(RIGHT + b'{"id":3,"result":"yes"}\n', id="unasked"),
        pytest.param(RIGHT + b'{"method":"notifications/progress"}\n', id="notification"),
        pytest.param(RIGHT + b'{"id":2', id="cut off"),
        pytest.param(RIGHT.replace(b"yes", b"no", 1), id="wrong"),
        pytest.param(b'{"id":1,"result":"yes"}\n{"id":2,"error":{"code":-32603}}\n', id="error"),
    ],
)
def test_each_request_needs_exactly_one_correct_response(received: bytes) -> None:
    check_answers(RIGHT, [1, 2], lambda _, result: result == "yes")

    with pytest.raises(WrongAnswer):
        check_answers(received, [1, 2], lambda _, result: result == "yes")
