"""Inspection of signatures of any kind of callable."""

import functools
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, cast, get_args, get_origin

from trunkline.errors import RegistrationError

__all__ = [
    "accepts_positional",
    "hints_of",
    "is_context_annotation",
    "name_of",
    "read_signature",
    "signature_of",
    "underlying_function",
    "unwrap_partial",
]

# From Python 3.14 on, annotations are evaluated when they are read, and may name what only type checkers import.
_UNEVALUATED: Final[Mapping[str, Any]] = (
    {"annotation_format": importlib.import_module("annotationlib").Format.FORWARDREF}
    if sys.version_info >= (3, 14)
    else {}
)


def unwrap_partial(function: Any) -> Any:
    """Return the function inside of nested partials."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a callable for messages."""
    inner = unwrap_partial(function)
    return getattr(inner, "__name__", type(inner).__name__)


def underlying_function(function: Callable[..., Any]) -> Any:
    """Return the function that runs: the callable itself, or the `__call__` of an object."""
    inner = unwrap_partial(function)
    return inner if isinstance(inner, types.FunctionType | types.MethodType) else type(inner).__call__


def read_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature without evaluating its annotations. Raises `TypeError` or `ValueError` if there is none."""
    return inspect.signature(function, **_UNEVALUATED)


def signature_of(function: Callable[..., Any], name: str) -> inspect.Signature:
    """Return the signature; raise `RegistrationError` if there is none."""
    try:
        return read_signature(function)
    except (TypeError, ValueError) as error:
        raise RegistrationError(f"{name}: its signature cannot be read: {error}") from None


def accepts_positional(function: Callable[..., Any], count: int) -> bool:
    """Return whether a callable accepts `count` positional arguments; True if it has no signature."""
    try:
        read_signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a callable without a signature
        return True
    return True


def hints_of(function: Callable[..., Any], name: str) -> Mapping[str, Any]:
    """Return annotations with names resolved and `Annotated` preserved."""
    inner = unwrap_partial(function)
    source = inner.__init__ if isinstance(inner, type) else inspect.unwrap(underlying_function(function))
    try:
        return typing.get_type_hints(source, include_extras=True)
    except NameError as error:
        why = f"an annotation names something that is not defined: {error}; it must be known in the whole module"
        raise RegistrationError(f"{name}: {why}") from None
    except (TypeError, AttributeError, SyntaxError) as error:
        raise RegistrationError(f"{name}: an annotation cannot be read: {error}") from None


def is_context_annotation(annotation: Any, context: type) -> bool:
    """Return whether an annotation is the context, with or without a type argument, or a union with it."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    options = get_args(annotation) if get_origin(annotation) in {typing.Union, types.UnionType} else (annotation,)
    classes = [get_origin(option) or option for option in options]
    return any(isinstance(kind, type) and issubclass(kind, context) for kind in classes)
