"""A yardstick for several workers: processes that answer calls of 1 to 2 ms on one listening socket, with nothing of a
protocol in between. Not an MCP server.

`bare_workers.py http PORT`, with `BENCH_WORKERS` processes below this one. They take turns in accepting, so that all
have equally many connections.
"""

import os
import re
import select
import signal
import socket
import sys

from msgspec import json

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
HANDSHAKE = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "bare"}}


def answer_to(body: bytes) -> bytes:
    """The response to one POST."""
    request = json.decode(body)
    if "id" not in request:
        return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
    if request["method"] == "initialize":
        result = HANDSHAKE
    else:
        sum(range(60_000))  # as the tool `burn` of the other servers
        text = request["params"]["arguments"]["text"]
        result = {"content": [{"type": "text", "text": text}], "structuredContent": {"result": text}}
    answer = json.encode({"jsonrpc": "2.0", "id": request["id"], "result": result})
    head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: none\r\n"
    return f"{head}content-length: {len(answer)}\r\n\r\n".encode() + answer


def serve(listening: socket.socket, turn: int, next_turn: int, parent: int) -> None:
    """Answer the requests of all connections, until the other end of the pipe `parent` is closed. A byte in the pipe
    `turn` allows one accept, and goes on to the next process.
    """
    poll = select.poll()
    poll.register(turn, select.POLLIN)
    poll.register(parent, select.POLLIN)
    connections: dict[int, socket.socket] = {}
    unread: dict[int, bytes] = {}
    while True:
        for number, _ in poll.poll():
            if number == parent:
                return
            if number == turn:
                poll.unregister(turn)
                poll.register(listening, select.POLLIN)
            elif number == listening.fileno():
                connection, _ = listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()], unread[connection.fileno()] = connection, b""
                poll.register(connection, select.POLLIN)
                poll.unregister(listening)
                os.write(next_turn, os.read(turn, 1))
                poll.register(turn, select.POLLIN)
            elif data := connections[number].recv(1 << 16):
                head, end, body = (unread[number] + data).partition(b"\r\n\r\n")
                length = LENGTH.search(head)
                if end and length is not None and len(body) >= int(length[1]):
                    unread[number] = b""
                    connections[number].sendall(answer_to(body))
                else:
                    unread[number] += data
            else:
                poll.unregister(number)
                del unread[number]
                connections.pop(number).close()


def main() -> None:
    """Fork the processes, and wait."""
    with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as listening:
        count = int(os.environ["BENCH_WORKERS"])
        turns = [os.pipe() for _ in range(count)]
        parent, kept = os.pipe()
        for number in range(count):
            if os.fork() == 0:
                os.close(kept)
                serve(listening, turns[number][0], turns[(number + 1) % count][1], parent)
                return
        os.write(turns[0][1], b"x")
        signal.pause()


main()
