"""Media types of bodies, and the Accept header."""

import time

import pytest
from hypothesis import given
from hypothesis.strategies import binary, text

from trunkline.wire.media_types import EVENT_STREAM, JSON, accepts, essence, is_utf8_json


@pytest.mark.parametrize(
    ("value", "json", "events"),
    [
        ("application/json, text/event-stream", True, True),
        ("text/event-stream,application/json", True, True),
        ("*/*", True, True),
        ("", False, False),
        ("application/json", True, False),
        ("text/event-stream", False, True),
        ("text/html", False, False),
        ("Application/JSON , TEXT/Event-Stream", True, True),
        ("application/*", True, False),
        ("TEXT/*", False, True),
        ("*/json", False, False),
        ("application/json;q=0, text/event-stream", False, True),
        ("application/json;q=0.000, */*", False, True),
        ("application/json; Q=0, */*", False, True),
        ("application/json;q=0.001, text/event-stream;q=1.000", True, True),
        ("*/*;q=0", False, False),
        ("*/*;q=0, application/json", True, False),
        ("text/*;q=0, */*", True, False),
        ("text/event-stream, text/*;q=0, */*;q=0", False, True),
        ("application/json;charset=utf-8, text/event-stream", True, True),
        ('application/json;charset="UTF-8";q=0, */*', False, True),
        ("application/json;charset=utf-8;q=0, application/json", False, False),
        ("application/json;charset=utf-16", False, False),
        ("application/json;version=2", False, False),
        ("application/json;q=0.5;extension=1", True, False),
        ("application/json;q=2", False, False),
        ("application/json;q=0.0001", False, False),
        ("application/json;q=high", False, False),
        ("application/json;q", False, False),
        ("application/json;", True, False),
        ("application/jsonp", False, False),
        ("x-application/json", False, False),
        ("application/json text/event-stream", False, False),
        (",, application/json ,,", True, False),
        ('text/html;title="a, application/json", text/event-stream', False, True),
        ('text/html;title="a\\", application/json", text/event-stream', False, True),
        ('text/html;title="a, application/json', False, False),
        ("text/html;level=1;q=0.7, application/json;q=0.4, */*;q=0.5", True, True),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=0.2", True, True),
        ("application/json" + ", text/html" * 100, True, False),
    ],
)
def test_most_specific_range_decides(value: str, json: bool, events: bool) -> None:
    for _ in range(2):  # the second time from the cache
        assert accepts(value.encode(), JSON) is json
        assert accepts(value.encode(), EVENT_STREAM) is events
        assert accepts(value.encode(), JSON, EVENT_STREAM) is (json and events)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("application/json", True),
        ("Application/JSON", True),
        (" application/json ; charset=UTF-8", True),
        ('application/json;charset="utf-8"', True),
        ("application/json;CHARSET=utf8;version=1", True),
        ("application/json; charset=iso-8859-1", False),
        ('application/json; charset="utf\\-16"', False),
        ("application/json; version", True),
        ("application/json;" + " " * 300, True),
        ("application/json5", False),
        ("text/json", False),
        ("json", False),
        ("", False),
    ],
)
def test_json_content_type_ignores_case_and_needs_utf_8(value: str, expected: bool) -> None:
    for _ in range(2):
        assert is_utf8_json(value.encode()) is expected


def test_content_type_essence_has_no_parameters() -> None:
    assert essence(" Text/Event-Stream ; charset=utf-8") == "text/event-stream"
    assert essence("") == ""


@given(binary(max_size=60))
def test_any_header_parses_without_error(value: bytes) -> None:
    assert accepts(value, JSON) in {True, False}
    assert is_utf8_json(value) in {True, False}


@given(text(alphabet='"\\,;=q0 a/*', max_size=40))
def test_text_between_quotes_is_never_a_range(inside: str) -> None:
    quoted = inside.replace("\\", "\\\\").replace('"', '\\"')
    assert accepts(f'text/html;a="{quoted}, application/json"'.encode(), JSON) is False


@pytest.mark.parametrize("unit", ['"', '\\"', '"\\', ",", ";", "a/b;", "a/b;c=", " ", "a", 'a/b;c="'])
def test_long_header_parses_without_backtracking(unit: str) -> None:
    begun = time.process_time()
    value = b'a/b;c="' + unit.encode() * 100_000
    accepts(value, JSON)
    is_utf8_json(value)

    assert time.process_time() - begun < 30  # quadratic would be minutes
