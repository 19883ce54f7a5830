"""Error messages for return values without a JSON form: which part, and its type."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from msgspec import Struct

from trunkline.registry import type_adapters as kinds

__all__ = ["explain_missing_await", "to_json"]

_DEEPEST: Final = 32  # levels to search


def to_json(value: Any) -> bytes:
    """Encode a value as JSON. Raise `TypeError` with the type and path of the first part that has no JSON form."""
    try:
        return kinds.to_json(value)
    except (TypeError, ValueError) as error:
        raise TypeError(_why(value, error)) from None


def explain_missing_await(value: Any, where: str = "") -> str | None:
    """Return a message for a coroutine that was returned without await, and close it; None for any other value."""
    if not inspect.iscoroutine(value):
        return None
    value.close()
    return f"the handler returned a coroutine{where}; is `await` missing before {value.__qualname__}(…)?"


def _why(value: Any, error: Exception) -> str:
    path, found = "", value
    for _ in range(_DEEPEST):
        step = next(((name, part) for name, part in _parts(found) if not _has_json(part)), None)
        if step is None:
            break
        path, found = path + step[0], step[1]
    where = f" at ${path}" if path else ""
    if (forgotten := explain_missing_await(found, where)) is not None:
        return forgotten
    if inspect.isgenerator(found) or inspect.isasyncgen(found):
        return f"the handler returned a generator{where}; return a list, or yield in the handler itself"
    if (key := _wrong_key(found)) is not None:
        return f"the key {key!r} of the dict{where} has no JSON: keys are texts or numbers"
    return f"{type(found).__name__}{where} has no JSON: {error}"


def _wrong_key(value: Any) -> Any:
    keys = cast("Mapping[Any, Any]", value) if isinstance(value, Mapping) else ()
    return next((key for key in keys if not _has_json({key: None})), None)


def _has_json(value: Any) -> bool:
    try:
        kinds.to_json(value)
    except (TypeError, ValueError):
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with its path."""
    if isinstance(value, Mapping):
        yield from ((f".{name}", part) for name, part in cast("Mapping[Any, Any]", value).items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{number}]", part) for number, part in enumerate(cast("list[Any]", value)))
    elif isinstance(value, Struct):
        yield from ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    elif hasattr(value, "__dataclass_fields__"):
        import dataclasses  # imported here: its author has imported it already

        yield from ((f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
