"""Sends requests to an MCP server over HTTP and measures the cost of the responses.

It speaks raw HTTP/1.1 over persistent connections: a request is one write, and the driver parses a response only
after the clock has stopped. Every connection has its own session and one request in flight.
"""

import json
import re
import select
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from bench.driver import (
    INITIALIZE,
    SILENCE_MS,
    BenchError,
    Process,
    Question,
    Sample,
    WrongAnswer,
    check_answers,
)
from tests.ports import HeldPort

PATH = "/mcp"
URI = "bench://static"
START_S = 60.0  # until a spawned server listens
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"
_OFFICIAL = "io.modelcontextprotocol/"
_TOLD = re.compile(rb"^data: *([^ \r\n][^\r\n]*)\r?\n\r?\n", re.MULTILINE)


class HttpServerProcess(Process):
    """A server under test, over sockets. Leaving it, as a context manager, kills the server."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        stateless: str | None = None,
        token: str | None = None,
        *,
        exclusive: bool = False,
    ) -> None:
        """`stateless` is the revision that each request names; without it every connection has a session. `token`
        goes with every request. The port of an `exclusive` server is not held for it.
        """
        self._stateless = stateless
        self._authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
        self._held_port = HeldPort()
        self._port = self._held_port.number
        if exclusive:
            self._held_port.close()
        super().__init__([*command, "http", str(self._port)], env)
        self._lines: list[HttpConnection] = []
        self._streams: list[HttpConnection] = []
        self._next_id = 1

    def __enter__(self) -> Self:
        until = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
            except OSError as error:
                if self.ended or time.monotonic() > until:
                    last_words = self.last_words()
                    self.__exit__()
                    raise BenchError(f"the server does not listen\n{last_words}") from error
                time.sleep(0.02)
            else:
                return self

    def __exit__(self, *exc_info: object) -> None:
        for line in (*self._lines, *self._streams):
            line.close()
        super().__exit__(*exc_info)

    # --- calls ---------------------------------------------------------------------------------

    def ask(self, question: Question, count: int, window: int) -> Sample:
        """Send `count` requests over `window` connections, each with its own session, and check every response."""
        while len(self._lines) < window:
            self._lines.append(self._line_for(question))
        ids = self._ids(count)
        bodies = [_body(question, id_, self._stateless) for id_ in ids]
        for line in self._lines:
            line.revive()
        before = self.cpu_ns()
        answers = self._exchanged(bodies, self._lines[:window])
        spent = self.cpu_ns() - before
        check_answers(b"".join(answer_in(answer, question.tells) for answer in answers), ids, question.answered_by)
        return Sample(spent / count / 1000, sum(map(len, answers)) / count)

    def _line_for(self, question: Question) -> "HttpConnection":
        """A connection for a question."""
        if self._stateless is not None:
            return self._bare(question)
        return self._line() if question is INITIALIZE else self._opened(self._line())

    def _exchanged(self, bodies: Sequence[bytes], lines: Sequence["HttpConnection"]) -> list[bytes]:
        """Send every body over a free connection, and return the responses in the order of arrival."""
        poll, by_number = _poll(lines)
        left = iter(bodies)
        answers: list[bytes] = []
        for line in lines[: len(bodies)]:
            self._post(line, next(left))
        while len(answers) < len(bodies):
            for number, _ in self._events(poll):
                line = by_number[number]
                answer = self._heard(line)
                if answer is not None:
                    answers.append(answer)
                    body = next(left, None)
                    if body is not None:
                        self._post(line, body)
        return answers

    def _post(self, line: "HttpConnection", body: bytes) -> None:
        try:
            line.post(body)
        except OSError as error:
            raise BenchError(f"{error}\n{self.last_words()}") from error

    def _events(self, poll: select.poll) -> list[tuple[int, int]]:
        events = poll.poll(SILENCE_MS)
        if not events:
            raise BenchError(f"no answer for {SILENCE_MS // 1000} s\n{self.last_words()}")
        return events

    def _heard(self, line: "HttpConnection") -> bytes | None:
        try:
            return line.hear()
        except OSError as error:
            raise BenchError(f"{error or 'the server hung up'}\n{self.last_words()}") from error

    # --- notifications -------------------------------------------------------------------------

    def subscribe(self, count: int) -> None:
        """Open so many sessions, each subscribed to one resource and with a stream."""
        asking = self._line()
        self._lines.append(self._opened(self._line()))
        subscribing = Question("resources/subscribe", lambda _: {"uri": URI}, lambda _, result: result == {})
        for _ in range(count):
            self._opened(asking)
            self._answer_to(asking, subscribing)
            stream = self._line(asking.headers)
            stream.get()
            self._streams.append(stream)
        asking.close()
        for stream in self._streams:
            stream.wait_for(_END)

    def tell(self, telling: Question, count: int) -> Sample:
        """Notify the subscribers so many times; the sample is the cost per subscriber."""
        poll, by_number = _poll(self._streams)
        spent = 0
        for _ in range(count):
            body = _body(telling, id_ := next(iter(self._ids(1))))
            self._lines[0].revive()
            for stream in self._streams:
                stream.forget()
            before = self.cpu_ns()
            (answer,) = self._exchanged([body], self._lines[:1])
            waiting = set(by_number)
            while waiting:
                for number, _ in self._events(poll):
                    if told_in(by_number[number].read()):
                        waiting.discard(number)
            spent += self.cpu_ns() - before
            check_answers(message_of(answer), [id_], telling.answered_by)
            for stream in self._streams:
                _check_told(stream.heard)
        return Sample(spent / count / len(self._streams) / 1000, len(self._streams[0].heard))

    # --- sessions ------------------------------------------------------------------------------

    def open_sessions(self, count: int) -> None:
        """Open so many idle sessions, one after the other over one connection."""
        line = self._line()
        for _ in range(count):
            self._opened(line)
        line.close()

    # --- single requests -----------------------------------------------------------------------

    def _line(self, headers: str = "") -> "HttpConnection":
        return HttpConnection(self._port, headers, self._authorization)

    def _ids(self, count: int) -> range:
        self._next_id += count
        return range(self._next_id - count, self._next_id)

    def _opened(self, line: "HttpConnection") -> "HttpConnection":
        """The connection, with a new session."""
        line.headers = ""
        answer = self._answer_to(line, INITIALIZE)
        head, _, _ = answer.partition(_END)
        named = re.search(rb"\r\nmcp-session-id: *([^\r]+)", head, re.IGNORECASE)
        if named is None:
            raise WrongAnswer("the server opens no session")
        revision = json.loads(message_of(answer))["result"]["protocolVersion"]
        line.headers = f"Mcp-Session-Id: {named[1].decode()}\r\nMCP-Protocol-Version: {revision}\r\n"
        self._post(line, b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        if b" 202 " not in self._whole(line)[:20]:
            raise WrongAnswer("the server does not take notifications")
        return line

    def _bare(self, question: Question) -> "HttpConnection":
        """A connection without a session, for modern requests."""
        name = question.params(0).get("name", "")
        return self._line(
            f"MCP-Protocol-Version: {self._stateless}\r\nMcp-Method: {question.method}\r\nMcp-Name: {name}\r\n"
        )

    def _answer_to(self, line: "HttpConnection", question: Question) -> bytes:
        (id_,) = self._ids(1)
        self._post(line, _body(question, id_))
        answer = self._whole(line)
        check_answers(message_of(answer), [id_], question.answered_by)
        return answer

    def _whole(self, line: "HttpConnection") -> bytes:
        while (answer := self._heard(line)) is None:
            pass
        return answer


class HttpConnection:
    """One connection, with the headers of its session."""

    def __init__(self, port: int, headers: str, authorization: str = "") -> None:
        self._port = port
        self._authorization = authorization
        self._socket = _connected(port)
        self._buffer = bytearray(1 << 18)
        self._host = f"Host: 127.0.0.1:{port}\r\n"
        self.heard = bytearray()
        self.headers = headers

    @property
    def headers(self) -> str:
        """The headers of its session."""
        return self._headers

    @headers.setter
    def headers(self, headers: str) -> None:
        self._headers = headers
        self._post = (
            f"POST {PATH} HTTP/1.1\r\n{self._host}Content-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\n{self._authorization}{headers}Content-Length: "
        ).encode()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def revive(self) -> None:
        """Reconnect, if the server has closed the connection: some close after a few seconds."""
        if select.select([self._socket], [], [], 0)[0]:
            self.close()
            self._socket = _connected(self._port)

    def post(self, body: bytes) -> None:
        """Send a message."""
        self._socket.sendall(b"%b%d\r\n\r\n%b" % (self._post, len(body), body))

    def get(self) -> None:
        """Open the GET stream of its session."""
        self._socket.sendall(
            f"GET {PATH} HTTP/1.1\r\n{self._host}Accept: text/event-stream\r\n{self._headers}\r\n".encode()
        )

    def hear(self) -> bytes | None:
        """Read once. Return the whole response, if it is complete."""
        self.read()
        if not _is_whole(self.heard):
            return None
        answer = bytes(self.heard)
        self.heard.clear()
        return answer

    def read(self) -> bytearray:
        """Read once. Return all data so far."""
        size = self._socket.recv_into(self._buffer)
        if not size:
            raise ConnectionError("the server hung up")
        self.heard += memoryview(self._buffer)[:size]
        return self.heard

    def wait_for(self, end: bytes) -> None:
        """Read until some bytes have arrived."""
        while end not in self.read():
            pass

    def forget(self) -> None:
        """Discard all data so far, once the connection is silent."""
        while select.select([self._socket], [], [], 0)[0]:
            self.read()
        self.heard.clear()


def message_of(answer: bytes) -> bytes:
    """The message in a response, as a line: its body, or that of the event that has one."""
    head, _, body = answer.partition(_END)
    if b"chunked" in head.lower():
        body = b"".join(_chunks(body))
    if b"text/event-stream" not in head.lower():
        return body + b"\n"
    data = [line.removeprefix(b"data:").strip() for line in body.splitlines() if line.startswith(b"data:")]
    return b"\n".join(filter(None, data)) + b"\n"


def answer_in(answer: bytes, tells: str | None) -> bytes:
    """The response to a question, as a line, without earlier notifications. Raise `WrongAnswer` if there is none."""
    if tells is None:
        return message_of(answer)
    *told, last = message_of(answer).removesuffix(b"\n").split(b"\n")
    if not told or any(json.loads(line).get("method") != tells for line in told):
        raise WrongAnswer(f"not {tells} and then an answer: {answer[:300]!r}")
    return last + b"\n"


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, rest = body.partition(b"\r\n")
        yield rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]


def _is_whole(heard: bytearray) -> bool:
    head = heard.find(_END)
    if head < 0:
        return False
    length = _LENGTH.search(heard, 0, head + 2)
    return heard.endswith(b"0" + _END) if length is None else len(heard) >= head + 4 + int(length[1])


def told_in(heard: bytes | bytearray) -> list[bytes]:
    """The messages in a piece of a stream. The first event of a stream may be empty, and may come late."""
    return [bytes(data) for data in _TOLD.findall(heard)]


def _check_told(heard: bytearray) -> None:
    data = told_in(heard)
    if len(data) != 1:
        raise WrongAnswer(f"told {len(data)} times: {bytes(heard[:300])!r}")
    told: Any = json.loads(data[0])
    if told["method"] != "notifications/resources/updated" or told["params"]["uri"] != URI:
        raise WrongAnswer(f"told of something else: {data[0][:300]!r}")


def _body(question: Question, id_: int, stateless: str | None = None) -> bytes:
    said = {f"{_OFFICIAL}protocolVersion": stateless, f"{_OFFICIAL}clientCapabilities": question.capabilities}
    params = dict(question.params(id_)) | ({} if stateless is None else {"_meta": said})
    message = {"jsonrpc": "2.0", "id": id_, "method": question.method, "params": params}
    return json.dumps(message, separators=(",", ":")).encode()


def _poll(lines: Iterable[HttpConnection]) -> tuple[select.poll, dict[int, HttpConnection]]:
    poll, by_number = select.poll(), {line.fileno(): line for line in lines}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return poll, by_number


def _connected(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=SILENCE_MS / 1000)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
