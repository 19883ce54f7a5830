"""Texts of a peer, made fit to be shown: in exceptions, in logs and on a terminal."""

from typing import Final

__all__ = ["LONGEST", "printable"]

LONGEST: Final = 10_000  # characters of a text that are shown


def printable(text: str, *, most: int | None = LONGEST, lines: bool = False) -> str:
    """A text without anything that could move a cursor, change colours, forge a line or hide what follows: control
    characters, ESC and bidirectional overrides are shown by their codes, and what is longer than `most` is cut off.
    With `lines`, line ends and tabs stay."""
    if most is not None and len(text) > most:
        text = f"{text[:most]}… ({len(text)} characters)"
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in text)
