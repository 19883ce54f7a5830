"""Elicitation: requests of a server to the client's user."""

from typing import Literal

from msgspec import field

from trunkline.protocol.types.base import Number, Params, Result, TaskAugmentedParams, Wire

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
    """A value to choose, and its title."""

    const: str
    title: str


class _Field(Wire, tag_field="type", kw_only=True):
    """A field of a form; `type` is its tag."""

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
    """A field for an integer."""


class BooleanSchema(_Field, tag="boolean", kw_only=True):
    """A field for a boolean."""

    default: bool | None = None


class EnumItems(Wire, kw_only=True):
    """The values to choose from: `enum` with the type "string", or with titles `any_of`."""

    type: Literal["string"] | None = None
    enum: list[str] | None = None
    any_of: list[EnumOption] | None = None


class MultiSelectEnumSchema(_Field, tag="array", kw_only=True):
    """A field for several values of a list."""

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
    """Params of `elicitation/create`: a form, or a URL for the user to visit."""

    message: str
    requested_schema: RequestedSchema | None = None  # of a form
    mode: Literal["form", "url"] = "form"
    url: str | None = None
    elicitation_id: str | None = None  # of a URL, up to 2025-11-25


class ElicitResult(Result):
    """Result of `elicitation/create`: the user's action, and the values of a form."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, str | Number | bool | list[str]] | None = None


class ElicitationCompleteParams(Params):
    """Params of `notifications/elicitation/complete`: the user has finished at a URL."""

    elicitation_id: str


class UrlElicitationRequired(Wire):
    """The data of an error that requires the user to visit URLs first."""

    elicitations: list[ElicitParams]
