"""Entries of a receipt log, and their encoding as lines.

A line is a JSON object that ends with its hash: SHA-256 over the hash of the line before and the bytes of this line up
to the member `hash`. So a line can be read with any JSON tool, and checked without decoding it.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, cast

from msgspec import Struct

from trunkline.wire.codec import json_decoder, to_json

__all__ = [
    "FORMAT",
    "GENESIS",
    "CallEntry",
    "Checkpoint",
    "Entry",
    "Gap",
    "Header",
    "Unreadable",
    "format_time",
    "read_entry",
    "seal",
    "split_line",
]

FORMAT: Final = 1
GENESIS: Final = bytes(32)
"""The hash before the first line of a chain."""

_HASH_MEMBER: Final = b',"hash":"'
_END: Final = b'"}\n'
_HEX_DIGITS: Final = 64
_SUFFIX: Final = len(_HASH_MEMBER) + _HEX_DIGITS + len(_END)


class Header(Struct, frozen=True, tag_field="kind", tag="header", kw_only=True):
    """The first line of a file."""

    n: int
    format: int = FORMAT
    chain: str
    segment: int  # number of this file in its chain, from 1
    follows: str  # hash of the last line of the segment before, in hexadecimal
    time: str
    server: str
    pid: int
    key: str | None = None  # the public key of the checkpoints, in hexadecimal
    links: dict[str, tuple[int, str]] = {}  # last line of other chains when this one began: its number and hash


class CallEntry(Struct, frozen=True, tag_field="kind", tag="call", kw_only=True, omit_defaults=True):
    """The receipt of a call, or of the end of a task."""

    n: int
    time: str  # when the call ended
    method: str
    name: str | None = None  # of the tool or prompt, or the URI of the resource
    principal: str | None = None
    session: str | None = None  # digest of the session id
    connection: int | None = None  # number of the connection in its process
    transport: str | None = None
    revision: str | None = None
    request: int | str | None = None  # id of the request
    task: str | None = None  # digest of the id of the task that the call has become, or that has ended
    outcome: str
    code: int | None = None  # of an error response
    arguments: str | None = None  # digest
    result: str | None = None  # digest of the result or error that was sent
    seconds: float | None = None


class Gap(Struct, frozen=True, tag_field="kind", tag="gap", kw_only=True):
    """Calls without receipts: the log could not be written, and the server was told to continue."""

    n: int
    time: str
    lost: int


class Checkpoint(Struct, frozen=True, tag_field="kind", tag="checkpoint", kw_only=True):
    """A signature over all lines before."""

    n: int
    time: str
    signature: str | None = None  # in hexadecimal; None for a log without a key
    final: bool = False  # the last line of a chain


Entry = Header | CallEntry | Gap | Checkpoint

_decode: Final[Callable[[bytes], Entry]] = json_decoder(cast("Any", Entry))


class Unreadable(ValueError):
    """A line that is not an entry."""


def seal(entry: Entry, previous: bytes) -> tuple[bytes, bytes]:
    """Return an entry as a line, and its hash."""
    body = to_json(entry)[:-1]
    mark = sha256(previous + body)
    return b"".join((body, _HASH_MEMBER, mark.hexdigest().encode(), _END)), mark.digest()


def split_line(line: bytes) -> tuple[bytes, bytes]:
    """Return the hashed bytes of a line, and its hash. Raises `Unreadable`."""
    at = len(line) - _SUFFIX
    if at <= 0 or not line.endswith(_END) or line[at : at + len(_HASH_MEMBER)] != _HASH_MEMBER:
        raise Unreadable("the line does not end with a hash")
    text = line[at + len(_HASH_MEMBER) : -len(_END)]
    try:
        mark = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        raise Unreadable("the hash is not hexadecimal") from None
    if mark.hex().encode() != text:  # capitals and spaces would be accepted
        raise Unreadable("the hash is not hexadecimal")
    return line[:at], mark


def read_entry(body: bytes) -> Entry:
    """Return the entry of a line from its hashed bytes. Raises `Unreadable`."""
    try:
        return _decode(body + b"}")
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from None


def format_time(seconds: float) -> str:
    """Return a time as entries have it: UTC, with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
