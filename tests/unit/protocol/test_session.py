"""A session, from either side."""

import gc
from typing import Any

import pytest
from msgspec import UNSET, Raw

from trunkline.config import Settings
from trunkline.errors import (
    CapabilityNotSupported,
    InternalError,
    InvalidRequest,
    MethodNotFound,
    ResourceNotFound,
    WrongPhase,
)
from trunkline.protocol.events import (
    CallCancelled,
    HandshakeCompleted,
    MessageIgnored,
    MessageRefused,
    NotificationReceived,
    ProgressReceived,
    ResponseReceived,
    ResponseUnusable,
    SessionEvent,
)
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.lifecycle import LIFECYCLE, Phase, Signal
from trunkline.protocol.methods import Side
from trunkline.protocol.revisions import HANDSHAKE, Revision
from trunkline.protocol.session import Session
from trunkline.protocol.types import (
    CallToolParams,
    CallToolResult,
    Empty,
    Implementation,
    InitializeParams,
    InitializeResult,
    LoggingMessageParams,
    PaginatedParams,
    ProgressParams,
    TextContent,
)
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject, ErrorResponse, Malformed, Message, Notification, Request, Response

NOW = 100.0
ME = Implementation("me", "1")
OFFERED = {"tools": {"listChanged": True}, "logging": {}, "experimental": {"a": {}, "b": {}}}
DECLARED = {"sampling": {}, "roots": {"listChanged": True}, "experimental": {"b": {}, "c": {}}}


def wired(message: Message) -> Message:
    """A message as the other side decodes it."""
    read = codec.decode(codec.encode(message))
    assert isinstance(read, Message)
    return read


def server(revision: Revision = HANDSHAKE[-1], *, until: Phase = Phase.READY, **options: Any) -> Session:
    """The server's side of a session, in a phase."""
    session = Session(Side.SERVER, info=ME, capabilities=OFFERED, **options)
    session.transition(Signal.CONNECT)
    if until is not Phase.CONNECTING:
        session.accept_initialize(InitializeParams(revision.value, DECLARED, ME))
    if until not in {Phase.CONNECTING, Phase.INITIALIZING}:
        session.receive(Notification("notifications/initialized"), NOW)
    move = {
        Phase.PAUSED: Signal.PAUSE,
        Phase.DRAINING: Signal.DRAIN,
        Phase.FAILED: Signal.FAIL,
        Phase.CLOSED: Signal.CLOSE,
    }
    if until in move:
        session.transition(move[until])
    assert session.phase is until
    return session


def client(*, until: Phase = Phase.READY, offered: dict[str, Any] = OFFERED, **options: Any) -> Session:
    """The client's side of a session, in a phase."""
    session = Session(Side.CLIENT, info=ME, capabilities=DECLARED, **options)
    session.transition(Signal.CONNECT)
    if until is not Phase.CONNECTING:
        awaited, _ = session.call("initialize", InitializeParams("2025-11-25", DECLARED, ME), NOW)
        if until is Phase.READY:
            session.receive(Response(awaited.id, Raw(b"{}")), NOW)
            session.complete_handshake(InitializeResult("2025-11-25", offered, ME))
    assert session.phase is until
    return session


def started(session: Session, method: str = "tools/call", ident: int | str = 1) -> IncomingRequest:
    event = session.receive(Request(ident, method), NOW)
    assert isinstance(event, IncomingRequest)
    return event


def refused(event: SessionEvent) -> ErrorObject:
    assert isinstance(event, MessageRefused)
    return event.reply.error


def ignored(event: SessionEvent) -> str:
    assert isinstance(event, MessageIgnored)
    return event.kind


# --- the handshake, from the server --------------------------------------------------------------


@pytest.mark.row("F17")
def test_server_handshake_passes_all_phases() -> None:
    session = Session(Side.SERVER, info=ME)
    phases = [session.phase]
    session.transition(Signal.CONNECT)
    phases.append(session.phase)
    session.accept_initialize(InitializeParams("2025-11-25", {}, ME))
    phases.append(session.phase)
    assert session.receive(Notification("notifications/initialized"), NOW) == HandshakeCompleted()
    phases.append(session.phase)
    session.close()
    phases.append(session.phase)
    assert phases == [Phase.NEW, Phase.CONNECTING, Phase.INITIALIZING, Phase.READY, Phase.CLOSED]


@pytest.mark.parametrize("side", [server, client])
def test_no_capability_before_handshake(side: Any) -> None:
    asked = [(Side.SERVER, "tools"), (Side.CLIENT, "sampling"), (Side.SERVER, "prompts")]
    for phase, found in ((Phase.CONNECTING, [False] * 3), (Phase.READY, [True, True, False])):
        session = side(until=phase)
        assert [session.has_capability(who, capability) for who, capability in asked] == found


