"""The security control behind each attack test, and a pytest plugin that disables it.

    python -m pytest -p tests.attacks.controls tests/attacks/test_hijack.py

Each test then runs without its control, and must fail by an assertion. `test_controls.py` checks that: a test that
passes all the same would show nothing.
"""

import json
import os
import posixpath
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.attacks import attacked_server
from tests.attacks.client_controls import ROWS as OF_CLIENTS
from tests.attacks.patches import Patch, Rows, forced, replaced, shared
from tests.attacks.token_controls import ROWS as OF_TOKENS

from trunkline import Settings
from trunkline.protocol.session import Session
from trunkline.registry.cursors import Cursors
from trunkline.rpc import failures
from trunkline.server.access.rules import Viewer
from trunkline.server.catalog import ServerCatalog
from trunkline.server.input import state_token
from trunkline.server.run import process
from trunkline.transports import stream, tcp
from trunkline.transports.channel import MessageOrigin
from trunkline.transports.http import app, http_sse, modern
from trunkline.transports.http.connection import HttpConnection
from trunkline.transports.http.head import BadHead, HeadParser
from trunkline.transports.http.request import Handling, HttpHead, HttpRequest
from trunkline.transports.http.session import channel, sessions
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.origin_policy import HostOriginPolicy
from trunkline.transports.websocket import protocol as websocket
from trunkline.transports.websocket import server_framing
from trunkline.wire import codec
from trunkline.wire.messages import Malformed, Notification

# --- ways to disable a control -----------------------------------------------------------------------


def unset(**settings: Any) -> Patch:
    """Reset settings that a test has made small, off or unlimited."""

    def made(**given: Any) -> Settings:
        return Settings(**(given | settings))

    return lambda patch: patch.setattr(attacked_server, "Settings", made)


def read_as(understand: Callable[[bytes], bytes]) -> Patch:
    """Read messages more leniently than the package does."""
    lenient = SimpleNamespace(decode_strict=lambda body: codec.decode(understand(body)))
    return lambda patch: patch.setattr(app, "codec", lenient)


def rewritten(pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]]) -> Callable[[bytes], bytes]:
    return lambda body: json.dumps(json.loads(body, object_pairs_hook=pairs, strict=False)).encode()


