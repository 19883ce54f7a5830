"""Invisible and bidirectional characters in texts for models, which people who review the texts do not see. Pure."""

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

__all__ = ["find_hidden", "find_hidden_in"]

# Line ends, and spaces and joiners of languages.
_LAYOUT: Final = frozenset("\n\r\t\u00a0\u2003\u3000\u202f\u200c\u200d")
# Characters without a shape that Python counts as printable: fillers, combining marks, and variation selectors other
# than those of emoji (U+FE0E and U+FE0F).
_BLANK: Final = frozenset(
    chr(code)
    for codes in (
        (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
        range(0x180B, 0x1810),
        range(0xFE00, 0xFE0E),
        range(0xE0100, 0xE01F0),
    )
    for code in codes
)
_MAX_NAMED: Final = 3  # characters that a description names


def find_hidden(text: str) -> str | None:
    """Return the names of the hidden characters of a text, as `U+202E RIGHT-TO-LEFT OVERRIDE`; None without any."""
    if text.isascii() and text.isprintable():
        return None
    found = [*dict.fromkeys(char for char in text if _is_hidden(char))]
    if not found:
        return None
    named = ", ".join(f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip() for char in found[:_MAX_NAMED])
    return named if len(found) <= _MAX_NAMED else f"{named} and {len(found) - _MAX_NAMED} more"


def find_hidden_in(value: Any) -> str | None:
    """Return the names of the hidden characters in the texts and member names of a JSON value."""
    return next((found for found in map(find_hidden, _texts(value)) if found is not None), None)


def _is_hidden(char: str) -> bool:
    return (not char.isprintable() and char not in _LAYOUT) or char in _BLANK


def _texts(value: Any) -> Iterator[str]:
    rest: list[Any] = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            rest += cast("Mapping[str, Any]", one).keys()
            rest += cast("Mapping[str, Any]", one).values()
        elif isinstance(one, list):
            rest += cast("list[Any]", one)
