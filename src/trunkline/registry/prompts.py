"""A prompt: what peers are told about it, and what is rendered when they ask."""

import string
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast, get_args

import msgspec
from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import InvalidParams, RegistrationError
from trunkline.protocol.types import (
    GetPromptResult,
    Icon,
    Prompt,
    PromptArgument,
    PromptMessage,
    Role,
    TextContent,
)
from trunkline.registry.handlers import Handler, Run, runner
from trunkline.registry.results import BadResult, as_block
from trunkline.registry.schema import Validator

__all__ = ["PromptEntry", "TextPrompt", "make_prompt", "make_text_prompt"]


class TextPrompt(Struct, frozen=True):
    """A text with places to be filled in, `{language}`, and what stands there if nothing is given."""

    text: str
    defaults: Mapping[str, str] = {}

    @property
    def fields(self) -> list[str]:
        """The names of its places, in order."""
        names = [name for _, name, _, _ in string.Formatter().parse(self.text) if name is not None]
        return list(dict.fromkeys(names))

    def render(self, values: Mapping[str, str]) -> str:
        """The text, filled in. Nothing but whole values is put in: no attributes, no indexes."""
        pieces: list[str] = []
        filled = {**self.defaults, **values}
        for literal, name, _, _ in string.Formatter().parse(self.text):
            pieces.append(literal)
            if name is not None:
                pieces.append(filled[name])
        return "".join(pieces)


class PromptEntry(Struct, frozen=True, dict=True):
    """One prompt: a handler, or a text to be filled in."""

    definition: Prompt
    source: Handler | TextPrompt
    settings: Settings
    given_schema: Mapping[str, Any] | None = None  # stricter checks, written by hand

    @property
    def key(self) -> str:
        """Its name."""
        return self.definition.name

    @property
    def wants_context(self) -> bool:
        """Whether rendering it asks for the context of the call."""
        return isinstance(self.source, Handler) and self.source.wants_context

    @cached_property
    def validator(self) -> Validator | None:
        """The schema that was written by hand, compiled once."""
        if self.given_schema is None:
            return None
        return Validator(self.given_schema, f"prompt {self.key!r}")

    def arguments(self, values: Mapping[str, str]) -> Any:
        """What the source is rendered with. Raises `InvalidParams` for what is missing, unknown or wrong."""
        offered = self.definition.arguments or []
        for argument in offered:
            if argument.required and argument.name not in values:
                raise self._refused(f"needs the argument {argument.name!r}", argument.name, "prompt_argument_missing")
        names = {argument.name for argument in offered}
        takes_more = isinstance(self.source, Handler) and self.source.open
        if not takes_more and (unknown := [name for name in values if name not in names]):
            raise self._refused(f"has no argument {unknown[0]!r}", unknown[0], "invalid_prompt_arguments")
        self._check_schema(values)
        if isinstance(self.source, TextPrompt):
            return values
        try:
            return self.source.convert(values)
        except msgspec.ValidationError as error:
            raise InvalidParams(
                f"prompt {self.key!r}: {error}", data={"kind": "invalid_prompt_arguments", "name": self.key}
            ) from None

    def _check_schema(self, values: Mapping[str, str]) -> None:
        if self.validator is not None and (faults := self.validator.faults(dict(values))):
            told = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
            raise InvalidParams(
                f"invalid arguments for prompt {self.key!r}: {told}",
                errors=[msgspec.to_builtins(fault) for fault in faults],
                data={"kind": "invalid_prompt_arguments", "name": self.key},
            )

    def _refused(self, why: str, argument: str, kind: str) -> InvalidParams:
        return InvalidParams(f"prompt {self.key!r} {why}", data={"kind": kind, "argument": argument, "name": self.key})

    @cached_property
    def run(self) -> Run:
        """Renders the prompt."""
        source = self.source
        if isinstance(source, TextPrompt):
            return lambda arguments, _context, _: self.result(source.render(arguments), _)
        return runner(source, self.result)

    def result(self, value: Any, _: Any) -> GetPromptResult:
        """What was rendered, as the answer to a request."""
        if isinstance(value, GetPromptResult):
            return msgspec.structs.replace(value, messages=[self._message(message) for message in value.messages])
        messages = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]
        return GetPromptResult([self._message(item) for item in messages], self.definition.description)

    def _message(self, value: Any) -> PromptMessage:
        if isinstance(value, Mapping) and "role" in value:
            value = self._read_message(cast("Mapping[str, Any]", value))
        if not isinstance(value, PromptMessage):
            return PromptMessage("user", as_block(value, self.settings))
        if value.role not in get_args(Role):
            raise self._failed(f"the role of a message is user or assistant, not {value.role!r}")
        return PromptMessage(value.role, as_block(value.content, self.settings))

    def _read_message(self, given: Mapping[str, Any]) -> PromptMessage:
        content = given.get("content")
        if isinstance(content, str):
            content = msgspec.to_builtins(TextContent(content))
        elif isinstance(content, dict) and cast("Any", content).get("type") == "resource/link":  # as some call it
            content = {**cast("dict[str, Any]", content), "type": "resource_link"}
        try:
            return msgspec.convert({**given, "content": content}, PromptMessage)
        except msgspec.ValidationError as error:
            raise self._failed(f"not a message: {error}") from None

    def _failed(self, why: str) -> BadResult:
        return BadResult(f"prompt {self.key!r}: {why}", kind="prompt_render_failed")


def make_prompt(
    handler: Handler,
    settings: Settings,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, Any] | None = None,
    icons: list[Icon] | None = None,
    meta: dict[str, Any] | None = None,
) -> PromptEntry:
    """A prompt made of a function, whose parameters are its arguments."""
    arguments = [PromptArgument(p.name, p.description, p.required or None) for p in handler.parameters]
    definition = Prompt(
        name=name or handler.name,
        description=(handler.description if description is None else description) or None,
        arguments=arguments or None,
        title=title,
        icons=icons,
        meta=meta,
    )
    return _checked(PromptEntry(definition, handler, settings, input_schema))


def make_text_prompt(
    name: str,
    text: str,
    settings: Settings,
    *,
    defaults: Mapping[str, str] | None = None,
    title: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, Any] | None = None,
    icons: list[Icon] | None = None,
    meta: dict[str, Any] | None = None,
) -> PromptEntry:
    """A prompt made of a text with places, each of which is an argument."""
    source = TextPrompt(text, dict(defaults or {}))
    try:
        fields = source.fields
    except ValueError as error:
        raise RegistrationError(f"prompt {name!r}: {error}", kind="prompt_render_failed") from None
    if bad := [field for field in fields if not field.isidentifier()]:
        raise RegistrationError(f"prompt {name!r}: {{{bad[0]}}} is not the name of an argument")
    arguments = [PromptArgument(field, required=field not in source.defaults or None) for field in fields]
    definition = Prompt(
        name=name, description=description, arguments=arguments or None, title=title, icons=icons, meta=meta
    )
    return _checked(PromptEntry(definition, source, settings, input_schema))


def _checked(entry: PromptEntry) -> PromptEntry:
    if not entry.key:
        raise RegistrationError("a prompt needs a name")
    entry.validator  # noqa: B018 - compiled now, so that a bad schema is refused now
    return entry