def _nearly(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {_plain(key): _plain(value) if isinstance(value, str) else value for key, value in pairs}


def _plain(text: str) -> str:
    return text.partition("\0")[0].strip().lower()


def _raising(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Raise a fault of a peer as an exception, instead of returning a value."""

    def read(frame: Any) -> Any:
        if isinstance(message := decode(frame), Malformed):
            raise ValueError(message.why)
        return message

    return read


def _raise(error: BaseException, *_: Any) -> Any:
    raise error


def _any_principal(self: sessions.SessionTable, ident: str, principal: Any) -> Any:
    return self._sessions.get(ident)


def _any_poster(patch: pytest.MonkeyPatch) -> None:
    original = http_sse.HttpSseEndpoint.handle_post

    def post(self: Any, http_request: Any) -> Handling:
        http_request.principal = next(iter(self._channels.values()))[1]
        return original(self, http_request)

    patch.setattr(http_sse.HttpSseEndpoint, "handle_post", post)


def _streams_of_all(patch: pytest.MonkeyPatch) -> None:
    original = channel.HttpChannel.find_stream
    seen: list[Any] = []
    opened = channel.HttpChannel.open

    def open_(self: Any, receiver: Any) -> None:
        seen.append(self)
        opened(self, receiver)

    def known(self: Any, number: int) -> Any:
        return next((found for one in seen if (found := original(one, number)) is not None), None)

    patch.setattr(channel.HttpChannel, "open", open_)
    patch.setattr(channel.HttpChannel, "find_stream", known)


def _one_connection_for_all(patch: pytest.MonkeyPatch) -> None:
    original = ListenerGuard.admit
    first: list[Any] = []

    def admit(self: ListenerGuard, line: Any, cut: Any) -> Any:
        first.append(line)
        return original(self, first[0], cut)

    patch.setattr(ListenerGuard, "admit", admit)


def _bound_to(what: Callable[..., tuple[Any, ...]]) -> Patch:
    """Bind request states to less than the principal and the request."""
    original = state_token.request_binding
    return lambda patch: patch.setattr(state_token, "request_binding", lambda *asked: original(*what(*asked)))


def _one_key(patch: pytest.MonkeyPatch) -> None:
    original = state_token._derive_cipher
    patch.setattr(state_token, "_derive_cipher", lambda _: original(b"the same for all"))


def _cursors_of(what: Callable[..., tuple[Any, ...]]) -> Patch:
    """Accept cursors for more than one list of one principal."""
    original = Cursors._sealed
    return lambda patch: patch.setattr(Cursors, "_sealed", lambda self, *given: original(self, *what(*given)))


def _one_public_address(patch: pytest.MonkeyPatch) -> None:
    original, numbers = ServerCatalog.get_visible_page, count(1)

    def shown(self: ServerCatalog, *args: Any, viewer: Viewer, **given: Any) -> Any:
        viewer = replace(viewer, principal_name=viewer.principal_name or str(next(numbers)))
        return original(self, *args, viewer=viewer, **given)

    patch.setattr(ServerCatalog, "get_visible_page", shown)
    patch.setattr(ServerCatalog, "_cached_page", lambda self, key, version: None)


def _session_id_is_principal(patch: pytest.MonkeyPatch) -> None:
    add, post = sessions.SessionTable.add, modern.ModernEndpoint._handle_request
    owners: dict[bytes, Any] = {}

    def added(self: Any, ident: str, made: Any, principal: Any, *kept: Any, **options: Any) -> Any:
        session = add(self, ident, made, principal, *kept, **options)
        owners[session.id.encode()] = principal
        return session

    def posted(self: Any, http_request: Any, message: Any) -> Handling:
        http_request.principal = owners[http_request.headers[b"mcp-session-id"]]
        return post(self, http_request, message)

    patch.setattr(sessions.SessionTable, "add", added)
    patch.setattr(modern.ModernEndpoint, "_handle_request", posted)


def _notifications_from_any_client(patch: pytest.MonkeyPatch) -> None:
    original = modern.ModernEndpoint.handle

    def handle(self: Any, http_request: Any, message: Any) -> Handling:
        if isinstance(message, Notification) and self._channel is not None:
            self._channel._receiver.received([message], MessageOrigin(http_request.principal))
        return original(self, http_request, message)

    patch.setattr(modern.ModernEndpoint, "handle", handle)


def _lenient_http(patch: pytest.MonkeyPatch) -> None:
    original = HeadParser.__init__
    kinds = ("headers", "chunked_length", "keep_alive", "transfer_encoding", "version", "data_after_close")
    line_ends = (
        "optional_lf_after_cr",
        "optional_cr_before_lf",
        "optional_crlf_after_chunk",
        "spaces_after_chunk_size",
    )

    def init(self: Any, *args: Any, **given: Any) -> None:
        original(self, *args, **given)
        self._parser.set_dangerous_leniencies(**{f"lenient_{kind}": True for kind in (*kinds, *line_ends)})

    patch.setattr(HeadParser, "__init__", init)


def _unchecked_heads(patch: pytest.MonkeyPatch) -> None:
    """Heads as llhttp reads them."""

    def read_request_line(self: HeadParser, head: bytes) -> bool:
        line, end, _ = head.partition(b"\r\n")
        if end:
            self.method, self.target, *_ = (*line.split(), b"/")
            self.version = b"1.1"
        return bool(end)

    def check_headers(self: HeadParser) -> None:
        self.chunked = b"transfer-encoding" in self.headers
        self.content_length = int(self.headers.get(b"content-length", b"0"))

    patch.setattr(HeadParser, "_read_request_line", read_request_line)
    patch.setattr(HeadParser, "_check_headers", check_headers)


def _host_of_header(patch: pytest.MonkeyPatch) -> None:
    """A host that a header names, whatever the target of the request is."""
    original = HeadParser._resolve_other_form

    def resolve(self: HeadParser) -> None:
        host = self.headers[b"host"]
        original(self)
        self.headers[b"host"] = host

    patch.setattr(HeadParser, "_resolve_other_form", resolve)


def _upgrades_without_body(patch: pytest.MonkeyPatch) -> None:
    """Requests with an Upgrade header end with their heads."""
    original = HeadParser._check_headers

    def check(self: HeadParser) -> None:
        try:
            original(self)
        except BadHead:
            if not self.upgrade:
                raise
            self.content_length = 0

    patch.setattr(HeadParser, "_check_headers", check)


def _trailers_as_headers(patch: pytest.MonkeyPatch) -> None:
    original = HttpConnection._begin_body

    def begin_body(self: Any, asked: HttpRequest, body: Any, data: bytes) -> None:
        name, _, value = data.rstrip().rpartition(b"\r\n")[2].partition(b": ")
        asked.head = HttpHead(asked.method, asked.path, {**asked.headers, name: value})
        asked.headers = asked.head.headers
        original(self, asked, body, data)

    patch.setattr(HttpConnection, "_begin_body", begin_body)


def _similar_paths(patch: pytest.MonkeyPatch) -> None:
    original = app.HttpApp.handle

    def handle(self: Any, asked: HttpRequest) -> Handling:
        asked.head.path = posixpath.normpath(asked.path.lower())
        return original(self, asked)

    patch.setattr(app.HttpApp, "handle", handle)


def _unguarded(patch: pytest.MonkeyPatch) -> None:
    async def listen_anywhere(port: int) -> None: ...

    listen_anywhere.__module__ = tcp.__name__
    patch.setattr(tcp, "listen_anywhere", listen_anywhere, raising=False)


class _Unguarded:
    def __init__(self, settings: Settings) -> None: ...


_Unguarded.__module__ = http_sse.__name__


async def _listener(*_: Any) -> None:
    """Would call listen_anywhere."""


def _ids() -> Any:
    numbers = count(1)
    return SimpleNamespace(token_urlsafe=lambda _: str(next(numbers)))


# --- the table ---------------------------------------------------------------------------------------

EVERY_ORIGIN = replaced(HostOriginPolicy, "refusal_reason", lambda *_: None)
ANY_PRINCIPAL = replaced(sessions.SessionTable, "get", _any_principal)
FAULTS_ARE_RAISED = read_as(lambda body: body)
ENDLESS = 1 << 40

WITHOUT: Rows = {
    **OF_TOKENS,
    **OF_CLIENTS,
    "test_rebinding": {
        "test_foreign_hosts_and_origins_are_refused_on_every_transport": EVERY_ORIGIN,
        "test_refusal_names_the_setting_that_would_allow_it": EVERY_ORIGIN,
        "test_foreign_origin_gets_no_cors_headers": EVERY_ORIGIN,
        "test_allowed_host_is_accepted_behind_a_proxy": EVERY_ORIGIN,
        "test_duplicate_host_or_origin_is_refused_in_any_order": replaced(
            app.HttpApp, "_check_repeated_headers", lambda *_: True
        ),
        "test_http_request_to_a_tcp_listener_does_nothing": forced(stream.StreamChannel, strict=False),
    },
    "test_hijack": {
        "test_session_of_another_principal_is_not_found": ANY_PRINCIPAL,
        "test_events_of_another_principal_are_not_replayed": ANY_PRINCIPAL,
        "test_events_of_another_session_are_not_replayed": _streams_of_all,
        "test_http_sse_token_is_bound_to_its_principal": _any_poster,
        "test_expiry_is_reported_only_to_the_principal": replaced(
            sessions.SessionTable, "has_expired", lambda self, ident, _: ident in self._expired
        ),
        "test_session_ids_are_unpredictable": replaced(sessions, "secrets", _ids()),
    },
    "test_cross_client_responses": {
        "test_sessions_with_equal_ids_get_their_own_responses": shared(channel.HttpChannel, "_exchanges"),
        "test_tcp_clients_with_equal_ids_get_their_own_messages": _one_connection_for_all,
        "test_websocket_clients_with_equal_ids_get_their_own_messages": _one_connection_for_all,
        "test_http_sse_clients_with_equal_ids_get_their_own_responses": _one_connection_for_all,
        "test_response_to_request_of_another_session_is_ignored": shared(Session, "_outgoing"),
        "test_cancellation_of_another_sessions_request_is_ignored": shared(Session, "_incoming"),
    },
    "test_handles": {
        "test_state_is_bound_to_its_principal": _bound_to(lambda _, *asked: (None, *asked)),
        "test_state_is_bound_to_method_name_and_arguments": _bound_to(lambda who, *_: (who, "", b"")),
        "test_altered_state_is_rejected": replaced(state_token.EncryptingSealer, "open", lambda *_: b"{}"),
        "test_state_opens_only_with_the_key": _one_key,
        "test_cursor_of_private_list_is_bound_to_its_principal": _cursors_of(lambda *given: (*given[:2], "")),
        "test_cursor_is_bound_to_its_list": _cursors_of(lambda _, *given: ("", *given)),
        "test_public_list_has_one_cursor_for_all": _one_public_address,
        "test_session_and_events_are_hidden_from_other_principals": ANY_PRINCIPAL,
        "test_session_adds_nothing_to_a_modern_request": _session_id_is_principal,
        "test_subscription_id_gives_no_access_to_other_principals": _notifications_from_any_client,
        "test_request_of_another_cannot_be_cancelled": _notifications_from_any_client,
    },
    "test_crash": {
        "test_invalid_bodies_do_not_end_session_or_server": replaced(
            app, "codec", SimpleNamespace(decode_strict=_raising(codec.decode))
        ),
        "test_invalid_messages_do_not_end_session_or_server": replaced(failures, "build_failure", _raise),
        "test_malformed_message_does_not_end_call_of_same_id": replaced(
            channel.Exchange, "matches_reply_id", lambda self, ident: ident in self.ids
        ),
        "test_invalid_http_is_refused_or_disconnected": replaced(HttpConnection, "_refuse", lambda *_: None),
        "test_stream_transport_survives_malformed_message": forced(stream.StreamChannel, decode=_raising(codec.decode)),
        "test_websocket_survives_malformed_message": forced(stream.StreamChannel, decode=_raising(codec.decode)),
        "test_invalid_websocket_frames_close_only_that_connection": replaced(
            server_framing.ServerFraming, "_fail", lambda *_: None
        ),
    },
    "test_parsing": {
        "test_ambiguous_request_is_refused": _lenient_http,
        "test_lenient_http_is_refused_and_connection_closed": _unchecked_heads,
        "test_lenient_pipelined_request_line_is_refused": _unchecked_heads,
        "test_absolute_target_replaces_host_header": _host_of_header,
        "test_absolute_target_replaces_host_for_websockets": _host_of_header,
        "test_body_is_never_parsed_as_next_request": _upgrades_without_body,
        "test_trailers_are_not_headers": _trailers_as_headers,
        "test_json_keys_match_exactly": read_as(rewritten(_nearly)),
        "test_similar_json_keys_are_ignored": read_as(rewritten(_nearly)),
        "test_duplicate_members_are_refused_over_http": read_as(lambda body: body),
        "test_duplicate_members_are_refused_over_websocket": forced(stream.StreamChannel, decode=codec.decode),
        "test_duplicate_members_are_refused_over_tcp": forced(stream.StreamChannel, decode=codec.decode),
        "test_unescaped_control_characters_are_refused": read_as(rewritten(dict)),
        "test_path_must_match_exactly": _similar_paths,
        "test_only_utf_8_is_accepted": read_as(lambda body: body.decode("latin-1").encode()),
    },
    "test_exhaustion": {
        "test_oversized_content_length_is_refused": unset(http_body_size_limit=100 << 20),
        "test_oversized_chunked_body_is_refused_early": unset(http_body_size_limit=100 << 20),
        "test_oversized_headers_are_refused_in_any_split": unset(max_header_bytes=ENDLESS),
        "test_trailers_are_limited_like_headers": unset(max_header_bytes=ENDLESS),
        "test_deeply_nested_json_is_refused": replaced(
            app, "codec", SimpleNamespace(decode_strict=_raising(codec.decode))
        ),
        "test_oversized_websocket_message_is_refused": unset(ws_message_size_limit=100 << 20),
        "test_websocket_message_of_many_frames_is_refused": replaced(server_framing, "MAX_FRAMES", ENDLESS),
        "test_slow_headers_time_out": unset(header_timeout=None),
        "test_bytes_between_requests_do_not_hold_a_connection": unset(header_timeout=None),
        "test_unread_body_does_not_hold_a_connection": unset(header_timeout=None),
        "test_slow_body_times_out": unset(body_timeout=None),
        "test_failed_upgrade_does_not_hold_a_connection": replaced(HttpConnection, "_refuse", lambda *_: None),
        "test_peer_that_reads_no_response_is_disconnected": unset(write_timeout=None),
        "test_unread_stream_is_buffered_up_to_the_limit": unset(unsent_limit=ENDLESS, write_timeout=None),
        "test_unread_websocket_is_buffered_up_to_the_limit": unset(unsent_limit=ENDLESS),
        "test_pings_without_reading_pongs_are_disconnected": replaced(websocket, "MAX_PINGS", ENDLESS),
        "test_connection_over_the_limit_is_refused": unset(max_connections=ENDLESS),
        "test_session_over_the_limit_is_refused_and_none_ends": unset(
            max_sessions=ENDLESS, max_sessions_per_principal=None
        ),
        "test_idle_session_expires": unset(session_ttl=None),
        "test_http_sse_streams_are_limited_and_silent_ones_end": unset(max_connections=ENDLESS),
        "test_ended_streams_are_retained_within_limits": unset(replay_streams=ENDLESS, replay_bytes=ENDLESS),
        "test_concurrent_calls_of_a_session_are_limited": unset(max_calls=ENDLESS),
        "test_cancelled_call_leaves_nothing_behind": replaced(channel.Exchange, "give_up", lambda *_: None),
        "test_batch_size_is_limited": replaced(codec, "MAX_BATCH", ENDLESS),
    },
    "test_contract": {
        "test_every_listen_function_requires_a_guard": _unguarded,
        "test_every_peer_acceptor_requires_a_guard": replaced(http_sse, "HttpSseEndpoint", _Unguarded),
        "test_only_known_modules_open_listening_sockets": replaced(Path, "read_text", lambda _: "create_server("),
        "test_server_uses_only_guarded_listen_functions": replaced(process, "open_listener", _listener),
        "test_connection_above_the_limit_is_refused": unset(max_connections=ENDLESS),
        "test_peer_without_a_complete_message_is_disconnected": unset(initialize_timeout=None, header_timeout=None),
    },
}


# --- the plugin --------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    """Run a test without its control."""
    with pytest.MonkeyPatch.context() as patch:
        WITHOUT[item.path.stem][item.originalname](patch)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Report on one line how a test ended: by an assertion, by another error, or not at all."""
    report = os.environ.get("ATTACK_REPORT")
    if call.when == "call" and report is not None:
        error = None if call.excinfo is None else call.excinfo.type.__name__
        with open(report, "a", encoding="utf-8") as lines:
            lines.write(json.dumps({"test": item.name, "ended by": error}) + "\n")
    return (yield)