@pytest.mark.row("L03", "L07")
def test_initialize_result_has_negotiated_values() -> None:
    session = Session(Side.SERVER, info=ME, capabilities=OFFERED, instructions="be kind")
    session.transition(Signal.CONNECT)
    peer = Implementation("peer", "2")
    result = session.accept_initialize(InitializeParams("2025-06-18", DECLARED, peer))
    assert result == InitializeResult("2025-06-18", OFFERED, ME, "be kind")
    assert (session.revision, session.peer) == (Revision.V2025_06_18, peer)
    assert session.negotiated is not None
    assert session.negotiated.experimental == {"b"}


@pytest.mark.parametrize(("version", "shared"), [("2", True), ("2" * 600, False)])
def test_sessions_of_one_client_program_share_its_description(version: str, shared: bool) -> None:
    sessions = [Session(Side.SERVER, info=ME) for _ in range(2)]
    for session in sessions:
        session.transition(Signal.CONNECT)
        session.accept_initialize(InitializeParams("2025-11-25", {}, Implementation("peer", version, title="Peer")))
        assert session.peer == Implementation("peer", version, title="Peer")
    assert (sessions[0].peer is sessions[1].peer) is shared


@pytest.mark.row("X04")
def test_newer_capabilities_are_hidden_but_usable() -> None:
    session = Session(Side.SERVER, info=ME, capabilities={"completions": {}})
    session.transition(Signal.CONNECT)
    assert session.accept_initialize(InitializeParams("2024-11-05", {}, ME)).capabilities == {}
    assert started(session, "completion/complete").method.name == "completion/complete"


@pytest.mark.row("L05", "X03")
@pytest.mark.parametrize("method", ["notifications/initialized", "initialized"])
def test_initialized_completes_handshake_once(method: str) -> None:
    session = server(until=Phase.INITIALIZING)
    assert session.receive(Notification(method), NOW) == HandshakeCompleted()
    assert ignored(session.receive(Notification(method), NOW)) == "duplicate_notification"
    assert session.phase is Phase.READY


@pytest.mark.row("L06")
def test_initialize_is_refused_a_second_time() -> None:
    for phase in (Phase.INITIALIZING, Phase.READY, Phase.PAUSED, Phase.DRAINING, Phase.CLOSED):
        error = refused(server(until=phase).receive(Request(1, "initialize"), NOW))
        assert error.code == -32600
        assert error.data == {"kind": "already_initialized", "phase": phase.name.lower()}


HELLO = Raw(b'{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}')


@pytest.mark.row("L06")
@pytest.mark.parametrize(
    ("until", "message", "replaced"),
    [
        (Phase.CONNECTING, Request(1, "initialize", HELLO), False),
        (Phase.INITIALIZING, Request(1, "initialize", HELLO), True),
        (Phase.READY, Request(1, "initialize", HELLO), True),
        (Phase.PAUSED, Request(1, "initialize", HELLO), True),
        (Phase.DRAINING, Request(1, "initialize", HELLO), False),
        (Phase.CLOSED, Request(1, "initialize", HELLO), False),
        (Phase.READY, Request(1, "initialize"), False),
        (Phase.READY, Request(1, "initialize", Raw(b"[1]")), False),
        (Phase.READY, Request(1, "ping"), False),
    ],
)
def test_only_valid_initialize_replaces_session(until: Phase, message: Request, replaced: bool) -> None:
    assert server(until=until).replaced_by(message) is replaced


@pytest.mark.row("L06")
def test_session_with_running_request_is_not_replaced() -> None:
    session = server(until=Phase.READY)
    call = started(session, "ping")
    assert not session.replaced_by(Request("other", "initialize", HELLO))
    session.reply(call, {})
    assert session.replaced_by(Request("other", "initialize", HELLO))


@pytest.mark.row("F02")
def test_initialize_is_refused_while_draining() -> None:
    session = server(until=Phase.CONNECTING)
    session.transition(Signal.DRAIN)
    assert refused(session.receive(Request(1, "initialize"), NOW)).code == 1008


def test_newest_revision_applies_before_negotiation() -> None:
    assert server(until=Phase.CONNECTING).effective_revision is Revision.V2025_11_25
    assert server(Revision.V2024_11_05).effective_revision is Revision.V2024_11_05


# --- the handshake, from the client --------------------------------------------------------------


@pytest.mark.row("F07", "F08")
def test_client_handshake_passes_all_phases() -> None:
    session = client(until=Phase.CONNECTING)
    awaited, request = session.call("initialize", InitializeParams("2025-11-25", DECLARED, ME), NOW)
    assert session.phase is Phase.INITIALIZING
    assert (request.id, request.method) == (1, "initialize")
    assert awaited.deadline == NOW + 30
    result = InitializeResult("2025-06-18", OFFERED, Implementation("server", "3"))
    answer = session.receive(wired(Response(1, result)), NOW + 9)
    assert isinstance(answer, ResponseReceived)
    said = session.complete_handshake(codec.decoder(InitializeResult)(answer.result))
    assert codec.encode(said) == b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    assert (session.phase, session.revision, session.peer) == (Phase.READY, Revision.V2025_06_18, result.server_info)


