"""The tail of a process's standard error."""

import tracemalloc

import pytest

from trunkline.transports.stdio.stderr_tail import StderrTail


def test_short_output_is_kept_unchanged() -> None:
    tail = StderrTail(100)
    tail.feed(b"one\n")
    tail.feed("zwölf\n".encode())
    assert tail.text == "one\nzwölf"


def test_last_whole_lines_are_kept() -> None:
    tail = StderrTail(20)
    for number in range(100):
        tail.feed(b"line %d\n" % number)
    assert tail.text == "line 98\nline 99"


def test_end_of_one_long_line_is_kept() -> None:
    tail = StderrTail(10)
    tail.feed(b"x" * 50)
    tail.feed(b"the end")
    assert tail.text == "xxxthe end"


def test_invalid_utf8_is_replaced() -> None:
    tail = StderrTail(10)
    tail.feed(b"a\xffb")
    assert tail.text == "a\ufffdb"


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_on_line_gets_every_line_once(cut: int) -> None:
    heard: list[str] = []
    tail = StderrTail(100, heard.append)
    said = b"one\r\n\ntwo\nthree"
    for start in range(0, len(said), cut):
        tail.feed(said[start : start + cut])
    assert heard == ["one", "", "two"]
    tail.end()
    tail.end()
    assert heard == ["one", "", "two", "three"]


def test_overlong_line_arrives_in_pieces() -> None:
    heard: list[str] = []
    tail = StderrTail(4, heard.append)
    tail.feed(b"abcdefghij\nk\n")
    tail.feed(b"abcdefghij")
    assert heard == ["abcdefghij", "k", "abcd", "efgh"]
    tail.end()
    assert heard[-1] == "ij"


def test_flood_uses_bounded_memory() -> None:
    tail, chunk = StderrTail(1000, lambda _: None), b"x" * 100 + b"\n"
    tracemalloc.start()
    for _ in range(20_000):
        tail.feed(chunk)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 20_000


def test_end_without_on_line_does_nothing() -> None:
    tail = StderrTail(10)
    tail.feed(b"x")
    tail.end()
    assert tail.text == "x"
