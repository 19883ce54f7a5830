"""What may be said of an entry when it is registered, one type for each kind. Comments say what an option means."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import msgspec

from trunkline.errors import MisuseError, RegistrationError
from trunkline.errors.suggestions import did_you_mean
from trunkline.protocol.types import Annotations, Icon, ToolAnnotations, Wire
from trunkline.registry.tasks import TaskPolicy, TaskSupport

__all__ = [
    "EntryOptions",
    "PromptOptions",
    "ResourceOptions",
    "TemplateOptions",
    "ToolOptions",
    "display_members",
    "from_mapping",
    "parse_icons",
]

W = TypeVar("W", bound=Wire)


class EntryOptions(TypedDict, total=False):
    """What every entry can say of itself."""

    name: str | None  # instead of the function's
    title: str | None  # for people
    description: str | None  # instead of the docstring's
    icons: Sequence[Icon | Mapping[str, Any]] | None  # pictures to show beside the name
    meta: Mapping[str, Any] | None  # goes out as `_meta`


class ToolOptions(EntryOptions, total=False):
    """What can be said of a tool."""

    input_schema: Mapping[str, Any] | None  # instead of the one made of the parameters
    annotations: ToolAnnotations | Mapping[str, Any] | None  # hints on how it behaves
    timeout: float | None  # seconds that a call has, instead of `work_timeout`
    structured: bool  # False: no output schema, and results are content alone
    task: bool | TaskSupport | TaskPolicy  # whether calls run as tasks; True: as their clients like
    asks: Sequence[str]  # what the client has to be able to be asked: "elicitation", "sampling", "roots", …


class TemplateOptions(EntryOptions, total=False):
    """What can be said of a resource, and of many at once."""

    mime_type: str | None  # of what is read
    annotations: Annotations | Mapping[str, Any] | None  # whom it is for, and how much it matters
    ttl: float  # seconds that a client may keep what it has read
    public: bool  # True: what is read is the same for everybody, so that others may keep it too


class ResourceOptions(TemplateOptions, total=False):
    """What can be said of one resource."""

    size: int | None  # bytes, if known


class PromptOptions(EntryOptions, total=False):
    """What can be said of a prompt."""

    input_schema: Mapping[str, Any] | None  # for stricter checks of the arguments


def display_members(what: str, options: EntryOptions) -> dict[str, Any]:
    """What goes into any definition as it is: how it is shown, and what lies beside it. `what` is named in errors."""
    meta = options.get("meta")
    return {
        "title": options.get("title"),
        "icons": parse_icons(what, options.get("icons")),
        "meta": dict(meta) if meta else None,
    }


def parse_icons(what: str, given: Sequence[Icon | Mapping[str, Any]] | None) -> list[Icon] | None:
    """Icons, each of which may be given as a mapping. Raises `RegistrationError` for what is not a list of icons."""
    if given is None:
        return None
    if isinstance(given, str | Mapping | Icon):
        raise RegistrationError(f"{what}: icons must be a list; write icons=[…]")
    return [from_mapping(f"{what}: icons", Icon, icon) for icon in given] or None


def from_mapping(
    what: str, kind: type[W], given: W | Mapping[str, Any], error: Callable[[str], MisuseError] = RegistrationError
) -> W:
    """An object of the specification, given as one or as a mapping of its members under their names in Python or on the
    wire: `read_only_hint` or `readOnlyHint`. Raises `error` for other names and for wrong values."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise error(f"{what} must be of type {kind.__name__} or a mapping, not {given!r}")
    encoded = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    members: dict[str, Any] = {}
    for name, value in given.items():
        member = encoded.get(name, name)
        if member not in encoded.values():
            hint = did_you_mean(str(name), [*encoded, *encoded.values()])
            raise error(f"{what}: there is no {name!r}" + (f".{hint}" if hint else f"; there are {', '.join(encoded)}"))
        if member in members:
            raise error(f"{what}: {name!r} is given in both spellings")
        members[member] = value
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as invalid:
        raise error(f"{what}: {invalid}") from None
