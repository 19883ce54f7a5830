"""What a function's signature says, whatever kind of callable it is."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast, get_args, get_origin

from trunkline.errors import RegistrationError

__all__ = [
    "accepts_positional",
    "hints_of",
    "is_context_annotation",
    "name_of",
    "signature_of",
    "underlying_function",
    "unwrap_partial",
]


def unwrap_partial(function: Any) -> Any:
    """The function that a partial is made of, however often."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function


def name_of(function: Callable[..., Any]) -> str:
    """What to call it in a sentence."""
    inner = unwrap_partial(function)
    return getattr(inner, "__name__", type(inner).__name__)


def underlying_function(function: Callable[..., Any]) -> Any:
    """What really runs: the function itself, or the `__call__` of an object."""
    inner = unwrap_partial(function)
    return inner if isinstance(inner, types.FunctionType | types.MethodType) else type(inner).__call__


def signature_of(function: Callable[..., Any], name: str) -> inspect.Signature:
    """Its signature; raises `RegistrationError` where there is none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise RegistrationError(f"{name}: its signature cannot be read: {error}") from None


def accepts_positional(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with so many arguments by position, as far as that can be read."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a callable without a signature
        return True
    return True


def hints_of(function: Callable[..., Any], name: str) -> Mapping[str, Any]:
    """Annotations with names resolved and `Annotated` kept."""
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
    """Whether an annotation is that of the context, with or without a type argument, or has it among its options."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    options = get_args(annotation) if get_origin(annotation) in {typing.Union, types.UnionType} else (annotation,)
    classes = [get_origin(option) or option for option in options]
    return any(isinstance(kind, type) and issubclass(kind, context) for kind in classes)
