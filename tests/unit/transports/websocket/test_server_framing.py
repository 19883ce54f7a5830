"""The server's handshake and frames, without a connection."""

import struct

import pytest
from tests.attacks.websocket_frames import CLOSE, CONTINUED, PING, frame

from trunkline.transports.websocket.close_codes import CloseCode
from trunkline.transports.websocket.server_framing import MAX_FRAMES, Handshake, ServerFraming

BINARY, PONG = 0x2, 0xA
REQUEST = {
    b"connection": b"keep-alive, Upgrade",
    b"upgrade": b"websocket",
    b"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ==",
    b"sec-websocket-version": b"13",
}


def close_frame(code: int, reason: str = "") -> bytes:
    return frame(struct.pack("!H", code) + reason.encode(), CLOSE)


def framed(data: bytes, kind: int = 0x1) -> bytes:
    return bytes((0x80 | kind, len(data))) + data


# --- the handshake -------------------------------------------------------------------------------


def test_response_accepts_the_key_and_names_the_subprotocol() -> None:
    assert Handshake("/mcp", REQUEST).response("mcp") == (
        b"HTTP/1.1 101 Switching Protocols\r\n"
        b"Upgrade: websocket\r\n"
        b"Connection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
        b"Sec-WebSocket-Protocol: mcp\r\n\r\n"
    )


def test_response_without_a_subprotocol_names_none() -> None:
    assert b"Sec-WebSocket-Protocol" not in Handshake("/mcp", REQUEST).response(None)


@pytest.mark.parametrize(
    ("offered", "expected"), [(None, []), (b"mcp", ["mcp"]), (b"a, mcp,b", ["a", "mcp", "b"]), (b", a", ["a"])]
)
def test_offered_subprotocols_are_listed(offered: bytes | None, expected: list[str]) -> None:
    headers = REQUEST if offered is None else {**REQUEST, b"sec-websocket-protocol": offered}
    handshake = Handshake("/mcp", headers)
    assert handshake.refusal is None
    assert handshake.subprotocols == expected


@pytest.mark.parametrize(
    ("changed", "status", "named", "headers"),
    [
        ({b"connection": b"keep-alive"}, 426, "Connection", {b"upgrade": b"websocket"}),
        ({b"connection": None}, 426, "Connection", {b"upgrade": b"websocket"}),
        ({b"upgrade": b"h2c"}, 426, "Upgrade", {b"upgrade": b"websocket"}),
        ({b"upgrade": None}, 426, "Upgrade", {b"upgrade": b"websocket"}),
        ({b"sec-websocket-key": None}, 400, "Sec-WebSocket-Key", {}),
        ({b"sec-websocket-key": b"short"}, 400, "Sec-WebSocket-Key", {}),
        ({b"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ==, x"}, 400, "Sec-WebSocket-Key", {}),
        ({b"sec-websocket-key": b"\xff\x00"}, 400, "Sec-WebSocket-Key", {}),
        (
            {b"sec-websocket-version": b"8"},
            426,
            "Sec-WebSocket-Version",
            {b"upgrade": b"websocket", b"sec-websocket-version": b"13"},
        ),
        (
            {b"sec-websocket-version": None},
            426,
            "Sec-WebSocket-Version",
            {b"upgrade": b"websocket", b"sec-websocket-version": b"13"},
        ),
        ({b"sec-websocket-protocol": b"mcp;"}, 400, "Sec-WebSocket-Protocol", {}),
    ],
)
def test_invalid_request_is_refused(
    changed: dict[bytes, bytes | None], status: int, named: str, headers: dict[bytes, bytes]
) -> None:
    given = {name: value for name, value in {**REQUEST, **changed}.items() if value is not None}
    handshake = Handshake("/mcp", given)
    assert handshake.refusal is not None
    assert handshake.refusal[0] == status
    assert named in handshake.refusal[1]
    assert dict(handshake.refusal[2]) == headers
    assert handshake.subprotocols == []


def test_methods_other_than_get_are_refused() -> None:
    assert Handshake("/mcp", REQUEST, method="POST").refusal == (
        405,
        "a WebSocket is opened with GET",
        [(b"allow", b"GET")],
    )


# --- messages ------------------------------------------------------------------------------------


def test_messages_of_one_read_are_returned_together() -> None:
    framing = ServerFraming(1000)
    data = frame(b"one") + frame(b"") + frame(b"", PONG) + frame("zwölf".encode())
    assert framing.feed(data[:7]) == []
    assert framing.feed(data[7:]) == [b"one", "zwölf".encode()]
    assert framing.feed(b"") == []
    assert framing.open
    assert framing.take_output() == (b"", False)


