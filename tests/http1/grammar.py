"""Random sequences of HTTP/1.1 requests: valid ones by a grammar, with odd choices and mutated bytes here and there.

    sequence = make_sequence(Random("1/0"))
    sequence.data, sequence.plain

The same seed makes the same sequence.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

__all__ = ["Sequence", "make_sequence"]

ODD_SHARE: Final = 0.5  # of sequences, in which a request may have odd parts
MUTATED_SHARE: Final = 0.5  # of sequences, in which some bytes are mutated
MOST_REQUESTS: Final = 4
MOST_MUTATIONS: Final = 3
SPECIAL_BYTES: Final = b"\r\n\t :;,=\"'\x00\x0b\x7f\x80\xff0139afAFxX+-_.*/#?@[]{}()<>\\"
SPECIAL_TEXTS: Final = (
    *(
        b"\r\n",
        b"\r\n\r\n",
        b"\n\n",
        b"\r\n ",
        b"0\r\n\r\n",
        b"chunked",
        b"Content-Length: 3\r\n",
        b"HTTP/1.1",
        b"GET / ",
    ),
    *(b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Host: a\r\n", b", ", b"identity", b"0x", b"1_0"),
)
ODD_LENGTHS: Final = (
    "+%d",
    "-%d",
    "0x%x",
    "%d, %d",
    "%d,",
    "0%d",
    "%d.0",
    "%d ",
    " \t%d",
    "%d_0",
    "%d;a",
    "%d\x00",
    "",
)
ODD_CODINGS: Final = (
    *(
        "gzip, chunked",
        "chunked, gzip",
        "chunked, chunked",
        "identity",
        "identity, chunked",
        "Chunked",
        " chunked",
        "gzip",
    ),
    *("chunked;a=b", "chunked,", ",chunked", '"chunked"', "xchunked", "chunked\t", "chunked\x0b", "chunked\r\n ", ""),
)
ODD_SIZES: Final = (
    "+%x",
    "-%x",
    "0x%x",
    "%x ",
    " %x",
    "%x\t",
    "%xg",
    "%x;",
    "%x;a=",
    '%x;a="',
    "%x\x00",
    "%x\r",
    "%x,%x",
    "",
)
ODD_LINES: Final = (
    *(" HTTP/1.0", " HTTP/1.2", " HTTP/2.0", " HTTP/0.9", "  HTTP/1.1", " HTTP/1.1 ", " http/1.1", "\tHTTP/1.1", ""),
    *(" HTTP/01.1", " HTTP/1.1\r", " HTTP/11"),
)
ODD_FIELDS: Final = (
    *(b"X-A : b", b" X-A: b", b"X-A", b": b", b"X-A: a\r\n b", b"X-A: a\x00b", b"X-A: a\rb", b"X A: b", b"X\x80: b"),
    *(
        b"X-A: a\nX-B: b",
        b"Content-Length : 3",
        b"Transfer-Encoding : chunked",
        b"Content_Length: 3",
        b"Content-Length\t: 3",
    ),
    *(
        b"Host: localhost",
        b"Host: other",
        b"Connection: close, x",
        b"Expect: 100-continue",
        b"Expect: x",
        b"TE: trailers",
    ),
    *(
        b"Connection: Upgrade\r\nUpgrade: x",
        b"Connection: content-length",
        b"Connection: transfer-encoding",
        b"Upgrade: h2c",
    ),
)
PLAIN_FIELDS: Final = (
    *(
        b"X-A: b",
        b"X-A:b",
        b"x-a:\tb \t",
        b"X-A:",
        b"X-Long: " + b"x" * 300,
        b"X-Text: \xc3\xa9\xff",
        b"A!#$%&'*+-.^_`|~: b",
    ),
    *(
        b"Connection: keep-alive",
        b"User-Agent: a (b; c)",
        b"Cookie: a=b; c=d",
        b"TE: trailers",
        b"Trailer: X-T",
        b"X: a:b,c",
    ),
)


class Sequence(NamedTuple):
    """Bytes of one or more requests."""

    data: bytes
    plain: bool  # all of them are valid, and nothing is mutated


def make_sequence(random: Random) -> Sequence:
    """Return a sequence of requests."""
    odd = random.random() < ODD_SHARE
    requests = [_Request(random, odd).make() for _ in range(random.randint(1, MOST_REQUESTS))]
    data = b"".join(requests)
    if random.random() >= MUTATED_SHARE:
        return Sequence(data, not odd)
    for _ in range(random.randint(1, MOST_MUTATIONS)):
        data = random.choice(MUTATIONS)(random, data)
    return Sequence(data, plain=False)


class _Request:
    """One request in the making."""

    def __init__(self, random: Random, odd: bool) -> None:
        self._random = random
        self._odd = odd
        self._end = b"\n" if self._strange(0.03) else b"\r\n"

    def _strange(self, share: float = 0.1) -> bool:
        return self._odd and self._random.random() < share

    def _perhaps(self, share: float) -> bool:
        return self._random.random() < share

    def make(self) -> bytes:
        """Return its bytes."""
        random = self._random
        method, target = random.choice(
            (
                *(("POST", "/mcp"),) * 6,
                *(("GET", "/livez"), ("GET", "/livez?a=b"), ("GET", "/nothing"), ("POST", "/nothing")),
                *(
                    ("DELETE", "/mcp"),
                    ("OPTIONS", "/mcp"),
                    ("GET", "http://localhost/livez"),
                    ("POST", "http://127.0.0.1/mcp"),
                ),
            )
        )
        version = random.choice(ODD_LINES) if self._strange(0.05) else " HTTP/1.1"
        lines = [f"{method} {target}{version}".encode("latin-1"), self._cased(b"Host: localhost")]
        if method == "POST":
            lines += [b"Content-Type: application/json", b"Accept: application/json, text/event-stream"]
        lines += random.sample(PLAIN_FIELDS, random.randint(0, 3))
        if self._strange(0.15):
            lines.insert(random.randint(1, len(lines)), random.choice(ODD_FIELDS))
        body = self._body() if method == "POST" or self._perhaps(0.2) else None
        framing, content = (b"", b"") if body is None else self._framed(body)
        head = b"".join(line + self._end for line in lines)
        before = b"\r\n" if self._strange() else b""  # h11 refuses what RFC 9112, 2.2, allows
        return before + head + framing + self._end + content

    def _cased(self, line: bytes) -> bytes:
        name, colon, value = line.partition(b":")
        return self._random.choice((name, name.lower(), name.upper())) + colon + value

    def _body(self) -> bytes:
        random = self._random
        ident = random.randint(1, 999)
        padding = b" " * random.choice((0, 0, 0, 1, 20, 300))
        if self._perhaps(0.1):  # a body that looks like a request
            return b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
        if self._perhaps(0.1):
            return random.choice((b"", b"0\r\n\r\n", b"\r\n", b"x" * 20))
        if self._perhaps(0.5):
            return padding + b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % ident
        text = random.choice(("a", "é", "x" * 200, "\r\n\r\n", "0\r\n\r\nGET / HTTP/1.1\r\n\r\n"))
        params = {"name": "echo", "arguments": {"text": text}}
        call = {"jsonrpc": "2.0", "id": ident, "method": "tools/call", "params": params}
        return padding + json.dumps(call, ensure_ascii=self._perhaps(0.5)).encode()

    def _framed(self, body: bytes) -> tuple[bytes, bytes]:
        """Return the fields that frame a body, and what is sent of it."""
        end = self._end
        length = self._cased(b"Content-Length: %d" % len(body)) + end
        if self._strange():
            odd = self._random.choice(ODD_LENGTHS)
            length = (
                b"Content-Length: " + odd.replace("%d", str(len(body))).replace("%x", f"{len(body):x}").encode() + end
            )
        coding = self._cased(b"Transfer-Encoding: chunked") + end
        if self._strange():
            coding = b"Transfer-Encoding: " + self._random.choice(ODD_CODINGS).encode() + end
        if self._strange(0.05):
            both = length + (length if self._perhaps(0.5) else b"Content-Length: 1" + end)
            return both, body
        if self._strange(0.05):
            both = length + coding if self._perhaps(0.5) else coding + length
            return both, self._random.choice((body, self._chunked(body)))
        return (length, body) if self._perhaps(0.5) else (coding, self._chunked(body))

    def _chunked(self, body: bytes) -> bytes:
        random = self._random
        pieces: list[bytes] = []
        while body:
            size = random.choice((1, 10, len(body), len(body), random.randint(1, len(body))))
            pieces.append(self._chunk(body[:size]))
            body = body[size:]
        last = random.choice((b"0", b"0", b"000", b"0;a=b"))
        trailers = b"".join(random.choices((b"X-T: a\r\n", b"X-U:\r\n"), k=random.choice((0, 0, 1, 2))))
        if self._strange(0.05):
            trailers += random.choice((b"Content-Length: 5", *ODD_FIELDS)) + b"\r\n"
        return b"".join(pieces) + last + b"\r\n" + trailers + (b"\n" if self._strange(0.03) else b"\r\n")

    def _chunk(self, piece: bytes) -> bytes:
        random = self._random
        size = random.choice(("%x", "%x", "%X", "00%x", "%x;a", '%x;a=b;c="d;e"'))
        if self._strange(0.05):
            size = random.choice(ODD_SIZES)
        digits = f"{len(piece):X}" if "%X" in size else f"{len(piece):x}"
        ends = [random.choice((b"\n", b"\r", b"", b"\r\r\n")) if self._strange(0.02) else b"\r\n" for _ in range(2)]
        return size.replace("%x", digits).replace("%X", digits).encode("latin-1") + ends[0] + piece + ends[1]


# --- mutations of bytes ---------------------------------------------------------------------------


def _insert(random: Random, data: bytes) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + bytes([random.choice(SPECIAL_BYTES)]) + data[at:]


def _replace(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) or 1)
    return data[:at] + bytes([random.choice(SPECIAL_BYTES)]) + data[at + 1 :]


def _delete(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) or 1)
    return data[:at] + data[at + random.choice((1, 1, 1, 2, 10)) :]


def _repeat(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) or 1)
    end = at + random.choice((1, 2, 4, 20))
    return data[:end] + data[at:]


def _insert_text(random: Random, data: bytes) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(SPECIAL_TEXTS) + data[at:]


def _insert_line(random: Random, data: bytes) -> bytes:
    """Insert a text where a line begins."""
    starts = [at + 2 for at in range(len(data) - 1) if data[at : at + 2] == b"\r\n"] or [0]
    at = random.choice(starts)
    return data[:at] + random.choice(SPECIAL_TEXTS) + data[at:]


def _touch_line_end(random: Random, data: bytes) -> bytes:
    ends = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\r\n"] or [0]
    at = random.choice(ends)
    return data[:at] + random.choice((b"\n", b"\r", b"\r\r\n", b"\n\r", b" \r\n", b"\r\n ", b"")) + data[at + 2 :]


def _change_digit(random: Random, data: bytes) -> bytes:
    digits = [at for at, byte in enumerate(data) if byte in b"0123456789"] or [0]
    at = random.choice(digits)
    return data[:at] + random.choice((b"0", b"1", b"5", b"9", b"a", b"00")) + data[at + 1 :]


def _cut(random: Random, data: bytes) -> bytes:
    return data[: random.randint(0, len(data))]


MUTATIONS: Final[tuple[Callable[[Random, bytes], bytes], ...]] = (
    *(_insert, _insert, _replace, _replace, _delete, _repeat, _insert_text, _insert_line),
    *(_touch_line_end, _touch_line_end, _change_digit, _change_digit, _cut),
)
