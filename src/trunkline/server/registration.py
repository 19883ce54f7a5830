"""Building of entries for tools, resources, prompts and completers from functions, values and options."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from trunkline.config import Settings
from trunkline.errors import MisuseError, RegistrationError
from trunkline.errors.options import check_name, describe_value
from trunkline.registry import handlers
from trunkline.registry import options as registry_options
from trunkline.registry.access import parse_access
from trunkline.registry.dependencies import DependencyOverrides
from trunkline.registry.handlers import Handler, warn_untyped_context
from trunkline.registry.signatures import name_of
from trunkline.registry.tools import ToolEntry, make_tool
from trunkline.server.context import Context
from trunkline.server.limits.tool_limits import HealthPredicates, ReplacedBreaker, ToolBreaker, make_guard
from trunkline.server.options import (
    CompletionOptions,
    Guarding,
    LimitOptions,
    MethodOptions,
    PromptOptions,
    ResourceOptions,
    ToolOptions,
    check_options,
    select_options,
)
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.registry.completions import Proposal
    from trunkline.registry.methods import MethodEntry
    from trunkline.registry.prompts import PromptEntry
    from trunkline.registry.resources import ResourceEntry, TemplateEntry
    from trunkline.registry.validators import CompileSchema
    from trunkline.server.processes.pool import ProcessPool
    from trunkline.server.resilience.circuit_breaker import CircuitBreaker

__all__ = [
    "as_decorator",
    "build_method",
    "build_prompt",
    "build_resource",
    "build_tool",
    "check_uri_text",
    "encode_meta",
    "make_completer",
    "parse_completion_target",
    "read_handler",
    "resolve_name",
]

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Struct)


# --- entries -------------------------------------------------------------------------------------


def read_handler(
    function: Callable[..., Any], thread: bool | None, overrides: DependencyOverrides | None = None
) -> Handler:
    """Return the handler of a function, which may take a `Context`. Raises `RegistrationError` for an unusable one."""
    return handlers.read_handler(function, Context, thread=thread, overrides=overrides)


def build_tool(
    function: Callable[..., Any],
    options: ToolOptions,
    settings: Settings,
    *,
    overrides: DependencyOverrides,
    health: HealthPredicates,
    get_processes: "Callable[[], ProcessPool]",
    find_breaker: "Callable[[str], CircuitBreaker]",
    compile_schema: "CompileSchema | None" = None,
) -> ToolEntry:
    """Build a tool from a function. Raises `RegistrationError` for invalid options."""
    check_options("a tool", ToolOptions, options, name_of(function))
    if options.get("process"):
        from trunkline.server.processes.pool import run_in_process  # imported here: few tools run in processes

        if options.get("thread") is not None:
            raise RegistrationError(f"tool {name_of(function)!r} has thread= and process=; choose one")
        function = run_in_process(function, get_processes)
    handler = read_handler(function, options.get("thread"), overrides)
    name = options.get("name") or handler.name
    warn_untyped_context("tool", name, handler)
    access = parse_access(f"tool {name!r}", options.get("scopes"), options.get("allow"))
    breaker = _choose_breaker(name, options.get("breaker"), find_breaker)
    guard = make_guard(name, health, breaker, **select_options(LimitOptions, options))
    described = select_options(registry_options.ToolOptions, options)
    entry = make_tool(handler, settings, limiter=guard, access=access, compile_schema=compile_schema, **described)
    entry = _with_rate(entry, f"tool {name!r}", options.get("rate") or settings.tool_rate)
    transform = options.get("transform")
    if transform is None:
        return entry
    from trunkline.registry.transforms import parse_transform  # imported here: few tools have transforms

    return parse_transform(transform)(entry)


def _choose_breaker(
    name: str, option: Guarding | str | bool | None, find_breaker: "Callable[[str], CircuitBreaker]"
) -> ToolBreaker | None:
    """Return the circuit breaker of a tool, for its option: ours, by its name or as an object, or one of another
    library."""
    if option is None or option is False:
        return None
    if option is True or isinstance(option, str):
        return find_breaker(name if option is True else option)
    from trunkline.server.resilience.circuit_breaker import CircuitBreaker  # imported here: few tools have one

    return option if isinstance(option, CircuitBreaker) else ReplacedBreaker(option)


def build_resource(
    uri: str, source: Any, options: ResourceOptions, settings: Settings, overrides: DependencyOverrides
) -> "ResourceEntry | TemplateEntry":
    """Build a resource from a value or a function, or a template if the URI has placeholders. Raises
    `RegistrationError` for invalid options, and for a template without a function."""
    from trunkline.registry.resources import make_resource, make_template  # imported here: many servers have none

    check_uri_text(uri)
    check_options("a resource", ResourceOptions, options, uri)
    thread, listing = options.get("thread"), options.get("list")
    handler = read_handler(source, thread, overrides) if callable(source) else None
    access = parse_access(f"resource {uri!r}", options.get("scopes"), options.get("allow"))
    if "{" in uri or "}" in uri:
        if handler is None:
            raise RegistrationError(f"resource template {uri!r} needs a function to read it with")
        lister = None if listing is None else read_handler(listing, thread, overrides)
        guard, described = options.get("guard", True), select_options(registry_options.TemplateOptions, options)
        template = make_template(uri, handler, settings, guard=guard, lister=lister, access=access, **described)
        return _with_rate(template, f"resource template {uri!r}", options.get("rate"))
    if listing is not None:
        raise RegistrationError(f"resource {uri!r} is one of a kind; list= is for templates")
    described = select_options(registry_options.ResourceOptions, options)
    resource = make_resource(uri, handler or source, settings, access=access, **described)
    return _with_rate(resource, f"resource {uri!r}", options.get("rate"))


def build_prompt(
    source: Callable[..., Any] | str,
    options: PromptOptions,
    settings: Settings,
    overrides: DependencyOverrides,
    *,
    compile_schema: "CompileSchema | None" = None,
) -> "PromptEntry":
    """Build a prompt from a function or a text. Raises `RegistrationError` for invalid options."""
    from trunkline.registry.prompts import make_prompt, make_text_prompt  # imported here: many servers have none

    check_options("a prompt", PromptOptions, options, name_of(source) if callable(source) else "")
    described, defaults = select_options(registry_options.PromptOptions, options), options.get("defaults")
    name = options.get("name") or (name_of(source) if callable(source) else "")
    access = parse_access(f"prompt {name!r}", options.get("scopes"), options.get("allow"))
    if isinstance(source, str):
        entry = make_text_prompt(
            source, settings, defaults=defaults, access=access, compile_schema=compile_schema, **described
        )
        return _with_rate(entry, f"prompt {name!r}", options.get("rate"))
    if defaults is not None:
        raise RegistrationError("a prompt's defaults= are for a text; a function has defaults of its own")
    handler = read_handler(source, options.get("thread"), overrides)
    warn_untyped_context("prompt", name, handler)
    entry = make_prompt(handler, settings, access=access, compile_schema=compile_schema, **described)
    return _with_rate(entry, f"prompt {name!r}", options.get("rate"))


def _with_rate(entry: E, what: str, rate: str | None) -> E:
    """Return an entry with a rate limit. Raises `RegistrationError` for an invalid rate."""
    if rate is None:
        return entry
    from trunkline.token_bucket import parse_rate  # imported here: few entries have a rate

    try:
        return replace(entry, rate=parse_rate(rate))
    except MisuseError as error:
        raise RegistrationError(f"{what}: {error}") from None


def build_method(
    name: str, function: Callable[..., Any], options: MethodOptions, overrides: DependencyOverrides, *, request: bool
) -> "MethodEntry":
    """Build a method outside of the specification from a function. Raises `RegistrationError` for an invalid name or
    invalid options."""
    from trunkline.protocol.custom_methods import find_name_fault
    from trunkline.registry.methods import make_method  # imported here: few servers have such methods

    if (fault := find_name_fault(name)) is not None:
        raise RegistrationError(fault)
    what = f"method {name!r}"
    check_options("a method", MethodOptions, options, name)
    handler = read_handler(function, options.get("thread"), overrides)
    warn_untyped_context("method", name, handler)
    access = parse_access(what, options.get("scopes"), options.get("allow"))
    return make_method(name, handler, request=request, access=access, timeout=options.get("timeout"))


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


def make_completer(values: "Iterable[Proposal]", argument: str) -> Callable[[str], Any]:
    """Return a function that completes a text with the matching ones of a list. Raises `RegistrationError` if `values`
    is not a list of texts, or of pairs of a text and its label."""
    if isinstance(values, str):
        raise RegistrationError(f"what {argument!r} is completed with is a list of texts, not one text")
    if not isinstance(cast("Any", values), Iterable):
        raise RegistrationError(f"what {argument!r} is completed with is a list of texts, not {describe_value(values)}")
    from trunkline.registry.completions import matching

    known = tuple(values)
    if wrong := [value for value in known if not _is_proposal(value)]:
        expected = "texts, or pairs of a value and a label"
        raise RegistrationError(f"what {argument!r} is completed with is a list of {expected}, not of {wrong[0]!r}")

    def complete(value: str) -> Any:
        return matching(value, known)

    return complete


def _is_proposal(value: Any) -> bool:
    if isinstance(value, tuple):
        match cast("tuple[Any, ...]", value):
            case (str(), str()):
                return True
            case _:
                return False
    return isinstance(value, str)


# --- arguments -----------------------------------------------------------------------------------


def check_uri_text(uri: Any) -> None:
    """Raise `RegistrationError` for a URI that is not a string."""
    if not isinstance(uri, str):
        raise RegistrationError(f"the URI of a resource is a text such as 'notes://today', not {describe_value(uri)}")


def encode_meta(meta: Any) -> bytes:
    """Return the JSON of metadata now, since the caller may change it. Raises `MisuseError` for an invalid value."""
    if not isinstance(meta, Mapping):
        raise MisuseError(f"meta= must be a mapping such as {{'version': 2}}, not {describe_value(meta)}")
    try:
        return codec.to_json(dict(cast("Mapping[str, Any]", meta)))
    except (TypeError, ValueError, RecursionError) as error:
        raise MisuseError(f"meta= has no JSON: {error}") from error


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