@pytest.mark.row("F08", "K17")
def test_no_stray_timeout_follows_a_handshake() -> None:
    session = client()
    assert session.expired(NOW + 3600) == []
    assert session.phase is Phase.READY


@pytest.mark.row("L20")
def test_client_has_experimental_capabilities_of_both_sides() -> None:
    session = client()
    assert session.negotiated is not None
    assert session.negotiated.experimental == {"b"}


@pytest.mark.row("L26", "F09")
@pytest.mark.parametrize("version", ["2026-07-28", "1999-01-01"])
def test_unsupported_revision_fails_handshake(version: str) -> None:
    session = client(until=Phase.INITIALIZING)
    with pytest.raises(InvalidRequest, match=version):
        session.complete_handshake(InitializeResult(version, OFFERED, ME))
    assert session.phase is Phase.FAILED
    assert session.failure is not None
    assert version in session.failure


@pytest.mark.row("L26", "F09")
@pytest.mark.parametrize("why", ["the server refused", "no answer in time", "the answer is malformed"])
def test_failed_handshake_keeps_reason(why: str) -> None:
    session = client(until=Phase.INITIALIZING)
    session.fail_handshake(why)
    assert (session.phase, session.failure) == (Phase.FAILED, why)


@pytest.mark.row("F09", "K14")
def test_unanswered_handshake_expires() -> None:
    session = client(until=Phase.INITIALIZING)
    assert session.expired(NOW + 29.9) == []
    (late,) = session.expired(NOW + 30)
    assert late.method.name == "initialize"


def test_abandoned_initialize_sends_no_cancellation() -> None:
    session = client(until=Phase.INITIALIZING)
    (awaited,) = session.outgoing_requests.values()
    assert session.cancel(awaited, "too slow") is None
    assert awaited.done
    assert not session.outgoing_requests


@pytest.mark.row("F03", "PH13")
@pytest.mark.parametrize("phase", [Phase.CONNECTING, Phase.INITIALIZING])
def test_client_call_before_handshake_fails(phase: Phase) -> None:
    session = client(until=phase)
    with pytest.raises(WrongPhase, match=f"tools/list .* {phase.name.lower()}"):
        session.call("tools/list", PaginatedParams(), NOW)


# --- requests of the peer ------------------------------------------------------------------------


@pytest.mark.row("P01", "P17")
def test_request_is_in_flight_until_answered() -> None:
    session = server()
    event = session.receive(wired(Request("a", "tools/call", {"name": "x"})), NOW)
    assert isinstance(event, IncomingRequest)
    assert bytes(event.params) == b'{"name":"x"}'
    assert (event.id, event.method.name, event.started) == ("a", "tools/call", NOW)
    assert dict(session.incoming_requests) == {"a": event}
    assert session.reply(event, Empty()) == Response("a", Empty())
    assert not session.incoming_requests


@pytest.mark.row("P17")
def test_request_is_answered_once() -> None:
    session = server()
    call = started(session)
    assert session.reply(call, Empty()) is not None
    assert session.reply(call, Empty()) is None
    assert session.fail(call, InternalError("late")) is None


@pytest.mark.row("P17")
def test_failed_request_gets_error_response() -> None:
    session = server(Revision.V2025_11_25)
    answer = session.fail(started(session), ResourceNotFound("a://b"))
    assert answer is not None
    assert (answer.id, answer.error.code) == (1, -32002)
    assert not session.incoming_requests


def test_answered_id_can_be_reused() -> None:
    session = server()
    assert session.reply(started(session), Empty()) is not None
    assert started(session).id == 1


def test_id_in_use_is_refused() -> None:
    session = server()
    call = started(session)
    error = refused(session.receive(Request(1, "tools/call"), NOW))
    assert error.code == -32600
    assert error.data == {"kind": "request_id_conflict", "id": 1}
    assert dict(session.incoming_requests) == {1: call}


@pytest.mark.row("P01")
def test_integer_and_string_ids_differ() -> None:
    session = server()
    started(session, ident=1)
    started(session, ident="1")
    assert list(session.incoming_requests) == [1, "1"]


def test_result_is_projected_unless_raw() -> None:
    session = server(Revision.V2025_03_26)
    result = CallToolResult([TextContent("a")], structured_content={"a": 1})
    assert session.reply(started(session), result) == Response(1, CallToolResult([TextContent("a")]))
    raw = Raw(b'{"structuredContent":{}}')
    assert session.reply(started(session), raw) == Response(1, raw)


@pytest.mark.row("L02", "F02", "F05", "F06", "F16")
@pytest.mark.parametrize("phase", [Phase.NEW, Phase.CONNECTING, Phase.FAILED, Phase.CLOSED])
def test_call_in_the_wrong_phase_is_refused(phase: Phase) -> None:
    session = Session(Side.SERVER, info=ME) if phase is Phase.NEW else server(until=phase)
    error = refused(session.receive(Request(1, "tools/list"), NOW))
    assert error.code == -32600
    assert error.message == f"tools/list is not allowed while the session is {phase.name.lower()}"
    assert error.data == {"kind": "server_not_initialized", "phase": phase.name.lower()}


