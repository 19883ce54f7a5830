"""Differences between two descriptions of a server, each with a verdict: does it break clients of the old one?

Arguments may accept more and results may promise more; the reverse breaks callers. A hint that promises less (no longer
read-only, now destructive) breaks hosts that relied on it. Texts break nothing, but are listed: models read them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from msgspec import Struct

from trunkline.cli.description import ServerDescription
from trunkline.cli.schema_diff import Effect, SchemaChange, compare_schemas
from trunkline.cli.schemas import as_mapping
from trunkline.protocol.types import Prompt, Resource, ResourceTemplate, Tool

__all__ = ["Change", "compare_descriptions"]

E = TypeVar("E")

_BREAKING_ARGUMENTS: Final[frozenset[Effect]] = frozenset({"narrowed", "changed", "removed", "required"})
_BREAKING_RESULTS: Final[frozenset[Effect]] = frozenset({"widened", "changed", "removed", "optional"})
# The defaults of the specification, and the value that promises less.
_HINTS: Final = {
    "read_only_hint": ("readOnlyHint", False, False),
    "destructive_hint": ("destructiveHint", True, True),
    "idempotent_hint": ("idempotentHint", False, False),
    "open_world_hint": ("openWorldHint", True, True),
}


class Change(Struct, frozen=True):
    """One difference: what it is about, whether it breaks clients, its kind and a description."""

    breaking: bool
    kind: str  # such as "removed", "arguments", "result", "hint", "text"
    where: str  # such as "tool 'add'"
    text: str


def compare_descriptions(old: ServerDescription, new: ServerDescription) -> list[Change]:
    """Return the differences from one description to another; those that break clients first."""
    found = [
        *_compare_server(old, new),
        *_compare_entries("tool", _by(old.tools, _name), _by(new.tools, _name), _compare_tools),
        *_compare_entries("resource", _by(old.resources, _uri), _by(new.resources, _uri), _compare_resources),
        *_compare_entries(
            "resource template",
            _by(old.resource_templates, _template),
            _by(new.resource_templates, _template),
            _compare_resources,
        ),
        *_compare_entries("prompt", _by(old.prompts, _name), _by(new.prompts, _name), _compare_prompts),
    ]
    return sorted(found, key=lambda change: not change.breaking)


def _name(entry: Tool | Prompt) -> str:
    return entry.name


def _uri(entry: Resource) -> str:
    return entry.uri


def _template(entry: ResourceTemplate) -> str:
    return entry.uri_template


def _by(entries: Iterable[E], key: Callable[[E], str]) -> dict[str, E]:
    return {key(entry): entry for entry in entries}


def _compare_entries(
    what: str, old: Mapping[str, Any], new: Mapping[str, Any], compare: Callable[[str, Any, Any], Iterable[Change]]
) -> Iterator[Change]:
    for name in dict.fromkeys((*old, *new)):
        where = f"{what} {name!r}"
        if name not in new:
            yield Change(True, "removed", where, "removed")
        elif name not in old:
            yield Change(False, "added", where, "new")
        else:
            yield from compare(where, old[name], new[name])


# --- the server ----------------------------------------------------------------------------------


def _compare_server(old: ServerDescription, new: ServerDescription) -> Iterator[Change]:
    where = "server"
    if old.server is not None and new.server is not None:
        for member in ("name", "version", "title"):
            before, after = getattr(old.server, member), getattr(new.server, member)
            if before != after:
                yield Change(False, "text", where, f"the {member} was {before!r} and is {after!r}")
    if old.revision and new.revision and old.revision != new.revision:
        older = new.revision < old.revision
        yield Change(older, "revision", where, f"the newest common revision was {old.revision} and is {new.revision}")
    if (old.instructions or "") != (new.instructions or ""):
        yield Change(False, "text", where, "the instructions have changed")
    if old.capabilities and new.capabilities:  # a list without the server itself has none
        before, after = set(_capabilities(old.capabilities)), set(_capabilities(new.capabilities))
        for name in sorted(before - after):
            if name.partition(".")[0] not in after and "." in name:
                continue  # it is gone with its capability
            yield Change(True, "capability", where, f"the capability {name!r} was removed")
        for name in sorted(after - before):
            yield Change(False, "capability", where, f"the capability {name!r} is new")


def _capabilities(declared: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the capabilities and of their flags, as `resources.subscribe`."""
    for name, value in declared.items():
        yield name
        for flag, enabled in as_mapping(value).items():
            if enabled is not False and enabled is not None:
                yield f"{name}.{flag}"


