"""A resource, or a template of many: what peers are told about it, and what is read when they ask."""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Struct

from trunkline.config import Settings
from trunkline.errors import InvalidParams, InvalidUri, RegistrationError, ResourceAccessDenied, TemplateError
from trunkline.protocol.types import Annotations, Icon, ReadResourceResult, Resource, ResourceTemplate
from trunkline.registry.handlers import Handler, Run, runner
from trunkline.registry.results import BadResult, check_contents, check_mime, resource_contents
from trunkline.registry.templates import UriTemplate, escapes

__all__ = ["ResourceEntry", "TemplateEntry", "check_uri", "make_resource", "make_template"]

# RFC 3986: a scheme, then anything that may stand in a URI; what may stand where is the owner's business.
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\x00-\x20\x7f<>\"\\^`{|}]*")


def check_uri(uri: str, settings: Settings) -> str:
    """A URI that is absolute, well-formed and not too long; raises `InvalidUri` for what is not."""
    if len(uri) > settings.max_uri:
        raise InvalidUri(uri, f"it has {len(uri)} characters, {settings.max_uri} is the most", kind="uri_too_long")
    if not uri:
        raise InvalidUri(uri, "it is empty")
    if not _URI.fullmatch(uri):
        absolute = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", uri)
        why = "it has a character that no URI may have" if absolute else "it does not begin with a scheme"
        raise InvalidUri(uri, why, kind="uri_syntax_error" if absolute else "invalid_uri")
    return uri


class ResourceEntry(Struct, frozen=True, dict=True):
    """One resource, under its own URI: a value, or a handler that makes one."""

    definition: Resource
    handler: Handler | None
    value: Any
    settings: Settings

    @property
    def key(self) -> str:
        """Its URI."""
        return self.definition.uri

    def result(self, value: Any, uri: str) -> ReadResourceResult:
        """What was read, as the answer to a request."""
        return _read_result(value, uri, self.definition.mime_type, self.settings)

    @cached_property
    def arguments(self) -> Any:
        """What the handler is called with: its defaults."""
        return None if self.handler is None else self.handler.convert({})

    @cached_property
    def run(self) -> Run:
        """Runs a read: by the handler, or with the value itself."""
        if self.handler is None:
            return lambda _arguments, _context, uri: self.result(self.value, uri)
        return runner(self.handler, self.result)


class TemplateEntry(Struct, frozen=True, dict=True):
    """Resources whose URIs follow a pattern, and the handler that reads any of them."""

    definition: ResourceTemplate
    template: UriTemplate
    handler: Handler
    guard: bool  # refuses URIs that climb out of what the pattern covers
    settings: Settings
    lister: Handler | None = None  # gives the resources that are shown in lists

    @property
    def key(self) -> str:
        """Its pattern."""
        return self.definition.uri_template

    def arguments(self, uri: str) -> Any:
        """The handler's arguments for a URI; UNSET where the URI does not follow the pattern.

        Raises `ResourceAccessDenied` for a URI that climbs, and `InvalidParams` for a value of the wrong type.
        """
        values = self.template.match(uri)
        if values is None:
            return UNSET
        if self.guard and escapes(values):
            raise ResourceAccessDenied(uri)
        try:
            return self.handler.convert(values)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"the URI does not fit {self.key!r}: {error}", data={"uri": uri}) from None

    def result(self, value: Any, uri: str) -> ReadResourceResult:
        """What was read, as the answer to a request."""
        return _read_result(value, uri, self.definition.mime_type, self.settings)

    @cached_property
    def run(self) -> Run:
        """Runs a read."""
        return runner(self.handler, self.result)

    @cached_property
    def run_lister(self) -> Run:
        """Asks for the resources that are shown in lists. Only where there is somebody to ask."""
        return runner(cast("Handler", self.lister), self.listed)

    def listed(self, value: Any, _: Any) -> list[Resource]:
        """What was listed: resources, or their URIs. What one does not say of itself, the template says."""
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise BadResult(f"what {self.key!r} lists is resources or their URIs, not {type(value).__name__}")
        return [self._listed_one(item) for item in cast("Iterable[Any]", value)]

    def _listed_one(self, item: Any) -> Resource:
        if not isinstance(item, str | Resource):
            raise BadResult(f"what {self.key!r} lists is resources or their URIs, not {type(item).__name__}")
        resource = Resource(uri=item, name=item) if isinstance(item, str) else item
        try:
            check_uri(resource.uri, self.settings)
        except InvalidUri as error:
            raise BadResult(f"{self.key!r} lists {resource.uri[:200]!r}: {error}") from None
        if resource.mime_type is None and self.definition.mime_type is not None:
            return msgspec.structs.replace(resource, mime_type=self.definition.mime_type)
        return resource


