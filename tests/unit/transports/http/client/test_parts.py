"""The parts of the client that decide: order, answers, places, and where a stream stands."""

import subprocess
import sys

import pytest
from tests.limits import PATIENCE

from trunkline import Settings
from trunkline.config import proxy_for
from trunkline.errors import ConfigError
from trunkline.protocol.types import CancelledParams
from trunkline.transports.http.client.outbox import Outbox, PendingPost
from trunkline.transports.http.client.resumable_stream import ResumableStream
from trunkline.transports.http.client.status import (
    ADVICE,
    HTTP_ERROR,
    answers_request,
    error_from_status,
    negotiated_revision,
    parse_answer,
)
from trunkline.transports.http.client.url import RedirectRefused, parse_url
from trunkline.wire import codec
from trunkline.wire.messages import Batch, Encoded, ErrorResponse, Notification, Request, Response
from trunkline.wire.sse import encode_event

# --- order -----------------------------------------------------------------------------------------------


def letters(*messages: object) -> list[PendingPost]:
    return [PendingPost.from_message(message) for message in messages]  # type: ignore[arg-type]


def test_messages_wait_for_initialize() -> None:
    outbox = Outbox()
    first, early, notice, call, late = letters(
        Request(1, "initialize"),
        Response("s", {}),
        Notification("notifications/initialized"),
        Request(2, "ping"),
        Notification("n"),
    )
    assert outbox.put(first) == [first]
    assert outbox.barrier is first
    for letter in (early, notice, call, late):
        assert outbox.put(letter) == []
    assert outbox.complete(first) == [early, notice]
    assert outbox.complete(first) == []
    assert outbox.complete(notice) == [call, late]


def test_outbox_orders_notifications_and_responses_only() -> None:
    outbox = Outbox()
    one, two, answer, three, call, other = letters(
        Notification("n"), Notification("n"), Response(1, {}), Notification("n"), Request(1, "x"), Encoded(b"{}")
    )
    assert outbox.put(one) == [one]
    assert outbox.put(two) == outbox.put(answer) == outbox.put(three) == []
    assert outbox.put(call) == [call]
    assert outbox.put(other) == []
    assert outbox.complete(one) == [two]
    assert outbox.complete(two) == [answer, three]
    assert outbox.complete(three) == [other]


def test_pending_post_knows_the_request_it_cancels() -> None:
    (letter,) = letters(Notification("notifications/cancelled", CancelledParams(request_id=5)))
    assert letter.cancels == 5
    with pytest.raises(TypeError):
        PendingPost.from_message(Notification("n", object()))


# --- answers ---------------------------------------------------------------------------------------------


def test_answers_request_finds_single_and_batched_responses() -> None:
    assert answers_request(Response(1, {}), 1)
    assert answers_request(Batch((Notification("n"), Response(1, {}))), 1)
    assert not answers_request(Response(1, {}), 2)
    assert not answers_request(Request(1, "x"), 1)


def test_batch_answer_requires_a_batch_revision() -> None:
    body = b'[{"jsonrpc":"2.0","id":1,"result":{}}]'
    assert isinstance(parse_answer(body, 1, batches=True), Batch)
    assert isinstance(parse_answer(body, 1, batches=False), ErrorResponse)


@pytest.mark.parametrize(
    ("status", "kind", "body", "message"),
    [
        (401, "", b"", f"HTTP 401 Reason: {ADVICE[401]}"),
        (404, "text/html", b"<html>", f"HTTP 404 Reason: {ADVICE[404]}"),
        (500, "text/plain", b"x" * 500, "HTTP 500 Reason: " + "x" * 200),
        (501, "text/html", b"<html>", "HTTP 501 Reason"),
        (400, "application/json", b'{"detail":"no"}', "HTTP 400 Reason"),
    ],
)
def test_error_from_status_uses_body_or_advice(status: int, kind: str, body: bytes, message: str) -> None:
    answer = error_from_status(7, status, "Reason", kind, body)
    assert (answer.id, answer.error.code, answer.error.message) == (7, HTTP_ERROR, message)
    assert answer.error.data == {"kind": "http_error", "status": status}


def test_auth_advice_is_added_to_401_errors() -> None:
    body = b'{"jsonrpc":"2.0","id":7,"error":{"code":-32001,"message":"no token"}}'
    told = error_from_status(7, 401, "Unauthorized", "application/json", body)
    assert (told.error.code, told.error.message) == (-32001, f"no token; {ADVICE[401]}")
    assert error_from_status(7, 400, "Bad Request", "application/json", body).error.message == "no token"


@pytest.mark.parametrize(
    ("frame", "revision"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","x":1}}', "2025-06-18"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":5}}', None),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}', None),
    ],
)
def test_negotiated_revision_is_read_from_initialize(frame: bytes, revision: str | None) -> None:
    assert negotiated_revision(codec.decode(frame), 1) == revision


# --- places ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "reference", "there"),
    [
        ("http://h/mcp", "/mcp/", "http://h/mcp/"),
        ("http://h:80/mcp", "http://H/x?y=z", "http://h/x?y=z"),
        ("https://h/a/b", "c?d=e", "https://h/a/c?d=e"),
        ("http://[::1]:8000/sse", "/m", "http://[::1]:8000/m"),
    ],
)
def test_url_resolves_references_within_the_origin(base: str, reference: str, there: str) -> None:
    assert parse_url(base).resolve(reference).url == there


