"""Docstring parser: the description, and a sentence for each argument (Google, NumPy and Sphinx style)."""

import inspect
import re
from itertools import zip_longest
from typing import Final

from msgspec import Struct

__all__ = ["Docstring", "parse"]

_ARGUMENTS: Final = frozenset({"args", "arguments", "parameters", "params", "keyword arguments", "other parameters"})
_OTHERS: Final = {
    *("returns", "return", "raises", "yields", "yield", "examples", "example", "notes", "note", "attributes"),
    *("see also", "warnings", "warning", "references"),
}
_GOOGLE_ARGUMENT: Final = r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)"
_NUMPY_ARGUMENTS: Final = r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?"
_SPHINX_ARGUMENT: Final = r":(?:param|parameter|arg|argument|key|keyword)\s(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)"
_SPHINX_OTHER: Final = r":(?:returns?|rtype|raises?|except|exception|type|yields?|meta)\b[^:]*:.*"


class Docstring(Struct, frozen=True):
    """A parsed docstring."""

    description: str
    arguments: dict[str, str]


def parse(text: str | None) -> Docstring:
    """Parse a docstring. Unrecognised parts stay in the description."""
    lines = inspect.cleandoc(text or "").splitlines()
    reader = _DocstringReader()
    for line, below in zip_longest(lines, lines[1:], fillvalue=""):
        reader.read(line, below)
    return Docstring(
        "\n".join(reader.description).strip(),
        {name: " ".join(filter(None, parts)) for name, parts in reader.arguments.items() if any(parts)},
    )


class _DocstringReader:
    """Reads line by line: first the description, then sections, each in the style of its title."""

    def __init__(self) -> None:
        self.description: list[str] = []
        self.arguments: dict[str, list[str]] = {}
        self._style: str | None = None  # style of the section; None: in the description
        self._about_arguments = False  # whether the section describes arguments
        self._indent: int | None = None  # indentation of the arguments in Google style
        self._current: list[list[str]] = []  # the descriptions that the next line continues

    def read(self, line: str, below: str) -> None:
        """Read the next line; the line below may underline a title."""
        if (title := _title(line, below)) is not None:
            self._open("google" if line.rstrip().endswith(":") else "numpy", about_arguments=title in _ARGUMENTS)
        elif line.startswith(":") and (found := re.fullmatch(_SPHINX_ARGUMENT, line)):
            self._open("sphinx", about_arguments=True)
            self._begin([found[1]], found[2])
        elif line.startswith(":") and re.fullmatch(_SPHINX_OTHER, line):
            self._open("sphinx", about_arguments=False)
        elif self._style is None or (self._style != "numpy" and line and not line[0].isspace()):
            self._style = None  # a line at the margin ends a section of the other styles
            self.description.append(line)
        elif self._about_arguments and line.strip(" \t-"):
            self._argument_line(line)

    def _open(self, style: str, *, about_arguments: bool) -> None:
        self._style, self._about_arguments, self._indent, self._current = style, about_arguments, None, []

    def _begin(self, names: list[str], text: str) -> None:
        self._current = [self.arguments.setdefault(name, []) for name in names]
        self._go_on(text)

    def _go_on(self, text: str) -> None:
        for sentence in self._current:
            sentence.append(text)

    def _argument_line(self, line: str) -> None:
        text = line.strip()
        if self._style == "numpy" and not line[0].isspace() and (found := re.fullmatch(_NUMPY_ARGUMENTS, text)):
            self._begin([name.strip(" \t*") for name in found[1].split(",")], "")
        elif self._style == "google" and self._is_outer(line) and (found := re.fullmatch(_GOOGLE_ARGUMENT, text)):
            self._begin([found[1]], found[2])
        else:
            self._go_on(text)

    def _is_outer(self, line: str) -> bool:
        """Return whether a line has the indentation of the first argument; deeper lines continue a sentence."""
        indent = len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip())
        if self._indent is None:
            self._indent = indent
        return indent <= self._indent


def _title(line: str, below: str) -> str | None:
    """Return the section title in a line: `Args:`, or `Parameters` with a rule below it."""
    name = line.strip().removesuffix(":").lower()
    if line[:1].isspace() or name not in _ARGUMENTS | _OTHERS:
        return None
    ruled = len(below.strip()) > 2 and set(below.strip()) == {"-"}  # noqa: PLR2004 - the shortest rule
    return name if ruled or line.rstrip().endswith(":") else None
