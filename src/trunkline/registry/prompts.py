"""Prompts: their definitions, and rendering."""

import string
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, cast, get_args

import msgspec
from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import InvalidParams, RegistrationError
from trunkline.errors.suggestions import with_suggestion
from trunkline.protocol.types import (
    GetPromptResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    Role,
    TextContent,
)
from trunkline.registry.access import Access
from trunkline.registry.handlers import Forward, Handler, Run, make_runner, text_converter
from trunkline.registry.options import PromptOptions, display_members, parse_tags
from trunkline.registry.results import BadResult, as_block
from trunkline.registry.validators import CompileSchema, SchemaValidator, make_validator
from trunkline.token_bucket import Rate

__all__ = ["PromptEntry", "Rendering", "TextPrompt", "make_prompt", "make_text_prompt"]


class TextPrompt(Struct, frozen=True):
    """A text with placeholders, `{language}`, and their defaults."""

    text: str
    defaults: Mapping[str, str] = {}

    @property
    def fields(self) -> list[str]:
        """The names of the placeholders, in order."""
        names = [name for _, name, _, _ in string.Formatter().parse(self.text) if name is not None]
        return list(dict.fromkeys(names))

    def render(self, values: Mapping[str, str]) -> str:
        """Fill in the placeholders with whole values: attributes and indexes are not supported."""
        pieces: list[str] = []
        filled = {**self.defaults, **values}
        for literal, name, _, _ in string.Formatter().parse(self.text):
            pieces.append(literal)
            if name is not None:
                pieces.append(filled[name])
        return "".join(pieces)


class PromptEntry(Struct, frozen=True):
    """One prompt: a handler, or a text with placeholders."""

    definition: Prompt
    names: frozenset[str]  # names of the arguments
    decode: Callable[[Mapping[str, str]], Any]  # converts arguments
    run: Run  # renders the prompt
    validator: SchemaValidator | None = None  # stricter validation, by a custom schema
    wants_context: bool = False
    accepts_extra: bool = False  # accepts extra arguments
    access: Access | None = None  # access rule, if any
    rate: Rate | None = None  # of its requests, if limited
    tags: frozenset[str] = frozenset()
    forward: Forward | None = None  # answers its requests through another server

    def __repr__(self) -> str:
        return f"PromptEntry({self.key!r})"

    @property
    def key(self) -> str:
        """The name."""
        return self.definition.name

    def arguments(self, values: Mapping[str, str]) -> Any:
        """Convert the arguments of a request. Raise `InvalidParams` for missing, unknown or invalid ones."""
        if self.validator is not None:
            self._check_names(values)
            self._check_schema(values, self.validator)
        try:
            return self.decode(values)
        except msgspec.ValidationError as error:
            self._check_names(values)  # which raises a more precise error
            raise InvalidParams(
                f"prompt {self.key!r}: {error}", data={"kind": "invalid_prompt_arguments", "name": self.key}
            ) from None

    def _check_names(self, values: Mapping[str, str]) -> None:
        for argument in self.definition.arguments or ():
            if argument.required and argument.name not in values:
                raise self._refused(f"needs the argument {argument.name!r}", argument.name, "prompt_argument_missing")
        if not self.accepts_extra and (unknown := [name for name in values if name not in self.names]):
            why = with_suggestion(f"has no argument {unknown[0]!r}", unknown[0], self.names)
            raise self._refused(why, unknown[0], "invalid_prompt_arguments")

    def _check_schema(self, values: Mapping[str, str], validator: SchemaValidator) -> None:
        if faults := validator.faults(dict(values)):
            reasons = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
            raise InvalidParams(
                f"invalid arguments for prompt {self.key!r}: {reasons}",
                errors=[msgspec.to_builtins(fault) for fault in faults],
                data={"kind": "invalid_prompt_arguments", "name": self.key},
            )

    def _refused(self, why: str, argument: str, kind: str) -> InvalidParams:
        return InvalidParams(f"prompt {self.key!r} {why}", data={"kind": kind, "argument": argument, "name": self.key})


class Rendering(Struct, frozen=True):
    """Options of one rendering, for the few that have some."""

    on_start: Callable[[], None] | None = None  # called before the value is converted to messages
    roles: Sequence[str] = ()  # roles of messages besides those of the specification


