"""Resources and resource templates: their definitions, and reading."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from math import inf
from typing import Any, Final, Unpack, cast

import msgspec
from msgspec import UNSET, Struct

from trunkline.config import Settings
from trunkline.errors import InvalidParams, InvalidUri, RegistrationError, ResourceAccessDenied, TemplateError
from trunkline.errors.suggestions import with_suggestion
from trunkline.protocol.types import Annotations, ReadResourceResult, Resource, ResourceContents, ResourceTemplate
from trunkline.registry.access import Access
from trunkline.registry.handlers import Forward, Handler, Run, context_hint, make_runner, text_converter
from trunkline.registry.options import ResourceOptions, TemplateOptions, display_members, from_mapping, parse_tags
from trunkline.registry.results import BadResult, check_contents, check_mime, resource_contents
from trunkline.registry.templates import UriTemplate, escapes
from trunkline.token_bucket import Rate

__all__ = ["Finish", "ResourceEntry", "TemplateEntry", "check_uri", "make_resource", "make_template"]

Finish = Callable[[Any, str], ReadResourceResult]
"""(value, URI) -> the result of a read."""

# RFC 3986: a scheme, then any characters of a URI; the handler decides about the rest.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*+:")
_URI: Final = re.compile(_SCHEME.pattern + r"[^\x00-\x20\x7f<>\"\\^`{|}]*+")


def check_uri(uri: str, settings: Settings) -> str:
    """Return a URI that is absolute, well-formed and not too long; raise `InvalidUri` for any other."""
    if len(uri) > settings.max_uri:
        raise InvalidUri(uri, f"it has {len(uri)} characters, {settings.max_uri} is the most", kind="uri_too_long")
    if not uri:
        raise InvalidUri(uri, "it is empty")
    if not _URI.fullmatch(uri):
        absolute = _SCHEME.match(uri) or "://" in uri
        why = "it has a character that is illegal at this position" if absolute else "it does not begin with a scheme"
        raise InvalidUri(uri, why, kind="uri_syntax_error" if absolute else "invalid_uri")
    return uri


class ResourceEntry(Struct, frozen=True):
    """One resource with its own URI: a value, or a handler that returns one."""

    definition: Resource
    run: Run  # reads the resource
    handler: Handler | None = None
    arguments: Any = None  # arguments of the handler: its defaults
    wants_context: bool = False
    ttl: float = 0.0  # seconds that what was read may be kept
    public: bool = False  # whether shared caches may store it
    access: Access | None = None  # access rule, if any
    rate: Rate | None = None  # of its reads, if limited
    tags: frozenset[str] = frozenset()
    forward: Forward | None = None  # answers its reads through another server

    def __repr__(self) -> str:
        return f"ResourceEntry({self.key!r})"

    @property
    def key(self) -> str:
        """The URI."""
        return self.definition.uri


class TemplateEntry(Struct, frozen=True, dict=True):
    """Resources whose URIs match a pattern, and the handler that reads them."""

    definition: ResourceTemplate
    template: UriTemplate
    handler: Handler
    convert: Callable[[Any], Any]  # converts URI variables to arguments
    run: Run
    absolute: bool  # it starts with a scheme, so that every match is a well-formed URI
    guard: bool  # rejects URIs with path traversal
    settings: Settings
    wants_context: bool
    lister: Handler | None = None  # lists matching resources
    ttl: float = 0.0  # seconds that what was read may be kept
    public: bool = False  # whether shared caches may store them
    access: Access | None = None  # access rule, if any
    rate: Rate | None = None  # of its reads, if limited
    tags: frozenset[str] = frozenset()
    forward: Forward | None = None  # answers its reads through another server

    def __repr__(self) -> str:
        return f"TemplateEntry({self.key!r})"

    @property
    def key(self) -> str:
        """The pattern."""
        return self.definition.uri_template

    def arguments(self, uri: str) -> Any:
        """Return the handler's arguments for a URI; UNSET if the URI does not match the pattern.

        Raise `InvalidUri` for a malformed URI, `ResourceAccessDenied` for path traversal, and `InvalidParams` for a
        value of the wrong type.
        """
        values = self.template.match(uri)
        if values is None:
            return UNSET
        if not self.absolute:
            check_uri(uri, self.settings)
        if self.guard and escapes(values):
            raise ResourceAccessDenied(uri)
        try:
            return self.convert(values)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"the URI does not fit {self.key!r}: {error}", data={"uri": uri}) from None

    @cached_property
    def run_lister(self) -> Run:
        """Run the lister, which must exist."""
        return make_runner(cast("Handler", self.lister), self.make_resources)

    def make_resources(self, value: Any, _: Any) -> list[Resource]:
        """Convert listed resources or URIs. Members that a resource does not set come from the template."""
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise BadResult(f"the lister of {self.key!r} must return resources or URIs, not {type(value).__name__}")
        return [self._listed_one(item) for item in cast("Iterable[Any]", value)]

    def _listed_one(self, item: Any) -> Resource:
        if not isinstance(item, str | Resource):
            raise BadResult(f"the lister of {self.key!r} must return resources or URIs, not {type(item).__name__}")
        resource = Resource(uri=item, name=item) if isinstance(item, str) else item
        try:
            check_uri(resource.uri, self.settings)
        except InvalidUri as error:
            raise BadResult(f"{self.key!r} lists {resource.uri[:200]!r}: {error}") from None
        if resource.mime_type is None and self.definition.mime_type is not None:
            return msgspec.structs.replace(resource, mime_type=self.definition.mime_type)
        return resource


def _finisher(mime_type: str | None, settings: Settings) -> Finish:
    """Return the conversion of a value to a result. Text, the common case, has a fast path."""
    text_type = mime_type or "text/plain"
    longest = sys.maxsize if settings.max_text is None else settings.max_text

    def finish(value: Any, uri: str) -> ReadResourceResult:
        if type(value) is str and len(value) <= longest:
            return ReadResourceResult([ResourceContents(uri, text_type, value)])
        try:
            if not isinstance(value, ReadResourceResult):
                return ReadResourceResult(resource_contents(value, uri, mime_type, settings))
            for contents in value.contents:
                check_contents(contents, settings)
        except BadResult as error:
            error.add_note(f"returned by resource {uri[:200]!r}")
            raise
        return value

    return finish


def make_resource(
    uri: str,
    source: Handler | Any,
    settings: Settings,
    *,
    finish: Finish | None = None,
    access: Access | None = None,
    **options: Unpack[ResourceOptions],
) -> ResourceEntry:
    """Build a resource from a function or a value. Raise `RegistrationError` for one that could never be read.

    `finish` replaces the conversion of the function's value to a result.
    """
    try:
        check_uri(uri, settings)
    except InvalidUri as error:
        raise RegistrationError(f"resource {uri[:200]!r}: {error}", kind=error.data["kind"]) from None
    handler = source if isinstance(source, Handler) else None
    if handler is not None and (required := [p.name for p in handler.parameters if p.required]):
        raise RegistrationError(
            f"resource {uri!r}: nothing can give {handler.name} its argument {required[0]!r}; "
            f"put {{{required[0]}}} into the URI, or give the argument a default{context_hint(required[0])}"
        )
    definition = Resource(
        uri=uri,
        size=options.get("size"),
        **_definition_members(uri, options, handler.name if handler is not None else uri, handler),
    )
    finish = finish or _finisher(definition.mime_type, settings)
    ttl, public = _ttl(options, uri), _public(options, access, uri, default=handler is None)
    tags = parse_tags(f"resource {uri!r}", options.get("tags"))
    if handler is None:
        read: Run = lambda _arguments, _context, uri: finish(source, uri)  # noqa: E731 - one of two
        return ResourceEntry(definition, read, ttl=ttl, public=public, access=access, tags=tags)
    run, arguments = make_runner(handler, finish), handler.convert({})
    return ResourceEntry(definition, run, handler, arguments, handler.wants_context, ttl, public, access, tags=tags)


def make_template(
    pattern: str,
    handler: Handler,
    settings: Settings,
    *,
    guard: bool = True,
    lister: Handler | None = None,
    finish: Finish | None = None,
    access: Access | None = None,
    **options: Unpack[TemplateOptions],
) -> TemplateEntry:
    """Build a template from a pattern and a function. Raise `RegistrationError` if they do not match."""
    template = UriTemplate(pattern)
    _check_variables(template, handler)
    definition = ResourceTemplate(uri_template=pattern, **_definition_members(pattern, options, handler.name, handler))
    if lister is not None and (required := [p.name for p in lister.parameters if p.required]):
        raise TemplateError(pattern, f"nothing can give {lister.name}, which lists it, its argument {required[0]!r}")
    return TemplateEntry(
        definition=definition,
        template=template,
        handler=handler,
        convert=text_converter(handler) if template.holds_texts else handler.convert,
        run=make_runner(handler, finish or _finisher(definition.mime_type, settings)),
        absolute=_SCHEME.match(pattern) is not None,
        guard=guard,
        settings=settings,
        wants_context=handler.wants_context,
        lister=lister,
        ttl=_ttl(options, pattern),
        public=_public(options, access, pattern, default=False),
        access=access,
        tags=parse_tags(f"resource template {pattern!r}", options.get("tags")),
    )


def _ttl(options: TemplateOptions, uri: str) -> float:
    ttl = options.get("ttl", 0.0)
    if not 0 <= ttl < inf:
        raise RegistrationError(f"resource {uri!r}: ttl must be 0 seconds or more, not {ttl!r}")
    return ttl


def _public(options: TemplateOptions, access: Access | None, uri: str, *, default: bool) -> bool:
    """Return whether shared caches may store the contents; never if access is restricted."""
    public = options.get("public")
    if access is None or access.unrestricted:
        return default if public is None else public
    if public:
        raise RegistrationError(
            f"resource {uri!r}: public=True needs unrestricted access; remove scopes= and allow=, or public="
        )
    return False


def _definition_members(uri: str, options: TemplateOptions, name: str, handler: Handler | None) -> dict[str, Any]:
    """Return the members of a definition, except its URI or pattern."""
    description = options.get("description")
    if description is None and handler is not None:
        description = handler.description
    hints = options.get("annotations")
    return {
        "name": options.get("name") or name,
        "description": description or None,
        "mime_type": check_mime(options.get("mime_type")),
        "annotations": None if hints is None else from_mapping(f"resource {uri!r}: annotations", Annotations, hints),
        **display_members(f"resource {uri!r}", options),
    }


def _check_variables(template: UriTemplate, handler: Handler) -> None:
    parameters: Mapping[str, Any] = {p.name: p for p in handler.parameters}
    unknown = [variable for variable in template.variables if variable not in parameters]
    if unknown and not handler.accepts_extra:
        why = with_suggestion(f"{handler.name} has no parameter for {{{unknown[0]}}}", unknown[0], parameters)
        raise TemplateError(template.template, why)
    missing = [p.name for p in handler.parameters if p.required and p.name not in template.variables]
    if missing:
        why = f"nothing in it gives {handler.name} its argument {missing[0]!r}{context_hint(missing[0])}"
        raise TemplateError(template.template, why)
