"""Text of a server as Markdown: it keeps its words, lists and code spans, and can neither add links, images and HTML
nor break out of its place in the document."""

import re
from collections.abc import Iterable, Sequence
from inspect import cleandoc
from typing import Final

from trunkline.cli.terminal import escape, escape_lines

__all__ = ["code_span", "fenced", "one_line", "paragraphs", "table"]

_CODE: Final = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_ACTIVE: Final = re.compile(r"[\\`\[\]]")
_BLOCK: Final = re.compile(r"^(\s*)(#{1,6}(?=\s|$)|~{3,}|=+\s*$|-+\s*$|>)")
_TICKS: Final = re.compile(r"`+")


def paragraphs(text: str) -> str:
    """Return a text of several lines."""
    return "\n".join(_line(one) for one in cleandoc(escape_lines(text)).splitlines())


def code_span(text: str) -> str:
    """Return a text as a code span of one line."""
    text = escape(text)
    longest = max((len(run) for run in _TICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest or not text.strip() else ""
    return f"{fence}{space}{text}{space}{fence}"


def fenced(text: str, language: str = "") -> str:
    """Return a code block."""
    text = escape_lines(text)
    longest = max((len(run) for run in _TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown of one line each."""
    lines = [header, ["---"] * len(header), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def one_line(text: str) -> str:
    """Return a text on one line."""
    return _line(escape(" ".join(text.split())))


def _line(text: str) -> str:
    parts: list[str] = []
    at = 0
    for found in _CODE.finditer(text):
        parts += [_plain(text[at : found.start()]), found[0]]
        at = found.end()
    line = "".join([*parts, _plain(text[at:])])
    return _BLOCK.sub(r"\1\\\2", line)


def _plain(text: str) -> str:
    return _ACTIVE.sub(r"\\\g<0>", text).replace("&", "&amp;").replace("<", "&lt;")
