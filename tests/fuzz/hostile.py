"""Hostile messages: well-formed, or nearly, but deep, huge, duplicated or invalid in Unicode."""

import json
import random
from collections.abc import Callable
from typing import Any

Random = random.Random
MARK = "\x00here\x00"  # never in a valid message; marks the position of a replacement text
_MARKED = json.dumps(MARK).encode()


def deep(rng: Random) -> bytes:
    """Nested arrays or objects, sometimes deeper than any stack, sometimes not closed."""
    depth = rng.choice((10, 100, 1000, 5000, 50_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")))
    ends = depth if rng.random() < 0.8 else rng.randrange(depth)
    return opening * depth + b"0" + closing * ends


def number(rng: Random) -> bytes:
    """Numbers that fit into no machine word, or that are invalid."""
    digits = b"9" * rng.choice((17, 19, 20, 40, 310, 4301, 20_000))
    return rng.choice(
        (
            digits, b"-" + digits, b"0." + b"0" * len(digits) + b"1", b"1e" + digits[:6], b"-1e" + digits[:6],
            b"1e-" + digits[:6], digits + b".5", b"-0", b"-0.0", b"1E400", b"00", b"+1", b".5", b"0x10", b"NaN", b"-Infinity",
        )
    )  # fmt: skip


def text(rng: Random) -> bytes:
    """Strings with halves of surrogate pairs, in escapes and in bytes, and with delimiters of other formats."""
    pieces = (
        rb"\ud800", rb"\udc00", rb"\udfff\ud800", rb"\uD83D\uDE00", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80",
        rb"\u0000", rb"\u2028", b"\xe2\x80\xa8", rb"\x", rb"\u12", b"\x7f", b"\x01", "\ufeff".encode(), b"a" * 300,
    )  # fmt: skip
    return b'"' + b"".join(rng.choices(pieces, k=rng.randint(1, 4))) + b'"'


def members(rng: Random) -> bytes:
    """An object with duplicate members."""
    keys = (b'"id"', b'"text"', b'"name"', b'"a"', b'""', rb'"\u0061"')
    values = (b"1", b'"x"', b"null", b"[]", b"{}")
    return b"{" + b",".join(rng.choice(keys) + b":" + rng.choice(values) for _ in range(rng.choice((2, 5, 500)))) + b"}"


VALUES: tuple[Callable[[Random], bytes], ...] = (deep, number, text, members)


def message(rng: Random, good: Any) -> bytes:
    """A valid message with one value replaced by a hostile one, or with one member duplicated."""
    if rng.random() < 0.25:
        return doubled(rng, good)
    return json.dumps(_marked(rng, good)).encode().replace(_MARKED, rng.choice(VALUES)(rng))


def doubled(rng: Random, good: Any) -> bytes:
    """The members of a valid message, and some of them again with other values, before or after the first."""
    members = good[0] if isinstance(good, list) else good
    parts = [json.dumps(key).encode() + b":" + json.dumps(value).encode() for key, value in members.items()]
    for key in rng.choices(list(members), k=rng.randint(1, 3)):
        value = rng.choice((b"1", b'"x"', b"null", b"{}", b'"2.0"', json.dumps(members[key]).encode()))
        parts.insert(rng.randrange(len(parts) + 1), json.dumps(key).encode() + b":" + value)
    return b"{" + b",".join(parts) + b"}"


def _marked(rng: Random, value: Any) -> Any:
    """A copy in which one value, at any depth, is the mark."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        chosen = rng.choice(list(value))
        return {key: _marked(rng, inner) if key == chosen else inner for key, inner in value.items()}
    if isinstance(value, list) and value and rng.random() < 0.9:
        chosen = rng.randrange(len(value))
        return [_marked(rng, inner) if index == chosen else inner for index, inner in enumerate(value)]
    return MARK