def _read_result(value: Any, uri: str, mime_type: str | None, settings: Settings) -> ReadResourceResult:
    if not isinstance(value, ReadResourceResult):
        return ReadResourceResult(resource_contents(value, uri, mime_type, settings))
    for contents in value.contents:
        check_contents(contents, settings)
    return value


def make_resource(
    uri: str,
    source: Handler | Any,
    settings: Settings,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
    size: int | None = None,
    annotations: Annotations | None = None,
    icons: list[Icon] | None = None,
    meta: dict[str, Any] | None = None,
) -> ResourceEntry:
    """A resource made of a function or a value. Raises `RegistrationError` for one that could not be read."""
    try:
        check_uri(uri, settings)
    except InvalidUri as error:
        raise RegistrationError(f"resource {uri[:200]!r}: {error}", kind=error.data["kind"]) from None
    handler = source if isinstance(source, Handler) else None
    if handler is not None and (asked := [p.name for p in handler.parameters if p.required]):
        raise RegistrationError(
            f"resource {uri!r}: nothing can give {handler.name} its argument {asked[0]!r}; "
            f"put {{{asked[0]}}} into the URI, or give the argument a default"
        )
    described = handler.description if handler is not None and description is None else description
    definition = Resource(
        uri=uri,
        name=name or (handler.name if handler is not None else uri),
        title=title,
        description=described or None,
        mime_type=check_mime(mime_type),
        size=size,
        annotations=annotations,
        icons=icons,
        meta=meta,
    )
    return ResourceEntry(definition, handler, None if handler is not None else source, settings)


def make_template(
    pattern: str,
    handler: Handler,
    settings: Settings,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
    annotations: Annotations | None = None,
    icons: list[Icon] | None = None,
    meta: dict[str, Any] | None = None,
    guard: bool = True,
    lister: Handler | None = None,
) -> TemplateEntry:
    """A template made of a pattern and a function. Raises `RegistrationError` for a pair that do not fit."""
    template = UriTemplate(pattern)
    _check_variables(template, handler)
    definition = ResourceTemplate(
        uri_template=pattern,
        name=name or handler.name,
        title=title,
        description=(handler.description if description is None else description) or None,
        mime_type=check_mime(mime_type),
        annotations=annotations,
        icons=icons,
        meta=meta,
    )
    if lister is not None and (asked := [p.name for p in lister.parameters if p.required]):
        raise TemplateError(pattern, f"nothing can give {lister.name}, which lists it, its argument {asked[0]!r}")
    return TemplateEntry(definition, template, handler, guard, settings, lister)


def _check_variables(template: UriTemplate, handler: Handler) -> None:
    parameters: Mapping[str, Any] = {p.name: p for p in handler.parameters}
    unknown = [variable for variable in template.variables if variable not in parameters]
    if unknown and not handler.open:
        raise TemplateError(template.template, f"{handler.name} has no parameter for {{{unknown[0]}}}")
    missing = [p.name for p in handler.parameters if p.required and p.name not in template.variables]
    if missing:
        raise TemplateError(template.template, f"nothing in it gives {handler.name} its argument {missing[0]!r}")