# --- tools ---------------------------------------------------------------------------------------


def _compare_tools(where: str, old: Tool, new: Tool) -> Iterator[Change]:
    for change in compare_schemas(old.input_schema, new.input_schema):
        yield Change(change.effect in _BREAKING_ARGUMENTS, "arguments", where, _describe("argument", change))
    yield from _compare_results(where, old.output_schema, new.output_schema)
    yield from _compare_hints(where, old, new)
    before, after = _task_support(old), _task_support(new)
    if before != after:
        breaking = after == "required" or (after == "forbidden" and before != "forbidden")
        yield Change(breaking, "execution", where, f"calls as a task: {before} before, {after} now")
    yield from _compare_texts(where, old, new)


def _compare_results(where: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[Change]:
    if old is None or new is None:
        if old is not new:
            removed = new is None
            yield Change(removed, "result", where, f"the output schema {'was removed' if removed else 'is new'}")
        return
    for change in compare_schemas(old, new):
        yield Change(change.effect in _BREAKING_RESULTS, "result", where, _describe("result", change))


def _describe(what: str, change: SchemaChange) -> str:
    if not change.path:
        return f"{what}s: {change.text}" if what == "argument" else f"{what}: {change.text}"
    return f"{what} {change.path!r}: {change.text}"


def _compare_hints(where: str, old: Tool, new: Tool) -> Iterator[Change]:
    for member, (name, default, worse) in _HINTS.items():
        before, after = _hint(old, member, default), _hint(new, member, default)
        if before != after:
            text = f"{name} was {str(before).lower()} and is {str(after).lower()}"
            yield Change(after == worse, "hint", where, text)


def _hint(tool: Tool, member: str, default: bool) -> bool:
    value = None if tool.annotations is None else getattr(tool.annotations, member)
    return default if value is None else value


def _task_support(tool: Tool) -> str:
    return (tool.execution.task_support if tool.execution is not None else None) or "forbidden"


# --- resources and prompts -----------------------------------------------------------------------


def _compare_resources(where: str, old: Any, new: Any) -> Iterator[Change]:
    if old.mime_type != new.mime_type:
        breaking = old.mime_type is not None
        yield Change(breaking, "type", where, f"the MIME type was {old.mime_type!r} and is {new.mime_type!r}")
    if old.name != new.name:
        yield Change(False, "text", where, f"the name was {old.name!r} and is {new.name!r}")
    yield from _compare_texts(where, old, new)


def _compare_prompts(where: str, old: Prompt, new: Prompt) -> Iterator[Change]:
    before = {argument.name: argument for argument in old.arguments or ()}
    after = {argument.name: argument for argument in new.arguments or ()}
    for name in dict.fromkeys((*before, *after)):
        was, now = before.get(name), after.get(name)
        if now is None:
            yield Change(True, "arguments", where, f"argument {name!r}: removed")
        elif was is None:
            text = "new and required" if now.required else "new and optional"
            yield Change(bool(now.required), "arguments", where, f"argument {name!r}: {text}")
        elif bool(was.required) != bool(now.required):
            text = "required now" if now.required else "optional now"
            yield Change(bool(now.required), "arguments", where, f"argument {name!r}: {text}")
    yield from _compare_texts(where, old, new)


def _compare_texts(where: str, old: Any, new: Any) -> Iterator[Change]:
    for member in ("title", "description"):
        if (getattr(old, member) or "") != (getattr(new, member) or ""):
            yield Change(False, "text", where, f"the {member} has changed")