@pytest.mark.parametrize(
    "reference",
    [
        "http://other/",
        "https://h/",
        "http://h:81/",
        "//other/x",
        "file:///etc/x",
        "http://u:p@h/",
        "http://[",
        "\\\\o/x",
    ],
)
def test_url_refuses_references_to_other_origins(reference: str) -> None:
    with pytest.raises(RedirectRefused):
        parse_url("http://h/mcp").resolve(reference)


@pytest.mark.parametrize("url", ["tcp://h:80", "http://h:0/x"])
def test_parse_url_rejects_other_urls(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_url(url)


# --- streams ---------------------------------------------------------------------------------------------


def test_empty_event_id_resets_the_position() -> None:
    stream = ResumableStream(Settings())
    stream.feed(encode_event(b"", id="1"))
    assert stream.last_event_id == "1"
    stream.feed(encode_event(b"", id=""))
    assert stream.last_event_id is None


def test_retry_delay_grows_from_the_servers_value() -> None:
    stream = ResumableStream(Settings(stream_retry=1.0, backoff_longest=5.0))
    assert [stream.retry_delay(failures) for failures in range(4)] == [1, 2, 4, 5]
    stream.feed(encode_event(b"", retry=500))
    stream.begin_connection()
    assert [stream.retry_delay(failures) for failures in range(3)] == [0.5, 1, 2]
    stream.feed(encode_event(b"", retry=9000))
    assert [stream.retry_delay(failures) for failures in range(3)] == [9, 9, 9]


@pytest.mark.parametrize(
    ("said", "own", "waited"),
    [(0, 1.0, 0.5), (1, 1.0, 0.5), (700, 1.0, 0.7), (999_999_999, 1.0, 300.0), (0, 0.02, 0.02)],
)
def test_server_retry_value_is_clamped(said: int, own: float, waited: float) -> None:
    stream = ResumableStream(Settings(stream_retry=own))
    stream.feed(encode_event(b"", retry=said))
    assert stream.retry_delay(0) == waited


def test_empty_connections_increase_the_retry_delay() -> None:
    stream = ResumableStream(Settings(backoff_longest=10.0))

    def connection(*events: bytes, lasted: float = 0.0) -> float:
        stream.begin_connection()
        for each in events:
            stream.feed(each)
        stream.end_connection(lasted)
        return stream.retry_delay(0)

    assert [connection(encode_event(b"", retry=0)) for _ in range(7)] == [1, 2, 4, 8, 10, 10, 10]
    assert connection(encode_event(b"", id="1")) == 0.5  # a position is progress
    assert connection(encode_event(b"", id="1")) == 1
    assert connection(encode_event(b"{}")) == 0.5
    assert connection() == 1
    assert connection(lasted=5.0) == 0.5  # as where something between us ends what is silent
    for _ in range(10_000):
        connection()
    assert stream.retry_delay(3) == 10


def test_seen_event_ids_are_bounded() -> None:
    stream = ResumableStream(Settings())
    frame = b'{"jsonrpc":"2.0","method":"n"}'
    for number in range(1001):
        assert stream.feed(encode_event(frame, id=str(number)))
    stream.begin_connection()
    assert not stream.feed(encode_event(frame, id="1000"))
    assert stream.feed(encode_event(frame, id="0"))


def test_events_of_other_types_are_ignored() -> None:
    assert ResumableStream(Settings()).feed(encode_event(b"{}", kind="other")) == []


# --- proxies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("http://h/", {}, None),
        ("http://h/", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("http://h/", {"HTTP_PROXY": "http://p:1", "http_proxy": "http://q:1"}, "http://q:1"),
        ("http://h/", {"HTTPS_PROXY": "http://p:1"}, None),
        ("https://h/", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://h/", {"ALL_PROXY": "p:1"}, "http://p:1"),
        ("http://h/", {"HTTP_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, None),
        ("http://localhost/", {"HTTP_PROXY": "http://p:1"}, None),
        ("http://127.0.0.9:5/", {"HTTP_PROXY": "http://p:1"}, None),
        ("http://[::1]/", {"HTTP_PROXY": "http://p:1"}, None),
        ("http://h/", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "*"}, None),
        ("http://a.h.org/", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "x, h.org"}, None),
        ("http://a.h.org/", {"HTTP_PROXY": "http://p:1", "no_proxy": ".H.org"}, None),
        ("http://ah.org/", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "h.org"}, "http://p:1"),
        ("http://h.org:81/", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "h.org:80"}, "http://p:1"),
        ("http://h.org/", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "h.org:80"}, None),
        ("http://10.1.2.3/", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, None),
        ("http://11.1.2.3/", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "http://p:1"),
        ("http://[fe80::1]/", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "fe80::1"}, None),
    ],
)
def test_proxy_is_read_from_the_environment(url: str, environ: dict[str, str], proxy: str | None) -> None:
    assert proxy_for(url, environ) == proxy


def test_unsupported_proxy_is_rejected_without_its_password() -> None:
    with pytest.raises(ConfigError, match="socks5") as raised:
        proxy_for("http://h/", {"ALL_PROXY": "socks5://u:secret@p:1"})
    assert "secret" not in str(raised.value)


# --- what has to be installed ----------------------------------------------------------------------------


def test_missing_library_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["httptools"] = None
from trunkline import Client
try:
    Client("https://example.org/mcp")
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert "pip install 'trunkline[http]'" in done.stdout
