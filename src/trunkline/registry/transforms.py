"""Transforms: functions that make a new tool of a tool, which stays as it is.

A transform takes an entry and returns another one. It works on the entry's JSON Schemas, so it also works for tools
without a Python signature, such as those of a remote server. The arguments of a call pass through the changes, the
outermost first, and then through the decoder of the original tool, which validates them. Errors are explained by the
new schema.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, cast

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from trunkline.errors import RegistrationError
from trunkline.errors.suggestions import with_suggestion
from trunkline.protocol.types import CallToolResult, TextContent
from trunkline.registry.handlers import convert_result
from trunkline.registry.results import BadResult, Output, without_raw_text
from trunkline.registry.tools import ToolEntry, check_tool_name
from trunkline.registry.validators import make_validator
from trunkline.wire import codec

__all__ = [
    "Transform",
    "describe",
    "hide_argument",
    "map_result",
    "parse_transform",
    "preset_argument",
    "rename",
    "rename_argument",
    "select_output",
]

Transform = Callable[[ToolEntry], ToolEntry]
"""Returns a new tool that is made of another one."""

_as_object: Final = codec.decoder(dict[str, Any])
_as_anything: Final[Callable[[bytes], Any]] = codec.decoder(object)
_NAMING: Final = frozenset(
    {"dependentRequired", "dependentSchemas", "dependencies", "anyOf", "oneOf", "allOf", "not", "if", "then", "else"}
    | {"patternProperties", "propertyNames", "minProperties", "maxProperties", "$ref"}
)
"""Keywords of an input schema that may refer to arguments by name, or count them."""


def parse_transform(transform: "Transform | Iterable[Any] | Mapping[str, Any]") -> Transform:
    """Return one transform for a function, for several in order, or for a mapping from names of tools to either. Raise
    `RegistrationError` for anything else."""
    if callable(transform):
        return transform
    if isinstance(transform, str) or not isinstance(cast("Any", transform), Iterable):
        why = "such as those of trunkline.transforms, or several"
        raise RegistrationError(f"a transform is a function of a tool, {why}; not {transform!r}")
    if isinstance(transform, Mapping):
        by_name = {name: parse_transform(each) for name, each in cast("Mapping[str, Any]", transform).items()}
        return partial(_apply_by_name, by_name)
    return partial(_apply_all, [parse_transform(each) for each in transform])


def _apply_by_name(transforms: Mapping[str, Transform], entry: ToolEntry) -> ToolEntry:
    transform = transforms.get(entry.name)
    return entry if transform is None else transform(entry)


def _apply_all(transforms: Iterable[Transform], entry: ToolEntry) -> ToolEntry:
    for transform in transforms:
        entry = transform(entry)
    return entry


# --- name and description --------------------------------------------------------------------------


def rename(name: str) -> Transform:
    """Give a tool another name."""
    return partial(_rename, check_tool_name(name))


def _rename(name: str, entry: ToolEntry) -> ToolEntry:
    return replace(entry, name=name, limiter=None if entry.limiter is None else entry.limiter.named(name))


def describe(
    description: str | None = None, *, title: str | None = None, arguments: Mapping[str, str] | None = None
) -> Transform:
    """Give a tool, or some of its arguments, another description, or a title."""

    def transform(entry: ToolEntry) -> ToolEntry:
        properties, schema = _properties(entry), entry.definition.input_schema
        for name, text in (arguments or {}).items():
            properties[name] = {**_argument(entry, name), "description": text}
        return replace(
            entry,
            description=entry.description if description is None else description,
            title=entry.title if title is None else title,
            **(_schema_members({**schema, "properties": properties}) if arguments else {}),
        )

    return transform


# --- arguments -------------------------------------------------------------------------------------


def hide_argument(name: str) -> Transform:
    """Remove an optional argument: every call uses its default."""

    def transform(entry: ToolEntry) -> ToolEntry:
        if name in _required(entry):
            raise RegistrationError(
                f"tool {entry.name!r}: argument {name!r} has no default; use preset_argument({name!r}, …)"
            )
        return _without_argument(entry, name, partial(_refuse_argument, name))

    return transform


def preset_argument(name: str, value: Any) -> Transform:
    """Remove an argument: every call uses this value, which is any JSON value."""
    encoded = codec.to_json(value)  # now: the caller may change it

    def transform(entry: ToolEntry) -> ToolEntry:
        fixed, schema = _as_anything(encoded), entry.definition.input_schema
        described = {**schema, "properties": {name: _argument(entry, name)}, "required": [name]}
        validator = make_validator(described, f"tool {entry.name!r}", entry.compile_schema)
        if faults := validator.faults({name: fixed}):
            raise RegistrationError(f"tool {entry.name!r} cannot have {name}={value!r}: {faults[0].message}")

        def fill(values: dict[str, Any]) -> dict[str, Any]:
            return {**_refuse_argument(name, values), name: fixed}

        return _without_argument(entry, name, fill)

    return transform


def rename_argument(name: str, new: str) -> Transform:
    """Give an argument another name."""

    def transform(entry: ToolEntry) -> ToolEntry:
        described = _argument(entry, name)
        _check_independent(entry, name)
        if new in _properties(entry):
            raise RegistrationError(f"tool {entry.name!r} has an argument {new!r} already; choose another name")
        names = {name: new}
        schema = {
            **entry.definition.input_schema,
            "properties": {names.get(key, key): each for key, each in {**_properties(entry), name: described}.items()},
            "required": [names.get(key, key) for key in _required(entry)],
        }
        original = {now: before for before, now in entry.renamed_arguments.items()}.get(name, name)

        def restore(values: dict[str, Any]) -> dict[str, Any]:
            return {name if key == new else key: value for key, value in _refuse_argument(name, values).items()}

        changed = _change_arguments(entry, schema, restore)
        return replace(changed, renamed_arguments={**entry.renamed_arguments, original: new})

    return transform


class _ChangedArguments(Struct, frozen=True):
    """Decoder of a transformed tool: changes the arguments, then decodes them as the original tool does."""

    decode: Callable[[Any], Any]
    steps: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...]

    def __call__(self, raw: Any) -> Any:
        values = _as_object(raw)
        for step in self.steps:
            values = step(values)
        return self.decode(codec.to_raw(values))


def _change_arguments(
    entry: ToolEntry, schema: Mapping[str, Any], step: Callable[[dict[str, Any]], dict[str, Any]]
) -> ToolEntry:
    """Return a tool with another input schema. `step` converts arguments of that schema to those of the entry."""
    known = entry.decode
    decode = (
        _ChangedArguments(known.decode, (step, *known.steps))
        if isinstance(known, _ChangedArguments)
        else _ChangedArguments(known, (step,))
    )
    return replace(entry, decode=decode, **_schema_members(schema))


def _schema_members(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an entry with another input schema; it is compiled when it is first needed."""
    return {"custom_schema": schema, "custom_validator": None}


