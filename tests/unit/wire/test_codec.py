"""Frames to messages and back."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import UNSET, Raw, Struct

from trunkline.wire import codec
from trunkline.wire.codec import LONG_THRESHOLD, MAX_BATCH, decode, decode_strict
from trunkline.wire.framing import BadFrame, TooLarge
from trunkline.wire.long_strings import LONG_STRING
from trunkline.wire.messages import Batch, ErrorObject, ErrorResponse, Malformed, Notification, Request, Response

PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS = -32700, -32600, -32602


def malformed(frame: bytes) -> Malformed:
    message = decode(frame)
    assert isinstance(message, Malformed)
    return message


# --- requests first ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"a"}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{}}',
        b'{"jsonrpc":"2.0","params":{},"id":1,"method":"a"}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":[1]}',
        b'{"jsonrpc":"2.0","id":1,"method":"\xc3\xa4"}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"text":"\xff"}}',
        b'{"jsonrpc":"2.0","method":"a"}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b"[]",
        b"{",
        b"",
        TooLarge(10),
    ],
    ids=lambda frame: repr(frame)[:40],
)
def test_request_first_decoding_gives_the_same_message(frame: bytes | TooLarge) -> None:
    assert codec.decode_request(frame) == decode(frame)


def test_long_request_is_decoded_once_either_way() -> None:
    frame = b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"text":"%b"}}' % (b"x" * LONG_THRESHOLD)
    first, usual = codec.decode_request(frame), decode(frame)
    assert isinstance(first, Request)
    assert isinstance(usual, Request)
    assert type(first.params) is type(usual.params) is not Raw


REQUEST = b'{"jsonrpc":"2.0","id":1,"method":"a","params":{}}\n'


def test_lines_with_requests_are_decoded_at_once() -> None:
    assert codec.decode_requests(3 * REQUEST) == 3 * [decode(REQUEST)]


@pytest.mark.parametrize(
    "other",
    [
        b"\n",
        b'{"jsonrpc":"1.0","id":1,"method":"a","params":{}}\n',
        b'{"jsonrpc":"2.0","method":"a","params":{}}\n',
        b'{"jsonrpc":"2.0","id":1,"method":"a"}\n',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":\n{}}}\n',
        b'{"jsonrpc":"2.0","id":1,\n"x":{"y":{}}\n,"method":"a","params":{}}\n',
        REQUEST[:-1] + b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":{"c":{}}\n,"d":{}}}\n',
        REQUEST[:-1] + REQUEST,
        b'{"jsonrpc":"2.0","id":1,"method":"\xc3\xa4","params":{}}\n',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"text":"%b"}}\n' % (b"x" * LONG_THRESHOLD),
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":%b{}}}\n' % (b"[" * 5000),
    ],
    ids=lambda lines: repr(lines)[:60],
)
def test_other_lines_are_left_to_the_decoder_of_frames(other: bytes) -> None:
    assert codec.decode_requests(REQUEST + other) is None


# --- duplicate members ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "ident", "is_reply"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}', 1, False),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}', None, False),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":1,"a":1}}', 1, False),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a" :1,"a" :":"}}', 1, False),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":[{"b":{}},{"b":{},"\\u0062":1}]}}', 1, False),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":1,"a":"\\u003a"}}', 1, False),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":1,"a":"\\u003A"}}', 1, False),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":1,"a":1e999}}', 1, False),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":1,"a":%b}}' % (b"9" * 5000), 1, False),
        (b'{"jsonrpc":"2.0","method":"a","params":{"a":1,"a":1}}', None, True),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":1}}', 1, True),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"","data":{"a":1,"a":1}}}', 1, True),
        (b'{"jsonrpc":"2.0","id":1,"result":{"id":1,"id":1}}', 1, True),
        (b'[{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":1,"a":1}}]', None, False),
    ],
)
@pytest.mark.parametrize("padding", [b"", b" " * LONG_THRESHOLD])
def test_strict_decoding_rejects_duplicate_members(
    frame: bytes, ident: int | None, is_reply: bool, padding: bytes
) -> None:
    message = decode_strict(padding + frame)
    assert isinstance(message, Malformed)
    assert (message.code, message.id, message.is_reply) == (INVALID_REQUEST, ident, is_reply)
    assert message.why.startswith("duplicate member '")


@pytest.mark.parametrize(
    "params",
    [
        b'{"a":1,"b":{"a":1}}',
        b'{"a":[{"b":1},{"b":1}],"A":1}',
        b'{"a":"\\"a\\":1,\\"a\\":2"}',
        b'{"a\\u003a":"\\u003a","a":":"}',
        b'{"a":"\\u003c"}',
        b'{"a":1e999}',
    ],
)
@pytest.mark.parametrize("padding", [b"", b" " * LONG_THRESHOLD])
def test_strict_decoding_allows_equal_names_in_different_objects(params: bytes, padding: bytes) -> None:
    request = decode_strict(b'%b{"jsonrpc":"2.0","id":1,"method":"a","params":%b}' % (padding, params))
    assert isinstance(request, Request)


LONG_TEXT = b"x" * LONG_STRING


@pytest.mark.parametrize(
    "params",
    [
        b'{"a":"%b","b":1,"b":2}' % LONG_TEXT,
        b'{"a":{"b":1,"b":2},"c":"%b\\n"}' % LONG_TEXT,
        b'{"a":"%b","a":"%b"}' % (LONG_TEXT, LONG_TEXT),
        b'{"%b":1,"%b":2}' % (LONG_TEXT, LONG_TEXT),
    ],
)
def test_strict_decoding_rejects_duplicate_members_beside_long_strings(params: bytes) -> None:
    message = decode_strict(b'{"jsonrpc":"2.0","id":1,"method":"a","params":%b}' % params)
    assert isinstance(message, Malformed)
    assert (message.code, message.id) == (INVALID_REQUEST, 1)
    assert message.why.startswith("duplicate member '")


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":"%b","b":{"a":"%b"}}}' % (LONG_TEXT, LONG_TEXT),
        b'{ "jsonrpc": "2.0", "id": 1, "method": "a", "params": { "a": "%b", "b": { "a": 1 } } }' % LONG_TEXT,
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"%b":1}}' % LONG_TEXT,
        b'{"jsonrpc":"2.0","id":1,"method":"%b","params":{}}' % LONG_TEXT,
        b'{"jsonrpc":"2.0","id":"%b","method":"a","params":{}}' % LONG_TEXT,
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":"%b","b":"\\u0000"}}' % LONG_TEXT,
    ],
)
def test_request_with_long_strings_has_their_values(frame: bytes) -> None:
    request = decode_strict(frame)
    assert isinstance(request, Request)
    values = json.loads(frame)
    assert (request.id, request.method) == (values["id"], values["method"])
    assert codec.decoder(dict[str, Any])(request.params) == values["params"]
    assert json.loads(bytes(codec.original_json(request.params))) == values["params"]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("string", [b"\xff", b"\n", b"\\x"])
def test_invalid_long_string_is_reported_as_in_a_short_message(string: bytes) -> None:
    frame = b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":"%b%b"}}'
    long, short = decode(frame % (LONG_TEXT, string)), decode(frame % (b"", string))
    assert isinstance(long, Malformed)
    assert isinstance(short, Malformed)
    assert long.code == short.code == PARSE_ERROR


def test_strict_decoding_reports_other_faults_as_plain_decoding_does() -> None:
    assert decode_strict(b'{"a":1,"a":') == decode(b'{"a":1,"a":')
    assert decode_strict(BadFrame("no header")) == decode(BadFrame("no header"))


# --- well-formed ---------------------------------------------------------------------------------


@pytest.mark.row("P01")
@pytest.mark.parametrize("ident", [1, "init-1", 0, "", -7, 2**70])
def test_request_id_is_unchanged(ident: int | str) -> None:
    request = decode(codec.encode_request(ident, "ping"))
    assert request == Request(ident, "ping")
    assert type(request.id) is type(ident)


@pytest.mark.row("P01")
def test_params_stay_raw() -> None:
    request = decode(b'{"jsonrpc":"2.0","id":1,"method":"a","params": {"b": [1, 2]}}')
    assert isinstance(request, Request)
    assert bytes(request.params) == b'{"b": [1, 2]}'


def test_unknown_members_are_ignored() -> None:
    assert decode(b'{"jsonrpc":"2.0","extra":[{}],"id":1,"method":"a"}') == Request(1, "a")


def test_surrounding_whitespace_is_ignored() -> None:
    assert decode(b' \t{"jsonrpc":"2.0","id":1,"method":"a"}\r') == Request(1, "a")


@pytest.mark.row("P04")
def test_message_without_id_is_a_notification() -> None:
    assert decode(b'{"jsonrpc":"2.0","method":"a"}') == Notification("a")


@pytest.mark.row("P02")
def test_result_is_a_response() -> None:
    response = decode(b'{"jsonrpc":"2.0","id":"x","result":{"a":1}}')
    assert isinstance(response, Response)
    assert (response.id, bytes(response.result)) == ("x", b'{"a":1}')


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"result":{},"id":1,"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"more":1}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"more":{"method":1}}',
    ],
)
def test_response_may_have_other_members_in_any_order(frame: bytes) -> None:
    response = decode(frame)
    assert isinstance(response, Response)
    assert (response.id, bytes(response.result)) == (1, b"{}")


@pytest.mark.row("P03", "P26")
@pytest.mark.parametrize(
    ("json", "data"),
    [(b"", UNSET), (b',"data":"text"', "text"), (b',"data":{"a":[1]}', {"a": [1]}), (b',"data":null', None)],
)
def test_error_response_has_code_message_and_any_data(json: bytes, data: object) -> None:
    frame = b'{"jsonrpc":"2.0","id":1,"error":{"code":-5,"message":"no"%b}}' % json
    assert decode(frame) == ErrorResponse(1, ErrorObject(-5, "no", data))


@pytest.mark.row("P03")
@pytest.mark.parametrize(("json", "ident"), [(b'"id":null,', None), (b"", UNSET)])
def test_error_response_may_have_no_id(json: bytes, ident: object) -> None:
    frame = b'{"jsonrpc":"2.0",%b"error":{"code":-5,"message":"no"}}' % json
    assert decode(frame) == ErrorResponse(ident, ErrorObject(-5, "no"))  # type: ignore[arg-type]


# --- malformed -----------------------------------------------------------------------------------


@pytest.mark.row("P07", "X27")
@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"{oops",
        b"{",
        b"[1,",
        b'{"jsonrpc":"2.0"} {}',
        b'{"a":NaN}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":01}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":"\\ud800"}}',
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_invalid_json_is_parse_error(frame: bytes) -> None:
    fault = malformed(frame)
    assert (fault.code, fault.id, fault.is_reply) == (PARSE_ERROR, None, False)


@pytest.mark.row("P07")
@pytest.mark.parametrize(
    "frame",
    [
        '{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":"é"}}'.encode("latin-1"),
        '{"jsonrpc":"2.0","id":1,"result":{"a":"é"}}'.encode("latin-1"),
        '["é"]'.encode("latin-1"),
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":"\xed\xa0\x80"}}',  # half of a surrogate pair
    ],
)
def test_invalid_utf_8_is_parse_error_at_any_depth(frame: bytes) -> None:
    fault = malformed(frame)
    assert fault.code == PARSE_ERROR
    assert fault.why.startswith("not UTF-8")


@pytest.mark.row("X27")
@pytest.mark.parametrize("frame", [b"5", b'"text"', b"null", b"true"])
def test_non_object_is_invalid_request(frame: bytes) -> None:
    assert malformed(frame) == Malformed(INVALID_REQUEST, "a message must be a JSON object")


@pytest.mark.row("X27")
@pytest.mark.parametrize("number", [b"9" * 5000, b"1e999"])
def test_number_out_of_range_is_invalid_request(number: bytes) -> None:
    assert malformed(b'{"jsonrpc":"2.0","id":%b,"method":"a"}' % number).code == INVALID_REQUEST


@pytest.mark.row("P08")
@pytest.mark.parametrize("version", [b"", b'"jsonrpc":"1.0",', b'"jsonrpc":2.0,', b'"jsonrpc":null,'])
@pytest.mark.parametrize(
    ("rest", "ident", "is_reply"),
    [
        (b'"id":1,"method":"a"', 1, False),
        (b'"id":null,"method":"a"', None, False),
        (b'"id":[],"method":"a"', None, False),
        (b'"method":"a"', None, False),
        (b'"id":1,"result":{}', 1, True),
        (b'"id":1,"error":{"code":1,"message":""}', 1, True),
    ],
)
def test_jsonrpc_must_be_2_0(version: bytes, rest: bytes, ident: Any, is_reply: bool) -> None:
    fault = malformed(b"{%b%b}" % (version, rest))
    assert fault == Malformed(INVALID_REQUEST, "'jsonrpc' must be \"2.0\"", ident, is_reply)


@pytest.mark.row("P09")
def test_message_without_method_or_outcome_lacks_a_method() -> None:
    fault = malformed(b'{"jsonrpc":"2.0","id":1}')
    assert fault == Malformed(INVALID_REQUEST, "Missing 'method' field", 1, lacks_method=True)


@pytest.mark.row("P09")
@pytest.mark.parametrize("method", [b"5", b"null", b"{}", b'["a"]'])
def test_method_must_be_a_string(method: bytes) -> None:
    fault = malformed(b'{"jsonrpc":"2.0","id":1,"method":%b}' % method)
    assert fault == Malformed(INVALID_REQUEST, "'method' must be a string", 1)


@pytest.mark.row("P10")
@pytest.mark.parametrize("params", [b"5", b'"text"', b"null", b"true"])
def test_non_object_params_are_invalid_request(params: bytes) -> None:
    fault = malformed(b'{"jsonrpc":"2.0","id":1,"method":"a","params":%b}' % params)
    assert fault == Malformed(INVALID_REQUEST, "params must be an object", 1)


@pytest.mark.row("P10")
def test_array_params_are_invalid_params() -> None:
    fault = malformed(b'{"jsonrpc":"2.0","id":1,"method":"a","params": [1]}')
    assert fault == Malformed(INVALID_PARAMS, "params must be an object, not an array", 1)


@pytest.mark.row("P10")
@pytest.mark.parametrize("params", [b"5", b"[1]"])
def test_notification_with_invalid_params_gets_no_response(params: bytes) -> None:
    assert malformed(b'{"jsonrpc":"2.0","method":"a","params":%b}' % params).is_reply


@pytest.mark.row("P11")
def test_request_id_must_not_be_null() -> None:
    fault = malformed(b'{"jsonrpc":"2.0","id":null,"method":"a"}')
    assert (fault.code, fault.id, fault.is_reply) == (INVALID_REQUEST, None, False)


@pytest.mark.row("P11")
@pytest.mark.parametrize("ident", [b"1.5", b"1.0", b"true", b"[]", b"{}"])
def test_id_must_be_a_string_or_an_integer(ident: bytes) -> None:
    fault = malformed(b'{"jsonrpc":"2.0","id":%b,"method":"a"}' % ident)
    assert fault == Malformed(INVALID_REQUEST, "an id must be a string or an integer")


@pytest.mark.row("P12")
@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":null}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":"no"}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
    ],
)
def test_ambiguous_response_gets_no_response(frame: bytes) -> None:
    fault = malformed(frame)
    assert (fault.code, fault.id, fault.is_reply) == (INVALID_REQUEST, 1, True)


@pytest.mark.row("P12")
@pytest.mark.parametrize("frame", [b'{"jsonrpc":"2.0","result":{}}', b'{"jsonrpc":"2.0","id":null,"result":{}}'])
def test_result_must_have_an_id(frame: bytes) -> None:
    assert malformed(frame).is_reply


@pytest.mark.row("P12")
def test_response_with_unreadable_id_gets_no_response() -> None:
    assert malformed(b'{"jsonrpc":"2.0","id":1.5,"result":{}}').is_reply


@pytest.mark.row("P12")
@pytest.mark.parametrize("outcome", [b'"result":{}', b'"error":{"code":1,"message":""}', b'"error":5'])
def test_method_and_outcome_together_are_invalid(outcome: bytes) -> None:
    fault = malformed(b'{"jsonrpc":"2.0","id":1,"method":"a",%b}' % outcome)
    assert (fault.code, fault.id, fault.is_reply) == (INVALID_REQUEST, 1, False)


@pytest.mark.row("P12")
def test_notification_with_outcome_gets_no_response() -> None:
    assert malformed(b'{"jsonrpc":"2.0","method":"a","result":{}}').is_reply


@pytest.mark.row("W16")
def test_oversized_frame_has_limit() -> None:
    fault = decode(TooLarge(1024))
    assert isinstance(fault, Malformed)
    assert (fault.code, fault.limit) == (INVALID_REQUEST, 1024)
    assert "1024 bytes" in fault.why
    assert fault.id is None


@pytest.mark.row("W16")
@pytest.mark.parametrize(
    ("head", "tail", "ident", "is_reply", "lacks_method"),
    [
        (b'{"jsonrpc":"2.0","id":5,"result":{"conte', b'x"}]}}', 5, True, False),
        (b'{"result":{"content":[{"ty', b'"x"}]},"jsonrpc":"2.0","id":5}', 5, True, False),
        (b'{"jsonrpc":"2.0","error":{"code":1,"me', b'x"}},"id":"a b"}', "a b", True, False),
        (b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"na', b'x"}}', 5, False, False),
        (b'{"params":{"na', b'x"},"method":"tools/call","jsonrpc":"2.0","id":5}', 5, False, False),
        (b'{"params":{"na', b'x"},"jsonrpc":"2.0","id":5}', 5, False, True),
        (b'{"jsonrpc":"2.0","id":null,"result":{"a', b'x"}}', None, True, False),
        (b'{"result":{"a', b'{"id":5}}}', None, True, False),
        (b"xxxx", b"xxxx", None, False, True),
    ],
)
def test_oversized_response_has_request_id(
    head: bytes, tail: bytes, ident: Any, is_reply: bool, lacks_method: bool
) -> None:
    fault = decode(TooLarge(1024, head, tail))
    assert isinstance(fault, Malformed)
    assert (fault.id, fault.is_reply, fault.lacks_method) == (ident, is_reply, lacks_method)
    assert fault.excerpt == head[:80]


@pytest.mark.parametrize(
    ("frame", "ident", "is_reply"),
    [
        (b'{"jsonrpc":"2.0","id":5,"result":{"text":"cut of', 5, True),
        (b'{"jsonrpc":"2.0","id":5,"result":{"text":"\\x"}}', 5, True),
        (b'{"jsonrpc":"2.0","id":5,"result":{"text":"\xff"}}', 5, True),
        (b'{"result":{"text":"\xff"},"jsonrpc":"2.0","id":5}', 5, True),
        (b'{"result":{"text":"\\x"},"jsonrpc":"2.0","id":5}', 5, True),
        (b'{"result":{"text":"\\x"},"id":5}', None, True),  # the end of an inner object, perhaps
        (b'{"jsonrpc":"2.0","id":"\xff","result":{}}', None, True),
        (b'{"jsonrpc":"2.0","id":5,"method":"ping","params":{"a', None, False),
        (b"Server is ready", None, False),
    ],
)
def test_unparsable_response_has_request_id(frame: bytes, ident: Any, is_reply: bool) -> None:
    fault = malformed(frame)
    assert (fault.code, fault.id, fault.is_reply, fault.excerpt) == (PARSE_ERROR, ident, is_reply, frame[:80])


def test_float_id_of_response_matches_integer() -> None:
    fault = malformed(b'{"jsonrpc":"2.0","id":5.0,"result":{}}')
    assert (fault.id, fault.is_reply) == (5, True)
    assert malformed(b'{"jsonrpc":"2.0","id":5.5,"result":{}}').id is None


@pytest.mark.row("W14")
def test_bad_frame_is_an_invalid_request() -> None:
    assert decode(BadFrame("no length")) == Malformed(INVALID_REQUEST, "no length")


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.row("P05")
def test_array_is_batch() -> None:
    frame = b' [{"jsonrpc":"2.0","id":1,"method":"a"}, {"jsonrpc":"2.0","method":"b"}, 5, {"jsonrpc":"2.0","id":2}]'
    batch = decode(frame)
    assert isinstance(batch, Batch)
    request, notification, number, nothing = batch.messages
    assert (request, notification) == (Request(1, "a"), Notification("b"))
    assert number == Malformed(INVALID_REQUEST, "a message must be a JSON object")
    assert isinstance(nothing, Malformed)
    assert nothing.id == 2


@pytest.mark.row("P06")
@pytest.mark.parametrize("frame", [b"[]", b" [ ] "])
def test_empty_batch_is_an_invalid_request(frame: bytes) -> None:
    assert malformed(frame) == Malformed(INVALID_REQUEST, "a batch must not be empty")


@pytest.mark.row("P05")
@pytest.mark.parametrize("depth", [1, 2, 300, 700])
def test_nested_batch_is_invalid(depth: int) -> None:
    batch = decode(b"[" * (depth + 1) + b"]" * (depth + 1))
    assert batch == Batch((Malformed(INVALID_REQUEST, "a batch cannot stand inside a batch"),))


@pytest.mark.row("P05")
def test_batch_size_is_limited() -> None:
    largest = decode(codec.to_json([5] * MAX_BATCH))
    assert isinstance(largest, Batch)
    assert len(largest.messages) == MAX_BATCH
    assert malformed(codec.to_json([5] * (MAX_BATCH + 1))).code == INVALID_REQUEST


# --- encoding ------------------------------------------------------------------------------------


@pytest.mark.row("A02", "P18")
def test_requests_and_responses_are_encoded_by_plain_functions() -> None:
    assert codec.encode_request(1, "a", {"b": 2}) == b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":2}}'
    assert codec.encode_request("x", "a") == b'{"jsonrpc":"2.0","id":"x","method":"a"}'
    assert codec.encode_response(1, {}) == b'{"jsonrpc":"2.0","id":1,"result":{}}'


@pytest.mark.row("P05")
def test_several_messages_are_encoded_as_one_array() -> None:
    frame = codec.to_json([Response(1, {}), Notification("a")])
    assert frame == b'[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","method":"a"}]'


@pytest.mark.row("P19")
def test_decoding_a_response_gives_either_outcome() -> None:
    response = codec.decode_response(codec.encode_response(1, {"a": 1}))
    assert isinstance(response, Response)
    assert bytes(response.result) == b'{"a":1}'
    error = ErrorResponse(1, ErrorObject(-1, "no"))
    assert codec.decode_response(codec.encode(error)) == error


@pytest.mark.row("P19")
@pytest.mark.parametrize("frame", [b"{oops", b'{"jsonrpc":"2.0","id":1,"method":"a"}', b'[{"jsonrpc":"2.0"}]'])
def test_decoding_a_response_raises_for_anything_else(frame: bytes) -> None:
    with pytest.raises(ValueError, match="not"):
        codec.decode_response(frame)


class Point(Struct):
    x: int


def test_decoder_reads_json_into_its_type() -> None:
    read = codec.decoder(Point)
    assert read(b'{"x":1}') == Point(1)
    assert read(codec.to_raw(Point(2))) == Point(2)


def test_decoder_raises_for_mismatched_json() -> None:
    with pytest.raises(codec.DecodeError, match="x"):
        codec.decoder(Point)(b'{"x":"1"}')


# --- unreadable numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b'{"a":1e9999}', "the number 1e9999 is out of range - at `$.a`"),
        (b'{"b":{"a":1},"a":[[],-1e400,1e400]}', "the number -1e400 is out of range - at `$.a[1]`"),
        (b"[1.%be999]" % (b"5" * 99), f"the number 1.{'5' * 28}… is out of range - at `$[0]`"),
        (b'{"a":-%b}' % (b"9" * 5000), "an integer of 5000 digits is out of range - at `$.a`"),
    ],
)
def test_error_names_the_number_out_of_range(source: bytes, reason: str) -> None:
    with pytest.raises(codec.DecodeError) as caught:
        codec.decoder(object)(source)

    for given in (source, Raw(source), codec.DecodedJson(None, lambda: Raw(source))):
        assert codec.explain_decode_error(caught.value, given) == reason


@pytest.mark.parametrize("source", [b'{"a":"b"}', b'{"a":' + b"[" * 200_000 + b"1e9999" + b"]" * 200_000 + b"}", b"{"])
def test_other_errors_keep_decoder_message(source: bytes) -> None:
    for told in ("Expected `int`, got `str` - at `$.a`", "Number out of range - at `$.a`"):
        assert codec.explain_decode_error(codec.DecodeError(told), source) == told


def test_readable_json_is_indented() -> None:
    assert codec.to_readable_json({"a": [1], "b": {}}) == b'{\n  "a": [\n    1\n  ],\n  "b": {}\n}'


@pytest.fixture(params=["orjson", "msgspec"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With orjson and without."""
    if request.param == "msgspec":
        monkeypatch.setitem(sys.modules, "orjson", None)
    codec._long_encoder.cache_clear()
    yield request.param
    codec._long_encoder.cache_clear()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("text", ["ä" * LONG_STRING, '\x00"\\\u2028' * LONG_STRING])
def test_long_text_is_encoded_alike_with_and_without_orjson(text: str) -> None:
    assert bytes(codec.text_to_raw(text)) == codec.to_json(text)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "string",
    [
        LONG_TEXT,
        "ä€\U0001f600".encode() * LONG_STRING,
        LONG_TEXT + b"/\x7f",
        b"a line\\nand \\u00e4 " + LONG_TEXT,
        LONG_TEXT + b" and a line\\n",
        b'\\"' + LONG_TEXT + b'\\"',
    ],
)
def test_long_string_is_decoded_alike_with_and_without_orjson(string: bytes) -> None:
    request = decode(b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":"%b"}}' % string)
    assert isinstance(request, Request)
    assert isinstance(request.params, codec.DecodedJson)
    assert request.params.values == {"a": json.loads(b'"%b"' % string)}


@pytest.mark.usefixtures("installed")
def test_long_text_without_an_encoding_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        codec.text_to_raw("\ud800" * LONG_THRESHOLD)
