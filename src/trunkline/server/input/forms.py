"""Elicitation forms: built from a Python type, and converted back from the client's response.

The type is a dataclass, Struct, TypedDict or pydantic model. This module uses two methods of pydantic models and never
imports pydantic. Any other type, such as `str`, `bool` or a `Literal`, describes a single value: its form has one
field, `value`. The form of `None` has no fields.
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
from trunkline.server.input.choices import ChoiceField, choice_of

__all__ = ["ElicitationAnswer", "build_form", "read_answer", "required_multi_select"]

T_co = TypeVar("T_co", covariant=True)

_VALUE_FIELD: Final = "value"  # the only field of a form for a single value
_CONFIRMATION_ONLY: Final = (None, type(None))  # types whose form has no fields
_SUPPORTED_FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})  # elicitation, "Supported Schema Types"
_LIST_WITHOUT_CHOICES: Final = (
    "a list needs choices: write list[Literal[...]] or a list of an Enum; use str for free text"
)


class ElicitationAnswer(Struct, Generic[T_co], frozen=True):
    """The user's response to an elicitation: "accept" with data, "decline" or "cancel" without.

    `data` has the requested type if `accepted` is true, and is None otherwise. Its static type does not say so, because
    type checkers do not narrow one attribute by another.
    """

    action: Literal["accept", "decline", "cancel"]
    data: T_co = cast("Any", None)

    @property
    def accepted(self) -> bool:
        """Whether the user accepted."""
        return self.action == "accept"


class _FieldInfo(Struct, frozen=True):
    """What a field has besides its schema."""

    choice: ChoiceField | None
    default: Any = UNSET


# --- from a type to a form -----------------------------------------------------------------------


def build_form(answer_type: Any) -> RequestedSchema:
    """Build the form for a dataclass, Struct, TypedDict, pydantic model, handwritten schema, single value or None.

    Raises `MisuseError`, with the name of the field, unless a field is a string, a number, a boolean or a choice.
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
    """Return the name of a required field with multiple selection, if the form has one."""
    needed = form.required or []
    return next((name for name in needed if isinstance(form.properties.get(name), MultiSelectEnumSchema)), None)


def _json_schema_of(answer_type: Any) -> Mapping[str, Any]:
    if isinstance(answer_type, Mapping):
        schema = cast("Mapping[str, Any]", answer_type)
        if schema.get("type", "object") != "object" or (schema and not schema.keys() & {"type", "properties"}):
            why = 'a schema needs "type": "object" and "properties"; for fields of Python types use a dataclass'
            raise MisuseError(f"cannot build a form from {answer_type!r}: {why}")
        return schema
    if _is_pydantic_model(answer_type):
        return answer_type.model_json_schema()
    from trunkline.registry.json_schema import schema_of_type

    try:
        return schema_of_type(answer_type)
    except TypeError as error:
        raise MisuseError(f"cannot build a form from {answer_type!r}: {str(error).splitlines()[-1]}") from None


def _is_single_value(answer_type: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether the type describes a single value instead of fields."""
    return "properties" not in schema and not isinstance(answer_type, Mapping)


def _allows_none(schema: Mapping[str, Any]) -> bool:
    return {"type": "null"} in schema.get("anyOf", ()) or None in schema.get("enum", ())


def _is_pydantic_model(answer_type: Any) -> bool:
    """Return whether the type is a pydantic model, by the two methods that this module uses."""
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
            flat.pop("format", None)  # converting the answer to its type checks the format anyway
    if flat.get("type") == "array" and not flat.get("items", {}).keys() & {"enum", "anyOf"}:
        raise _unsupported_field(name, _LIST_WITHOUT_CHOICES)
    try:
        return msgspec.convert(flat, PrimitiveSchema)
    except msgspec.ValidationError as error:
        raise _unsupported_field(name, str(error)) from None


def _unsupported_field(name: str, why: str) -> MisuseError:
    supported = "a form has fields of text, numbers, booleans and choices, without nesting"
    return MisuseError(f"field {name!r} cannot be part of a form: {supported} ({why})")


def _flatten(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a field without references, and without the null of an optional field."""
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
        if inner in flat:  # forms lack these keywords; the answer is checked against the type
            bound = flat.pop(inner)
            flat[outer] = bound + step if flat.get("type") == "integer" else bound
    return flat


def _fields_of(answer_type: Any) -> dict[str, _FieldInfo]:
    """Return the fields of a type, by wire name."""
    hints: dict[str, Any] = typing.get_type_hints(answer_type, include_extras=True)
    found: dict[str, _FieldInfo] = {}
    for name, (wire_name, default) in _defaults_of(answer_type, hints).items():
        choice = choice_of(hints[name], wire_name)
        found[wire_name] = _FieldInfo(choice, _default_as_json(default, choice, wire_name))
    return found


def _defaults_of(answer_type: Any, hints: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the wire name of each field, and its default or UNSET."""
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


def _default_as_json(default: Any, choice: ChoiceField | None, field: str) -> Any:
    """Return a default as JSON; UNSET for None, because a form expresses None by a missing value."""
    if default is None or default is UNSET:
        return UNSET
    plain = msgspec.to_builtins(default)
    if choice is None:
        return plain
    if unknown := [value for value in (plain if choice.many else [plain]) if value not in choice.values]:
        raise MisuseError(f"field {field!r} has the default {unknown[0]!r}, which is not one of its values")
    return choice.ordered(plain) if choice.many else plain


# --- from an answer to a value ---------------------------------------------------------------------


def read_answer(result: ElicitResult, answer_type: Any) -> ElicitationAnswer[Any]:
    """Convert the client's result to an answer, with the data of an accepted form in the requested type.

    Raises `InvalidInputResponse` for data that does not fit the form or its type.
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
    try:  # the conversion validates: the type is at least as strict as its form
        if _is_pydantic_model(answer_type):
            return ElicitationAnswer(result.action, answer_type.model_validate(data))
        return ElicitationAnswer(result.action, msgspec.convert(data, answer_type, strict=False))
    except ValueError as error:  # base class of the errors of msgspec and pydantic
        raise _invalid_content(str(error)) from None


def _validate_content(content: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    faults = validators.Validator(msgspec.to_builtins(build_form(wanted)), "a form").faults(content)
    if faults:
        raise _invalid_content("; ".join(f"{fault.path.removeprefix('$.')}: {fault.message}" for fault in faults))


def _invalid_content(why: str) -> InvalidInputResponse:
    return InvalidInputResponse(-32602, f"the client's form data does not fit the form: {why}")