@pytest.mark.parametrize("phase", [Phase.PAUSED, Phase.DRAINING])
def test_call_is_refused_while_paused_or_draining(phase: Phase) -> None:
    error = refused(server(until=phase).receive(Request(1, "tools/list"), NOW))
    assert (error.code, error.data["kind"]) == (1008, "temporarily_unavailable")
    assert phase.name.lower() in error.message


@pytest.mark.row("K02", "AD005", "X20")
@pytest.mark.parametrize("phase", [phase for phase in Phase if Signal.RECV_PING in LIFECYCLE[phase]])
def test_ping_is_legal_in_connected_phases(phase: Phase) -> None:
    assert started(server(until=phase), "ping").method.name == "ping"


@pytest.mark.row("P13")
@pytest.mark.parametrize(
    "method", ["foo/bar", "notifications/initialized", "roots/list", "initialized", "server/discover"]
)
def test_unknown_method_is_not_found(method: str) -> None:
    error = refused(server().receive(Request(1, method), NOW))
    assert (error.code, error.data["kind"]) == (-32601, "method_not_found")


@pytest.mark.row("L14", "L22", "AD002")
@pytest.mark.parametrize(
    ("method", "capability"), [("prompts/list", "prompts"), ("resources/subscribe", "resources.subscribe")]
)
def test_method_without_its_capability_is_refused(method: str, capability: str) -> None:
    error = refused(server().receive(Request(1, method), NOW))
    assert error.code == -32601
    refusal = error.data.pop("refusal")
    assert (refusal["code"], refusal["name"]) == (1007, "unsupported_operation")
    assert error.data == {"kind": "capability_not_supported", "capability": capability, "method": method}


def test_method_of_a_later_revision_is_not_found() -> None:
    error = refused(server(Revision.V2025_06_18).receive(Request(1, "tasks/get"), NOW))
    assert error.data["kind"] == "method_not_found"


@pytest.mark.row("F15")
def test_phase_is_checked_before_method_and_capability() -> None:
    session = server(until=Phase.CONNECTING)
    for method in ("foo/bar", "prompts/list", "roots/list"):
        assert refused(session.receive(Request(1, method), NOW)).data["kind"] == "server_not_initialized"


def test_client_accepts_server_requests() -> None:
    session = client()
    assert started(session, "sampling/createMessage").method.name == "sampling/createMessage"
    assert started(session, "ping", "p").method.name == "ping"
    assert refused(session.receive(Request(2, "elicitation/create"), NOW)).data["capability"] == "elicitation"
    assert refused(session.receive(Request(3, "tools/list"), NOW)).data["kind"] == "method_not_found"


# --- notifications of the peer -------------------------------------------------------------------


@pytest.mark.row("X02")
def test_notification_is_accepted_by_bare_name() -> None:
    for name in ("notifications/roots/list_changed", "roots/list_changed"):
        event = server().receive(Notification(name, Raw(b"{}")), NOW)
        assert isinstance(event, NotificationReceived)
        assert (event.method.name, bytes(event.params)) == ("notifications/roots/list_changed", b"{}")


@pytest.mark.row("P04")
@pytest.mark.parametrize("method", ["foo/bar", "tools/list", "notifications/message", "notifications/tasks/status"])
def test_unexpected_notification_is_ignored(method: str) -> None:
    assert ignored(server().receive(Notification(method), NOW)) == "unknown_notification"


def test_client_accepts_undeclared_change_notifications() -> None:
    session = client(offered={"tools": {"listChanged": True}, "prompts": {}})
    assert isinstance(session.receive(Notification("notifications/tools/list_changed"), NOW), NotificationReceived)
    assert isinstance(session.receive(Notification("notifications/prompts/list_changed"), NOW), NotificationReceived)


@pytest.mark.row("N15")
@pytest.mark.parametrize("phase", [Phase.INITIALIZING, Phase.READY, Phase.PAUSED, Phase.DRAINING])
def test_cancellation_works_in_every_active_phase(phase: Phase) -> None:
    session = server(until=Phase.INITIALIZING if phase is Phase.INITIALIZING else Phase.READY)
    call = started(session, ident="a")
    if phase in {Phase.PAUSED, Phase.DRAINING}:
        session.transition(Signal.PAUSE if phase is Phase.PAUSED else Signal.DRAIN)
    event = session.receive(Notification("notifications/cancelled", Raw(b'{"requestId":"a","reason":"bored"}')), NOW)
    assert event == CallCancelled(call, "bored")
    assert (call.cancelled, call.done, dict(session.incoming_requests)) == (True, True, {})
    assert session.reply(call, Empty()) is None


@pytest.mark.row("N15")
@pytest.mark.parametrize("params", [b'{"requestId":2}', b'{"requestId":"1"}', b"{}"])
def test_cancellation_of_unknown_request_is_ignored(params: bytes) -> None:
    session = server()
    started(session)
    assert ignored(session.receive(Notification("notifications/cancelled", Raw(params)), NOW)) == "unknown_request"
    assert list(session.incoming_requests) == [1]


