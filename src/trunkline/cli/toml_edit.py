"""Edits of TOML documents: set or remove one table, and leave every other character as it is.

The text is split into statements: a header, a key with its value, or a line without either. A table is added at the
end, which is always possible; a value is changed where it stands. An edit may misjudge unusual forms (a table that is
written inline, or with dotted keys), so its caller compares the content before and after.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from trunkline.cli.config_file import InvalidDocument
from trunkline.wire import codec

__all__ = ["format_table", "parse", "remove_table", "set_table"]

_CLOSERS: Final = ('"""', "'''", "]")  # on the last line of a value that has several
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_BOM: Final = "\ufeff"


class _Statement(NamedTuple):
    """A statement: its text with the line end, and the path from the root that its header or key names."""

    text: str
    path: tuple[str, ...]  # empty for blank lines and comments
    is_header: bool

    @property
    def blank(self) -> bool:
        return not self.text.strip()


def parse(text: str) -> dict[str, Any]:
    """Return the content of a document. Raises `InvalidDocument`, with the position, if it is not TOML."""
    try:
        return tomllib.loads(text.removeprefix(_BOM))
    except tomllib.TOMLDecodeError as error:
        raise InvalidDocument(f"this is not TOML: {error}") from error


def set_table(text: str, path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return a document with a table at a path. Keys that already have their value stay as they are written."""
    mark, text = _split_mark(text)
    statements = _split(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    header = tuple(path)
    at = next((at for at, one in enumerate(statements) if one.is_header and one.path == header), None)
    if at is None:
        added = format_table(path, table, newline=newline)
        if not text:
            return f"{mark}{added}"
        if text.endswith("\n"):
            return f"{mark}{text}{newline}{added}"
        # A document without a line end stays so: the table can then be removed again without a trace.
        return f"{mark}{text}{newline * 2}{added.removesuffix(newline)}"
    current: Any = parse(text)
    for name in path:
        current = current[name]
    return mark + _change(statements, at, current, table, newline)


def _change(
    statements: list[_Statement], header_at: int, old: Mapping[str, Any], new: Mapping[str, Any], newline: str
) -> str:
    header = statements[header_at].path
    replaced = {name for name in old if name not in new or new[name] != old[name]}
    added = [name for name in new if name not in old or name in replaced]
    parts: list[str] = []
    inserted_at = 0
    for at, one in enumerate(statements):
        name = one.path[len(header)] if len(one.path) > len(header) and one.path[: len(header)] == header else None
        if name is None or name not in replaced:
            parts.append(one.text)
        elif name in added and one.path == (*header, name) and not one.is_header:
            added.remove(name)
            parts.append(f"{_format_key(name)} = {_format(new[name])}{_rest(one, newline)}")
        if at == header_at:
            inserted_at = len(parts)
    lines = [f"{_format_key(name)} = {_format(new[name])}{newline}" for name in added]
    if lines and not parts[inserted_at - 1].endswith("\n"):
        parts[inserted_at - 1] += newline
    return "".join([*parts[:inserted_at], *lines, *parts[inserted_at:]])


def _rest(statement: _Statement, newline: str) -> str:
    """Return the comment and the line end behind a value."""
    text = statement.text
    at = text.find("#")
    while at >= 0:
        try:
            if tomllib.loads(text[:at]) == tomllib.loads(text):
                return f" {text[at:]}"
        except tomllib.TOMLDecodeError:
            pass  # this one is in a string
        at = text.find("#", at + 1)
    return newline if text.endswith("\n") else ""


def remove_table(text: str, path: Sequence[str]) -> str:
    """Return a document without a table and its tables inside; the same document if there is none."""
    mark, text = _split_mark(text)
    prefix = tuple(path)
    statements = _split(text)
    removed = [at for at, one in enumerate(statements) if one.path[: len(prefix)] == prefix]
    kept = set(range(len(statements))) - set(removed)
    for at in removed:  # blank lines and comments between the keys, and the blank line before the header
        inside = at + 1
        while inside < len(statements) and not statements[inside].path:
            inside += 1
        if inside in removed and not statements[inside].is_header:
            kept -= set(range(at + 1, inside))
        if at and statements[at].is_header and at - 1 in kept and statements[at - 1].blank:
            kept.remove(at - 1)
    result = "".join(one.text for at, one in enumerate(statements) if at in kept)
    if removed and not text.endswith("\n") and len(statements) - 1 in removed:
        result = result.removesuffix("\n").removesuffix("\r")
    return mark + result


def _split_mark(text: str) -> tuple[str, str]:
    return (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)


def _split(text: str) -> list[_Statement]:
    """Split a valid document into statements: each is the fewest lines that are TOML by themselves."""
    statements: list[_Statement] = []
    header: tuple[str, ...] = ()
    pending = ""
    for line in _LINE.findall(text):
        continued = bool(pending)
        pending += line
        if continued and not any(closer in line for closer in _CLOSERS):
            continue
        try:
            content = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        if pending.lstrip().startswith("["):
            header = _walk(content)
            statements.append(_Statement(pending, header, is_header=True))
        else:
            path = (*header, *_key(pending)) if content else ()
            statements.append(_Statement(pending, path, is_header=False))
        pending = ""
    return statements


def _walk(content: Any) -> tuple[str, ...]:
    """Return the path that leads to the innermost of nested tables with one key each."""
    path: list[str] = []
    while isinstance(content, dict) and content:
        name, content = next(iter(cast("dict[str, Any]", content).items()))
        path.append(name)
    return tuple(path)


def _key(statement: str) -> tuple[str, ...]:
    """Return the key of a statement, which may be dotted and quoted."""
    at = statement.index("=")
    while True:
        try:
            return _walk(tomllib.loads(f"{statement[:at]}= 0"))
        except tomllib.TOMLDecodeError:  # this equals sign is in a quoted key
            at = statement.index("=", at + 1)


def format_table(path: Sequence[str], table: Mapping[str, Any], *, newline: str = "\n") -> str:
    """Return a table with its header."""
    header = f"[{'.'.join(_format_key(name) for name in path)}]{newline}"
    return header + "".join(f"{_format_key(name)} = {_format(value)}{newline}" for name, value in table.items())


def _format_key(name: str) -> str:
    bare = name and all(char.isascii() and (char.isalnum() or char in "_-") for char in name)
    return name if bare else _format(name)


def _format(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = [f"{_format_key(name)} = {_format(one)}" for name, one in cast("Mapping[str, Any]", value).items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_format(one) for one in cast('Sequence[Any]', value))}]"
    text = codec.to_json(value).decode()  # strings, numbers and booleans are as in JSON
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in text)
