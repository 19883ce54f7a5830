"""Options of entries at registration, one type per kind of entry. The comments describe the options."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import msgspec

from trunkline.errors import MisuseError, RegistrationError
from trunkline.errors.suggestions import did_you_mean
from trunkline.protocol.meta import TAGS
from trunkline.protocol.types import Annotations, Icon, ToolAnnotations, Wire

if TYPE_CHECKING:
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
    "parse_tags",
]

W = TypeVar("W", bound=Wire)


class EntryOptions(TypedDict, total=False):
    """Options of every entry."""

    name: str | None  # default: the function's name
    title: str | None  # display name
    description: str | None  # default: from the docstring
    icons: Sequence[Icon | Mapping[str, Any]] | None  # icons to show next to the name
    meta: Mapping[str, Any] | None  # sent as `_meta`
    tags: Collection[str] | None  # to enable, disable and select entries by; sent in `_meta`


class ToolOptions(EntryOptions, total=False):
    """Options of a tool."""

    input_schema: Mapping[str, Any] | None  # default: built from the parameters
    annotations: ToolAnnotations | Mapping[str, Any] | None  # hints about its behaviour
    timeout: float | None  # seconds per call; default: `work_timeout`
    structured: bool  # False: no output schema, and results without structured content
    task: "bool | TaskSupport | TaskPolicy"  # whether calls run as tasks; True: if the client requests it
    asks: Sequence[str]  # required client capabilities: "elicitation", "sampling", "roots", …
    version: str | None  # of the tool; sent in `_meta`, as the next three
    deprecated: bool | None  # whether clients should stop using it
    experimental: Mapping[str, Any] | None  # its experimental features
    metadata: Mapping[str, Any] | None  # further facts about its implementation


class TemplateOptions(EntryOptions, total=False):
    """Options of resources and resource templates."""

    mime_type: str | None  # MIME type of the contents
    annotations: Annotations | Mapping[str, Any] | None  # audience and priority
    ttl: float  # seconds that a client may cache the contents
    public: bool  # True: the contents are the same for every client, so shared caches may store them


class ResourceOptions(TemplateOptions, total=False):
    """Options of one resource."""

    size: int | None  # bytes, if known


class PromptOptions(EntryOptions, total=False):
    """Options of a prompt."""

    input_schema: Mapping[str, Any] | None  # for stricter validation of the arguments


def display_members(what: str, options: EntryOptions) -> dict[str, Any]:
    """Return the members that every definition has: title, icons and metadata. Errors mention `what`."""
    meta = options.get("meta")
    if tags := parse_tags(what, options.get("tags")):
        meta = {**(meta or {}), TAGS: sorted(tags)}
    return {
        "title": options.get("title"),
        "icons": parse_icons(what, options.get("icons")),
        "meta": dict(meta) if meta else None,
    }


def parse_tags(what: str, tags: Collection[str] | None) -> frozenset[str]:
    """Return tags as a set. Raise `RegistrationError` for anything but a set or list of texts."""
    if isinstance(tags, str):
        raise RegistrationError(f"{what}: tags must be a set of texts; write tags={{{tags!r}}}")
    if wrong := [tag for tag in tags or () if not isinstance(cast("Any", tag), str) or not tag]:
        raise RegistrationError(f"{what}: a tag is a text, not {wrong[0]!r}")
    return frozenset(tags or ())


def parse_icons(what: str, icons: Sequence[Icon | Mapping[str, Any]] | None) -> list[Icon] | None:
    """Return icons, each of which may be a mapping. Raise `RegistrationError` for anything but a list of icons."""
    if icons is None:
        return None
    if isinstance(icons, str | Mapping | Icon):
        raise RegistrationError(f"{what}: icons must be a list; write icons=[…]")
    return [from_mapping(f"{what}: icons", Icon, icon) for icon in icons] or None


def from_mapping(
    what: str, kind: type[W], source: W | Mapping[str, Any], error: Callable[[str], MisuseError] = RegistrationError
) -> W:
    """Return an object of the specification, from an instance or a mapping. The mapping may use Python or wire names:
    `read_only_hint` or `readOnlyHint`. Raise `error` for unknown names and invalid values."""
    if isinstance(source, kind):
        return source
    if not isinstance(source, Mapping):
        raise error(f"{what} must be of type {kind.__name__} or a mapping, not {source!r}")
    encoded = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    members: dict[str, Any] = {}
    for name, value in source.items():
        member = encoded.get(name, name)
        if member not in encoded.values():
            hint = did_you_mean(str(name), [*encoded, *encoded.values()])
            raise error(f"{what}: there is no {name!r}" + (f".{hint}" if hint else f"; there are {', '.join(encoded)}"))
        if member in members:
            raise error(f"{what}: {name!r} is present in both spellings")
        members[member] = value
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as invalid:
        raise error(f"{what}: {invalid}") from None