@pytest.mark.row("N16")
def test_peer_cannot_cancel_our_request() -> None:
    session = server()
    awaited, _ = session.call("roots/list", Empty(), NOW)
    params = codec.to_raw({"requestId": awaited.id})
    assert ignored(session.receive(Notification("notifications/cancelled", params), NOW)) == "unknown_request"
    assert dict(session.outgoing_requests) == {awaited.id: awaited}


def test_initialize_cannot_be_cancelled() -> None:
    session = server(until=Phase.CONNECTING)
    call = started(session, "initialize")
    session.accept_initialize(InitializeParams("2025-11-25", {}, ME))
    event = session.receive(Notification("notifications/cancelled", Raw(b'{"requestId":1}')), NOW)
    assert ignored(event) == "unknown_request"
    assert not call.done


@pytest.mark.row("N15")
@pytest.mark.parametrize("method", ["notifications/cancelled", "notifications/progress"])
@pytest.mark.parametrize(
    "params", [Raw(b'{"requestId":[],"progressToken":1,"progress":"x"}'), UNSET, Raw(b'{"a":' * 5000)]
)
def test_notification_with_invalid_params_is_ignored(method: str, params: Any) -> None:
    assert ignored(server().receive(Notification(method, params), NOW)) in {"invalid_params", "unknown_request"}


# --- requests of ours ----------------------------------------------------------------------------


@pytest.mark.row("A06")
def test_own_ids_are_consecutive_and_unique() -> None:
    session = client()
    ids = [session.call("ping", Empty(), NOW)[1].id for _ in range(10_000)]
    assert ids == list(range(2, 10_002))  # the handshake took the first
    assert list(session.outgoing_requests) == ids


@pytest.mark.row("A07")
def test_outgoing_request_has_method_age_and_waiter() -> None:
    session = client()
    session.call("tools/list", PaginatedParams(), NOW + 5, waiter="me")
    ((ident, awaited),) = session.outgoing_requests.items()
    assert (awaited.id, awaited.method.name, awaited.started, awaited.waiter) == (ident, "tools/list", NOW + 5, "me")


@pytest.mark.row("P02")
def test_responses_match_requests_in_any_order() -> None:
    session = client()
    first, second = (session.call("ping", Empty(), NOW)[0] for _ in range(2))
    events = [session.receive(Response(awaited.id, Raw(b"{}")), NOW) for awaited in (second, first)]
    assert [event.request for event in events if isinstance(event, ResponseReceived)] == [second, first]
    assert (first.done, second.done, dict(session.outgoing_requests)) == (True, True, {})


@pytest.mark.row("P03")
@pytest.mark.parametrize("data", [UNSET, "text", {"a": 1}])
def test_error_response_is_complete(data: object) -> None:
    session = client()
    awaited, request = session.call("ping", Empty(), NOW)
    error = ErrorObject(-5, "no", data)
    assert session.receive(wired(ErrorResponse(request.id, error)), NOW) == ResponseReceived(awaited, None, error)


@pytest.mark.row("P12")
@pytest.mark.parametrize("ident", [7, "1", None, UNSET])
def test_unmatched_response_is_ignored(ident: Any) -> None:
    session = client()
    awaited, _ = session.call("ping", Empty(), NOW)
    assert ignored(session.receive(ErrorResponse(ident, ErrorObject(-5, "no")), NOW)) == "unexpected_reply"
    assert dict(session.outgoing_requests) == {awaited.id: awaited}


@pytest.mark.row("P12")
def test_unreadable_response_fails_request() -> None:
    session = client()
    for named in (
        {"is_reply": True},
        {"lacks_method": True},
        {"lacks_method": True, "limit": 1024},
    ):
        awaited, _ = session.call("ping", Empty(), NOW)
        event = session.receive(Malformed(-32600, "both", awaited.id, **named), NOW)
        assert event == ResponseUnusable(awaited, "both", "limit" in named)
    assert session.expired(NOW + 5) == []
    assert not session.outgoing_requests


@pytest.mark.row("P12")
@pytest.mark.parametrize("ident", [None, 99])
def test_unreadable_unmatched_response_is_reported(ident: int | None) -> None:
    event = client().receive(Malformed(-32600, "both", ident, is_reply=True, excerpt=b"{"), NOW)
    assert event == MessageIgnored("unreadable response: both", "invalid_request", unassigned=True, excerpt=b"{")


@pytest.mark.row("P12")
def test_response_with_digit_string_id_fails_request() -> None:
    session = client()
    awaited, _ = session.call("ping", Empty(), NOW)
    event = session.receive(Response(str(awaited.id), Raw(b"{}")), NOW)
    assert isinstance(event, ResponseUnusable)
    assert event.request is awaited
    for other in ("99", "x", "9" * 5000):
        assert ignored(session.receive(Response(other, Raw(b"{}")), NOW)) == "unexpected_reply"


