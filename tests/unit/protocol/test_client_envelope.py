"""What a client of the modern era puts on its requests, and reads off results."""

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


def test_every_request_says_its_revision_and_who_sends_it(stamp: ClientEnvelope) -> None:
    assert on(stamp.add_to(UNSET)) == {
        f"{PREFIX}protocolVersion": REVISION,
        f"{PREFIX}clientInfo": {"name": "c", "version": "1"},
        f"{PREFIX}clientCapabilities": {"sampling": {}},  # there are no tasks of that kind any more
    }


def test_what_a_request_says_besides_stays_there(stamp: ClientEnvelope) -> None:
    params = CallToolParams("add", meta={"progressToken": 3})
    assert on(stamp.add_to(params))["progressToken"] == 3
    assert to_builtins(params.meta) == {"progressToken": 3}
    assert f"{PREFIX}protocolVersion" in on(stamp.add_to(CallToolParams("add")))


def test_log_messages_are_wanted_from_a_level_on_or_not_at_all(stamp: ClientEnvelope) -> None:
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
def test_a_result_says_what_it_is_and_how_long_it_holds(said: Any, kind: str, seconds: float) -> None:
    head = read_result_header(codec.to_raw(said))
    assert (head.result_type, head.fresh_for) == (kind, seconds)


def test_a_result_that_nobody_can_read_is_left_to_others() -> None:
    assert read_result_header(Raw(b"[" * 5000)).result_type == "complete"


def test_a_server_introduces_itself_or_does_not() -> None:
    assert read_server_info({f"{PREFIX}serverInfo": {"name": "s", "version": "1"}}) == Implementation("s", "1")
    assert read_server_info({f"{PREFIX}serverInfo": 5}) is None
    assert read_server_info(None) is None
