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
from trunkline.server.input.ask import InvalidInputResponse
from trunkline.server.input.choices import Choice, choice_of

__all__ = ["ElicitationAnswer", "build_form", "read_answer", "required_multi_select"]

T_co = TypeVar("T_co", covariant=True)

_VALUE_FIELD: Final = "value"  # the only field of a form that asks for a single value
_CONFIRMATION_ONLY: Final = (None, type(None))  # asks for a confirmation only
_SUPPORTED_FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})  # that a form can ask for
_LIST_WITHOUT_CHOICES: Final = (
    "a list needs values to choose from: write list[Literal[...]] or a list of an Enum; text is asked for with str"
)


class ElicitationAnswer(Struct, Generic[T_co], frozen=True):
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


class _FieldInfo(Struct, frozen=True):
    """What is known of a field besides its schema."""

    choice: Choice | None
    default: Any = UNSET


# --- from a type to a form -----------------------------------------------------------------------


def build_form(answer_type: Any) -> RequestedSchema:
    """The form for a dataclass, Struct, TypedDict or pydantic model, for a schema written by hand, for a single value
    or for None.

    Raises `MisuseError`, naming the field, for one that is not text, a number, yes or no, or a choice.
    """
    if answer_type in _CONFIRMATION_ONLY:
        return RequestedSchema({})
    described = _json_schema_of(answer_type)
    definitions: Mapping[str, Any] = described.get("$defs", {})
    if _is_single_value(answer_type, described):
        field = _form_property(_VALUE_FIELD, described, definitions, _FieldInfo(choice_of(answer_type, _VALUE_FIELD)))
        return RequestedSchema({_VALUE_FIELD: field}, None if _allows_none(described) else [_VALUE_FIELD])
    known = {} if isinstance(answer_type, Mapping) else _fields_of(answer_type)
    properties = {
        name: _form_property(name, field, definitions, known.get(name))
        for name, field in cast("dict[str, Any]", described.get("properties", {})).items()
    }
    return RequestedSchema(properties, described.get("required") or None)


def required_multi_select(form: RequestedSchema) -> str | None:
    """A field that must be filled in and is a choice of several values, if there is one."""
    needed = form.required or []
    return next((name for name in needed if isinstance(form.properties.get(name), MultiSelectEnumSchema)), None)


def _json_schema_of(answer_type: Any) -> Mapping[str, Any]:
    if isinstance(answer_type, Mapping):
        given = cast("Mapping[str, Any]", answer_type)
        if given.get("type", "object") != "object" or (given and not given.keys() & {"type", "properties"}):
            why = (
                'a schema has "properties" and is of the type "object"; fields of Python types are those of a dataclass'
            )
            raise MisuseError(f"no form can be made of {answer_type!r}: {why}")
        return given
    if _is_pydantic_model(answer_type):
        return answer_type.model_json_schema()
    try:
        return validators.schema_of_type(answer_type)
    except TypeError as error:
        raise MisuseError(f"no form can be made of {answer_type!r}: {str(error).splitlines()[-1]}") from None


def _is_single_value(answer_type: Any, schema: Mapping[str, Any]) -> bool:
    """Whether it is the type of a single value, and not of something with fields."""
    return "properties" not in schema and not isinstance(answer_type, Mapping)


def _allows_none(schema: Mapping[str, Any]) -> bool:
    return {"type": "null"} in schema.get("anyOf", ()) or None in schema.get("enum", ())


def _is_pydantic_model(answer_type: Any) -> bool:
    """Whether it is a pydantic model: it describes and reads itself."""
    return hasattr(answer_type, "model_json_schema") and hasattr(answer_type, "model_validate")


def _form_property(
    name: str, field: Mapping[str, Any], definitions: Mapping[str, Any], known: _FieldInfo | None
) -> Any:
    flat = _flatten(field, definitions)
    if known is not None:
        if known.choice is not None:
            flat = {k: v for k, v in flat.items() if k not in {"enum", "const", "items"}} | known.choice.schema(name)
        if known.default is not UNSET:
            flat["default"] = known.default
        if flat.get("format") not in _SUPPORTED_FORMATS:
            flat.pop("format", None)  # an answer is read into its type in any case
    if flat.get("type") == "array" and not flat.get("items", {}).keys() & {"enum", "anyOf"}:
        raise _unsupported_field(name, _LIST_WITHOUT_CHOICES)
    try:
        return msgspec.convert(flat, PrimitiveSchema)
    except msgspec.ValidationError as error:
        raise _unsupported_field(name, str(error)) from None