@pytest.mark.row("P12")
def test_error_without_id_is_reported() -> None:
    event = client().receive(ErrorResponse(None, ErrorObject(-32700, "what?")), NOW)
    why = "the peer could not decode a message: what? (-32700)"
    assert event == MessageIgnored(why, "unexpected_reply", unassigned=True)


@pytest.mark.row("K18", "N16")
def test_late_response_after_cancellation_is_ignored() -> None:
    session = client()
    awaited, _ = session.call("ping", Empty(), NOW)
    notice = session.cancel(awaited, "too slow")
    assert notice is not None
    assert codec.encode(notice) == (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"too slow"}}'
    )
    assert not session.outgoing_requests
    assert ignored(session.receive(Response(awaited.id, Raw(b"{}")), NOW)) == "unexpected_reply"


@pytest.mark.row("N16")
def test_answered_request_cannot_be_cancelled() -> None:
    session = client()
    awaited, _ = session.call("ping", Empty(), NOW)
    session.receive(Response(awaited.id, Raw(b"{}")), NOW)
    assert session.cancel(awaited) is None


@pytest.mark.row("K14", "K16")
def test_explicit_timeout_overrides_method_timeout() -> None:
    session = client(settings=Settings(quick_timeout=2, work_timeout=3, longest_call=7))
    call = CallToolParams("x")
    deadlines = [
        session.call("ping", Empty(), NOW)[0].deadline,
        session.call("tools/call", call, NOW)[0].deadline,
        session.call("tools/call", call, NOW, timeout=1)[0].deadline,
        session.call("tools/call", call, NOW, timeout=100)[0].deadline,
    ]
    assert deadlines == [NOW + 2, NOW + 3, NOW + 1, NOW + 7]


@pytest.mark.row("K14")
def test_expired_request_is_reported_until_ended() -> None:
    session = client()
    slow, _ = session.call("tools/call", CallToolParams("x"), NOW)
    quick, _ = session.call("ping", Empty(), NOW)
    assert session.expired(NOW + 5) == [quick]
    assert list(session.outgoing_requests.values()) == [slow, quick]
    session.cancel(quick)
    assert session.expired(NOW + 60) == [slow]


def test_new_requests_enter_the_deadline_queue_when_deadlines_are_checked() -> None:
    session = client()
    first, _ = session.call("tools/call", CallToolParams("x"), NOW, timeout=5)
    assert (len(session.deadlines), session.expired(NOW + 1), len(session.deadlines)) == (0, [], 1)
    second, _ = session.call("tools/call", CallToolParams("x"), NOW + 1, timeout=2)
    assert session.expired(NOW + 3) == [second]
    assert session.deadlines.next_deadline() == first.deadline
    assert session.expired(NOW + 5) == [first]


def test_answered_request_never_enters_the_deadline_queue() -> None:
    session = client()
    awaited, _ = session.call("tools/call", CallToolParams("x"), NOW)
    session.receive(Response(awaited.id, Raw(b"{}")), NOW)
    assert (session.expired(NOW), len(session.deadlines)) == ([], 0)


@pytest.mark.row("N10")
def test_progress_token_is_request_id() -> None:
    session = client()
    params = CallToolParams("x", meta={"own": 1})
    heard: list[ProgressParams] = []
    awaited, request = session.call("tools/call", params, NOW, on_progress=heard.append)
    assert request.params.meta == {"own": 1, "progressToken": awaited.id}
    assert params.meta == {"own": 1}
    assert session.call("tools/call", params, NOW)[1].params.meta == {"own": 1}


@pytest.mark.row("N10", "N12", "X07")
def test_growing_progress_renews_deadline() -> None:
    session = client()
    awaited, _ = session.call("tools/call", CallToolParams("x"), NOW, on_progress=print)

    def report(progress: float, at: float) -> SessionEvent:
        params = ProgressParams(progress_token=awaited.id, progress=progress)
        return session.receive(wired(Notification("notifications/progress", params)), at)

    event = report(1, NOW + 50)
    assert isinstance(event, ProgressReceived)
    assert (event.request, event.progress.progress) == (awaited, 1)
    assert ignored(report(1, NOW + 55)) == "progress_value_invalid"
    assert session.expired(NOW + 60) == []
    assert session.expired(NOW + 110) == [awaited]


@pytest.mark.row("N13")
def test_progress_under_an_unknown_token_is_ignored() -> None:
    event = client().receive(Notification("notifications/progress", Raw(b'{"progressToken":"x","progress":1}')), NOW)
    assert ignored(event) == "invalid_progress_token"


def progress_of(session: Session, token: Any, progress: float) -> SessionEvent:
    params = ProgressParams(progress_token=token, progress=progress)
    return session.receive(wired(Notification("notifications/progress", params)), NOW)


