"""Tools: their definitions, argument decoding and validation, built at registration."""

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, Unpack, cast

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from trunkline.config import Settings
from trunkline.errors import InvalidArguments, InvalidParams, RegistrationError
from trunkline.errors.suggestions import did_you_mean
from trunkline.protocol.meta import TASK_SUPPORT, TOOL_MEMBERS
from trunkline.protocol.types import Icon, Tool, ToolAnnotations, ToolExecution
from trunkline.registry import type_adapters as kinds
from trunkline.registry.access import Access
from trunkline.registry.handlers import Forward, Handler, Run, make_runner
from trunkline.registry.options import ToolOptions, display_members, from_mapping, parse_tags
from trunkline.registry.registry import VersionRule
from trunkline.registry.results import Output, tool_output
from trunkline.registry.signatures import underlying_function
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.protocol.headers import MirroredArgument
    from trunkline.registry.tasks import TaskPolicy
    from trunkline.registry.validators import CompileSchema, SchemaValidator
    from trunkline.token_bucket import Rate

__all__ = ["TOOL_VERSIONS", "CallLimiter", "ToolEntry", "check_tool_name", "make_tool"]

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_MOST_HINTS: Final = 3  # unknown arguments that get a suggestion
_as_object: Final = codec.decoder(dict[str, Any])
_as_anything: Final[Callable[[bytes], Any]] = codec.decoder(object)


class CallLimiter(Protocol):
    """Limits of a tool. The registry stores it; the server calls it."""

    waits: bool  # whether a call may have to wait for them before it starts

    def check_requirements(self) -> None:
        """Raise `RegistrationError` if the tool requires something that does not exist."""
        ...

    def named(self, name: str) -> "CallLimiter":
        """Return the same limits for the tool under another name."""
        ...

    def run(self, start: Run, arguments: Any, context: Any, shared: Any, call: Any) -> Any:
        """Return the work of a call within the limits. `start` returns the work without them."""
        ...


