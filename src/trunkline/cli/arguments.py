"""Arguments of tools as words of a command line, typed by the tool's schema.

`key=value` is text or a number as the schema says, `key:=JSON` is JSON, `key=@path` is the content of a file (`@-`:
standard input). A repeated key makes a list. A word that is a JSON object, or `@path` of a file with one, sets several
arguments at once.
"""

import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from trunkline.cli.schemas import Schema, as_mapping, as_sequence, resolve
from trunkline.errors import MisuseError
from trunkline.wire import codec

__all__ = ["parse_arguments", "read_input"]

_decode: Final[Callable[[bytes], Any]] = codec.json_decoder(cast("Any", Any))
_MAX_DEPTH: Final = 8  # of alternatives within alternatives
_BOOLEANS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read_input(path: str) -> str:
    """Return the text of a file, or of standard input for `-`. Raises `MisuseError` if it cannot be read."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise MisuseError(f"cannot read {path}: {reason}") from error


def parse_arguments(
    words: Sequence[str], schema: Schema | None = None, read: Callable[[str], str] = read_input
) -> dict[str, Any]:
    """Return the arguments of these words. Raises `MisuseError` for a word that does not fit the schema."""
    root: Schema = schema or {}
    properties = as_mapping(root.get("properties"))
    found: dict[str, Any] = {}
    for word in words:
        if word.startswith("{"):
            found.update(_json_object(word, "the argument"))
        elif word.startswith("@"):
            found.update(_json_object(read(word[1:]), word[1:]))
        else:
            key, value = _parse_word(word, root, properties, read)
            if key not in found:
                found[key] = value
            elif isinstance(found[key], list) and isinstance(value, list):
                found[key] = [*cast("list[Any]", found[key]), *cast("list[Any]", value)]
            else:
                raise MisuseError(f"argument {key!r} is set twice")
    return found


def _parse_word(word: str, root: Schema, properties: Schema, read: Callable[[str], str]) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    is_json = key.endswith(":")
    key = key.removesuffix(":")
    if not equals or not key:
        raise MisuseError(f"{word!r} is no argument; write key=value, key:=JSON, key=@file, @file or a JSON object")
    if key not in properties and root.get("additionalProperties") is False:
        close = difflib.get_close_matches(key, properties, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(properties) or 'none'}"
        raise MisuseError(f"there is no argument {key!r}{hint}")
    if text.startswith("@"):
        text = read(text[1:])
    if is_json:
        return key, _json(text, f"argument {key!r}")
    return key, _convert(text, properties.get(key), root, f"argument {key!r}")


def _json(text: str, what: str) -> Any:
    try:
        return _decode(text.encode())
    except codec.DecodeError as error:
        raise MisuseError(f"{what} is not JSON: {error}") from None


def _json_object(text: str, what: str) -> dict[str, Any]:
    value = _json(text, what)
    if not isinstance(value, dict):
        raise MisuseError(f"{what} is not a JSON object")
    return cast("dict[str, Any]", value)


def _convert(text: str, schema: Any, root: Schema, what: str) -> Any:
    """Convert a text to a type that the schema allows; to a string where it allows several."""
    schema = resolve(schema, root)
    choices = {_as_text(choice): choice for choice in _choices(schema)}
    if text in choices:
        return choices[text]
    if choices:
        raise MisuseError(f"{what} must be one of {', '.join(choices)}, not {text!r}")
    kinds = _kinds(schema, root)
    if "null" in kinds and text in {"null", ""}:
        return None
    if "boolean" in kinds and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if "integer" in kinds or "number" in kinds:
        number = _number(text, whole="number" not in kinds)
        if number is not None:
            return number
    if "array" in kinds and not text.startswith("["):
        return [_convert(text, _items(schema, root), root, what)]
    if kinds & {"array", "object"} and text[:1] in {"[", "{"}:
        return _json(text, what)
    if not kinds:  # anything is allowed
        try:
            return _decode(text.encode())
        except codec.DecodeError:
            return text
    if "string" not in kinds:
        raise MisuseError(f"{what} must be of type {' or '.join(sorted(kinds))}, not {text!r}")
    return text


def _number(text: str, *, whole: bool) -> int | float | None:
    try:
        value = _decode(text.encode())
    except codec.DecodeError:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not whole or isinstance(value, int):
        return value
    return int(value) if value.is_integer() else None


def _kinds(schema: Schema, root: Schema, depth: int = 0) -> set[str]:
    """Return the JSON types that a schema allows; empty for any."""
    kind: Any = schema.get("type")
    if kind is not None:
        return {kind} if isinstance(kind, str) else set(cast("list[str]", kind))
    branches = [*as_sequence(schema.get("anyOf")), *as_sequence(schema.get("oneOf"))]
    found = [] if depth > _MAX_DEPTH else [_kinds(resolve(branch, root), root, depth + 1) for branch in branches]
    if found:
        return set[str]().union(*found) if all(found) else set()
    return set()


def _choices(schema: Schema) -> Sequence[Any]:
    return [schema["const"]] if "const" in schema else as_sequence(schema.get("enum"))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else codec.to_json(value).decode()


def _items(schema: Schema, root: Schema) -> Any:
    for branch in (schema, *as_sequence(schema.get("anyOf")), *as_sequence(schema.get("oneOf"))):
        if (items := resolve(branch, root).get("items")) is not None:
            return items
    return None
