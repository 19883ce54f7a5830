"""Validation of options that a program passes to constructors and decorators.

Options are checked at construction or registration, so that an error points at the mistake and no call checks again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, cast

from msgspec import Struct

from trunkline.errors.local import MisuseError

__all__ = [
    "FLAG",
    "FUNCTION",
    "INTEGER",
    "MAPPING",
    "NUMBER",
    "POSITIVE",
    "TEXT",
    "OptionKind",
    "check_name",
    "check_options",
    "describe_value",
    "each_value",
    "instance_of",
]

_LONGEST: Final = 60  # characters of a value in a message


class OptionKind(Struct, frozen=True):
    """The allowed values of an option: a description and a predicate."""

    description: str
    fits: Callable[[Any], bool]
    secret: bool = False  # the message hides a wrong value, which may be a secret


def instance_of(words: str, *kinds: type[Any]) -> OptionKind:
    """Return the kind of instances of some classes."""

    def fit(value: Any) -> bool:
        return isinstance(value, kinds)

    return OptionKind(words, fit)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TEXT: Final = instance_of("a string", str)
FLAG: Final = instance_of("True or False", bool)
INTEGER: Final = OptionKind("a whole number", _is_whole)
NUMBER: Final = OptionKind("a number", _is_number)
POSITIVE: Final = OptionKind("a number above 0", _is_positive)
MAPPING: Final = instance_of("a dict", Mapping)
FUNCTION: Final = OptionKind("a function", callable)


def each_value(fits: Callable[[Any], bool], words: str) -> OptionKind:
    """Return the kind of iterables whose values all pass a test. Iterators are accepted without looking at their
    values."""

    def fit(value: Any) -> bool:
        if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
            return False
        return not isinstance(value, Collection) or all(map(fits, cast("Collection[Any]", value)))

    return OptionKind(words, fit)


def check_options(
    what: str,
    options: Mapping[str, Any],
    kinds: Mapping[str, OptionKind],
    error: Callable[[str], Exception] = MisuseError,
) -> None:
    """Raise an error for the first option with a wrong value. None means that an option is absent."""
    for name, kind in kinds.items():
        value = options.get(name)
        if value is not None and not kind.fits(value):
            found = type(value).__name__ if kind.secret else describe_value(value)
            raise error(f"{what}: {name}= must be {kind.description}, not {found}")


def check_name(what: str, name: Any, example: str) -> None:
    """Raise `MisuseError` for a name that is not a string or is empty."""
    if not isinstance(name, str) or not name.strip():
        raise MisuseError(f"{what} needs a name, such as {example}, not {describe_value(name)}")


def describe_value(value: Any) -> str:
    """Describe a value in a message: a short one by its repr, any other by its type, since it may contain secrets."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, str | int | float | None):
        return type(value).__name__
    written = repr(value)
    return written if len(written) <= _LONGEST else f"{written[:_LONGEST]}…"
