"""Text for messages: escapes text of peers for exceptions, logs and terminals, and shortens values."""

from typing import Final

__all__ = ["MAX_PRINTABLE", "printable", "shortened"]

MAX_PRINTABLE: Final = 10_000  # characters


def printable(text: str, *, max_length: int | None = MAX_PRINTABLE, multiline: bool = False) -> str:
    """Escape control characters, ESC and bidirectional overrides, which could move a cursor, change colours, forge a
    line or hide text. Cut the text off after `max_length` characters. With `multiline`, line ends and tabs stay."""
    if max_length is not None and len(text) > max_length:
        text = f"{text[:max_length]}… ({len(text)} characters)"
    if text.isprintable():
        return text
    kept = "\n\t" if multiline else ""
    return "".join(char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in text)


def shortened(value: object, max_length: int = 100) -> str:
    """Return the repr of a value, cut off after `max_length` characters."""
    text = printable(repr(value), max_length=None)
    return text if len(text) <= max_length else f"{text[:max_length]}…"