class ToolEntry(Struct, frozen=True, dict=True):
    """One tool."""

    name: str
    handler: Handler
    output: Output
    decode: Callable[[Any], Any]  # decodes and validates JSON arguments; raises `codec.DecodeError`
    run: Run
    description: str | None = None
    title: str | None = None
    annotations: ToolAnnotations | None = None
    icons: list[Icon] | None = None
    meta: dict[str, Any] | None = None
    timeout: float | None = None  # seconds; None: the server's setting
    limiter: CallLimiter | None = None  # limiter of its calls; None: unlimited
    custom_schema: Mapping[str, Any] | None = None  # custom input schema
    custom_validator: "SchemaValidator | None" = None
    compile_schema: "CompileSchema | None" = None  # in place of our own validator
    asks: tuple[str, ...] = ()  # required client capabilities
    task: "TaskPolicy | None" = None  # task policy; None: calls never run as tasks
    access: Access | None = None  # access rule, if any
    rate: "Rate | None" = None  # of its calls, if limited
    tags: frozenset[str] = frozenset()
    renamed_arguments: Mapping[str, str] = {}  # by a transform: names by original names
    forward: Forward | None = None  # answers its calls through another server
    disabled_because: str = ""  # for callers of a disabled tool
    plain: bool = False  # every call may run at once: it has no access rule, no limit and no task

    def __post_init__(self) -> None:
        options = (self.timeout, self.limiter, self.task, self.access, self.rate, self.forward)
        force_setattr(self, "plain", all(option is None for option in options))

    @cached_property
    def mirrored_arguments(self) -> "tuple[MirroredArgument, ...]":
        """The arguments that HTTP headers repeat."""
        from trunkline.protocol.headers import find_mirrored_arguments  # imported here: for HTTP only

        return find_mirrored_arguments(self.definition.input_schema)

    def __repr__(self) -> str:
        return f"ToolEntry({self.key!r})"

    @property
    def key(self) -> str:
        """The name."""
        return self.name

    @property
    def version(self) -> str | None:
        """The version, if it has one."""
        version = (self.meta or {}).get(TOOL_MEMBERS["version"])
        return version if isinstance(version, str) and version else None

    @property
    def repeatable(self) -> bool:
        """Whether a second call has no further effect, by the tool's own hints."""
        hints = self.annotations
        return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)

    @cached_property
    def modern_definition(self) -> Tool:
        """The definition for the modern era, whose results may be any value. Its tools have no `execution`, so the
        metadata says whether calls run as tasks: a proxy has clients of the handshake era, too."""
        meta = self.meta if self.task is None else {**(self.meta or {}), TASK_SUPPORT: self.task.support}
        return msgspec.structs.replace(self.definition, output_schema=self.output.schema(), meta=meta)

    @cached_property
    def definition(self) -> Tool:
        """The definition for the handshake era; built when it is first listed."""
        return Tool(
            name=self.name,
            input_schema=self.handler.input_schema()
            if self.custom_schema is None
            else _with_properties(self.custom_schema),
            description=self.description,
            title=self.title,
            output_schema=self.output.wrapped_schema(),
            annotations=self.annotations,
            execution=None if self.task is None else ToolExecution(self.task.support),
            icons=self.icons,
            meta=self.meta,
        )

    @cached_property
    def decode_plain(self) -> Callable[[codec.DecodedJson], Any]:
        """`decode` for JSON that was decoded to plain values."""
        if self.custom_schema is not None or self.handler.accepts_extra:
            return lambda plain: self.decode(plain.raw())
        return codec.decoder(self.handler.arguments, kinds.decode_hook)

    @cached_property
    def validator(self) -> "SchemaValidator":
        """The compiled input schema: compiled at registration if it is custom, otherwise for the first refusal."""
        from trunkline.registry.validators import make_validator  # imported here: most arguments are valid

        return self.custom_validator or make_validator(
            self.definition.input_schema, f"tool {self.name!r}", self.compile_schema
        )

    def decode_leniently(self, raw: Any, error: Exception) -> Any:
        """Decode invalid arguments again: some models send JSON inside of a string, `"[1, 2]"` for a list. Such a
        string is decoded if the schema allows no string. Raise `arguments_error` if that does not help."""
        with contextlib.suppress(codec.DecodeError, RecursionError):
            values = _as_object(raw)
            properties: Mapping[str, Any] = self.definition.input_schema.get("properties") or {}
            read = {
                name: _decode_string(value)
                if isinstance(value, str) and not self._takes_text(properties.get(name))
                else value
                for name, value in values.items()
            }
            if read != values:
                return self.decode(codec.to_json(read))
        raise self.arguments_error(raw, error) from None

    def _takes_text(self, described: Any) -> bool:
        """Return whether a schema obviously allows a string."""
        if not isinstance(described, Mapping):
            return True
        described = cast("Mapping[str, Any]", described)
        reference: Any = described.get("$ref")
        if isinstance(reference, str):
            definitions: Mapping[str, Any] = self.definition.input_schema.get("$defs") or {}
            return self._takes_text(definitions.get(reference.removeprefix("#/$defs/")))
        options: Any = described.get("anyOf") or described.get("oneOf")
        if options:
            return any(map(self._takes_text, options))
        if "enum" in described:
            return any(isinstance(value, str) for value in described["enum"])
        kinds: Any = described.get("type", "string")
        return "string" in kinds

    def arguments_error(self, raw: Any, error: Exception) -> InvalidParams:
        """Return an error that lists everything that is wrong with invalid arguments, by the published schema if
        possible, else by the decoder's message."""
        from trunkline.registry.validators import Fault

        faults: list[Fault] = []
        why, hints = str(error), ""
        # Nested too deep, or a pattern that only Python supports: use the decoder's message.
        with contextlib.suppress(RecursionError, RegistrationError):
            try:
                values = _as_object(raw)
            except codec.DecodeError as worse:
                if not bytes(raw).lstrip().startswith(b"{"):
                    return InvalidParams("params of tools/call: the arguments must be an object")
                why = codec.explain_decode_error(worse, raw)
            else:
                faults = self.validator.faults(values) if self.validator.can_explain(values) else []
                hints = self._hints(values)
        if not faults:
            what, *ways = why.split(" - at `")  # the inner path first, if one decoder called another
            where = "".join(way.removesuffix("`").removeprefix("$") for way in reversed(ways))
            faults = [Fault("$" + where, "type", what)]
        reasons = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
        return InvalidArguments(
            f"invalid arguments for tool {self.name!r}: {reasons}{hints}",
            errors=[msgspec.to_builtins(fault) for fault in faults],
        )

    def _hints(self, values: Mapping[str, Any]) -> str:
        """Return hints about unknown arguments."""
        known: Mapping[str, Any] = self.definition.input_schema.get("properties") or {}
        unknown = [name for name in values if name not in known][:_MOST_HINTS]
        hints = (
            f" The server provides {name!r} itself: omit it."
            if name in self.handler.injected
            else ""
            if self.handler.accepts_extra
            else did_you_mean(name, known.keys() - values.keys())
            for name in unknown
        )
        text = "".join(hints)
        return f".{text}" if text else ""


def check_tool_name(name: str) -> str:
    """Return a name that a tool may have; raise `RegistrationError` for any other."""
    if not _NAME.fullmatch(name):
        raise RegistrationError(f"tool name {name!r} must be 1 to 128 of the characters A-Z a-z 0-9 _ - .; pass name=…")
    return name


def _version_name(entry: ToolEntry) -> str | None:
    """Return the name of this version of a tool, `forecast.v1`; None if a name cannot contain the version."""
    name = f"{entry.name}.v{entry.version}"
    return name if _NAME.fullmatch(name) else None


def _with_name(entry: ToolEntry, name: str) -> ToolEntry:
    return msgspec.structs.replace(entry, name=name)


