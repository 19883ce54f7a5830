"""The envelope: read from params of every shape, or rejected."""

from typing import Any, cast

import pytest
from msgspec import UNSET, Raw
from tests.modern import PREFIX, meta

from trunkline.protocol.envelope import Envelope, InvalidEnvelope, has_envelope, read_params
from trunkline.protocol.meta import may_have_envelope
from trunkline.protocol.types import Implementation
from trunkline.wire import codec
from trunkline.wire.codec import DecodedJson

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "a=b"}


def raw(value: Any) -> Raw:
    return codec.to_raw(value)


def read_envelope(params: Any, *, expected: bool = False) -> Envelope | None:
    return read_params(params, expected=expected)[0]


def read_before(value: Any) -> DecodedJson:
    """Params of a message that was decoded completely before."""
    return DecodedJson(value, lambda: raw(value))


def test_envelope_has_client_info_and_capabilities() -> None:
    said = meta({"sampling": {}, "new/thing": {"a": 1}}, **{f"{PREFIX}logLevel": "error", **TRACE, "tracestate": 7})
    envelope = read_envelope(raw({"name": "x", "_meta": said}))
    assert envelope is not None
    assert (envelope.version, envelope.log_level) == ("2026-07-28", "error")
    assert envelope.capabilities == {"sampling": {}, "new/thing": {"a": 1}}
    assert envelope.info is not None
    assert envelope.info.name == "by hand"
    assert envelope.trace == TRACE  # a state that is not a string does not count


@pytest.mark.parametrize("params", [UNSET, raw({}), raw({"_meta": {}}), raw({"_meta": {"progressToken": 1}})])
def test_params_without_revision_are_handshake_era(params: Any) -> None:
    assert read_envelope(params) is None
    with pytest.raises(InvalidEnvelope, match="protocolVersion"):
        read_envelope(params, expected=True)


@pytest.mark.parametrize(
    "broken",
    [
        {f"{PREFIX}clientCapabilities": UNSET},
        {f"{PREFIX}clientCapabilities": None},
        {f"{PREFIX}clientCapabilities": []},
        {f"{PREFIX}clientCapabilities": {"sampling": 3}},
        {f"{PREFIX}protocolVersion": 20260728},
        {f"{PREFIX}protocolVersion": None},
        {f"{PREFIX}logLevel": "loud"},
    ],
)
def test_invalid_envelope_is_refused(broken: dict[str, Any]) -> None:
    said = {name: value for name, value in {**meta(), **broken}.items() if value is not UNSET}
    with pytest.raises(InvalidEnvelope) as refused:
        read_envelope(raw({"_meta": said}))
    assert (refused.value.code, refused.value.data["kind"]) == (-32602, "invalid_envelope")


def test_non_object_metadata_is_refused() -> None:
    with pytest.raises(InvalidEnvelope, match="_meta"):
        read_envelope(raw({"_meta": [PREFIX]}))


@pytest.mark.parametrize("info", [UNSET, 5, {"name": 1}])
def test_client_info_is_optional(info: Any) -> None:
    said = {name: value for name, value in {**meta(), f"{PREFIX}clientInfo": info}.items() if value is not UNSET}
    envelope = read_envelope(raw({"_meta": said}))
    assert envelope is not None
    assert envelope.info is None


@pytest.mark.parametrize(
    ("params", "carried", "held"),
    [
        (UNSET, False, False),
        (raw({"_meta": {}}), False, False),
        (raw({"_meta": meta()}), True, True),
        (raw({"_meta": {f"{PREFIX}protocolVersion": 5}}), True, True),
        (raw({"arguments": {"text": f"{PREFIX}protocolVersion"}}), True, False),
        (raw({"_meta": [f"{PREFIX}protocolVersion", 1]}), True, False),
        (raw({"_meta": [f"{PREFIX}protocolVersion"]}), False, False),  # too short for an envelope
        (raw({"_meta": {f"{PREFIX}protocolVersion": 0}}), True, True),  # the shortest one
    ],
)
def test_key_inside_string_is_no_envelope(params: Any, carried: bool, held: bool) -> None:
    assert (may_have_envelope(params), has_envelope(params)) == (carried, held)


def test_envelope_is_found_in_decoded_params() -> None:
    modern, older = (read_before({"name": "x", "_meta": said}) for said in (meta(), {}))
    assert [may_have_envelope(modern), has_envelope(modern), may_have_envelope(older)] == [True, True, False]


def test_envelope_of_known_client_has_its_capabilities_and_info() -> None:
    known = Envelope.build("2026-07-28", {"sampling": {}}, Implementation("kept", "1"))
    assert (known.version, known.capabilities, known.info) == (
        "2026-07-28",
        {"sampling": {}},
        Implementation("kept", "1"),
    )
    nameless = Envelope.build("2026-07-28", {}, None)
    assert (nameless.capabilities, nameless.info, nameless.trace) == ({}, None, {})


def test_clients_with_equal_capabilities_share_no_objects() -> None:
    first, second = read_envelope(raw({"_meta": meta({"a": {}})})), read_envelope(raw({"_meta": meta({"a": {}})}))
    assert first is not None
    assert second is not None
    cast("dict[str, Any]", first.capabilities)["a"]["changed"] = True
    assert second.capabilities == {"a": {}}


def test_long_capabilities_are_validated_too() -> None:
    said = meta({"sampling": 3, "padding": {"text": "x" * 2000}})
    with pytest.raises(InvalidEnvelope, match="malformed"):
        read_envelope(raw({"_meta": said}))


def test_envelope_is_read_from_decoded_params() -> None:
    assert read_envelope(read_before({"_meta": meta()})) == read_envelope(raw({"_meta": meta()}))


def test_envelope_that_is_sent_again_is_the_same() -> None:
    first, second = (read_envelope(raw({"name": name, "_meta": meta({"sampling": {}})})) for name in ("x", "y"))
    assert first is second


@pytest.mark.parametrize("member", ["progressToken", "traceparent"])
def test_envelopes_that_differ_in_every_request_are_not_remembered(member: str) -> None:
    first, second = (read_envelope(raw({"_meta": {**meta(), member: "1"}})) for _ in range(2))
    assert first == second
    assert first is not second


def test_many_envelopes_are_read_correctly() -> None:
    for number in (*range(600), *range(600)):
        envelope = read_envelope(raw({"_meta": meta({"experimental": {f"n{number}": {}}})}))
        assert envelope is not None
        assert envelope.capabilities == {"experimental": {f"n{number}": {}}}
