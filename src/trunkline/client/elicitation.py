"""What a server asks a user, and what may be answered: forms field by field, and URLs with what is to be seen first.

A form is shown by the host application. What was filled in is completed by the defaults of the form and checked against
it before anything is sent: a server never gets what it did not ask for.
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
    """One of the values that can be chosen, and how it is shown."""

    value: str
    title: str


class FormField(Struct, frozen=True):
    """One field of a form, whatever form the schema has it in."""

    name: str
    kind: FieldKind
    title: str
    description: str
    required: bool
    default: Any = None
    choices: tuple[Choice, ...] = ()  # of a choice, and of choices
    format: str | None = None  # of text: email, uri, date, date-time
    schema: Any = None  # with the limits


class Question(Struct, frozen=True):
    """A form to be filled in by the user."""

    message: str
    fields: tuple[FormField, ...]
    schema: dict[str, Any]  # the same form as JSON Schema

    @classmethod
    def of(cls, params: ElicitParams) -> "Question":
        """What the params of a request ask. Raises `InvalidParams` for a form that is none."""
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
        """What is filled in already."""
        return {field.name: field.default for field in self.fields if field.default is not None}


class UrlQuestion(Struct, frozen=True):
    """A URL that the user is asked to go to. It is never opened without the user's consent."""

    message: str
    url: str
    host: str  # to be shown with emphasis: it says who is going to be talked to
    elicitation_id: str | None = None

    @classmethod
    def of(cls, params: ElicitParams, reach: EgressPolicy = EgressPolicy(loopback=True)) -> "UrlQuestion":  # noqa: B008 - frozen
        """What the params of a request ask. Raises `InvalidParams` for a URL that must not be opened, as far as that
        can be told without looking up its host."""
        try:
            there = parse_page_url(params.url or "", reach)
        except EgressDenied as refused:
            raise unusable_url_error(refused) from None
        return cls(params.message, there.url, there.host, params.elicitation_id)


def unusable_url_error(refused: EgressDenied) -> InvalidParams:
    """The error for a URL that must not be opened."""
    return InvalidParams(f"the URL of an elicitation cannot be used: {refused}")


def validate_answer(question: Question, answer: Any) -> ElicitResult:
    """The answer to a question, completed and checked. Raises `MisuseError` for one that the form does not allow."""
    if answer is None:
        return ElicitResult("decline")
    if isinstance(answer, ElicitResult) and answer.action != "accept":
        return answer
    content: Any = (answer.content or {}) if isinstance(answer, ElicitResult) else _to_content(answer)
    filled = {**question.defaults, **content}
    faults = form_validator(question.schema).faults(filled)
    if faults:
        told = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
        raise MisuseError(f"what was filled in does not fit the form: {told}")
    return ElicitResult("accept", filled)


def _to_content(answer: Any) -> dict[str, Any]:
    content: Any = msgspec.to_builtins(answer)
    if not isinstance(content, dict):
        raise MisuseError(f"an elicitation is answered with what was filled in, or None, not {type(answer).__name__}")
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
    """The form as JSON Schema; it takes nothing that it does not ask for."""
    schema: dict[str, Any] = msgspec.to_builtins(form)
    return {**schema, "additionalProperties": False}
