"""Forms: what a client's user is asked to fill in, made from a type, and what comes back, read into it."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from trunkline.errors import MisuseError, PeerError
from trunkline.protocol.types import ElicitResult, RequestedSchema
from trunkline.registry import schema

__all__ = ["Answer", "form_of", "read_answer"]

T = TypeVar("T")


class Answer(Struct, Generic[T], frozen=True):
    """What the user did with a question: "accept" with data, "decline" or "cancel" without."""

    action: str
    data: T | None = None

    @property
    def accepted(self) -> bool:
        """Whether the user agreed."""
        return self.action == "accept"


def form_of(wanted: Any) -> RequestedSchema:
    """The form for a dataclass, Struct or TypedDict, or for a schema written by hand. Fields must be primitive."""
    described = dict(cast("Mapping[str, Any]", wanted)) if isinstance(wanted, Mapping) else schema.of_type(wanted)
    definitions: Mapping[str, Any] = described.pop("$defs", {})
    properties = {
        name: _flat(field, definitions)
        for name, field in cast("dict[str, Any]", described.get("properties", {})).items()
    }
    form = {"type": "object", "properties": properties, "required": described.get("required") or None}
    try:
        return msgspec.convert(form, RequestedSchema)
    except msgspec.ValidationError as error:
        raise MisuseError(f"a form has fields of text, numbers, yes/no and choices only: {error}") from None


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
    if flat.get("default", 0) is None:
        del flat["default"]
    return flat


def read_answer(result: ElicitResult, wanted: Any) -> Answer[Any]:
    """The user's answer, with the data of an accepted form in the type that was asked for."""
    if result.action != "accept":
        return Answer(result.action)
    content = result.content or {}
    if isinstance(wanted, Mapping):
        return Answer(result.action, content)
    try:
        return Answer(result.action, msgspec.convert(content, wanted, strict=False))
    except msgspec.ValidationError as error:
        raise PeerError(-32602, f"the client's form does not fit what was asked for: {error}") from None