def test_fragments_are_joined_around_control_frames() -> None:
    framing = ServerFraming(1000)
    letter = "é".encode()
    data = frame(letter[:1], last=False) + frame(b"x", PING) + frame(letter[1:], CONTINUED)
    assert framing.feed(data) == [letter]
    assert framing.ping_count == 1
    assert framing.take_output() == (framed(b"x", PONG), False)


def test_message_may_have_the_maximum_number_of_frames() -> None:
    framing = ServerFraming(10_000)
    middle = frame(b"x", CONTINUED, last=False)
    assert framing.feed(frame(b"x", last=False) + middle * (MAX_FRAMES - 2) + frame(b"x", CONTINUED)) == [
        b"x" * MAX_FRAMES
    ]
    assert framing.open
    assert framing.feed(frame(b"x", last=False) + middle * MAX_FRAMES) == []
    assert framing.failure == (CloseCode.TOO_BIG, "a message may have 1024 frames")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"{}", BINARY), CloseCode.UNSUPPORTED),
        (frame(b"{", BINARY, last=False) + frame(b"}", CONTINUED), CloseCode.UNSUPPORTED),
        (frame(b"\xff"), CloseCode.INVALID_DATA),
        (frame(b"x", last=False) + frame(b"\xff", CONTINUED), CloseCode.INVALID_DATA),
    ],
    ids=["binary", "binary fragments", "not UTF-8", "fragments that are not UTF-8"],
)
def test_unusable_message_fails_after_those_before_it(data: bytes, code: CloseCode) -> None:
    framing = ServerFraming(1000)
    assert framing.feed(frame(b"before") + data + frame(b"after")) == [b"before"]
    assert not framing.open
    assert framing.failure is not None
    assert framing.failure[0] is code
    framing.close(*framing.failure)
    output, last = framing.take_output()
    assert (output[0], struct.unpack("!H", output[2:4])[0], last) == (0x80 | CLOSE, code, True)
    assert framing.feed(frame(b"later")) == []


def test_outgoing_message_is_one_text_frame() -> None:
    framing = ServerFraming(1000)
    assert framing.wrap(b'{"a":\n1}') == framed(b'{"a":\n1}')
    assert framing.wrap(b"\xff") == framed("\ufffd".encode())
    assert framing.wrap("é".encode()) == framed("é".encode())
    assert framing.wrap(b"x" * 200) == b"\x81\x7e\x00\xc8" + b"x" * 200


# --- closing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason", "code"),
    [
        (close_frame(4000, "bye"), "the peer closed the connection: 4000 bye", 4000),
        (frame(b"x" * 1001), "message is larger than the limit of 1000 bytes", CloseCode.TOO_BIG),
        (b"\x81\xff" + (1 << 40).to_bytes(8, "big"), "message is larger than the limit of 1000 bytes", 1009),
        (frame(b"", CONTINUED), "unexpected continuation frame (1002)", 1002),
        (frame(b"x", last=False) + close_frame(1000), "incomplete fragmented message (1002)", 1002),
        (b"\x81\x02{}", "incorrect masking (1002)", 1002),
        (frame(b"\x03\xe8\xff", CLOSE), "invalid start byte at position 0 (1007)", 1007),
    ],
    ids=["close", "too large", "claims to be too large", "continues nothing", "fragment", "no mask", "close text"],
)
def test_end_of_the_connection_has_reason_and_close_frame(data: bytes, reason: str, code: int) -> None:
    framing = ServerFraming(1000)
    assert framing.feed(frame(b"before") + data + frame(b"after")) == [b"before"]
    assert not framing.open
    assert framing.failure is None
    assert framing.end_reason == reason
    assert framing.closed_by_peer == (code == 4000)
    framing.close(CloseCode.GOING_AWAY, "")  # a close frame is on its way already
    output, last = framing.take_output()
    assert (output[0], struct.unpack("!H", output[2:4])[0], last) == (0x80 | CLOSE, code, True)


def test_empty_close_frame_is_answered() -> None:
    framing = ServerFraming(1000)
    framing.feed(frame(b"", CLOSE))
    assert framing.end_reason == "the peer closed the connection"
    assert framing.take_output() == (b"\x88\x00", True)


def test_close_awaits_the_close_frame_of_the_peer() -> None:
    framing = ServerFraming(1000)
    framing.close(CloseCode.GOING_AWAY, "é" * 100)
    assert framing.take_output() == (framed(b"\x03\xe9" + "é".encode() * 61, CLOSE), False)
    assert not framing.open
    assert not framing.closed_by_peer
    framing.feed(frame(b"late") + close_frame(1001))
    assert framing.closed_by_peer
    assert framing.take_output() == (b"", True)
