"""The envelope of a modern client: added to requests, and read from results."""

from typing import Any

import pytest
from msgspec import UNSET, Raw, to_builtins
from tests.modern import PREFIX, REVISION

from trunkline.protocol.client_envelope import ClientEnvelope, read_result_header, read_server_info
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import CallToolParams, Implementation
from trunkline.wire import codec


@pytest.fixture
def stamp() -> ClientEnvelope:
    return ClientEnvelope(Implementation("c", "1"), {"sampling": {}, "tasks": {}}, Revision.V2026_07_28)


def on(params: Any) -> dict[str, Any]:
    return codec.decoder(object)(codec.to_json(params))["_meta"]


def test_envelope_has_revision_and_client_info(stamp: ClientEnvelope) -> None:
    assert on(stamp.add_to(UNSET)) == {
        f"{PREFIX}protocolVersion": REVISION,
        f"{PREFIX}clientInfo": {"name": "c", "version": "1"},
        f"{PREFIX}clientCapabilities": {"sampling": {}},  # tasks of that kind no longer exist
    }


def test_envelope_keeps_other_metadata(stamp: ClientEnvelope) -> None:
    params = CallToolParams("add", meta={"progressToken": 3})
    assert on(stamp.add_to(params))["progressToken"] == 3
    assert to_builtins(params.meta) == {"progressToken": 3}
    assert f"{PREFIX}protocolVersion" in on(stamp.add_to(CallToolParams("add")))


def test_envelope_has_requested_log_level(stamp: ClientEnvelope) -> None:
    stamp.set_log_level("warning")
    assert on(stamp.add_to(UNSET))[f"{PREFIX}logLevel"] == "warning"
    stamp.set_log_level(None)
    assert f"{PREFIX}logLevel" not in on(stamp.add_to(UNSET))


@pytest.mark.parametrize(
    ("said", "kind", "seconds"),
    [
        ({}, "complete", 0.0),
        ({"resultType": "input_required"}, "input_required", 0.0),
        ({"ttlMs": 1500}, "complete", 1.5),
        ({"ttlMs": -1}, "complete", 0.0),
        ({"ttlMs": "soon"}, "complete", 0.0),
        ([], "complete", 0.0),
    ],
)
def test_result_header_has_type_and_ttl(said: Any, kind: str, seconds: float) -> None:
    head = read_result_header(codec.to_raw(said))
    assert (head.result_type, head.fresh_for) == (kind, seconds)


def test_unreadable_result_has_default_header() -> None:
    assert read_result_header(Raw(b"[" * 5000)).result_type == "complete"


def test_server_info_is_optional() -> None:
    assert read_server_info({f"{PREFIX}serverInfo": {"name": "s", "version": "1"}}) == Implementation("s", "1")
    assert read_server_info({f"{PREFIX}serverInfo": 5}) is None
    assert read_server_info(None) is None
