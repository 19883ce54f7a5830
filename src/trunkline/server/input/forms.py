"""Forms: what a client's user is asked to fill in, made from a type, and what comes back, read into it.

A type is a dataclass, Struct, TypedDict or pydantic model. Of the latter only two methods are used, so that nothing has
to be installed or imported for it. Any other type, such as `str`, `bool` or a `Literal`, is that of a single value, and
its form has one field, `value`. The form of `None` has no fields.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Final, Generic, Literal, TypeVar, cast

import msgspec
from msgspec import NODEFAULT, UNSET, Struct

from trunkline.errors import MisuseError
from trunkline.protocol.types import ElicitResult, MultiSelectEnumSchema, PrimitiveSchema, RequestedSchema
from trunkline.registry import validators
from trunkline.server.input.ask import UnfitAnswer
from trunkline.server.input.choices import Choice, choice_of

__all__ = ["Answer", "form_of", "needed_list", "read_answer"]

T_co = TypeVar("T_co", covariant=True)

_VALUE: Final = "value"  # the only field of a form that asks for a single value
_NOTHING: Final = (None, type(None))  # asks for a confirmation only
_FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})  # that a form can ask for
_NO_VALUES: Final = (
    "a list needs values to choose from: write list[Literal[...]] or a list of an Enum; text is asked for with str"
)


class Answer(Struct, Generic[T_co], frozen=True):
    """What the user did with a question: "accept" with data, "decline" or "cancel" without.

    `data` has the type that was asked for once `accepted` has been checked; without that it may be None. No type
    checker narrows an attribute by another one, so its type does not say so.
    """

    action: Literal["accept", "decline", "cancel"]
    data: T_co = cast("Any", None)

    @property
    def accepted(self) -> bool:
        """Whether the user agreed."""
        return self.action == "accept"


class _Field(Struct, frozen=True):
    """What is known of a field besides its schema."""

    choice: Choice | None
    default: Any = UNSET


# --- from a type to a form -----------------------------------------------------------------------


def form_of(wanted: Any) -> RequestedSchema:
    """The form for a dataclass, Struct, TypedDict or pydantic model, for a schema written by hand, for a single value
    or for None.

    Raises `MisuseError`, naming the field, for one that is not text, a number, yes or no, or a choice.
    """
    if wanted in _NOTHING:
        return RequestedSchema({})
    described = _described(wanted)
    definitions: Mapping[str, Any] = described.get("$defs", {})
    if _is_single(wanted, described):
        field = _property(_VALUE, described, definitions, _Field(choice_of(wanted, _VALUE)))
        return RequestedSchema({_VALUE: field}, None if _allows_none(described) else [_VALUE])
    known = {} if isinstance(wanted, Mapping) else _fields(wanted)
    properties = {
        name: _property(name, field, definitions, known.get(name))
        for name, field in cast("dict[str, Any]", described.get("properties", {})).items()
    }
    return RequestedSchema(properties, described.get("required") or None)


def needed_list(form: RequestedSchema) -> str | None:
    """A field that must be filled in and is a choice of several values, if there is one."""
    needed = form.required or []
    return next((name for name in needed if isinstance(form.properties.get(name), MultiSelectEnumSchema)), None)


def _described(wanted: Any) -> Mapping[str, Any]:
    if isinstance(wanted, Mapping):
        given = cast("Mapping[str, Any]", wanted)
        if given.get("type", "object") != "object" or (given and not given.keys() & {"type", "properties"}):
            why = (
                'a schema has "properties" and is of the type "object"; fields of Python types are those of a dataclass'
            )
            raise MisuseError(f"no form can be made of {wanted!r}: {why}")
        return given
    if _is_model(wanted):
        return wanted.model_json_schema()
    try:
        return validators.of_type(wanted)
    except TypeError as error:
        raise MisuseError(f"no form can be made of {wanted!r}: {str(error).splitlines()[-1]}") from None


def _is_single(wanted: Any, described: Mapping[str, Any]) -> bool:
    """Whether it is the type of a single value, and not of something with fields."""
    return "properties" not in described and not isinstance(wanted, Mapping)


def _allows_none(described: Mapping[str, Any]) -> bool:
    return {"type": "null"} in described.get("anyOf", ()) or None in described.get("enum", ())


def _is_model(wanted: Any) -> bool:
    """Whether it is a pydantic model: it describes and reads itself."""
    return hasattr(wanted, "model_json_schema") and hasattr(wanted, "model_validate")


def _property(name: str, field: Mapping[str, Any], definitions: Mapping[str, Any], known: _Field | None) -> Any:
    flat = _flat(field, definitions)
    if known is not None:
        if known.choice is not None:
            flat = {k: v for k, v in flat.items() if k not in {"enum", "const", "items"}} | known.choice.schema(name)
        if known.default is not UNSET:
            flat["default"] = known.default
        if flat.get("format") not in _FORMATS:
            flat.pop("format", None)  # an answer is read into its type in any case
    if flat.get("type") == "array" and not flat.get("items", {}).keys() & {"enum", "anyOf"}:
        raise _unaskable(name, _NO_VALUES)
    try:
        return msgspec.convert(flat, PrimitiveSchema)
    except msgspec.ValidationError as error:
        raise _unaskable(name, str(error)) from None


def _unaskable(name: str, why: str) -> MisuseError:
    what = "a form has fields of text, numbers, yes/no and choices, and nothing inside of them"
    return MisuseError(f"field {name!r} cannot be asked for: {what} ({why})")


def _flat(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A field without references, and without the null that an optional one allows."""
    flat = dict(field)
    if "$ref" in flat:
        flat = {**definitions[flat.pop("$ref").removeprefix("#/$defs/")], **flat}
    if "anyOf" in flat:
        options = [option for option in flat.pop("anyOf") if option != {"type": "null"}]
        if len(options) == 1:
            flat = {**_flat(options[0], definitions), **flat}
    if "enum" in flat:
        flat.setdefault("type", "string")
    for inner, outer, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        if inner in flat:  # a form has no such words; for whole numbers there are others, and the answer is checked
            bound = flat.pop(inner)
            flat[outer] = bound + step if flat.get("type") == "integer" else bound
    return flat


