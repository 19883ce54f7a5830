"""W3C trace context in metadata and in HTTP headers."""

from typing import Any

import pytest
from msgspec import UNSET, Raw

from trunkline.protocol.envelope import Envelope
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import find_method
from trunkline.protocol.trace_context import add_trace, pick_trace, read_trace, stated_trace, trace_headers
from trunkline.protocol.types import CallToolParams, Empty
from trunkline.transports.channel import MessageOrigin
from trunkline.wire import codec

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = {"traceparent": PARENT, "tracestate": "a=1", "baggage": "user=alice"}


def encoded(value: Any) -> Raw:
    return codec.to_raw(value)


@pytest.mark.parametrize(
    "params",
    [
        CallToolParams(name="t", meta={**TRACE, "progressToken": 1}),
        {"_meta": {**TRACE, "other": {}}},
        encoded({"_meta": TRACE, "name": "t"}),
    ],
    ids=["decoded", "plain", "encoded"],
)
def test_context_is_read_from_params_of_any_form(params: Any) -> None:
    assert read_trace(params) == TRACE


@pytest.mark.parametrize(
    "params",
    [
        UNSET,
        None,
        Empty(),
        {},
        {"_meta": 7},
        {"_meta": {"tracestate": "a=1", "baggage": "user=alice"}},
        encoded({"name": "traceparent"}),
        encoded({"_meta": '"traceparent"'}),
        Raw(b'["traceparent"]'),
    ],
)
def test_params_without_parent_have_no_context(params: Any) -> None:
    assert read_trace(params) == {}


def test_values_that_are_no_texts_do_not_count() -> None:
    assert pick_trace({"traceparent": PARENT, "tracestate": 7, "baggage": None}) == {"traceparent": PARENT}


@pytest.mark.parametrize("params", [UNSET, Empty(meta={"a": 1}), {"_meta": {"a": 1}}, encoded({"_meta": {"a": 1}})])
def test_context_is_added_to_params_of_any_form(params: Any) -> None:
    added = add_trace(params, TRACE)
    assert read_trace(added) == TRACE
    kept = {} if params is UNSET else {"a": 1}
    assert codec.decoder(dict[str, Any])(encoded(added))["_meta"] == {**kept, **TRACE}


@pytest.mark.parametrize("params", [{"_meta": 7}, encoded({"_meta": []}), Raw(b"[]"), Raw(b"7")])
def test_params_that_cannot_have_metadata_stay_as_they_are(params: Any) -> None:
    assert add_trace(params, TRACE) is params


def test_stated_context_is_that_of_the_envelope_before_that_of_the_headers() -> None:
    row = find_method("tools/call")
    assert row is not None
    call = IncomingRequest(1, row, 0.0)
    assert stated_trace(call) == {}
    call.origin = MessageOrigin(headers={"traceparent": "of headers", "accept": "*/*"})
    assert stated_trace(call) == {"traceparent": "of headers"}
    call.envelope = Envelope(traceparent=PARENT)
    assert stated_trace(call) == {"traceparent": PARENT}


@pytest.mark.parametrize("value", ["x\r\nAuthorization: Bearer stolen", "x\n", "\0", "ü", "", "x" * 8193])
def test_values_that_no_header_can_carry_are_left_out(value: str) -> None:
    assert trace_headers({"traceparent": PARENT, "baggage": value}) == {"traceparent": PARENT}
    assert trace_headers({"traceparent": value}) == {}
