"""Edits of JSON documents with comments: set or remove one member, and leave every other character as it is.

The positions come from a scan of the document without its comments (`blank_comments` keeps positions), so an edit is an
insertion into, or a deletion from, the original text. Indentation, line ends, byte order mark, trailing commas and
comments stay. A member that was inserted into an object with members, or into `{}`, can be removed again without a
trace.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from trunkline.cli.config_file import InvalidDocument
from trunkline.errors import ConfigError
from trunkline.jsonc import blank_comments
from trunkline.wire import codec

__all__ = ["format_json", "parse", "remove_member", "set_member"]

Path = Sequence[str]
"""Names of members, from the root."""

_MAX_DEPTH: Final = 100
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_SCALAR: Final = re.compile(r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)(?![\w.+-])")
_TRIVIA: Final = re.compile(
    r"(?P<space>[ \t\r\n]+)|(?P<line>//[^\n]*?(?=\r?\n|\Z))|(?P<block>/\*.*?\*/)|(?P<comma>,)", re.DOTALL
)
_INDENT: Final = re.compile(r"\n([ \t]+)\S")
_LINE_END: Final = re.compile(r"[ \t]*\r?\n")
_LINE_INDENT: Final = re.compile(r"[ \t]*")
_EMPTY: Final = re.compile(r"\{\s*\}")
_COMMENTS: Final = {"line", "block"}  # groups of _TRIVIA

_decode: Final[Callable[[bytes], Any]] = codec.json_decoder(cast("Any", Any))


class _Object(NamedTuple):
    """An object: positions of its braces, and its members."""

    start: int
    end: int  # after the closing brace
    members: "list[_Member]"


class _Member(NamedTuple):
    """A member: positions of its name and its value. `value` is None unless the value is an object."""

    name: str
    start: int
    value_start: int
    end: int
    value: _Object | None


class _Style(NamedTuple):
    """Layout of inserted text."""

    newline: str  # empty: everything on one line
    unit: str  # of indentation
    comma: str
    colon: str


# --- reading -------------------------------------------------------------------------------------


def parse(text: str) -> dict[str, Any]:
    """Return the content of a document; nothing for one without any value. Raises `InvalidDocument`, with the position,
    if it is not an object of JSON with comments."""
    blanked = blank_comments(text)
    if not blanked.strip():
        return {}
    _scan(text, blanked)
    try:
        return _decode(blanked.encode())
    except codec.DecodeError as error:  # such as "\ud800", half of a character
        raise InvalidDocument(f"this is not JSON: {error}") from error


def _scan(text: str, blanked: str) -> _Object:
    start = _skip(blanked, 0)
    if not blanked.startswith("{", start):
        raise InvalidDocument("expected an object, which begins with {", text, start)
    end, root = _Scanner(text, blanked).value(start, 0)
    rest = _skip(blanked, end)
    if rest < len(blanked):
        raise InvalidDocument("expected the end of the document", text, rest)
    return cast("_Object", root)


def _skip(blanked: str, at: int) -> int:
    found = _SPACE.match(blanked, at)
    return at if found is None else found.end()


class _Scanner:
    """A recursive descent over a document that finds the positions of its objects and members."""

    def __init__(self, text: str, blanked: str) -> None:
        self._text = text
        self._blanked = blanked

    def value(self, at: int, depth: int) -> tuple[int, _Object | None]:
        """Return the end of the value at a position, and the object if it is one."""
        char = self._blanked[at : at + 1]
        if char in {"{", "["}:
            if depth >= _MAX_DEPTH:
                raise self._fault(f"more than {_MAX_DEPTH} levels", at)
            return self._object(at, depth) if char == "{" else self._array(at, depth)
        if char == '"':
            return self._string(at), None
        found = _SCALAR.match(self._blanked, at)
        if found is None:
            raise self._fault("expected a value", at)
        return found.end(), None

    def _object(self, start: int, depth: int) -> tuple[int, _Object]:
        members: list[_Member] = []
        at = _skip(self._blanked, start + 1)
        while not self._blanked.startswith("}", at):
            if members:
                at = _skip(self._blanked, self._expect(",", at, "expected , or }"))
            if not self._blanked.startswith('"', at):
                raise self._fault("expected a name in quotation marks", at)
            name_end = self._string(at)
            value_start = _skip(
                self._blanked, self._expect(":", _skip(self._blanked, name_end), "expected : after a name")
            )
            end, value = self.value(value_start, depth + 1)
            members.append(_Member(self._name(at, name_end), at, value_start, end, value))
            at = _skip(self._blanked, end)
        return at + 1, _Object(start, at + 1, members)

    def _array(self, start: int, depth: int) -> tuple[int, None]:
        at, first = _skip(self._blanked, start + 1), True
        while not self._blanked.startswith("]", at):
            if not first:
                at = _skip(self._blanked, self._expect(",", at, "expected , or ]"))
            at, first = _skip(self._blanked, self.value(at, depth + 1)[0]), False
        return at + 1, None

    def _string(self, at: int) -> int:
        found = _STRING.match(self._blanked, at)
        if found is None:
            raise self._fault("this string does not end on its line, or has an invalid escape", at)
        return found.end()

    def _name(self, start: int, end: int) -> str:
        try:
            return _decode(self._blanked[start:end].encode())
        except codec.DecodeError as error:
            raise self._fault(f"this is not JSON: {error}", start) from error

    def _expect(self, char: str, at: int, reason: str) -> int:
        if not self._blanked.startswith(char, at):
            raise self._fault(reason if at < len(self._blanked) else f"{reason}, but the document ends", at)
        return at + 1

    def _fault(self, reason: str, at: int) -> InvalidDocument:
        return InvalidDocument(reason, self._text, at)


# --- setting -------------------------------------------------------------------------------------


def set_member(text: str, path: Path, value: Any) -> str:
    """Return a document with a value at a path. Members that already have their value stay as they are written. Raises
    `InvalidDocument` if something on the path is not an object, or has a duplicate."""
    blanked = blank_comments(text)
    if not blanked.strip():
        newline = _newline(text)
        between = newline if text.strip("\ufeff") and not text.endswith("\n") else ""
        return f"{text}{between}{format_json(_nest(path, value), newline=newline)}{newline}"
    parent = _scan(text, blanked)
    for depth, name in enumerate(path):
        member = _find(text, parent, name)
        if member is None:
            return _insert(text, blanked, parent, name, _nest(path[depth + 1 :], value))
        if depth == len(path) - 1:
            return _change(text, blanked, path, member, value)
        if member.value is None:
            raise InvalidDocument(f'"{name}" is not an object', text, member.value_start)
        parent = member.value
    raise ConfigError("a path has at least one name")


def _nest(path: Path, value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _find(text: str, parent: _Object, name: str) -> _Member | None:
    found = [member for member in parent.members if member.name == name]
    if len(found) > 1:
        raise InvalidDocument(f'"{name}" is here a second time; remove one of the two', text, found[1].start)
    return found[0] if found else None


def _change(text: str, blanked: str, path: Path, member: _Member, value: Any) -> str:
    """Change the value of a member: member by member if both values are objects."""
    old: Any = _decode(blanked[member.value_start : member.end].encode())
    if isinstance(old, Mapping) and isinstance(value, Mapping):
        before, after = cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", value)
        for name in before.keys() - after.keys():
            text = remove_member(text, (*path, name))
        for name, inner in after.items():
            if name not in before or before[name] != inner:
                text = set_member(text, (*path, name), inner)
        return text
    style = _style(blanked, member)
    return f"{text[: member.value_start]}{_format(value, style, _line_indent(text, member.start))}{text[member.end :]}"


def _insert(text: str, blanked: str, parent: _Object, name: str, value: Any) -> str:
    if not parent.members:
        return _insert_first(text, blanked, parent, name, value)
    first, last = parent.members[0], parent.members[-1]
    own_line = "\n" in text[parent.start : first.start]
    style = _style(blanked, first) if own_line else _style(blanked, first)._replace(newline="")
    indent = _line_indent(text, first.start) if own_line else _line_indent(text, parent.start)
    closing = parent.end - 1
    trivia = _trivia(text, last.end, closing)
    comma = next((token.end() for token in trivia if token.lastgroup == "comma"), None)
    place, after_line_comment = _end_of_line_comments(trivia, last.end if comma is None else comma)
    if own_line:
        separator = f"{style.newline}{indent}"
    elif after_line_comment:
        separator = f"{_newline(text)}{indent}"
    else:
        separator = style.comma[1:]
    member = f"{separator}{_format(name, style, indent)}{style.colon}{_format(value, style, indent)}"
    if comma is None:
        return f"{text[: last.end]},{text[last.end : place]}{member}{text[place:]}"
    return f"{text[:place]}{member},{text[place:]}"


def _insert_first(text: str, blanked: str, parent: _Object, name: str, value: Any) -> str:
    closing = parent.end - 1
    style = _style(blanked, None)
    base = _line_indent(text, parent.start)
    comments = [token.end() for token in _trivia(text, parent.start + 1, closing) if token.lastgroup in _COMMENTS]
    if not comments:
        comments = [parent.start + 1 if "\n" in text[parent.start : closing] else closing]
    place = comments[-1]
    if not style.newline and place == closing:
        before = after = ""
    else:
        style = style._replace(newline=style.newline or _newline(text))
        before = f"{style.newline}{base}{style.unit}"
        after = "" if "\n" in text[place:closing] else f"{style.newline}{base}"
    indent = f"{base}{style.unit}"
    member = f"{_format(name, style, indent)}{style.colon}{_format(value, style, indent)}"
    return f"{text[:place]}{before}{member}{after}{text[place:]}"


def _trivia(text: str, start: int, end: int) -> list[re.Match[str]]:
    """Return space, comments and commas between two positions, which have nothing else between them."""
    return [*_TRIVIA.finditer(text, start, end)]


def _end_of_line_comments(trivia: Sequence[re.Match[str]], start: int) -> tuple[int, bool]:
    """Return the end of the comments that follow a position on its line, and whether the last one ends with the
    line."""
    place, after_line_comment = start, False
    for token in trivia:
        if token.start() < start:
            continue
        if "\n" in token.group():
            break
        if token.lastgroup in _COMMENTS:
            place, after_line_comment = token.end(), token.lastgroup == "line"
    return place, after_line_comment


# --- removing ------------------------------------------------------------------------------------


def remove_member(text: str, path: Path) -> str:
    """Return a document without the member at a path; the same document if there is none. Comments around the member
    stay. Raises `InvalidDocument` as `set_member` does."""
    blanked = blank_comments(text)
    if not blanked.strip():
        return text
    parent = _scan(text, blanked)
    for name in path[:-1]:
        member = _find(text, parent, name)
        if member is None:
            return text
        if member.value is None:
            raise InvalidDocument(f'"{name}" is not an object', text, member.value_start)
        parent = member.value
    member = _find(text, parent, path[-1])
    return text if member is None else _remove(text, parent, member)


def _remove(text: str, parent: _Object, member: _Member) -> str:
    at = parent.members.index(member)
    previous_end = parent.members[at - 1].end if at else parent.start + 1
    next_start = parent.members[at + 1].start if at + 1 < len(parent.members) else parent.end - 1
    before, after = _trivia(text, previous_end, member.start), _trivia(text, member.end, next_start)
    commented = any(token.lastgroup in _COMMENTS for token in (*before, *after))
    if len(parent.members) == 1 and not commented:
        return f"{text[: parent.start + 1]}{text[parent.end - 1 :]}"
    comma = next((token for token in (*after, *before) if token.lastgroup == "comma"), None)
    end = member.end
    deleted: list[tuple[int, int]] = []
    if comma is not None and comma.start() >= end and not text[end : comma.start()].strip():
        end = comma.end()
    elif comma is not None:
        deleted.append(comma.span())
    start = before[-1].start() if before and before[-1].lastgroup == "space" else member.start
    after_line_comment = len(before) > 1 and before[-2].lastgroup == "line"
    if after_line_comment and not _LINE_END.match(text, end):
        start = member.start  # the line end before the member belongs to the comment
    for first, last in sorted([*deleted, (start, end)], reverse=True):
        text = text[:first] + text[last:]
    return text


# --- writing -------------------------------------------------------------------------------------


def format_json(value: Any, *, newline: str = "\n", unit: str = "  ") -> str:
    """Return a value as JSON with one member on each line."""
    return _format(value, _Style(newline, unit, ", ", ": "), "")


def _style(blanked: str, like: _Member | None) -> _Style:
    """Return the layout of a document. `like` shows how it separates names and values."""
    content = blanked.strip()
    one_line = "\n" not in content and _EMPTY.fullmatch(content) is None
    indented = _INDENT.search(blanked)
    minified = re.search(r'":\S', content if like is None else blanked[like.start : like.value_start + 1]) is not None
    return _Style(
        newline="" if one_line else _newline(blanked),
        unit="  " if indented is None else indented[1],
        comma="," if minified else ", ",
        colon=":" if minified else ": ",
    )


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line_indent(text: str, at: int) -> str:
    """Return the indentation of the line of a position."""
    found = _LINE_INDENT.match(text, text.rfind("\n", 0, at) + 1)
    return "" if found is None else found.group()


def _format(value: Any, style: _Style, indent: str) -> str:
    if isinstance(value, Mapping) and value:
        members = cast("Mapping[str, Any]", value)
        inner = f"{indent}{style.unit}"
        pairs = [
            f"{_format(name, style, '')}{style.colon}{_format(one, style, inner)}" for name, one in members.items()
        ]
        if not style.newline:
            return f"{{{style.comma.join(pairs)}}}"
        lines = f",{style.newline}".join(f"{inner}{pair}" for pair in pairs)
        return f"{{{style.newline}{lines}{style.newline}{indent}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{style.comma.join(_format(one, style, indent) for one in cast('Sequence[Any]', value))}]"
    return codec.to_json(value).decode()
