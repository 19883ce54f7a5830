"""What a docstring says: the description, and a sentence for each argument (Google, NumPy and Sphinx style)."""

import inspect
import re
from typing import Final

from msgspec import Struct

__all__ = ["Docstring", "parse"]

_ARGUMENTS: Final = frozenset({"args", "arguments", "parameters", "params", "keyword arguments", "other parameters"})
_OTHERS: Final = {
    *("returns", "return", "raises", "yields", "yield", "examples", "example", "notes", "note", "attributes"),
    *("see also", "warnings", "warning", "references"),
}
_SECTIONS: Final = _ARGUMENTS | _OTHERS
_GOOGLE_ARGUMENT: Final = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ARGUMENT: Final = re.compile(r"^\*{0,2}(\w+)\s*(?::.*)?$")
_SPHINX_FIELD: Final = re.compile(r"^:(\w+)(?:\s+([^:]*))?:\s*(.*)$")


class Docstring(Struct, frozen=True):
    """A docstring, taken apart."""

    description: str
    arguments: dict[str, str]


def parse(text: str | None) -> Docstring:
    """Takes a docstring apart. What it cannot make out stays in the description."""
    lines = inspect.cleandoc(text or "").splitlines()
    description: list[str] = []
    arguments: dict[str, list[str]] = {}
    section: str | None = None
    numpy = False
    current: list[str] | None = None  # the argument whose sentence goes on
    for number, line in enumerate(lines):
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if (title := _title(line, below)) is not None:
            section, numpy, current = title, not line.rstrip().endswith(":"), None
        elif (found := _SPHINX_FIELD.match(line)) is not None:
            section, current = "field", None
            if found[1] in {"param", "parameter", "arg", "argument", "key", "keyword"} and found[2]:
                current = arguments.setdefault(found[2].split()[-1].lstrip("*"), [found[3]])
        elif section is None:
            description.append(line)
        elif section == "field":
            if current is not None:
                current.append(line.strip())
        elif section in _ARGUMENTS:
            current = _argument_line(line, arguments, current, numpy=numpy)
    return Docstring(
        "\n".join(description).strip(),
        {name: " ".join(part for part in parts if part) for name, parts in arguments.items() if any(parts)},
    )


def _title(line: str, below: str) -> str | None:
    """The section that a line opens: `Args:`, or `Parameters` with a rule below it."""
    name = line.strip().removesuffix(":").lower()
    if line[:1].isspace() or name not in _SECTIONS:
        return None
    ruled = len(below.strip()) > 2 and set(below.strip()) == {"-"}  # noqa: PLR2004 - the shortest rule
    return name if ruled or line.rstrip().endswith(":") else None


def _argument_line(
    line: str, arguments: dict[str, list[str]], current: list[str] | None, *, numpy: bool
) -> list[str] | None:
    indented = line[:1].isspace()
    text = line.strip()
    if not text or set(text) == {"-"}:
        return current
    if numpy:
        if not indented and (found := _NUMPY_ARGUMENT.match(text)):
            return arguments.setdefault(found[1], [])
    elif (found := _GOOGLE_ARGUMENT.match(text)) and _indent(line) <= 4:  # noqa: PLR2004 - deeper lines go on
        return arguments.setdefault(found[1], [found[2]])
    if current is not None:
        current.append(text)
    return current


def _indent(line: str) -> int:
    return len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip())