class _PromptResults(Struct, frozen=True):
    """Converts rendered values to results."""

    name: str
    description: str | None
    settings: Settings
    longest: int  # maximum length of text that needs no checks

    def result(self, value: Any, rendering: Rendering | None) -> GetPromptResult:
        """Return the result. Text, the common case, has a fast path."""
        if rendering is not None and rendering.on_start is not None:
            rendering.on_start()
        if type(value) is str and len(value) <= self.longest:
            return GetPromptResult([PromptMessage("user", TextContent(value))], self.description)
        try:
            if isinstance(value, GetPromptResult):
                messages = [self._message(message, rendering) for message in value.messages]
                return msgspec.structs.replace(value, messages=messages)
            items = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]
            return GetPromptResult([self._message(item, rendering) for item in items], self.description)
        except BadResult as error:
            error.add_note(f"returned by prompt {self.name!r}")
            raise

    def _message(self, value: Any, rendering: Rendering | None) -> PromptMessage:
        more = () if rendering is None else rendering.roles
        if isinstance(value, Mapping) and "role" in value:
            value = self._read_message(cast("Mapping[str, Any]", value), more)
        if not isinstance(value, PromptMessage):
            return PromptMessage("user", as_block(value, self.settings))
        if value.role not in get_args(Role) and value.role not in more:
            raise self._failed(f"the role of a message is user or assistant, not {value.role!r}")
        return PromptMessage(value.role, as_block(value.content, self.settings))

    def _read_message(self, message: Mapping[str, Any], more: Sequence[str]) -> PromptMessage:
        content, role = message.get("content"), message["role"]
        if role in more:
            message = {**message, "role": "user"}
        if isinstance(content, str):
            content = msgspec.to_builtins(TextContent(content))
        elif isinstance(content, dict) and cast("Any", content).get("type") == "resource/link":  # by some peers
            content = {**cast("dict[str, Any]", content), "type": "resource_link"}
        try:
            found = msgspec.convert({**message, "content": content}, PromptMessage)
            return msgspec.structs.replace(found, role=role) if role in more else found
        except msgspec.ValidationError as error:
            strange = "`$.content.type`" in str(error)
            kind = "invalid_content_type" if strange else "prompt_render_failed"
            raise self._failed(f"not a message: {error}", kind) from None

    def _failed(self, why: str, kind: str = "prompt_render_failed") -> BadResult:
        return BadResult(f"prompt {self.name!r}: {why}", kind=kind)


def make_prompt(
    handler: Handler,
    settings: Settings,
    *,
    access: Access | None = None,
    compile_schema: CompileSchema | None = None,
    **options: Unpack[PromptOptions],
) -> PromptEntry:
    """Build a prompt from a function, whose parameters are its arguments."""
    arguments = [PromptArgument(p.name, p.description, p.required or None) for p in handler.parameters]
    name = options.get("name") or handler.name
    entry = _make_entry(handler, arguments, settings, options, name=name, access=access, described=handler.description)
    return _with_schema(entry, options, compile_schema)


def make_text_prompt(
    text: str,
    settings: Settings,
    *,
    defaults: Mapping[str, str] | None = None,
    access: Access | None = None,
    compile_schema: CompileSchema | None = None,
    **options: Unpack[PromptOptions],
) -> PromptEntry:
    """Build a prompt from a text, whose placeholders are its arguments."""
    name = options.get("name") or ""
    source = TextPrompt(text, dict(defaults or {}))
    try:
        fields = source.fields
    except ValueError as error:
        raise RegistrationError(f"prompt {name!r}: {error}", kind="prompt_render_failed") from None
    if bad := [field for field in fields if not field.isidentifier()]:
        raise RegistrationError(f"prompt {name!r}: {{{bad[0]}}} is not the name of an argument")
    if stray := [field for field in source.defaults if field not in fields]:
        raise RegistrationError(
            with_suggestion(f"prompt {name!r}: no placeholder {{{stray[0]}}} for the default", stray[0], fields)
        )
    arguments = [PromptArgument(field, required=field not in source.defaults or None) for field in fields]
    return _with_schema(
        _make_entry(source, arguments, settings, options, name=name, access=access), options, compile_schema
    )


def _with_schema(entry: PromptEntry, options: PromptOptions, compile_schema: CompileSchema | None) -> PromptEntry:
    """Return a prompt that also validates its arguments by the schema of its options, if they have one."""
    schema = options.get("input_schema")
    if schema is None:
        return entry
    return msgspec.structs.replace(entry, validator=make_validator(schema, f"prompt {entry.key!r}", compile_schema))


def _make_entry(
    source: Handler | TextPrompt,
    arguments: list[PromptArgument],
    settings: Settings,
    options: PromptOptions,
    *,
    name: str,
    access: Access | None,
    described: str = "",
) -> PromptEntry:
    if not name:
        raise RegistrationError("a prompt needs a name")
    description = options.get("description")
    definition = Prompt(
        name=name,
        description=(described if description is None else description) or None,
        arguments=arguments or None,
        **display_members(f"prompt {name!r}", options),
    )
    names, tags = (
        frozenset(argument.name for argument in arguments),
        parse_tags(f"prompt {name!r}", options.get("tags")),
    )
    longest = sys.maxsize if settings.max_text is None else settings.max_text
    result = _PromptResults(name, definition.description, settings, longest).result
    if isinstance(source, Handler):
        decode, run = text_converter(source), make_runner(source, result)
        return PromptEntry(
            definition,
            names,
            decode,
            run,
            wants_context=source.wants_context,
            accepts_extra=source.accepts_extra,
            access=access,
            tags=tags,
        )
    fill = _field_checker(names, frozenset(argument.name for argument in arguments if argument.required))
    return PromptEntry(
        definition,
        names,
        fill,
        lambda values, _, subject: result(source.render(values), subject),
        access=access,
        tags=tags,
    )


def _field_checker(names: frozenset[str], needed: frozenset[str]) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    """Return a function that checks the names of the placeholder values."""

    def take(values: Mapping[str, str]) -> Mapping[str, str]:
        if not needed <= values.keys() <= names:
            raise msgspec.ValidationError("an argument is missing or unknown")
        return values

    return take
