"""The end of what somebody says."""

import tracemalloc

import pytest

from trunkline.transports.stdio.stderr_tail import StderrTail


def test_little_is_kept_as_it_is() -> None:
    tail = StderrTail(100)
    tail.feed(b"one\n")
    tail.feed("zwölf\n".encode())
    assert tail.text == "one\nzwölf"


def test_of_much_the_last_whole_lines_are_kept() -> None:
    tail = StderrTail(20)
    for number in range(100):
        tail.feed(b"line %d\n" % number)
    assert tail.text == "line 98\nline 99"


def test_of_one_long_line_its_end_is_kept() -> None:
    tail = StderrTail(10)
    tail.feed(b"x" * 50)
    tail.feed(b"the end")
    assert tail.text == "xxxthe end"


def test_what_is_no_utf_8_does_no_harm() -> None:
    tail = StderrTail(10)
    tail.feed(b"a\xffb")
    assert tail.text == "a\ufffdb"


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_every_line_is_heard_once_however_it_arrives(cut: int) -> None:
    heard: list[str] = []
    tail = StderrTail(100, heard.append)
    said = b"one\r\n\ntwo\nthree"
    for start in range(0, len(said), cut):
        tail.feed(said[start : start + cut])
    assert heard == ["one", "", "two"]
    tail.end()
    tail.end()
    assert heard == ["one", "", "two", "three"]


def test_a_line_that_is_too_long_is_heard_in_pieces() -> None:
    heard: list[str] = []
    tail = StderrTail(4, heard.append)
    tail.feed(b"abcdefghij\nk\n")
    tail.feed(b"abcdefghij")
    assert heard == ["abcdefghij", "k", "abcd", "efgh"]
    tail.end()
    assert heard[-1] == "ij"


def test_a_flood_takes_up_no_more_room_than_its_end() -> None:
    tail, chunk = StderrTail(1000, lambda _: None), b"x" * 100 + b"\n"
    tracemalloc.start()
    for _ in range(20_000):
        tail.feed(chunk)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 20_000


def test_the_end_of_a_stream_that_nobody_hears_is_nothing_special() -> None:
    tail = StderrTail(10)
    tail.feed(b"x")
    tail.end()
    assert tail.text == "x"
