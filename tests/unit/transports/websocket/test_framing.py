"""The client's protocol, byte by byte, with the server's side of the library at the other end."""

from websockets.http11 import Request
from websockets.server import ServerProtocol

from trunkline.transports.websocket.framing import ClientFraming


def joined() -> tuple[ClientFraming, ServerProtocol]:
    """Both ends, after the handshake."""
    ours, theirs = ClientFraming("ws://example.org/mcp", {}, 1024), ServerProtocol()
    theirs.receive_data(ours.handshake_request())
    (request,) = theirs.events_received()
    assert isinstance(request, Request)
    theirs.send_response(theirs.accept(request))
    assert ours.receive_handshake(b"".join(theirs.data_to_send()))
    return ours, theirs


def test_handshake_response_may_be_fragmented() -> None:
    ours, theirs = ClientFraming("ws://example.org/mcp", {}, 1024), ServerProtocol()
    theirs.receive_data(ours.handshake_request())
    (request,) = theirs.events_received()
    theirs.send_response(theirs.accept(request))  # type: ignore[arg-type]
    answer = b"".join(theirs.data_to_send())
    assert [ours.receive_handshake(answer[at : at + 1]) for at in range(len(answer))] == [False] * (len(answer) - 1) + [
        True
    ]


def test_fragments_are_joined_and_frames_returned_together() -> None:
    ours, theirs = joined()
    theirs.send_text(b"one")
    theirs.send_text(b"tw", fin=False)
    theirs.send_ping(b"between")
    theirs.send_continuation(b"o", fin=True)
    assert ours.feed(b"".join(theirs.data_to_send())) == [b"one", b"two"]
    theirs.receive_data(ours.pending_output())
    assert [event.data for event in theirs.events_received()] == [b"between"]  # type: ignore[union-attr]


def test_frames_after_a_binary_frame_are_discarded() -> None:
    ours, theirs = joined()
    theirs.send_text(b"one")
    theirs.send_binary(b"two", fin=False)
    theirs.send_continuation(b"three", fin=True)
    theirs.send_text(b"four")
    assert ours.feed(b"".join(theirs.data_to_send())) == [b"one"]
    assert ours.failure_reason == "a message is a text frame, not a binary one (1003)"
    assert ours.closed_by_peer is None
    assert ours.close_frame() == b""
    theirs.receive_data(ours.pending_output())
    assert theirs.close_rcvd is not None
    assert theirs.close_rcvd.code == 1003
