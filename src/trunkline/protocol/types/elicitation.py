"""Elicitation: a server asks the client's user."""

from typing import Literal

from msgspec import field

from trunkline.protocol.types.base import Number, Params, Result, Wire
from trunkline.protocol.types.tasks import TaskAugmentedParams

__all__ = [
    "BooleanSchema",
    "ElicitParams",
    "ElicitResult",
    "ElicitationCompleteParams",
    "EnumItems",
    "EnumOption",
    "IntegerSchema",
    "MultiSelectEnumSchema",
    "NumberSchema",
    "PrimitiveSchema",
    "RequestedSchema",
    "StringSchema",
    "UrlElicitationRequired",
]


class EnumOption(Wire):
    """A value to choose, and how it is shown."""

    const: str
    title: str


class _Field(Wire, tag_field="type", kw_only=True):
    """A field of a form; its kind is told by `type`."""

    title: str | None = None
    description: str | None = None


class StringSchema(_Field, tag="string", kw_only=True):
    """A field for text, or for one value of a list: `enum`, with titles `one_of`, formerly `enum` and `enum_names`."""

    min_length: int | None = None
    max_length: int | None = None
    format: Literal["email", "uri", "date", "date-time"] | None = None
    pattern: str | None = None  # in the prose of 2025-11-25, not in its schema
    enum: list[str] | None = None
    enum_names: list[str] | None = None
    one_of: list[EnumOption] | None = None
    default: str | None = None


class NumberSchema(_Field, tag="number", kw_only=True):
    """A field for a number."""

    minimum: Number | None = None
    maximum: Number | None = None
    default: Number | None = None


class IntegerSchema(NumberSchema, tag="integer", kw_only=True):
    """A field for a whole number."""


class BooleanSchema(_Field, tag="boolean", kw_only=True):
    """A field for yes or no."""

    default: bool | None = None


class EnumItems(Wire, kw_only=True):
    """The values that can be chosen: `enum` with the type "string", or with titles `any_of`."""

    type: Literal["string"] | None = None
    enum: list[str] | None = None
    any_of: list[EnumOption] | None = None


class MultiSelectEnumSchema(_Field, tag="array", kw_only=True):
    """A field for any number of values of a list."""

    items: EnumItems
    min_items: int | None = None
    max_items: int | None = None
    default: list[str] | None = None


PrimitiveSchema = StringSchema | NumberSchema | IntegerSchema | BooleanSchema | MultiSelectEnumSchema
"""A field of any kind."""


class RequestedSchema(Wire, tag_field="type", tag="object"):
    """The fields of a form."""

    properties: dict[str, PrimitiveSchema]
    required: list[str] | None = None
    schema: str | None = field(name="$schema", default=None)


class ElicitParams(TaskAugmentedParams):
    """Asks the user: by a form, or by sending them to a URL."""

    message: str
    requested_schema: RequestedSchema | None = None  # of a form
    mode: Literal["form", "url"] = "form"
    url: str | None = None
    elicitation_id: str | None = None  # of a URL, up to 2025-11-25


class ElicitResult(Result):
    """What the user did, and what a form was filled in with."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, str | Number | bool | list[str]] | None = None


class ElicitationCompleteParams(Params):
    """Tells that the user is done at a URL."""

    elicitation_id: str


class UrlElicitationRequired(Wire):
    """The data of an error that says: first send the user to these URLs."""

    elicitations: list[ElicitParams]
