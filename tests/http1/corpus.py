"""The corpus: malformed and borderline HTTP/1.1 requests, each with the verdict of a strict reading of RFC 9112 and 9110.

Each file in `requests/` is one family of cases, and each case a table:

    ["tab before the colon"]
    rfc = "9112 5.1"                        # the document and section behind the verdict
    send = "<get>X-A\\t: b\\r\\n\\r\\n"         # the bytes, as Latin-1
    answers = "400"                         # the responses, in order
    then = "close"                          # the connection afterwards: close, keep, either or upgraded
    half_close = true                       # the client closes its sending side behind the bytes; default: false
    head = true                             # the first response has no body, because it answers HEAD; default: false
    ids = [1]                               # the JSON-RPC ids of the responses that have one; default: unchecked

In `answers`, `|` separates statuses where the RFCs leave a choice, `?` makes a response optional, and `100*200` stands for
one hundred times 200. In `send`, a word in angle brackets stands for the bytes in `WORDS`, and `<9000*x>` for 9,000 times x,
which is a character or one of those words.
"""

import re
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

__all__ = ["CASES", "PROBE", "WORDS", "Case"]

FOLDER: Final = Path(__file__).parent / "requests"
GET: Final = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST: Final = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nContent-Type: application/json\r\n"


def ping(ident: str) -> bytes:
    """Return a message of 40 bytes, for an id of one digit."""
    return b'{"jsonrpc":"2.0","id":%b,"method":"ping"}' % ident.encode()


def post(body: bytes, *headers: bytes) -> bytes:
    """Return a POST request to the endpoint."""
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (POST, lines, len(body), body)


def chunks(body: bytes, extension: bytes = b"") -> bytes:
    """Return a body in chunks of one byte, without the last chunk."""
    return b"".join(b"1%b\r\n%c\r\n" % (extension, byte) for byte in body)


PING: Final = ping("1")
LATER: Final = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"later","arguments":{"text":"x"}}}'
PROBE: Final = post(ping('"probe"'))
"""A request that shows whether a connection was kept."""

WORDS: Final = {
    "get": GET,  # without the empty line, so that fields can follow
    "post": POST,  # likewise
    "request": GET + b"\r\n",  # 40 bytes
    "ping": PING,  # 40 bytes, 28 in hexadecimal
    **{f"ping {ident}": ping(ident) for ident in "2345"},
    "chunks": b"28\r\n" + PING + b"\r\n0\r\n\r\n",
    "bytewise": chunks(PING),
    "bytewise extended": chunks(PING, b";a=" + b"x" * 250),
    "later": post(LATER),  # a call whose result takes some turns of the event loop; its id is 7
    "later close": post(LATER, b"Connection: close"),
    "field": b"X-A: b\r\n",
    "crlf": b"\r\n",
    "sp": b" ",
    "lt": b"<",
    "gt": b">",
}


class Case(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One case of the corpus."""

    family: str
    name: str
    rfc: str
    send: str
    answers: str
    then: Literal["close", "keep", "either", "upgraded"]
    half_close: bool = False
    head: bool = False
    ids: list[int] | None = None

    @property
    def id(self) -> str:
        """The name of the case within the whole corpus."""
        return f"{self.family}: {self.name}"

    @cached_property
    def data(self) -> bytes:
        """The bytes that the client sends."""
        return re.sub(rb"<(?:(\d+)\*)?([^<>]+)>", _expand, self.send.encode("latin-1"))

    @cached_property
    def pattern(self) -> "re.Pattern[str]":
        """A pattern that matches the statuses of all responses, each with a space behind it."""
        return re.compile("".join(f"(?:(?:{statuses}) ){{{least},{most}}}" for statuses, least, most in self._items()))

    @cached_property
    def least(self) -> int:
        """The number of responses that are not optional."""
        return sum(least for _, least, _ in self._items())

    def _items(self) -> list[tuple[str, int, int]]:
        """Return the alternatives of each response, and how many times it is expected at least and at most."""
        found: list[tuple[str, int, int]] = []
        for item in self.answers.split():
            times, _, statuses = item.rpartition("*")
            most = int(times or 1)
            found.append((statuses.rstrip("?"), 0 if statuses.endswith("?") else most, most))
        return found


def _expand(found: "re.Match[bytes]") -> bytes:
    word = found[2].decode("latin-1")
    once = found[2] if len(word) == 1 else WORDS[word]
    return once * int(found[1] or 1)


def _load(path: Path) -> list[Case]:
    tables: dict[str, dict[str, Any]] = tomllib.loads(path.read_text("utf-8"))
    return [msgspec.convert({"family": path.stem, "name": name} | table, Case) for name, table in tables.items()]


CASES: Final = [case for path in sorted(FOLDER.glob("*.toml")) for case in _load(path)]