@pytest.mark.row("TSK-23")
def test_task_progress_token_lives_with_request() -> None:
    session = client()
    awaited, _ = session.call("tools/call", CallToolParams("x"), NOW, on_progress=print)
    awaited.as_task = True
    session.receive(Response(awaited.id, Raw(b"{}")), NOW)
    event = progress_of(session, awaited.id, 1)
    assert isinstance(event, ProgressReceived)
    assert event.request is awaited
    assert ignored(progress_of(session, awaited.id, 1)) == "progress_value_invalid"
    token = awaited.id
    session.expired(NOW + 3600)  # it has left the deadline table, too
    del awaited, event
    gc.collect()
    assert ignored(progress_of(session, token, 2)) == "invalid_progress_token"


@pytest.mark.row("TSK-23")
def test_refused_task_request_has_no_progress() -> None:
    session = client()
    awaited, _ = session.call("tools/call", CallToolParams("x"), NOW, on_progress=print)
    awaited.as_task = True
    session.receive(wired(ErrorResponse(awaited.id, ErrorObject(-5, "no"))), NOW)
    assert ignored(progress_of(session, awaited.id, 1)) == "invalid_progress_token"


@pytest.mark.row("TSK-23")
def test_abandoned_task_request_gets_late_response_once() -> None:
    session = client()
    awaited, _ = session.call("tools/call", CallToolParams("x"), NOW)
    awaited.as_task, awaited.on_late_response = True, object()
    assert session.cancel(awaited, "too slow") is None
    assert not session.outgoing_requests
    answer = Response(awaited.id, Raw(b"{}"))
    assert ignored(session.receive(Response("other", Raw(b"{}")), NOW)) == "unexpected_reply"
    assert session.receive(answer, NOW) == ResponseReceived(awaited, Raw(b"{}"), None)
    assert ignored(session.receive(answer, NOW)) == "unexpected_reply"
    assert ignored(session.receive(ErrorResponse(None, ErrorObject(-5, "no")), NOW)) == "unexpected_reply"


def test_abandoned_requests_are_bounded() -> None:
    session = client()
    given_up = [session.call("tools/call", CallToolParams("x"), NOW)[0] for _ in range(257)]
    for awaited in given_up:
        awaited.on_late_response = object()
        assert session.cancel(awaited) is not None
    assert ignored(session.receive(Response(given_up[0].id, Raw(b"{}")), NOW)) == "unexpected_reply"
    assert isinstance(session.receive(Response(given_up[1].id, Raw(b"{}")), NOW), ResponseReceived)


@pytest.mark.row("L23", "F29")
def test_client_sends_no_undeclared_method() -> None:
    session = client()
    with pytest.raises(CapabilityNotSupported) as caught:
        session.call("prompts/list", PaginatedParams(), NOW)
    assert caught.value.data == {"kind": "capability_not_supported", "capability": "prompts", "method": "prompts/list"}
    assert not session.outgoing_requests


@pytest.mark.row("L12", "L29")
def test_server_sends_no_undeclared_method() -> None:
    session = server()
    session.call("sampling/createMessage", Empty(), NOW)
    with pytest.raises(CapabilityNotSupported, match=r"sampling\.tools"):
        session.call("sampling/createMessage", Empty(), NOW, capability="sampling.tools")
    with pytest.raises(CapabilityNotSupported, match="elicitation"):
        session.call("elicitation/create", Empty(), NOW)


@pytest.mark.parametrize("method", ["tools/list", "elicitation/create"])
def test_server_sends_no_method_of_other_revision(method: str) -> None:
    with pytest.raises(MethodNotFound, match=method):
        server(Revision.V2024_11_05).call(method, Empty(), NOW)


@pytest.mark.row("L05")
def test_server_requests_need_initialized_except_ping() -> None:
    session = server(until=Phase.INITIALIZING)
    with pytest.raises(WrongPhase, match="roots/list is not allowed while the session is initializing"):
        session.call("roots/list", Empty(), NOW)
    assert session.call("ping", Empty(), NOW)[1].method == "ping"


def test_request_params_are_projected() -> None:
    session = server(Revision.V2024_11_05)
    params = ProgressParams(progress_token=1, progress=1, message="half")
    sent = session.notify("notifications/progress", params)
    assert sent == Notification("notifications/progress", ProgressParams(progress_token=1, progress=1))


def test_method_has_result_type() -> None:
    assert client().result_type("tools/call") is CallToolResult
    assert client().result_type("foo/bar") is object
    for name in ("message", "notifications/message"):
        with pytest.raises(MethodNotFound, match=name):
            client().result_type(name)


# --- notifications of ours -----------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.INITIALIZING, Phase.READY, Phase.PAUSED, Phase.DRAINING])
def test_server_may_log_once_initialize_is_answered(phase: Phase) -> None:
    session = server(until=phase)
    params = LoggingMessageParams(level="info", data="hello")
    assert session.may_send("notifications/message")
    assert session.notify("notifications/message", params) == Notification("notifications/message", params)


