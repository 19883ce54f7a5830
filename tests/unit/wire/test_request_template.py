"""Templates of requests: the frames that a template is learnt from, and those that it recognizes."""

import json
from typing import Any

import pytest
from msgspec import Raw

from trunkline.wire.codec import LONG_THRESHOLD, decode_strict
from trunkline.wire.messages import Request
from trunkline.wire.request_template import RequestTemplate

FIRST = b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"name":"n","arguments":{"a":1},"_meta":{"v":"1"}}}'
LAST = b'{"method":"m","params":{"_meta":{"v":"1"},"name":"n","arguments":{"a":1}},"jsonrpc":"2.0","id":7}'
SPACED = json.dumps(json.loads(FIRST)).encode()


def learn(frame: bytes) -> RequestTemplate | None:
    request = decode_strict(frame)
    assert type(request) is Request
    return RequestTemplate.learn(frame, request, "arguments")


def match(frame: bytes, again: bytes) -> Any:
    template = learn(frame)
    assert template is not None
    found = template.match(again)
    assert found is None or found == decode_strict(again)
    return found


@pytest.mark.parametrize("frame", [FIRST, LAST, SPACED])
def test_other_id_and_arguments_are_recognized(frame: bytes) -> None:
    again = frame.replace(b"7", b"1234567890").replace(b"1}", b'[{"b":"c"}]}')
    for one in (frame, again):
        found = match(frame, one)
        assert (found.id, found.method, type(found.params)) == (json.loads(one)["id"], "m", Raw)
        assert json.loads(bytes(found.params)) == json.loads(one)["params"]


OTHERS = {
    "another method": (b'"m"', b'"n"'),
    "another member of the params": (b'"v":"1"', b'"v":"2"'),
    "no id": (b"7", b""),
    "an id that is text": (b"7", b'"7"'),
    "an id with a sign": (b"7", b"-7"),
    "an id with a fraction": (b"7", b"7.0"),
    "an id that is not a number in JSON": (b"7", b"07"),
    "an id of many digits": (b"7", b"7" * 19),
    "no value": (b'{"a":1}', b""),
    "not JSON": (b'{"a":1}', b'{"a":1'),
    "two values": (b'{"a":1}', b"{},{}"),
    "another member behind the value": (b'{"a":1}', b'{},"b":1'),
    "a member twice": (b'{"a":1}', b'{"a":1,"a":2}'),
    "not UTF-8": (b'{"a":1}', b'{"a":"\xff"}'),
    "a number out of range": (b'{"a":1}', b'{"a":1e999}'),
    "a long value": (b'{"a":1}', b'{"a":"%b"}' % (b"x" * LONG_THRESHOLD)),
}


@pytest.mark.parametrize(("part", "other"), OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("frame", [FIRST, LAST])
def test_other_frame_is_left_to_strict_decoding(frame: bytes, part: bytes, other: bytes) -> None:
    assert frame.count(part) == 1
    assert match(frame, frame.replace(part, other)) is None


def test_pieces_that_overlap_are_not_recognized() -> None:
    assert match(b'{"jsonrpc":"2.0","method":"m","params":{"arguments":{}},"id":7}', b'{"jsonrpc":"2.0"}') is None


UNSUITABLE = {
    "no params": b'{"jsonrpc":"2.0","id":7,"method":"m"}',
    "no such member": b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"name":"n"}}',
    "an id that is text": FIRST.replace(b"7", b'"7"'),
    "a negative id": FIRST.replace(b"7", b"-7"),
    "an id with an escape in its name": FIRST.replace(b'"id"', b'"\\u0069d"'),
    "the probe": FIRST.replace(b'{"a":1}', b'{"probe":["trunkline"]}'),
    "another member of that name before it": FIRST.replace(b'"name":"n"', b'"name":{"arguments":{"a":1}}'),
    "the same params in another member": FIRST.replace(b'"n"', b'{"name":"arguments","x":{"arguments":{"a":1}}}'),
    "its name and value in strings": b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"x":"arguments","y":"1","arguments":1}}',
    "a long request": FIRST.replace(b'"n"', b'"%b"' % (b"n" * LONG_THRESHOLD)),
}


@pytest.mark.parametrize("frame", UNSUITABLE.values(), ids=UNSUITABLE)
def test_nothing_is_learnt_from_unsuitable_frame(frame: bytes) -> None:
    assert learn(frame) is None


def test_id_inside_of_the_params_is_not_the_id() -> None:
    frame = b'{"jsonrpc":"2.0","method":"m","params":{"id":7,"arguments":{}},"id":7}'
    assert match(frame, frame.replace(b'}},"id":7', b'}},"id":8')).id == 8
    assert match(frame, frame.replace(b'"id":7,', b'"id":8,')) is None
