"""Sessions of the modern era, and of both eras at once."""

import json
from typing import Any

import pytest
from msgspec import Raw

from trunkline.errors import MethodNotFound, ResourceNotFound
from trunkline.protocol.client_envelope import PROBE_ID
from trunkline.protocol.events import CallCancelled, MessageRefused, ResponseReceived, SessionEvent
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION, SERVER_INFO
from trunkline.protocol.methods import Side
from trunkline.protocol.modern import ModernProtocol
from trunkline.protocol.revisions import Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import (
    CallToolParams,
    CallToolResult,
    DiscoverResult,
    Implementation,
    InitializeParams,
    InitializeResult,
    PaginatedParams,
    ProgressParams,
    TextContent,
)
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject, Message, Notification, Request, Response

NOW = 100.0
ME = Implementation("me", "1")
OFFERED: dict[str, Any] = {"tools": {}, "resources": {}}
ENVELOPE = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}}


def server(*, greeted: bool = False) -> Session:
    """A server's side that accepts both eras."""
    session = Session(
        Side.SERVER, info=ME, capabilities=OFFERED, get_modern=lambda: ModernProtocol(ME, lambda: OFFERED)
    )
    session.transition(Signal.CONNECT)
    if greeted:
        session.accept_initialize(InitializeParams("2025-06-18", {}, ME))
        session.receive(Notification("notifications/initialized"), NOW)
    return session


def client() -> Session:
    """A client's side that has probed the era."""
    session = Session(Side.CLIENT, info=ME, capabilities={"roots": {}}, revisions=Revision)
    session.transition(Signal.CONNECT)
    return session


def asks(method: str, ident: int | str = 1, meta: dict[str, Any] = ENVELOPE, **params: Any) -> Request:
    return Request(ident, method, Raw(json.dumps({**params, "_meta": meta}).encode()))


def taken(event: SessionEvent) -> IncomingRequest:
    assert isinstance(event, IncomingRequest)
    return event


def refused(event: SessionEvent) -> ErrorObject:
    assert isinstance(event, MessageRefused)
    return event.reply.error


def written(message: Message | None) -> Any:
    assert message is not None
    return json.loads(codec.encode(message))


# --- a server --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("greeted", [False, True])
def test_modern_request_is_independent_of_handshake(greeted: bool) -> None:
    session = server(greeted=greeted)
    call = taken(session.receive(asks("tools/call", name="a"), NOW))
    assert session.revision_of(call) is Revision.V2026_07_28
    answer = written(session.reply(call, CallToolResult([TextContent("done")])))
    assert answer["result"]["resultType"] == "complete"
    assert answer["result"]["_meta"] == {SERVER_INFO: {"name": "me", "version": "1"}}
    assert session.incoming_requests == {}


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("meta", [ENVELOPE, {}])
def test_envelope_is_found_in_long_requests_too(long: bool, meta: dict[str, Any]) -> None:
    frame = codec.encode(asks("tools/call", name="a" * (codec.LONG_THRESHOLD if long else 1), meta=meta))
    message = codec.decode(frame)
    assert isinstance(message, Request)
    assert isinstance(message.params, codec.DecodedJson) is long
    call = taken(server(greeted=True).receive(message, NOW))
    assert (call.envelope is not None) is bool(meta)


@pytest.mark.parametrize("name", ["a", PROTOCOL_VERSION, f"{PROTOCOL_VERSION} of a request"])
def test_request_without_envelope_uses_handshake(name: str) -> None:
    session = server(greeted=True)
    about_it = Request(1, "tools/call", Raw(json.dumps({"name": name}).encode()))
    call = taken(session.receive(about_it, NOW))
    assert session.revision_of(call) is Revision.V2025_06_18
    assert written(session.reply(call, CallToolResult([])))["result"] == {"content": [], "isError": False}


def test_ids_are_shared_between_eras() -> None:
    session = server(greeted=True)
    taken(session.receive(asks("tools/call", name="a"), NOW))
    assert "1" in refused(session.receive(asks("tools/list"), NOW)).message
    assert "1" in refused(session.receive(Request(1, "tools/list"), NOW)).message