@pytest.mark.row("F05", "F06")
@pytest.mark.parametrize("phase", [Phase.CONNECTING, Phase.FAILED, Phase.CLOSED])
def test_notification_in_wrong_phase_is_refused(phase: Phase) -> None:
    session = server(until=phase)
    assert not session.may_send("notifications/message")
    with pytest.raises(WrongPhase):
        session.notify("notifications/message")


@pytest.mark.row("L15", "N06")
def test_server_sends_no_undeclared_change_notification() -> None:
    session = server()
    assert session.may_send("notifications/tools/list_changed")
    assert session.notify("notifications/tools/list_changed") == Notification("notifications/tools/list_changed")
    assert not session.may_send("notifications/prompts/list_changed")


def test_client_sends_roots_changed_if_declared() -> None:
    assert client().may_send("notifications/roots/list_changed")
    assert not client().may_send("notifications/tools/list_changed")


# --- unreadable messages -------------------------------------------------------------------------


@pytest.mark.row("P07", "P20", "X27")
@pytest.mark.parametrize(
    ("fault", "code", "kind"),
    [
        (Malformed(-32700, "not JSON"), -32700, "parse_error"),
        (Malformed(-32600, "no method", 1), -32600, "invalid_request"),
        (Malformed(-32602, "an array", 1), -32602, "invalid_params"),
        (Malformed(-32600, "large", limit=1024), -32600, "message_size_exceeds_maximum"),
        (Malformed(-32600, "nothing we wait for", 9, lacks_method=True), -32600, "invalid_request"),
    ],
)
def test_unreadable_message_gets_error_response(fault: Malformed, code: int, kind: str) -> None:
    error = refused(server().receive(fault, NOW))
    assert (error.code, error.data["kind"]) == (code, kind)


@pytest.mark.row("W16", "W18")
def test_oversized_message_error_has_limit() -> None:
    error = refused(server().receive(Malformed(-32600, "large", limit=16 << 20), NOW))
    expected = {"maxSize": 16_777_216, "unit": "bytes", "maxSizeReadable": "16 MiB"}
    assert error.data == {"kind": "message_size_exceeds_maximum", **expected}


@pytest.mark.row("P07")
@pytest.mark.parametrize(("revision", "ident"), [*[(older, None) for older in HANDSHAKE[:-1]], (HANDSHAKE[-1], UNSET)])
def test_unreadable_id_is_null_or_omitted_by_revision(revision: Revision, ident: object) -> None:
    assert server(revision).malformed_response(Malformed(-32700, "not JSON")).id is ident


@pytest.mark.row("P09")
def test_readable_id_is_returned() -> None:
    assert server().malformed_response(Malformed(-32600, "no method", "a")).id == "a"


# --- close ---------------------------------------------------------------------------------------


@pytest.mark.row("F06", "F10")
def test_close_ends_all_requests() -> None:
    session = server()
    call = started(session)
    awaited, _ = session.call("roots/list", Empty(), NOW)
    assert session.close() == [awaited]
    assert (call.done, awaited.done, session.phase) == (True, True, Phase.CLOSED)
    assert not session.incoming_requests
    assert not session.outgoing_requests
    assert session.expired(NOW + 3600) == []
    assert session.close() == []


@pytest.mark.row("F10")
def test_lost_connection_fails_session() -> None:
    session = client()
    session.transition(Signal.FAIL)
    with pytest.raises(WrongPhase):
        session.call("ping", Empty(), NOW)


@pytest.mark.row("F29")
def test_illegal_signal_keeps_phase() -> None:
    session = server()
    with pytest.raises(WrongPhase):
        session.transition(Signal.RESUME)
    assert session.phase is Phase.READY


@pytest.mark.row("D09")
@pytest.mark.parametrize(("complete", "phase"), [(True, Phase.READY), (False, Phase.INITIALIZING)])
def test_handshake_is_restored(complete: bool, phase: Phase) -> None:
    before, after = server(), Session(Side.SERVER, info=Implementation(name="s", version="1"))
    after.transition(Signal.CONNECT)
    assert before.revision is not None
    assert before.negotiated is not None
    after.restore_handshake(before.revision, before.negotiated, before.peer, complete=complete)
    assert (after.phase, after.revision, after.negotiated, after.peer) == (
        *(phase, before.revision),
        *(before.negotiated, before.peer),
    )


def test_assumed_handshake_has_no_client_capabilities() -> None:
    session = server(until=Phase.CONNECTING)
    session.assume_handshake(Revision.V2025_06_18)
    assert (session.phase, session.effective_revision, session.peer) == (Phase.READY, Revision.V2025_06_18, None)
    assert session.negotiated is not None
    assert session.negotiated.client == {}


@pytest.mark.parametrize(
    ("phase", "after"), [(Phase.NEW, Phase.FAILED), (Phase.RECONNECTING, Phase.RECONNECTING)], ids=["first", "again"]
)
def test_failed_handshake_ends_new_sessions_only(phase: Phase, after: Phase) -> None:
    session = Session(Side.CLIENT, info=Implementation(name="c", version="1"), phase=phase)
    session.fail_handshake("no")
    assert (session.phase, session.failure) == (after, "no")
