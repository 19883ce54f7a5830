"""Elicitation on the client: forms with their fields, URLs to open, and the validation of answers.

The host application shows the form. Its answer is completed with the form's defaults and validated before it is sent,
so a server only receives fields that it has asked for.
"""

from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import Struct

from trunkline.auth.page_policy import parse_page_url
from trunkline.auth.ssrf import EgressDenied, EgressPolicy
from trunkline.errors import InvalidParams, MisuseError, RegistrationError
from trunkline.protocol.types import (
    BooleanSchema,
    ElicitParams,
    ElicitResult,
    IntegerSchema,
    MultiSelectEnumSchema,
    NumberSchema,
    RequestedSchema,
    StringSchema,
)
from trunkline.registry.validators import form_validator

__all__ = ["Choice", "FormField", "Question", "UrlQuestion", "unusable_url_error", "validate_answer"]

FieldKind = Literal["text", "number", "integer", "yes_no", "choice", "choices"]


class Choice(NamedTuple):
    """One value of a selection, and its title."""

    value: str
    title: str


class FormField(Struct, frozen=True):
    """One field of a form, independent of the schema dialect that describes it."""

    name: str
    kind: FieldKind
    title: str
    description: str
    required: bool
    default: Any = None
    choices: tuple[Choice, ...] = ()  # for the kinds choice and choices
    format: str | None = None  # of a text field: email, uri, date, date-time
    schema: Any = None  # with limits such as minimum and maxLength


class Question(Struct, frozen=True):
    """A form for the user to fill in."""

    message: str
    fields: tuple[FormField, ...]
    schema: dict[str, Any]  # the same form as JSON Schema

    @classmethod
    def of(cls, params: ElicitParams) -> "Question":
        """Build the form of a request's params. Raises `InvalidParams` for an invalid form."""
        form = params.requested_schema
        if form is None:
            raise InvalidParams("elicitation/create needs a requestedSchema")
        required = frozenset(form.required or ())
        fields = tuple(_make_field(name, schema, name in required) for name, schema in form.properties.items())
        question = cls(params.message, fields, _to_json_schema(form))
        try:
            form_validator(question.schema)
        except RegistrationError as error:
            raise InvalidParams(f"the form cannot be used: {error}") from None
        return question

    @property
    def defaults(self) -> dict[str, Any]:
        """The default values of the fields."""
        return {field.name: field.default for field in self.fields if field.default is not None}


class UrlQuestion(Struct, frozen=True):
    """A URL that the server asks the user to open. It is never opened without the user's consent."""

    message: str
    url: str
    host: str  # show it with emphasis: it identifies the site
    elicitation_id: str | None = None

    @classmethod
    def of(cls, params: ElicitParams, reach: EgressPolicy = EgressPolicy(loopback=True)) -> "UrlQuestion":  # noqa: B008 - frozen
        """Read the URL of a request's params. Raises `InvalidParams` for a URL that must not be opened, as far as that
        is known without resolving its host."""
        try:
            there = parse_page_url(params.url or "", reach)
        except EgressDenied as refused:
            raise unusable_url_error(refused) from None
        return cls(params.message, there.url, there.host, params.elicitation_id)


def unusable_url_error(refused: EgressDenied) -> InvalidParams:
    """Return the error for a URL that must not be opened."""
    return InvalidParams(f"the URL of an elicitation cannot be used: {refused}")


def validate_answer(question: Question, answer: Any) -> ElicitResult:
    """Complete and validate the answer to a form. Raises `MisuseError` if it does not fit."""
    if answer is None:
        return ElicitResult("decline")
    if isinstance(answer, ElicitResult) and answer.action != "accept":
        return answer
    content: Any = (answer.content or {}) if isinstance(answer, ElicitResult) else _to_content(answer)
    filled = {**question.defaults, **content}
    faults = form_validator(question.schema).faults(filled)
    if faults:
        details = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
        raise MisuseError(f"the answer does not fit the form: {details}")
    return ElicitResult("accept", filled)


def _to_content(answer: Any) -> dict[str, Any]:
    content: Any = msgspec.to_builtins(answer)
    if not isinstance(content, dict):
        raise MisuseError(f"the answer to an elicitation is a mapping, an object or None, not {type(answer).__name__}")
    return cast("dict[str, Any]", content)


# --- forms ---------------------------------------------------------------------------------------


def _make_field(name: str, schema: Any, required: bool) -> FormField:
    kind, choices = _classify_schema(schema)
    return FormField(
        name=name,
        kind=kind,
        title=schema.title or name,
        description=schema.description or "",
        required=required,
        default=schema.default,
        choices=choices,
        format=getattr(schema, "format", None),
        schema=schema,
    )


def _classify_schema(schema: Any) -> tuple[FieldKind, tuple[Choice, ...]]:
    match schema:
        case MultiSelectEnumSchema(items=items):
            return "choices", _make_choices(items.enum, None, items.any_of)
        case StringSchema():
            choices = _make_choices(schema.enum, schema.enum_names, schema.one_of)
            return ("choice" if choices else "text"), choices
        case IntegerSchema():
            return "integer", ()
        case NumberSchema():
            return "number", ()
        case BooleanSchema():
            return "yes_no", ()
        case _:
            raise InvalidParams(f"a form cannot have a field of type {type(schema).__name__}")


def _make_choices(values: list[str] | None, names: list[str] | None, titled: Any) -> tuple[Choice, ...]:
    if titled:
        return tuple(Choice(option.const, option.title) for option in titled)
    shown = names if names and len(names) == len(values or []) else values
    return tuple(map(Choice, values or [], shown or []))


def _to_json_schema(form: RequestedSchema) -> dict[str, Any]:
    """Return the form as JSON Schema, without additional properties."""
    schema: dict[str, Any] = msgspec.to_builtins(form)
    return {**schema, "additionalProperties": False}
