"""Pydantic support: models, dataclasses, and types or metadata that only pydantic understands.

Pydantic is never imported: its types exist only if the user has imported it.
"""

import sys
import typing
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from msgspec import Raw, Struct

from trunkline.wire import codec

__all__ = ["adapter", "is_field", "is_pydantic_type", "read", "schema", "to_jsonable", "write"]


def is_pydantic_type(kind: Any) -> bool:
    """Return whether pydantic must decode and encode a type."""
    origin = get_origin(kind)
    if origin is Annotated:
        return any(map(_needs_pydantic, kind.__metadata__)) or (
            is_pydantic_type(get_args(kind)[0]) and any(map(_is_limit, kind.__metadata__))
        )
    if origin is typing.Union or origin is UnionType:
        options = [option for option in get_args(kind) if option is not type(None)]
        return len(options) > 1 and all(map(is_pydantic_type, options))  # pydantic discriminates its own types better
    owner: Any = origin or kind
    has_way = hasattr(owner, "__get_pydantic_core_schema__") or hasattr(owner, "__pydantic_validator__")
    return has_way and "pydantic" in sys.modules and isinstance(owner, type) and not issubclass(owner, Struct)


def is_field(note: Any) -> bool:
    """Return whether an object is the result of pydantic's `Field(…)`."""
    fields = sys.modules.get("pydantic.fields")
    return fields is not None and isinstance(note, fields.FieldInfo)


def _is_limit(note: Any) -> bool:
    return bool(note.metadata) if is_field(note) else type(note).__module__.partition(".")[0] == "annotated_types"


def _needs_pydantic(note: Any) -> bool:
    """Return whether metadata requires pydantic, which then handles the whole type."""
    if is_field(note):
        return note.discriminator is not None or any(map(_needs_pydantic, note.metadata))
    if type(note).__module__.partition(".")[0] != "pydantic":
        return False
    if hasattr(note, "__iter__"):
        return any(map(_needs_pydantic, cast("Iterable[Any]", note)))
    name = type(note).__name__
    return name != "Strict" and not (
        name == "_PydanticGeneralMetadata" and set(cast("dict[str, Any]", vars(note))) <= {"pattern", "strict"}
    )


# --- by pydantic ---------------------------------------------------------------------------------------


def adapter(kind: Any) -> Any:
    """Return pydantic's adapter for a type. Raise `TypeError` for a type that it does not support."""
    pydantic: Any = sys.modules["pydantic"]
    try:
        return pydantic.TypeAdapter(kind)
    except (pydantic.PydanticUserError, NameError) as error:
        raise TypeError(f"pydantic cannot read it: {str(error).splitlines()[0]}") from None


def read(adapter: Any, name: str, value: Any) -> Any:
    """Decode a JSON value by pydantic. Raise `ValueError` with all errors."""
    try:
        return adapter.validate_json(codec.to_json(value))
    except ValueError as error:
        raise ValueError(f"{name}: {'; '.join(_faults(error))}") from None


def write(adapter: Any, name: str, value: Any) -> Raw:
    """Encode a value by pydantic. Raise `ValueError` with all errors."""
    try:
        return Raw(adapter.dump_json(adapter.validate_python(value), by_alias=True, warnings=False))
    except ValueError as error:
        raise ValueError(f"{name}: {'; '.join(_faults(error))}") from None


def _faults(error: Any) -> Iterator[str]:
    if not hasattr(error, "errors"):
        yield str(error)
        return
    for fault in cast("list[Any]", error.errors()):
        yield f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}"


def to_jsonable(value: Any) -> Any:
    """Convert a value of a pydantic type to JSON types."""
    return sys.modules["pydantic_core"].to_jsonable_python(value, by_alias=True)


def schema(kind: Any, mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """Return the JSON Schema for decoding or for encoding."""
    pydantic: Any = sys.modules["pydantic"]
    try:
        return adapter(kind).json_schema(mode=mode, ref_template="#/$defs/{model}")
    except pydantic.PydanticUserError as error:
        raise TypeError(f"pydantic cannot describe it: {str(error).splitlines()[0]}") from None
