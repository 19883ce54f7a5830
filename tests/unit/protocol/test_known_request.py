"""Known requests: learnt from valid requests only, and only for the headers that they arrived under."""

import json
from typing import Any

import pytest
from msgspec import UNSET
from tests.modern import PREFIX, REVISION, meta

from trunkline.protocol.headers import RoutingHeaders
from trunkline.protocol.known_request import KnownRequest
from trunkline.protocol.modern import check_envelope
from trunkline.wire.codec import decode_strict
from trunkline.wire.messages import Request

HEADERS = RoutingHeaders(REVISION, "tools/call", "add", "add")


def frame(ident: int = 1, arguments: Any = UNSET, said: Any = UNSET, name: str = "add") -> bytes:
    params = {"name": name, "arguments": {"a": 1}, "_meta": meta()}
    params |= {key: value for key, value in (("arguments", arguments), ("_meta", said)) if value is not UNSET}
    return json.dumps({"jsonrpc": "2.0", "id": ident, "method": "tools/call", "params": params}).encode()


def learn(data: bytes, headers: RoutingHeaders = HEADERS) -> KnownRequest | None:
    request = decode_strict(data)
    assert type(request) is Request
    return KnownRequest.learn(data, request, headers)


def test_known_request_has_the_envelope_of_each_repetition() -> None:
    known = learn(frame())
    assert known is not None
    again = frame(2, {"a": [3]})
    request = known.match(again)
    assert request == decode_strict(again)
    assert request is not None
    assert known.envelope == check_envelope(request, HEADERS)
    assert known.match(frame(name="sub")) is None
    assert known.match(frame(said=meta({"roots": {}}))) is None


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (frame(said={}), HEADERS),  # no envelope
        (frame(said={**meta(), f"{PREFIX}clientCapabilities": 5}), HEADERS),  # an invalid one
        (frame(name="sub"), HEADERS),  # another name than the header's
        (frame(said={}), RoutingHeaders(None, "tools/call", "add", "add")),  # of the handshake era
        (frame(arguments={"a": "x" * 4096}), HEADERS),  # long
        (frame().replace(b'"id": 1', b'"id": "1"'), HEADERS),  # no number
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', HEADERS),
    ],
)
def test_nothing_is_learnt_from_other_requests(data: bytes, headers: RoutingHeaders) -> None:
    assert learn(data, headers) is None