def _unsupported_field(name: str, why: str) -> MisuseError:
    what = "a form has fields of text, numbers, yes/no and choices, and nothing inside of them"
    return MisuseError(f"field {name!r} cannot be asked for: {what} ({why})")


def _flatten(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A field without references, and without the null that an optional one allows."""
    flat = dict(field)
    if "$ref" in flat:
        flat = {**definitions[flat.pop("$ref").removeprefix("#/$defs/")], **flat}
    if "anyOf" in flat:
        options = [option for option in flat.pop("anyOf") if option != {"type": "null"}]
        if len(options) == 1:
            flat = {**_flatten(options[0], definitions), **flat}
    if "enum" in flat:
        flat.setdefault("type", "string")
    for inner, outer, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        if inner in flat:  # a form has no such words; for whole numbers there are others, and the answer is checked
            bound = flat.pop(inner)
            flat[outer] = bound + step if flat.get("type") == "integer" else bound
    return flat


def _fields_of(answer_type: Any) -> dict[str, _FieldInfo]:
    """The fields of a type, by their names on the wire."""
    hints: dict[str, Any] = typing.get_type_hints(answer_type, include_extras=True)
    found: dict[str, _FieldInfo] = {}
    for name, (wire_name, default) in _defaults_of(answer_type, hints).items():
        choice = choice_of(hints[name], wire_name)
        found[wire_name] = _FieldInfo(choice, _default_as_json(default, choice, wire_name))
    return found


def _defaults_of(answer_type: Any, hints: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Of each field its name on the wire, and its default or UNSET."""
    if _is_pydantic_model(answer_type):
        made = {name: field.get_default(call_default_factory=True) for name, field in answer_type.model_fields.items()}
        optional = {name for name, field in answer_type.model_fields.items() if not field.is_required()}
        aliases = {name: field.alias or name for name, field in answer_type.model_fields.items()}
        return {name: (aliases[name], made[name] if name in optional else UNSET) for name in made}
    kind: Any = answer_type
    if isinstance(kind, type) and issubclass(kind, Struct):
        return {
            field.name: (field.encode_name, _default(field.default, field.default_factory, NODEFAULT))
            for field in msgspec.structs.fields(kind)
        }
    if hasattr(answer_type, "__dataclass_fields__"):
        return {
            field.name: (field.name, _default(field.default, field.default_factory, dataclasses.MISSING))
            for field in dataclasses.fields(answer_type)
        }
    return {name: (name, UNSET) for name in hints}


def _default(value: Any, factory: Any, missing: Any) -> Any:
    if value is not missing:
        return value
    return UNSET if factory is missing else factory()


def _default_as_json(default: Any, choice: Choice | None, field: str) -> Any:
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


def read_answer(result: ElicitResult, answer_type: Any) -> ElicitationAnswer[Any]:
    """The user's answer, with the data of an accepted form in the type that was asked for.

    Raises `UnfitAnswer` for data that does not fit the form, or the type that it was made of.
    """
    if result.action != "accept":
        return ElicitationAnswer(result.action)
    if answer_type in _CONFIRMATION_ONLY:
        return ElicitationAnswer(result.action)
    content = result.content or {}
    if isinstance(answer_type, Mapping):
        _validate_content(content, cast("Mapping[str, Any]", answer_type))
        return ElicitationAnswer(result.action, content)
    data: Any = content
    if _is_single_value(answer_type, described := _json_schema_of(answer_type)):
        if _VALUE_FIELD not in content and _allows_none(described):
            return ElicitationAnswer(result.action)
        data = content.get(_VALUE_FIELD)
    try:  # reading it is the check: a type says at least what its form says
        if _is_pydantic_model(answer_type):
            return ElicitationAnswer(result.action, answer_type.model_validate(data))
        return ElicitationAnswer(result.action, msgspec.convert(data, answer_type, strict=False))
    except ValueError as error:  # what msgspec and pydantic raise are both kinds of it
        raise _invalid_content(str(error)) from None


def _validate_content(content: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    faults = validators.Validator(msgspec.to_builtins(build_form(wanted)), "a form").faults(content)
    if faults:
        raise _invalid_content("; ".join(f"{fault.path.removeprefix('$.')}: {fault.message}" for fault in faults))


def _invalid_content(why: str) -> InvalidInputResponse:
    return InvalidInputResponse(-32602, f"the client's form does not fit what was asked for: {why}")
