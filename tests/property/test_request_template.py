"""Templates of requests: a template never decides what strict decoding would decide in another way."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from trunkline.wire.codec import decode_strict
from trunkline.wire.messages import Request
from trunkline.wire.request_template import RequestTemplate

TEXTS = st.text(max_size=8) | st.sampled_from(['"id":7', '"arguments":{}', "\\", '","_meta":{}}}', ":", "\ud7ff"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
IDS = st.integers(min_value=0, max_value=10**19)
MEMBERS = st.permutations(["jsonrpc", "id", "method", "params"])
PARAMS = st.permutations(["name", "arguments", "_meta"])
STYLES = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])
PIECES = st.sampled_from(
    [
        *(
            b"{",
            b"}",
            b"[",
            b"]",
            b'"',
            b",",
            b":",
            b"0",
            b"-",
            b"\\",
            b" ",
            b"\xff",
            b"\xc3\xa9",
            b'"id":7',
            b'"a":1,',
        ),
        *(
            b'"_meta":{}',
            b'"arguments":{},',
            b'{"a":1,"a":2}',
            b'"\\ud800"',
            b'"\\u003a"',
            b"1e999",
            b"null",
            b"\xef\xbb\xbf",
        ),
    ]
)


class Writer:
    """A client that writes each request in one order and style."""

    def __init__(self, members: list[str], params: list[str], style: tuple[str, str], *, ascii_only: bool) -> None:
        self._members = members
        self._params = params
        self._style = style
        self._ascii_only = ascii_only

    def write(self, ident: int, arguments: Any, meta: Any) -> bytes:
        every = {"name": "echo", "arguments": arguments, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": ident, "method": "tools/call"}
        message["params"] = {name: every[name] for name in self._params}
        ordered = {name: message[name] for name in self._members}
        return json.dumps(ordered, separators=self._style, ensure_ascii=self._ascii_only).encode()


WRITERS = st.builds(Writer, MEMBERS, PARAMS, STYLES, ascii_only=st.booleans())


def learn(frame: bytes) -> RequestTemplate | None:
    request = decode_strict(frame)
    return RequestTemplate.learn(frame, request, "arguments") if type(request) is Request else None


def check(template: RequestTemplate | None, frame: bytes) -> bool:
    """Compare the template's request with that of strict decoding; return whether the template recognizes it."""
    matched = None if template is None else template.match(frame)
    if matched is None:
        return False
    decoded = decode_strict(frame)
    assert type(decoded) is Request
    assert type(decoded.params) is Raw
    assert (matched.id, matched.method, bytes(matched.params)) == (decoded.id, decoded.method, bytes(decoded.params))
    return True


@given(WRITERS, VALUES, st.lists(st.tuples(IDS, VALUES, VALUES), max_size=4))
def test_template_agrees_with_strict_decoding(writer: Writer, meta: Any, others: list[tuple[int, Any, Any]]) -> None:
    template = learn(writer.write(7, {"text": "hello"}, meta))
    for ident, arguments, other_meta in others:
        check(template, writer.write(ident, arguments, meta))
        check(template, writer.write(ident, arguments, other_meta))


@given(WRITERS, st.integers(min_value=0, max_value=10**17), TEXTS)
def test_other_id_and_arguments_are_recognized(writer: Writer, ident: int, text: str) -> None:
    meta = {"version": "1", "capabilities": {}}
    template = learn(writer.write(7, {"text": "hello"}, meta))
    assert check(template, writer.write(ident, {"text": text}, meta)) is not ("\\u003a" in json.dumps(text))


@given(WRITERS, st.lists(PIECES, max_size=6), st.integers(0, 300), st.integers(0, 40), st.sampled_from([b"7", b"null"]))
def test_damaged_frame_is_not_taken_for_a_valid_one(
    writer: Writer, pieces: list[bytes], at: int, dropped: int, hole: bytes
) -> None:
    frame = writer.write(7, {"text": "hello"}, {"version": "1"})
    template = learn(frame)
    damaged = frame[:at] + b"".join(pieces) + frame[at + dropped :]
    check(template, damaged)
    before, _, after = frame.partition(b'"hello"')
    check(template, before + b"".join((hole, *pieces)) + after)
    number = frame.find(b"7")
    check(template, frame[:number] + b"".join(pieces) + frame[number + dropped % 2 :])