def _fields(wanted: Any) -> dict[str, _Field]:
    """The fields of a type, by their names on the wire."""
    hints: dict[str, Any] = typing.get_type_hints(wanted, include_extras=True)
    found: dict[str, _Field] = {}
    for name, (wire_name, default) in _defaults(wanted, hints).items():
        choice = choice_of(hints[name], wire_name)
        found[wire_name] = _Field(choice, _as_json(default, choice, wire_name))
    return found


def _defaults(wanted: Any, hints: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Of each field its name on the wire, and its default or UNSET."""
    if _is_model(wanted):
        made = {name: field.get_default(call_default_factory=True) for name, field in wanted.model_fields.items()}
        optional = {name for name, field in wanted.model_fields.items() if not field.is_required()}
        aliases = {name: field.alias or name for name, field in wanted.model_fields.items()}
        return {name: (aliases[name], made[name] if name in optional else UNSET) for name in made}
    kind: Any = wanted
    if isinstance(kind, type) and issubclass(kind, Struct):
        return {
            field.name: (field.encode_name, _default(field.default, field.default_factory, NODEFAULT))
            for field in msgspec.structs.fields(kind)
        }
    if hasattr(wanted, "__dataclass_fields__"):
        return {
            field.name: (field.name, _default(field.default, field.default_factory, dataclasses.MISSING))
            for field in dataclasses.fields(wanted)
        }
    return {name: (name, UNSET) for name in hints}


def _default(value: Any, factory: Any, missing: Any) -> Any:
    if value is not missing:
        return value
    return UNSET if factory is missing else factory()


def _as_json(default: Any, choice: Choice | None, field: str) -> Any:
    """A default as the form says it; UNSET for None, which is the absence of a value there."""
    if default is None or default is UNSET:
        return UNSET
    plain = msgspec.to_builtins(default)
    if choice is None:
        return plain
    if strange := [value for value in (plain if choice.many else [plain]) if value not in choice.values]:
        raise MisuseError(f"field {field!r} has the default {strange[0]!r}, which is not one of its values")
    return choice.ordered(plain) if choice.many else plain


# --- from an answer to a value ---------------------------------------------------------------------


def read_answer(result: ElicitResult, wanted: Any) -> Answer[Any]:
    """The user's answer, with the data of an accepted form in the type that was asked for.

    Raises `UnfitAnswer` for data that does not fit the form, or the type that it was made of.
    """
    if result.action != "accept":
        return Answer(result.action)
    if wanted in _NOTHING:
        return Answer(result.action)
    content = result.content or {}
    if isinstance(wanted, Mapping):
        _check(content, cast("Mapping[str, Any]", wanted))
        return Answer(result.action, content)
    data: Any = content
    if _is_single(wanted, described := _described(wanted)):
        if _VALUE not in content and _allows_none(described):
            return Answer(result.action)
        data = content.get(_VALUE)
    try:  # reading it is the check: a type says at least what its form says
        if _is_model(wanted):
            return Answer(result.action, wanted.model_validate(data))
        return Answer(result.action, msgspec.convert(data, wanted, strict=False))
    except ValueError as error:  # what msgspec and pydantic raise are both kinds of it
        raise _misfit(str(error)) from None


def _check(content: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    faults = validators.Validator(msgspec.to_builtins(form_of(wanted)), "a form").faults(content)
    if faults:
        raise _misfit("; ".join(f"{fault.path.removeprefix('$.')}: {fault.message}" for fault in faults))


def _misfit(why: str) -> UnfitAnswer:
    return UnfitAnswer(-32602, f"the client's form does not fit what was asked for: {why}")
