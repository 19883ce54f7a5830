"""A tool: what peers are told about it, and what runs when they call it. Made once, when it is added."""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Unpack, cast

import msgspec
from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import InvalidArguments, InvalidParams, RegistrationError
from trunkline.errors.suggestions import did_you_mean
from trunkline.protocol.headers import InvalidAnnotation, MirroredArgument, find_mirrored_arguments
from trunkline.protocol.types import Icon, Tool, ToolAnnotations, ToolExecution
from trunkline.registry import type_adapters as kinds
from trunkline.registry.access import Access
from trunkline.registry.generators import wrap_generator
from trunkline.registry.handlers import Handler, Run, make_runner
from trunkline.registry.options import ToolOptions, display_members, from_mapping
from trunkline.registry.results import Output, tool_output
from trunkline.registry.tasks import TaskPolicy, parse_policy
from trunkline.registry.validators import Fault, Validator
from trunkline.wire import codec

__all__ = ["ToolEntry", "make_tool"]

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_MOST_HINTS: Final = 3  # arguments that are told more about
_as_object: Final = codec.decoder(dict[str, Any])
_as_anything: Final[Callable[[bytes], Any]] = codec.decoder(object)


class ToolEntry(Struct, frozen=True, dict=True):
    """One tool."""

    name: str
    handler: Handler
    output: Output
    decode: Callable[[Any], Any]  # JSON into the arguments of a call; the validation: it raises `codec.DecodeError`
    run: Run
    description: str | None = None
    title: str | None = None
    annotations: ToolAnnotations | None = None
    icons: list[Icon] | None = None
    meta: dict[str, Any] | None = None
    timeout: float | None = None  # seconds; None: that of the server
    limiter: Any = None  # what holds its calls to limits; None: nothing does
    custom_schema: Mapping[str, Any] | None = None  # written by hand
    custom_validator: Validator | None = None
    asks: tuple[str, ...] = ()  # what the client has to be able to be asked
    task: TaskPolicy | None = None  # how its calls run as tasks; None: they never do
    access: Access | None = None  # who may call it, if anything was said of that

    @cached_property
    def mirrored_arguments(self) -> tuple[MirroredArgument, ...]:
        """The arguments that HTTP headers repeat."""
        return find_mirrored_arguments(self.definition.input_schema)

    def __repr__(self) -> str:
        return f"ToolEntry({self.key!r})"

    @property
    def key(self) -> str:
        """Its name."""
        return self.name

    @property
    def repeatable(self) -> bool:
        """Whether calling it twice does no more than calling it once, by its own account."""
        said = self.annotations
        return said is not None and bool(said.read_only_hint or said.idempotent_hint)

    @cached_property
    def modern_definition(self) -> Tool:
        """What peers of the modern era are told, who take any value as a result."""
        return msgspec.structs.replace(self.definition, output_schema=self.output.schema())

    @cached_property
    def definition(self) -> Tool:
        """What peers of the handshake era are told; made when it is first listed."""
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
        """`decode` for JSON that was read already."""
        if self.custom_schema is not None or self.handler.accepts_extra:
            return lambda plain: self.decode(plain.raw())
        return codec.decoder(self.handler.arguments, kinds.decode_hook)

    @cached_property
    def validator(self) -> Validator:
        """The input schema, compiled: at registration if it was written by hand, otherwise for the first refusal."""
        return self.custom_validator or Validator(self.definition.input_schema, f"tool {self.name!r}")

    def decode_leniently(self, raw: Any, error: Exception) -> Any:
        """Arguments that could not be read, once more: some models put JSON inside of a string, `"[1, 2]"` for a list.
        Such a string is read where the schema takes no string. Raises what `refusal` says if that does not help."""
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
        """Whether a schema has room for a string, as far as can be told at a glance."""
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
        """Says everything that is wrong with arguments that could not be read, by the schema that the peer knows;
        or else what decoding ran into."""
        faults: list[Fault] = []
        why, hints = str(error), ""
        # Too deep, or a pattern that only Python can read: then the decoder's own words must do.
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
            what, *ways = why.split(" - at `")  # the inner way first, where one decoder called another
            where = "".join(way.removesuffix("`").removeprefix("$") for way in reversed(ways))
            faults = [Fault("$" + where, "type", what)]
        reasons = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
        return InvalidArguments(
            f"invalid arguments for tool {self.name!r}: {reasons}{hints}",
            errors=[msgspec.to_builtins(fault) for fault in faults],
        )

    def _hints(self, values: Mapping[str, Any]) -> str:
        """What to do about arguments that the tool does not have."""
        known: Mapping[str, Any] = self.definition.input_schema.get("properties") or {}
        unknown = [name for name in values if name not in known][:_MOST_HINTS]
        hints = (
            f" The server gives {name!r} itself: leave it out."
            if name in self.handler.injected
            else ""
            if self.handler.accepts_extra
            else did_you_mean(name, known.keys() - values.keys())
            for name in unknown
        )
        text = "".join(hints)
        return f".{text}" if text else ""


def make_tool(
    handler: Handler,
    settings: Settings,
    *,
    limiter: Any = None,
    access: Access | None = None,
    **options: Unpack[ToolOptions],
) -> ToolEntry:
    """A tool made of a function. Raises `RegistrationError` for one that could not be offered."""
    name = options.get("name") or handler.name
    if not _NAME.fullmatch(name):
        raise RegistrationError(f"tool name {name!r} must be 1 to 128 of the characters A-Z a-z 0-9 _ - .; pass name=…")
    given = options.get("description")
    described = handler.description if given is None else given
    if len(described) > settings.max_tool_description:
        why = f"has {len(described)} characters; {settings.max_tool_description} is the most"
        raise RegistrationError(f"the description of tool {name!r} {why}", kind="tool_description_exceeds_max")
    handler = wrap_generator(handler)
    output = tool_output(handler.returns, name, settings, structured=options.get("structured", True))
    input_schema = options.get("input_schema")
    validator = None if input_schema is None else _compile_schema(input_schema, name)
    try:
        find_mirrored_arguments(input_schema or {})
    except InvalidAnnotation as error:
        raise RegistrationError(f"tool {name!r}: {error}", kind="tool_schema_invalid") from None
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
        asks=tuple(asks),
        task=parse_policy(name, options.get("task"), hints),
        access=access,
        **display_members(f"tool {name!r}", options),
    )


def _decode_string(text: str) -> Any:
    """The JSON that a string holds; or the string itself."""
    try:
        return _as_anything(text.encode())
    except (codec.DecodeError, RecursionError):
        return text


def _compile_schema(input_schema: Any, name: str) -> Validator:
    if not isinstance(input_schema, Mapping) or cast("Mapping[str, Any]", input_schema).get("type") != "object":
        why = f'the schema of tool {name!r} must have "type": "object"'
        raise RegistrationError(why, kind="tool_schema_invalid")
    return Validator(cast("Mapping[str, Any]", input_schema), f"tool {name!r}")


def _with_properties(given: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that was written by hand, with `properties` in any case: some clients need them."""
    return dict(given) if "properties" in given else {**given, "properties": {}}


def _schema_decoder(handler: Handler, given: Mapping[str, Any], validator: Validator) -> Callable[[Any], Any]:
    """Reads arguments by a schema that was written by hand: defaults filled in, then checked, then into their types."""
    properties: Mapping[str, Any] = given.get("properties") or {}
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
