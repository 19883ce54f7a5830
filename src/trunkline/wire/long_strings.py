"""Long strings in JSON: base64 or the text of a file, which make up most of a long message.

A parser looks at each character of a string for escapes. `shorten` looks for quotes instead, which is many times
faster, and takes the long strings out of a text, to be decoded each on its own. What remains is short, so it costs
little to decode and to check.

Invariant: if `shorten` returns a text and `restore` succeeds with the values decoded from it, they are those of the
original text. Outside strings a quote always opens one, so counting quotes finds the same strings as a parser does; and
after any valid string a parser is in the same state.
"""

from collections.abc import Callable
from typing import Any, Final, cast

__all__ = ["LONG_STRING", "ShortenedJson", "shorten"]

LONG_STRING: Final = 64 * 1024  # bytes; parsing a shorter string costs less than taking it out
_MAX_STRINGS: Final = 48  # looked at in one text; with more, finding them costs more than it saves
_SAMPLE: Final = 2048  # first bytes of a text, which show whether it has many strings
_MAX_ESCAPED_QUOTES: Final = 8  # in one string, for the same reason
_MAX_REST: Final = LONG_STRING  # bytes of a shortened text, whose values are looked at one by one
_NUL: Final = b"\\u0000"  # begins a placeholder
_BACKSLASH: Final = ord("\\")


class ShortenedJson:
    """A JSON text with placeholders for its long strings, and these strings."""

    __slots__ = ("_strings", "text")

    def __init__(self, text: bytes, strings: list[str]) -> None:
        self.text = text
        self._strings = strings

    def restore(self, values: dict[str, Any]) -> bool:
        """Replace the placeholders in the values decoded from the text. Return False if one of them is not among the
        values: it may be the name of a member."""
        missing = len(self._strings)
        waiting: list[dict[Any, Any] | list[Any]] = [values]
        while waiting:
            container = waiting.pop()
            for place, value in container.items() if isinstance(container, dict) else enumerate(container):
                if isinstance(value, str):
                    if value.startswith("\0"):
                        container[place] = self._strings[int(value[1:])]
                        missing -= 1
                elif isinstance(value, dict | list):
                    waiting.append(cast("Any", value))
        return not missing


def shorten(text: bytes, decode_string: Callable[[memoryview], str]) -> ShortenedJson | None:
    """Take the long strings out of a JSON text. Return None if it has none, or if a long text would remain.
    `decode_string` decodes a string with its quotes; it raises ValueError for one that is not valid."""
    if text.count(b'"', 0, _SAMPLE) > 2 * _MAX_STRINGS:
        return None
    view = memoryview(text)
    pieces: list[bytes] = []
    strings: list[str] = []
    rest = end = 0
    for _ in range(_MAX_STRINGS):
        start = text.find(b'"', end) + 1
        if not start or len(text) - start < LONG_STRING:
            break
        closing = _find_closing_quote(text, start)
        if closing < 0:
            break
        if closing - start >= LONG_STRING:
            pieces += text[rest:start], b"%b%d" % (_NUL, len(strings))
            strings.append(decode_string(view[start - 1 : closing + 1]))
            rest = closing
        end = closing + 1
    if not strings:
        return None
    short = b"".join((*pieces, text[rest:]))
    if len(short) > _MAX_REST or short.count(_NUL) != len(strings):
        return None
    return ShortenedJson(short, strings)


def _find_closing_quote(text: bytes, start: int) -> int:
    """Return the position of the quote that closes a string; -1 if there is none, or if finding it takes long."""
    position = text.find(b'"', start)
    for _ in range(_MAX_ESCAPED_QUOTES):
        if position < 0 or text[position - 1] != _BACKSLASH:
            return position
        if text[position - 2] == _BACKSLASH:  # the quote is escaped only after an odd number of them
            return -1
        position = text.find(b'"', position + 1)
    return -1