def _without_argument(entry: ToolEntry, name: str, step: Callable[[dict[str, Any]], dict[str, Any]]) -> ToolEntry:
    _argument(entry, name)
    _check_independent(entry, name)
    schema = {
        **entry.definition.input_schema,
        "properties": {key: each for key, each in _properties(entry).items() if key != name},
        "required": [key for key in _required(entry) if key != name],
    }
    return _change_arguments(entry, schema, step)


def _refuse_argument(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return arguments without one that callers may not pass; raise `codec.DecodeError` if it is there."""
    if name in values:
        raise codec.DecodeError(f"Object contains unknown field `{name}`")
    return values


def _properties(entry: ToolEntry) -> dict[str, Any]:
    return dict(entry.definition.input_schema.get("properties") or {})


def _required(entry: ToolEntry) -> list[str]:
    return list(entry.definition.input_schema.get("required") or ())


def _argument(entry: ToolEntry, name: str) -> dict[str, Any]:
    """Return the schema of an argument; raise `RegistrationError` if there is none."""
    properties = _properties(entry)
    if name not in properties:
        why = f"tool {entry.name!r} has no argument {name!r}"
        raise RegistrationError(with_suggestion(why, name, properties))
    described = properties[name]
    return dict(cast("Mapping[str, Any]", described)) if isinstance(described, Mapping) else {}


def _check_independent(entry: ToolEntry, name: str) -> None:
    """Raise `RegistrationError` if rules of the schema may refer to an argument by its name."""
    if rules := sorted(_NAMING.intersection(entry.definition.input_schema)):
        raise RegistrationError(
            f"tool {entry.name!r}: argument {name!r} cannot be changed, as {rules[0]!r} in the schema may refer to it"
        )


# --- output ----------------------------------------------------------------------------------------


def select_output(*names: str) -> Transform:
    """Reduce the structured content of results to some members. The text of a result is the JSON of these."""

    def transform(entry: ToolEntry) -> ToolEntry:
        schema = _object_schema(entry)
        properties: Mapping[str, Any] = schema.get("properties") or {}
        if unknown := [name for name in names if name not in properties]:
            why = f"the output of tool {entry.name!r} has no {unknown[0]!r}"
            raise RegistrationError(with_suggestion(why, unknown[0], properties))
        reduced = {
            **schema,
            "properties": {name: properties[name] for name in names},
            "required": [name for name in schema.get("required") or () if name in names],
        }

        def select(result: CallToolResult) -> CallToolResult:
            whole: Any = _plain(result).structured_content
            if not isinstance(whole, dict):
                raise BadResult(f"tool {entry.name!r} has returned no structured content to select from")
            members = cast("dict[str, Any]", whole)
            body = codec.to_json({name: members[name] for name in names if name in members})
            return replace(result, content=[TextContent(body.decode())], structured_content=Raw(body))

        return _change_result(entry, select, reduced)

    return transform


def map_result(
    function: Callable[[CallToolResult], CallToolResult], *, output_schema: Mapping[str, Any] | None = None
) -> Transform:
    """Pass every result that is not an error through a function, which must not block. Without `output_schema` the tool
    has none; with one, a result that violates it is an error."""

    def transform(entry: ToolEntry) -> ToolEntry:
        check = (
            None
            if output_schema is None
            else make_validator(output_schema, f"tool {entry.name!r}", entry.compile_schema)
        )

        def convert(result: CallToolResult) -> CallToolResult:
            made = function(_plain(result))
            if check is not None and (faults := check.faults(_plain(made).structured_content)):
                why = f"{faults[0].path}: {faults[0].message}"
                raise BadResult(f"tool {entry.name!r}: the mapped result does not match its schema: {why}")
            return made

        return _change_result(entry, convert, output_schema)

    return transform


def _change_result(
    entry: ToolEntry, convert: Callable[[CallToolResult], CallToolResult], schema: Mapping[str, Any] | None
) -> ToolEntry:
    def converted(result: Any) -> Any:
        return convert(result) if isinstance(result, CallToolResult) and not result.is_error else result

    def run(arguments: Any, context: Any, subject: Any) -> Any:
        return convert_result(entry.run(arguments, context, subject), converted)

    return replace(entry, output=Output(UNSET, False, entry.output.convert, schema), run=run)


def _plain(result: CallToolResult) -> CallToolResult:
    """Return a result whose structured content consists of plain values."""
    result = without_raw_text(result)
    if result.structured_content is UNSET:
        return result
    return replace(result, structured_content=_as_anything(codec.to_json(result.structured_content)))


def _object_schema(entry: ToolEntry) -> Mapping[str, Any]:
    """Return the output schema of a tool, which must describe an object."""
    schema = entry.output.schema()
    if schema is None or schema.get("type") != "object" or entry.output.wraps:
        raise RegistrationError(f"tool {entry.name!r} has no structured output with members; use map_result")
    return schema
