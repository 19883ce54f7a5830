"""Parameters that a peer can pass arguments for: their schema, and the struct that arguments are decoded into."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET, Struct

from trunkline.errors import RegistrationError
from trunkline.registry import type_adapters as kinds
from trunkline.registry.annotations import read_metadata
from trunkline.registry.class_layout import UNIONS, Member, ValueDirection, is_plain
from trunkline.registry.docstrings import Docstring
from trunkline.registry.pydantic_support import is_field
from trunkline.wire import codec

__all__ = ["Parameter", "arguments_type", "input_schema", "read_parameter"]

_MUTABLE: Final = (list, dict, set, bytearray, Struct)


class Parameter(Struct, frozen=True):
    """A parameter that a peer can pass an argument for."""

    name: str
    annotation: Any
    default: Any = UNSET
    description: str | None = None
    factory: Callable[[], Any] | None = None  # creates the default of each call

    @property
    def required(self) -> bool:
        """Whether a call without it is refused."""
        return self.default is UNSET and self.factory is None


# --- from a signature ------------------------------------------------------------------------------


def read_parameter(parameter: inspect.Parameter, annotation: Any, docstring: Docstring, owner: str) -> Parameter:
    """Read a parameter with its metadata and default. Raise `RegistrationError` for metadata that makes no sense in a
    function."""
    default: Any = parameter.default
    what = f"{owner}: parameter {parameter.name}"
    if type(default).__name__ in {"Field", "_CountingAttr"}:
        raise RegistrationError(
            f"{what}: field(…) is for members of a class; write the default itself, and use Annotated[…] for metadata"
        )
    if is_field(default):
        annotation, default = Annotated[annotation, default], inspect.Parameter.empty
    factory: Callable[[], Any] | None = None
    if default is UNSET:
        factory = partial(getattr, msgspec, "UNSET")  # UNSET itself is the default
    if default is inspect.Parameter.empty:
        default, factory = _field_default(annotation, what)
    return Parameter(parameter.name, annotation, default, _description(annotation, docstring, parameter.name), factory)


def _field_default(annotation: Any, what: str) -> tuple[Any, Callable[[], Any] | None]:
    """Return the default of a pydantic `Field`."""
    notes = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    for field in filter(is_field, notes):
        if field.alias is not None or field.validation_alias is not None:
            raise RegistrationError(f"{what}: a parameter cannot have an alias; rename it instead")
        if getattr(field, "default_factory_takes_validated_data", False):
            raise RegistrationError(f"{what}: its default_factory must not depend on other parameters")
        if field.default_factory is not None:
            return UNSET, field.default_factory
        if not field.is_required():
            return field.default, None
    return UNSET, None


def _description(annotation: Any, docstring: Docstring, name: str) -> str | None:
    """Return the description of a parameter from its annotation or an option of it, else from the docstring."""
    if get_origin(annotation) is Annotated:
        noted: Any = read_metadata(annotation.__metadata__).keywords.get("description")
        return noted or docstring.arguments.get(name)
    options = get_args(annotation) if get_origin(annotation) in UNIONS else ()
    found = (_description(option, Docstring("", {}), name) for option in options)
    return next(filter(None, found), docstring.arguments.get(name))


# --- all together ----------------------------------------------------------------------------------


def arguments_type(owner: str, parameters: list[Parameter], *, open_ended: bool) -> type[Struct]:
    """Return the struct that JSON arguments are decoded into. Raise `RegistrationError` for a type that cannot be
    decoded."""
    fields: list[Any] = []
    for parameter in parameters:
        try:
            if not is_plain(parameter.annotation):
                from trunkline.registry.json_schema import schema_of_type

                schema_of_type(parameter.annotation)
            adapted = kinds.adapt(parameter.annotation, ValueDirection.ARGUMENT)
            codec.decoder(adapted)  # raises now for a type that cannot be decoded
        except (TypeError, RuntimeError) as error:
            why = f"{owner}: its arguments cannot be described: {parameter.name}: {error}"
            raise RegistrationError(why, kind="tool_schema_invalid") from None
        fields.append((parameter.name, adapted, *(() if parameter.required else (_field_of(parameter),))))
    try:
        return msgspec.defstruct(
            f"{owner}_arguments", fields, forbid_unknown_fields=not open_ended, kw_only=True, gc=False
        )
    except (TypeError, RuntimeError) as error:
        why = f"{owner}: its arguments cannot be described: {error}"
        raise RegistrationError(why, kind="tool_schema_invalid") from None


def _field_of(parameter: Parameter) -> Any:
    default: Any = parameter.default
    if parameter.factory is not None:
        return msgspec.field(default_factory=parameter.factory)
    if isinstance(default, _MUTABLE):
        from copy import copy  # imported here: few defaults are mutable

        return msgspec.field(default_factory=partial(copy, cast("Any", default)))
    return msgspec.field(default=default)


def input_schema(parameters: tuple[Parameter, ...], *, closed: bool) -> dict[str, Any]:
    """Return the JSON Schema of all parameters."""
    from trunkline.registry.json_schema import schema_of_members

    made = schema_of_members([_as_member(parameter) for parameter in parameters], closed=closed)
    for parameter in parameters:
        if parameter.description is not None:  # schemas from pydantic lack our description
            made["properties"][parameter.name].setdefault("description", parameter.description)
    return made


def _as_member(p: Parameter) -> Member:
    noted = p.annotation if p.description is None else Annotated[p.annotation, p.description]
    factory: Any = NODEFAULT if p.factory is None else p.factory
    return Member(p.name, p.name, noted, p.name, p.required, p.default, factory)
