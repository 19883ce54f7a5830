"""Parts of messages: texts of a peer, made fit for exceptions, logs and terminals; and values in a repr."""

from typing import Final

__all__ = ["MAX_PRINTABLE", "printable", "shortened"]

MAX_PRINTABLE: Final = 10_000  # characters of a text that are shown


def printable(text: str, *, max_length: int | None = MAX_PRINTABLE, multiline: bool = False) -> str:
    """A text without anything that could move a cursor, change colours, forge a line or hide what follows: control
    characters, ESC and bidirectional overrides are shown by their codes, and what is longer than `most` is cut off.
    With `lines`, line ends and tabs stay."""
    if max_length is not None and len(text) > max_length:
        text = f"{text[:max_length]}… ({len(text)} characters)"
    if text.isprintable():
        return text
    kept = "\n\t" if multiline else ""
    return "".join(char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in text)


def shortened(value: object, max_length: int = 100) -> str:
    """The repr of a value, cut off after `most` characters."""
    text = printable(repr(value), max_length=None)
    return text if len(text) <= max_length else f"{text[:max_length]}…"
