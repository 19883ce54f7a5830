"""Building of entries for tools, resources, prompts and completers from functions, values and options."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from trunkline.config import Settings
from trunkline.errors import RegistrationError
from trunkline.errors.options import check_name, describe_value
from trunkline.registry import handlers
from trunkline.registry import options as registry_options
from trunkline.registry.access import parse_access
from trunkline.registry.handlers import Handler, warn_untyped_context
from trunkline.registry.signatures import name_of
from trunkline.registry.tools import ToolEntry, make_tool
from trunkline.server.context import Context
from trunkline.server.limits.tool_limits import HealthPredicates, make_guard
from trunkline.server.options import (
    CompletionOptions,
    LimitOptions,
    PromptOptions,
    ResourceOptions,
    ToolOptions,
    check_options,
    select_options,
)

if TYPE_CHECKING:
    from trunkline.registry.prompts import PromptEntry
    from trunkline.registry.resources import ResourceEntry, TemplateEntry

__all__ = [
    "as_decorator",
    "build_prompt",
    "build_resource",
    "build_tool",
    "check_uri_text",
    "make_completer",
    "parse_completion_target",
    "read_handler",
    "resolve_name",
]

F = TypeVar("F", bound=Callable[..., Any])


# --- entries -------------------------------------------------------------------------------------


def read_handler(function: Callable[..., Any], thread: bool | None) -> Handler:
    """Return the handler of a function, which may take a `Context`. Raises `RegistrationError` for an unusable one."""
    return handlers.read_handler(function, Context, thread=thread)


def build_tool(
    function: Callable[..., Any], options: ToolOptions, settings: Settings, health: HealthPredicates
) -> ToolEntry:
    """Build a tool from a function. Raises `RegistrationError` for invalid options."""
    check_options("a tool", ToolOptions, options, name_of(function))
    handler = read_handler(function, options.get("thread"))
    name = options.get("name") or handler.name
    warn_untyped_context("tool", name, handler)
    access = parse_access(f"tool {name!r}", options.get("scopes"), options.get("allow"))
    guard = make_guard(name, health, **select_options(LimitOptions, options))
    described = select_options(registry_options.ToolOptions, options)
    return make_tool(handler, settings, limiter=guard, access=access, **described)


def build_resource(
    uri: str, source: Any, options: ResourceOptions, settings: Settings
) -> "ResourceEntry | TemplateEntry":
    """Build a resource from a value or a function, or a template if the URI has placeholders. Raises
    `RegistrationError` for invalid options, and for a template without a function."""
    from trunkline.registry.resources import make_resource, make_template  # imported here: many servers have none

    check_uri_text(uri)
    check_options("a resource", ResourceOptions, options, uri)
    thread, listing = options.get("thread"), options.get("list")
    handler = read_handler(source, thread) if callable(source) else None
    access = parse_access(f"resource {uri!r}", options.get("scopes"), options.get("allow"))
    if "{" in uri or "}" in uri:
        if handler is None:
            raise RegistrationError(f"resource template {uri!r} needs a function to read it with")
        lister = None if listing is None else read_handler(listing, thread)
        guard, described = options.get("guard", True), select_options(registry_options.TemplateOptions, options)
        return make_template(uri, handler, settings, guard=guard, lister=lister, access=access, **described)
    if listing is not None:
        raise RegistrationError(f"resource {uri!r} is one of a kind; list= is for templates")
    described = select_options(registry_options.ResourceOptions, options)
    return make_resource(uri, handler or source, settings, access=access, **described)


def build_prompt(source: Callable[..., Any] | str, options: PromptOptions, settings: Settings) -> "PromptEntry":
    """Build a prompt from a function or a text. Raises `RegistrationError` for invalid options."""
    from trunkline.registry.prompts import make_prompt, make_text_prompt  # imported here: many servers have none

    check_options("a prompt", PromptOptions, options, name_of(source) if callable(source) else "")
    described, defaults = select_options(registry_options.PromptOptions, options), options.get("defaults")
    name = options.get("name") or (name_of(source) if callable(source) else "")
    access = parse_access(f"prompt {name!r}", options.get("scopes"), options.get("allow"))
    if isinstance(source, str):
        return make_text_prompt(source, settings, defaults=defaults, access=access, **described)
    if defaults is not None:
        raise RegistrationError("a prompt's defaults= are for a text; a function has defaults of its own")
    handler = read_handler(source, options.get("thread"))
    warn_untyped_context("prompt", name, handler)
    return make_prompt(handler, settings, access=access, **described)


def parse_completion_target(argument: str, options: CompletionOptions) -> tuple[str, str]:
    """Return the kind and the name of the one entry whose argument is completed. Raises `RegistrationError` for invalid
    options."""
    check_options("a completion", CompletionOptions, options)
    check_name("the argument of a completion", argument, 'argument="city"')
    named = {"prompt": options.get("prompt"), "resource": options.get("resource"), "tool": options.get("tool")}
    given = [(kind, target) for kind, target in named.items() if target is not None]
    if len(given) != 1:
        raise RegistrationError("completion needs one of prompt=, resource= or tool=")
    return given[0]


def make_completer(values: Iterable[str], argument: str) -> Callable[[str], list[str]]:
    """Return a function that completes a text with the matching ones of a list. Raises `RegistrationError` if `values`
    is not a list of texts."""
    if isinstance(values, str):
        raise RegistrationError(f"what {argument!r} is completed with is a list of texts, not one text")
    if not isinstance(cast("Any", values), Iterable):
        raise RegistrationError(f"what {argument!r} is completed with is a list of texts, not {describe_value(values)}")
    from trunkline.registry.completions import matching

    known = tuple(values)

    def complete(value: str) -> list[str]:
        return matching(value, known)

    return complete


# --- arguments -----------------------------------------------------------------------------------


def check_uri_text(uri: Any) -> None:
    """Raise `RegistrationError` for a URI that is not a string."""
    if not isinstance(uri, str):
        raise RegistrationError(f"the URI of a resource is a text such as 'notes://today', not {describe_value(uri)}")


def resolve_name(what: str, positional: str, named: str | None) -> str:
    """Return the positional name. Raises `RegistrationError` if there is a `name=` as well."""
    if named is not None:
        more = "; a prompt made of a text is added by add_prompt(text, name=…)" if what == "prompt" else ""
        raise RegistrationError(f"a {what} has one name, not {positional!r} and {named!r}{more}")
    return positional


def as_decorator(add: Callable[[Any], None]) -> Callable[[F], F]:
    """Return a decorator that registers a function and returns it unchanged."""

    def register(function: F) -> F:
        add(function)
        return function

    return register
