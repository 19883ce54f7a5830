"""Projection of values to older revisions.

Handlers build the newest form of every value. Before sending, `project` removes what the peer's revision does not
define: members outside of their window return to their defaults, and so are omitted. A few types have an older form
instead: newer content types, sampling with several blocks, choices in forms.

The plan for a type at a revision is computed once, and a value that needs no change is returned as it is. Methods, and
modes that the peer must declare, are checked earlier. The tables have the names of types, so that a type is imported
only where it is used.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeVar, cast, get_args

from msgspec import UNSET, Raw, Struct
from msgspec.structs import fields, replace

from trunkline.protocol import types as t
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types.base import Wire

__all__ = ["OLDER_FORMS", "WINDOWS", "Window", "project", "wrap_structured_content"]

T = TypeVar("T")


class Window(Struct, frozen=True):
    """The first and last revision that define a member."""

    since: Revision = Revision.V2024_11_05
    until: Revision = Revision.V2026_07_28

    def covers(self, revision: Revision) -> bool:
        """Return whether a revision is within the window."""
        return self.since <= revision <= self.until


FROM_2025_03 = Window(Revision.V2025_03_26)
FROM_2025_06 = Window(Revision.V2025_06_18)
FROM_2025_11 = Window(Revision.V2025_11_25)
FROM_2026_07 = Window(Revision.V2026_07_28)
ONLY_2025_11 = Window(Revision.V2025_11_25, Revision.V2025_11_25)
UNTIL_2025_11 = Window(until=Revision.V2025_11_25)

WINDOWS: Final[Mapping[str, Mapping[str, Window]]] = {
    # a row applies to derived types, unless they have their own
    "Item": {"meta": FROM_2025_06},
    "TaskAugmentedParams": {"task": ONLY_2025_11},
    "CallToolParams": {"task": ONLY_2025_11},
    "AskableParams": {"input_responses": FROM_2026_07, "request_state": FROM_2026_07},
    # content
    "Annotations": {"last_modified": FROM_2025_06},
    "ResourceLink": {"icons": FROM_2025_11},
    # lifecycle
    "Implementation": {
        "title": FROM_2025_06,
        "description": FROM_2025_11,
        "website_url": FROM_2025_11,
        "icons": FROM_2025_11,
    },
    "ClientCapabilities": {"elicitation": FROM_2025_06, "tasks": ONLY_2025_11, "extensions": FROM_2026_07},
    "RootsCapability": {"list_changed": UNTIL_2025_11},
    "SamplingCapability": {"context": FROM_2025_11, "tools": FROM_2025_11},
    "ElicitationCapability": {"form": FROM_2025_11, "url": FROM_2025_11},
    "ServerCapabilities": {"completions": FROM_2025_03, "tasks": ONLY_2025_11, "extensions": FROM_2026_07},
    "ProgressParams": {"message": FROM_2025_03},
    # server features
    "Tool": {
        "title": FROM_2025_06,
        "output_schema": FROM_2025_06,
        "annotations": FROM_2025_03,
        "execution": ONLY_2025_11,
        "icons": FROM_2025_11,
    },
    "CallToolResult": {"structured_content": FROM_2025_06},
    "Resource": {"title": FROM_2025_06, "icons": FROM_2025_11},
    "ResourceTemplate": {"title": FROM_2025_06, "icons": FROM_2025_11},
    "Prompt": {"title": FROM_2025_06, "icons": FROM_2025_11},
    "PromptArgument": {"title": FROM_2025_06},
    "Reference": {"title": FROM_2025_06},
    "CompleteParams": {"context": FROM_2025_06},
    # client features; from 2026-07-28 on they are sent inside of a result, without metadata
    "ListRootsResult": {"meta": UNTIL_2025_11},
    "SamplingMessage": {"meta": FROM_2025_11},
    "CreateMessageParams": {"meta": UNTIL_2025_11, "tools": FROM_2025_11, "tool_choice": FROM_2025_11},
    "ElicitParams": {
        "meta": UNTIL_2025_11,
        "mode": FROM_2025_11,
        "url": FROM_2025_11,
        "elicitation_id": ONLY_2025_11,
    },
    "ElicitResult": {"meta": UNTIL_2025_11},
    "RequestedSchema": {"schema": FROM_2025_11},
    "StringSchema": {"pattern": ONLY_2025_11, "one_of": FROM_2025_11, "default": FROM_2025_11},
    "NumberSchema": {"default": FROM_2025_11},
}


def _audio_as_resource(audio: "t.AudioContent", _: Revision) -> "t.EmbeddedResource":
    from uuid import NAMESPACE_OID, uuid5

    uri = uuid5(NAMESPACE_OID, audio.data).urn  # the same audio gets the same URI
    return t.EmbeddedResource(t.ResourceContents(uri, audio.mime_type, blob=audio.data), audio.annotations)


def _link_as_text(link: "t.ResourceLink", _: Revision) -> "t.TextContent":
    return t.TextContent(f"{link.title or link.name}: {link.uri}", link.annotations)


def _block_per_message(params: "t.CreateMessageParams", revision: Revision) -> "t.CreateMessageParams":
    return replace(
        params,
        messages=[
            t.SamplingMessage(message.role, block)
            for message in params.messages
            for block in _plain_blocks(message.content, revision)
        ],
    )


def _blocks_as_one(result: "t.CreateMessageResult", revision: Revision) -> "t.CreateMessageResult":
    blocks = _plain_blocks(result.content, revision)
    one = blocks[0] if len(blocks) == 1 else t.TextContent("\n\n".join(_as_text(block).text for block in blocks))
    return replace(result, content=one)


def _plain_blocks(content: "t.SamplingBlock | list[t.SamplingBlock]", revision: Revision) -> "list[t.SamplingBlock]":
    """Return the blocks of a message in the content types that sampling had before tools."""
    audio = () if revision < Revision.V2025_03_26 else (t.AudioContent,)
    known = (t.TextContent, t.ImageContent, *audio)
    blocks = content if isinstance(content, list) else [content]
    return [block if isinstance(block, known) else _as_text(block) for block in blocks]


def _as_text(block: "t.SamplingBlock") -> "t.TextContent":
    return block if isinstance(block, t.TextContent) else t.TextContent(f"[{block.__struct_config__.tag} left out]")


def _without_multi_select(form: "t.RequestedSchema", _: Revision) -> "t.RequestedSchema":
    kept = {name: field for name, field in form.properties.items() if not isinstance(field, t.MultiSelectEnumSchema)}
    required = form.required and [name for name in form.required if name in kept]
    return replace(form, properties=kept, required=required)


def _options_as_names(field: "t.StringSchema", _: Revision) -> "t.StringSchema":
    if field.one_of is None:
        return field
    consts, titles = [option.const for option in field.one_of], [option.title for option in field.one_of]
    return replace(field, enum=consts, enum_names=titles)


def _without_lists(result: "t.ElicitResult", _: Revision) -> "t.ElicitResult":
    content = result.content and {name: value for name, value in result.content.items() if not isinstance(value, list)}
    return replace(result, content=content)


def wrap_structured_content(result: "t.CallToolResult", _: Revision | None = None) -> "t.CallToolResult":
    """Wrap structured content that is not an object, as the handshake era requires."""
    content = result.structured_content
    if content is UNSET or isinstance(content, dict | Raw):  # raw content was encoded from an object
        return result
    return replace(result, structured_content={"result": content})


_Rephrase = Callable[[Any, Revision], Struct]

OLDER_FORMS: Final[Mapping[str, tuple[Revision, _Rephrase]]] = {
    # name of the type: (the first revision that defines it, its older form)
    "AudioContent": (Revision.V2025_03_26, _audio_as_resource),
    "ResourceLink": (Revision.V2025_06_18, _link_as_text),
    "CreateMessageParams": (Revision.V2025_11_25, _block_per_message),
    "CreateMessageResult": (Revision.V2025_11_25, _blocks_as_one),
    "RequestedSchema": (Revision.V2025_11_25, _without_multi_select),
    "StringSchema": (Revision.V2025_11_25, _options_as_names),
    "ElicitResult": (Revision.V2025_11_25, _without_lists),
    "CallToolResult": (Revision.V2026_07_28, wrap_structured_content),
}


def project(value: T, revision: Revision) -> T:
    """Return the form of a value in a revision: the same object if nothing changes, otherwise a copy."""
    plan = _plan(type(value), revision)
    return value if plan is None else plan.apply(value, revision)


class _Plan(Struct, frozen=True):
    """The changes to values of one type at one revision."""

    rephrase: _Rephrase | None
    removed: Mapping[str, Any]  # members outside of their window, with their defaults
    inner: tuple[str, ...]  # members whose types have plans of their own

    def apply(self, value: Any, revision: Revision) -> Any:
        if self.rephrase is not None:
            older = self.rephrase(value, revision)
            if type(older) is not type(value):
                return project(older, revision)
            value = value if older is value or older == value else older
        changes = {name: default for name, default in self.removed.items() if getattr(value, name) is not default}
        for name in self.inner:
            old = getattr(value, name)
            new = _project_inside(old, revision)
            if new is not old:
                changes[name] = new
        return replace(value, **changes) if changes else value


def _project_inside(value: Any, revision: Revision) -> Any:
    """Project the value of a member, or each value of a collection."""
    if isinstance(value, list):
        projected: Any = [project(item, revision) for item in cast("list[Any]", value)]
    elif isinstance(value, dict):
        projected = {name: project(item, revision) for name, item in cast("dict[str, Any]", value).items()}
    else:
        return project(value, revision)
    return cast("Any", value) if projected == value else projected


@cache
def _plan(cls: type, revision: Revision) -> _Plan | None:
    """Return the plan for a type; None if its values never change."""
    if not issubclass(cls, Struct):
        return None
    since, rephrase = OLDER_FORMS.get(_name(cls), (revision, None))
    windows = {name: window for base in reversed(cls.__mro__) for name, window in WINDOWS.get(_name(base), {}).items()}
    gone = {
        field.name: field.default
        for field in fields(cls)
        if field.name in windows and not windows[field.name].covers(revision)
    }
    inner = tuple(
        field.name
        for field in fields(cls)
        if field.name not in gone and any(_plan(part, revision) for part in _structs_in(field.type))
    )
    older = rephrase if revision < since else None
    return _Plan(older, gone, inner) if older or gone or inner else None


def _name(cls: type) -> str:
    """Return the name of a type in the tables; empty for a type that is not of the specification."""
    return cls.__name__ if issubclass(cls, Wire) else ""


def _structs_in(annotation: Any) -> Iterator[type[Struct]]:
    """Yield the struct types in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        yield annotation
    for part in get_args(annotation):
        yield from _structs_in(part)
