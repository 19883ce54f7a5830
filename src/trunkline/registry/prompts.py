"""A prompt: what peers are told about it, and what is rendered when they ask."""

import string
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import msgspec
from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import InternalError, InvalidParams, RegistrationError
from trunkline.protocol.types import (
    ContentBlock,
    GetPromptResult,
    Icon,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
)
from trunkline.registry.handlers import Handler
from trunkline.registry.results import BadResult, as_block
from trunkline.registry.schema import Validator

__all__ = ["PromptEntry", "PromptFailed", "TextPrompt", "make_prompt", "make_text_prompt"]


class PromptFailed(InternalError):
    """A prompt that could not be rendered."""

    kind = "prompt_render_failed"


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

    @cached_property
    def _validator(self) -> Validator | None:
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
        validator = self._validator
        if validator is not None and (faults := validator.faults(dict(values))):
            told = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
            raise InvalidParams(
                f"invalid arguments for prompt {self.key!r}: {told}",
                errors=[msgspec.to_builtins(fault) for fault in faults],
                data={"kind": "invalid_prompt_arguments", "name": self.key},
            )

    def _refused(self, why: str, argument: str, kind: str) -> InvalidParams:
        return InvalidParams(f"prompt {self.key!r} {why}", data={"kind": kind, "argument": argument, "name": self.key})

    def result(self, value: Any) -> GetPromptResult:
        """What was rendered, as the answer to a request."""
        if isinstance(value, GetPromptResult):
            return value
        messages = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]
        return GetPromptResult([self._message(item) for item in messages], self.definition.description)

    def _message(self, value: Any) -> PromptMessage:
        if isinstance(value, PromptMessage):
            return value
        if isinstance(value, Mapping) and "role" in value:
            try:
                given = dict(cast("Mapping[str, Any]", value))
                if isinstance(given.get("content"), str):
                    given["content"] = msgspec.to_builtins(TextContent(given["content"]))
                return msgspec.convert(given, PromptMessage)
            except msgspec.ValidationError as error:
                raise PromptFailed(f"prompt {self.key!r}: not a message: {error}") from None
        try:
            block: ContentBlock = as_block(value, self.settings)
        except BadResult as error:
            raise PromptFailed(f"prompt {self.key!r}: {error.message}") from None
        return PromptMessage("user", block)


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
    if entry.given_schema is not None:
        Validator(entry.given_schema, f"prompt {entry.key!r}")
    return entry
