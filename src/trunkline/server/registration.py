"""Registration of tools, resources, prompts and completers, by decorator or by call.

Decorators work with and without parentheses and return the function unchanged.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar, Unpack, cast, overload

from trunkline.config import Settings
from trunkline.errors import RegistrationError
from trunkline.errors.options import check_name, describe_value
from trunkline.registry import handlers
from trunkline.registry import options as registry_options
from trunkline.registry.access import parse_access
from trunkline.registry.completions import CompletionEntry, make_completion, matching
from trunkline.registry.handlers import Handler, warn_untyped_context
from trunkline.registry.prompts import PromptEntry, make_prompt, make_text_prompt
from trunkline.registry.registry import Registry
from trunkline.registry.resources import ResourceEntry, TemplateEntry, make_resource, make_template
from trunkline.registry.signatures import name_of
from trunkline.registry.tools import ToolEntry, make_tool
from trunkline.server.catalog import ServerCatalog
from trunkline.server.context import Context
from trunkline.server.limits.tool_limits import HealthPredicates, make_guard
from trunkline.server.options import (
    CompletionOptions,
    Health,
    LimitOptions,
    PromptOptions,
    ResourceOptions,
    ToolOptions,
    check_options,
    select_options,
)

__all__ = ["Registrar", "check_uri_text"]

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Health)


class Registrar:
    """Registers functions and values in the catalog of a server."""

    def __init__(self, catalog: ServerCatalog, health: HealthPredicates) -> None:
        self._catalog = catalog
        self._health = health

    # --- state ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the server."""
        return self._catalog.info.name

    @property
    def settings(self) -> Settings:
        """The settings of the server."""
        return self._catalog.settings

    @property
    def tools(self) -> Registry[ToolEntry]:
        """The tools: list, enable, disable and remove them here."""
        return self._catalog.tools

    @property
    def resources(self) -> Registry[ResourceEntry]:
        """The resources."""
        return self._catalog.resources

    @property
    def templates(self) -> Registry[TemplateEntry]:
        """The resource templates."""
        return self._catalog.templates

    @property
    def prompts(self) -> Registry[PromptEntry]:
        """The prompts."""
        return self._catalog.prompts

    @property
    def completions(self) -> Registry[CompletionEntry]:
        """The completers."""
        return self._catalog.completions

    def scoped(self) -> list[str]:
        """Return the names of the entries that need scopes; a server that has some needs authentication."""
        return self._catalog.scoped()

    def undeclared(self) -> list[str]:
        """Return the names of the entries without `scopes` and `allow`. `scopes=()` declares that none are needed."""
        return self._catalog.undeclared()

    # --- registering ---------------------------------------------------------------------------

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, called: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Register a function as a tool. Works with and without parentheses; takes the options of `add_tool`, and the
        name may come first: `@server.tool("add")`."""
        if isinstance(function, str):
            options["name"] = _resolve_name("tool", function, options.get("name"))
            function = None
        add = partial(self.add_tool, **options)
        return _as_decorator(add) if function is None else _as_decorator(add)(function)

    def add_tool(self, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        """Register a function as a tool.

        Its parameters become the input schema and its return type the output schema. A plain function runs on a thread,
        with `thread=False` on the loop. Callers that lack its `scopes`, or that `allow` refuses, do not see it either.
        """
        check_options("a tool", ToolOptions, options, name_of(function))
        handler = self._make_handler(function, options.get("thread"))
        name = options.get("name") or handler.name
        warn_untyped_context("tool", name, handler)
        access = parse_access(f"tool {name!r}", options.get("scopes"), options.get("allow"))
        guard = make_guard(name, self._health, **select_options(LimitOptions, options))
        described = select_options(registry_options.ToolOptions, options)
        entry = make_tool(handler, self.settings, limiter=guard, access=access, **described)
        self.tools.add(entry, enabled=options.get("enabled", True))

    def health(self, name: str) -> Callable[[H], H]:
        """Register a named predicate without arguments, plain or async: `/readyz` runs it, and tools can require it
        with `requires=["database"]`."""
        check_name("a predicate", name, '@server.health("database")')
        return _as_decorator(partial(self._health.add, name))

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Register a function whose result is a resource; with `{placeholders}` in the URI it is a template."""
        if callable(uri):
            raise RegistrationError("@server.resource needs a URI: @server.resource('notes://today')")
        check_uri_text(uri)
        return _as_decorator(partial(self.add_resource, uri, **options))

    def add_resource(self, uri: str, source: Any, **options: Unpack[ResourceOptions]) -> None:
        """Register a resource: a value, or a function that the server calls for every read.

        The server sends text as text, bytes as base64 and other values as JSON. A URI with `{placeholders}` (RFC 6570)
        makes a template, and the function receives their values.
        """
        check_uri_text(uri)
        check_options("a resource", ResourceOptions, options, uri)
        thread, listing = options.get("thread"), options.get("list")
        handler = self._make_handler(source, thread) if callable(source) else None
        access = parse_access(f"resource {uri!r}", options.get("scopes"), options.get("allow"))
        if "{" in uri or "}" in uri:
            if handler is None:
                raise RegistrationError(f"resource template {uri!r} needs a function to read it with")
            lister = None if listing is None else self._make_handler(listing, thread)
            guard, described = options.get("guard", True), select_options(registry_options.TemplateOptions, options)
            self.templates.add(
                make_template(uri, handler, self.settings, guard=guard, lister=lister, access=access, **described)
            )
        elif listing is not None:
            raise RegistrationError(f"resource {uri!r} is one of a kind; list= is for templates")
        else:
            described = select_options(registry_options.ResourceOptions, options)
            self.resources.add(make_resource(uri, handler or source, self.settings, access=access, **described))

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(self, called: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Unpack[PromptOptions]) -> Any:
        """Register a function as a prompt. Works with and without parentheses; takes the options of `add_prompt`, and
        the name may come first: `@server.prompt("review")`."""
        if isinstance(function, str):
            options["name"] = _resolve_name("prompt", function, options.get("name"))
            function = None
        add = partial(self.add_prompt, **options)
        return _as_decorator(add) if function is None else _as_decorator(add)(function)

    def add_prompt(self, source: Callable[..., Any] | str, **options: Unpack[PromptOptions]) -> None:
        """Register a prompt: a function, or a text with `{placeholders}`, each of which is an argument.

        A function returns text, a message, or a list of messages.
        """
        check_options("a prompt", PromptOptions, options, name_of(source) if callable(source) else "")
        described, defaults = select_options(registry_options.PromptOptions, options), options.get("defaults")
        name = options.get("name") or (name_of(source) if callable(source) else "")
        access = parse_access(f"prompt {name!r}", options.get("scopes"), options.get("allow"))
        if isinstance(source, str):
            self.prompts.add(make_text_prompt(source, self.settings, defaults=defaults, access=access, **described))
        elif defaults is not None:
            raise RegistrationError("a prompt's defaults= are for a text; a function has defaults of its own")
        else:
            handler = self._make_handler(source, options.get("thread"))
            warn_untyped_context("prompt", name, handler)
            self.prompts.add(make_prompt(handler, self.settings, access=access, **described))

    def completion(self, *, argument: str, **options: Unpack[CompletionOptions]) -> Callable[[F], F]:
        """Register a completer for an argument of a prompt, a resource template or a tool.

        The function receives the text so far and, if it has a second parameter, the arguments already filled in.
        """
        check_options("a completion", CompletionOptions, options)
        check_name("the argument of a completion", argument, 'argument="city"')
        named = {"prompt": options.get("prompt"), "resource": options.get("resource"), "tool": options.get("tool")}
        given = [(kind, target) for kind, target in named.items() if target is not None]
        if len(given) != 1:
            raise RegistrationError("completion needs one of prompt=, resource= or tool=")
        kind, target = given[0]

        def register(function: F) -> F:
            handler = self._make_handler(function, options.get("thread"))
            made = make_completion(kind, target, argument, handler)
            there = self._catalog.find_completion_target(kind, target) is not None
            if there and (fault := self._catalog.completion_fault(made)) is not None:
                raise RegistrationError(fault)
            self.completions.add(made)
            return function

        return register

    def add_completion(
        self, values: Callable[..., Any] | Iterable[str], *, argument: str, **options: Unpack[CompletionOptions]
    ) -> None:
        """Register completion values for an argument: a list that is matched with the text so far, or a function."""
        if callable(values):
            self.completion(argument=argument, **options)(values)
            return
        if isinstance(values, str):
            raise RegistrationError(f"what {argument!r} is completed with is a list of texts, not one text")
        if not isinstance(cast("Any", values), Iterable):
            raise RegistrationError(
                f"what {argument!r} is completed with is a list of texts, not {describe_value(values)}"
            )
        known = tuple(values)

        def complete(value: str) -> list[str]:
            return matching(value, known)

        options["thread"] = False
        self.completion(argument=argument, **options)(complete)

    def remove_tool(self, name: str) -> None:
        """Remove a tool."""
        self.tools.remove(name)

    def remove_resource(self, uri: str) -> None:
        """Remove a resource or a template."""
        (self.templates if "{" in uri else self.resources).remove(uri)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt."""
        self.prompts.remove(name)

    def _make_handler(self, function: Callable[..., Any], thread: bool | None) -> Handler:
        return handlers.read_handler(function, Context, thread=thread)


def check_uri_text(uri: Any) -> None:
    """Raise `RegistrationError` for a URI that is not a string."""
    if not isinstance(uri, str):
        raise RegistrationError(f"the URI of a resource is a text such as 'notes://today', not {describe_value(uri)}")


def _resolve_name(what: str, positional: str, named: str | None) -> str:
    """Return the positional name. Raises `RegistrationError` if there is a `name=` as well."""
    if named is not None:
        more = "; a prompt made of a text is added by add_prompt(text, name=…)" if what == "prompt" else ""
        raise RegistrationError(f"a {what} has one name, not {positional!r} and {named!r}{more}")
    return positional


def _as_decorator(add: Callable[[Any], None]) -> Callable[[F], F]:
    """Return a decorator that registers a function and returns it unchanged."""

    def register(function: F) -> F:
        add(function)
        return function

    return register
