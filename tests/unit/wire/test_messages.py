"""Messages as records."""

import pytest
from msgspec import UNSET, Raw

from trunkline.wire.codec import encode
from trunkline.wire.messages import (
    Batch,
    Encoded,
    ErrorObject,
    ErrorResponse,
    Malformed,
    Notification,
    Request,
    Response,
)


def test_every_message_has_jsonrpc_2_0() -> None:
    messages = [Request(1, "a"), Notification("a"), Response(1, {}), ErrorResponse(1, ErrorObject(-1, "no"))]
    assert all(encode(message).startswith(b'{"jsonrpc":"2.0"') for message in messages)


def test_request_without_params_omits_the_member() -> None:
    assert encode(Request(1, "a")) == b'{"jsonrpc":"2.0","id":1,"method":"a"}'


def test_raw_result_is_embedded_unchanged() -> None:
    assert encode(Response(1, Raw(b'{"a": 1}'))) == b'{"jsonrpc":"2.0","id":1,"result":{"a": 1}}'


@pytest.mark.row("P07")
def test_error_without_id_omits_it_or_has_null() -> None:
    error = ErrorObject(-32700, "no")
    assert encode(ErrorResponse(UNSET, error)) == b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"no"}}'
    assert encode(ErrorResponse(None, error)) == b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}'


@pytest.mark.row("P26")
@pytest.mark.parametrize("data", ["Tool 'unknown' not found", 5, ["a"], {"a": None}, None, False])
def test_error_data_may_be_any_json(data: object) -> None:
    assert encode(ErrorResponse(1, ErrorObject(-1, "no", data))).count(b'"data":') == 1


def test_encoded_message_is_sent_unchanged() -> None:
    assert encode(Encoded(b"made before")) == b"made before"


@pytest.mark.parametrize(
    ("record", "member"), [(Malformed(-32600, "no"), "code"), (Batch(()), "messages"), (Encoded(b""), "frame")]
)
def test_received_records_are_immutable(record: object, member: str) -> None:
    with pytest.raises(AttributeError, match="immutable"):
        setattr(record, member, getattr(record, member))