TOOL_VERSIONS: Final[VersionRule[ToolEntry]] = VersionRule(lambda entry: entry.version, _version_name, _with_name)
"""How the tools of one name differ by version."""


def make_tool(
    handler: Handler,
    settings: Settings,
    *,
    limiter: CallLimiter | None = None,
    access: Access | None = None,
    compile_schema: "CompileSchema | None" = None,
    **options: Unpack[ToolOptions],
) -> ToolEntry:
    """Build a tool from a function. Raise `RegistrationError` for an invalid one."""
    name = check_tool_name(options.get("name") or handler.name)
    custom_description = options.get("description")
    described = handler.description if custom_description is None else custom_description
    if len(described) > settings.max_tool_description:
        why = f"has {len(described)} characters; {settings.max_tool_description} is the most"
        raise RegistrationError(f"the description of tool {name!r} {why}", kind="tool_description_exceeds_max")
    handler = _without_generator(handler)
    output = tool_output(handler.returns, name, settings, structured=options.get("structured", True))
    input_schema = options.get("input_schema")
    validator = None if input_schema is None else _check_schema(input_schema, name, compile_schema)
    asks: Sequence[str] = options.get("asks", ())
    if isinstance(asks, str):
        raise RegistrationError(f"tool {name!r}: asks is a list of capabilities; write asks=({asks!r},)")
    hints = options.get("annotations")
    if hints is not None:
        hints = from_mapping(f"tool {name!r}: annotations", ToolAnnotations, hints)
    return ToolEntry(
        name=name,
        handler=handler,
        output=output,
        decode=handler.decode if validator is None else _schema_decoder(handler, input_schema or {}, validator),
        run=make_runner(handler, output.convert),
        description=described or None,
        annotations=hints,
        timeout=options.get("timeout"),
        limiter=limiter,
        custom_schema=input_schema,
        custom_validator=validator,
        compile_schema=compile_schema,
        asks=tuple(asks),
        task=_parse_task(name, options.get("task"), hints),
        access=access,
        tags=parse_tags(f"tool {name!r}", options.get("tags")),
        **display_members(f"tool {name!r}", _with_tool_members(options)),
    )


def _with_tool_members(options: ToolOptions) -> ToolOptions:
    """Return the options with the members that the specification has not in the metadata."""
    own = {key: value for name, key in TOOL_MEMBERS.items() if (value := options.get(name)) is not None}
    return options if not own else {**options, "meta": {**own, **(options.get("meta") or {})}}


def _parse_task(name: str, option: Any, hints: ToolAnnotations | None) -> "TaskPolicy | None":
    if option is None or option is False:
        return None
    from trunkline.registry.tasks import parse_policy  # imported here: few tools run as tasks

    return parse_policy(name, option, hints)


def _decode_string(text: str) -> Any:
    """Return the JSON value that a string contains, or the string itself."""
    try:
        return _as_anything(text.encode())
    except (codec.DecodeError, RecursionError):
        return text


def _without_generator(handler: Handler) -> Handler:
    """Return the handler; for a generator, one that returns its pieces."""
    function = underlying_function(handler.function)
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        return handler
    from trunkline.registry.generators import wrap_generator  # imported here: few tools are generators

    return wrap_generator(handler)


def _check_schema(input_schema: Any, name: str, compile_schema: "CompileSchema | None") -> "SchemaValidator":
    from trunkline.protocol.headers import InvalidAnnotation, find_mirrored_arguments
    from trunkline.registry.validators import make_validator  # imported here: few tools have a custom schema

    if not isinstance(input_schema, Mapping) or cast("Mapping[str, Any]", input_schema).get("type") != "object":
        why = f'the schema of tool {name!r} must have "type": "object"'
        raise RegistrationError(why, kind="tool_schema_invalid")
    validator = make_validator(cast("Mapping[str, Any]", input_schema), f"tool {name!r}", compile_schema)
    try:
        find_mirrored_arguments(cast("Mapping[str, Any]", input_schema))
    except InvalidAnnotation as error:
        raise RegistrationError(f"tool {name!r}: {error}", kind="tool_schema_invalid") from None
    return validator


def _with_properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a custom schema with `properties`, which some clients require."""
    return dict(schema) if "properties" in schema else {**schema, "properties": {}}


def _schema_decoder(handler: Handler, schema: Mapping[str, Any], validator: "SchemaValidator") -> Callable[[Any], Any]:
    """Return a decoder for a custom schema: fill in defaults, validate, then decode to the parameter types."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    defaults: dict[str, Any] = {
        name: described["default"]
        for name, described in properties.items()
        if isinstance(described, Mapping) and "default" in described
    }

    def decode(raw: Any) -> Any:
        values = {**defaults, **_as_object(raw)}
        if not validator.accepts(values):
            raise codec.DecodeError("the arguments do not fit the schema")
        return handler.decode(codec.to_raw(values))

    return decode