@pytest.mark.parametrize("signal", [Signal.PAUSE, Signal.DRAIN, Signal.CLOSE])
def test_modern_request_is_refused_while_draining(signal: Signal) -> None:
    session = server(greeted=True)
    session.transition(signal)
    error = refused(session.receive(asks("tools/list"), NOW))
    assert "is refused while the session is" in error.message


def test_removed_method_is_not_found_with_envelope() -> None:
    session = server(greeted=True)
    assert refused(session.receive(asks("ping"), NOW)).code == MethodNotFound.code
    assert taken(session.receive(Request(2, "ping"), NOW)).method.name == "ping"


def test_error_code_follows_request_revision() -> None:
    session = server(greeted=True)
    modern = taken(session.receive(asks("resources/read", uri="a:1"), NOW))
    older = taken(session.receive(Request(2, "resources/read", Raw(b'{"uri":"a:1"}')), NOW))
    codes = [written(session.fail(call, ResourceNotFound("a:1")))["error"]["code"] for call in (modern, older)]
    assert codes == [-32602, -32002]
    assert session.fail(modern, ResourceNotFound("a:1")) is None


def test_modern_request_gets_notifications_before_handshake() -> None:
    session = server()
    call = taken(session.receive(asks("tools/call", name="a"), NOW))
    notice = session.notify_about(call, "notifications/progress", ProgressParams("t", 1))
    assert written(notice)["params"] == {"progressToken": "t", "progress": 1}
    other = IncomingRequest("other", call.method, NOW)
    assert session.notify_about(other, "notifications/progress", ProgressParams("t", 1)) is None


def test_modern_request_can_be_cancelled_before_handshake() -> None:
    session = server()
    call = taken(session.receive(asks("tools/call", name="a"), NOW))
    event = session.receive(Notification("notifications/cancelled", Raw(b'{"requestId":1}')), NOW)
    assert event == CallCancelled(call, None)
    assert call.done


# --- a client --------------------------------------------------------------------------------------------


def test_client_probes_era_first() -> None:
    session = client()
    awaited, question = session.start_probe(NOW, 3.0, None)
    said = written(question)
    assert (said["id"], said["method"]) == (PROBE_ID, "server/discover")
    assert said["params"]["_meta"][PROTOCOL_VERSION] == "2026-07-28"
    assert said["params"]["_meta"][CLIENT_CAPABILITIES] == {"roots": {}}
    assert session.phase is Phase.CONNECTING
    assert session.expired(NOW + 2.9) == []
    assert session.expired(NOW + 3.0) == [awaited]
    event = session.receive(Response(PROBE_ID, Raw(b"{}")), NOW)
    assert isinstance(event, ResponseReceived)
    assert event.request is awaited
    assert session.last_id == 0


def test_every_request_has_envelope_after_discovery() -> None:
    session = client()
    session.transition(Signal.SEND_INITIALIZE)
    told = {SERVER_INFO: {"name": "you", "version": "2"}}
    session.complete_discovery(DiscoverResult(["2026-07-28"], {"tools": {}}, meta=told))
    assert (session.phase, session.revision) == (Phase.READY, Revision.V2026_07_28)
    assert session.peer == Implementation("you", "2")
    _, listing = session.call("tools/list", PaginatedParams(), NOW)
    _, calling = session.call("tools/call", CallToolParams("a"), NOW, on_progress=print)
    assert written(listing)["params"]["_meta"].keys() > {PROTOCOL_VERSION, CLIENT_CAPABILITIES}
    assert written(calling)["params"]["_meta"]["progressToken"] == 2
    with pytest.raises(MethodNotFound):
        session.call("ping", PaginatedParams(), NOW)


@pytest.mark.row("X04")
def test_undeclarable_capability_is_implied() -> None:
    for revision, allowed in (("2024-11-05", True), ("2025-03-26", False)):
        session = Session(Side.CLIENT, info=ME)
        session.transition(Signal.CONNECT)
        session.call("initialize", InitializeParams(revision, {}, ME), NOW)
        session.complete_handshake(InitializeResult(revision, {}, ME))
        assert session.may_send("completion/complete") is allowed
        assert not session.may_send("prompts/list")
