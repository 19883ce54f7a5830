"""Options of `tool`, `resource`, `prompt` and related methods, one type each; comments explain the options."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, TypeVar, cast

from trunkline.errors import RegistrationError
from trunkline.errors.options import (
    FLAG,
    FUNCTION,
    INTEGER,
    MAPPING,
    NUMBER,
    POSITIVE,
    TEXT,
    OptionKind,
    each_value,
    instance_of,
)
from trunkline.errors.options import check_options as check_values
from trunkline.errors.suggestions import with_suggestion
from trunkline.registry import options
from trunkline.server.context import Context

__all__ = [
    "AccessOptions",
    "Allow",
    "CompletionOptions",
    "DirectoryOptions",
    "FileOptions",
    "Guarding",
    "Health",
    "LimitOptions",
    "MethodOptions",
    "PromptOptions",
    "ResourceOptions",
    "RouteOptions",
    "ToolOptions",
    "check_options",
    "select_options",
]

Allow = Callable[[Context], bool | Awaitable[bool]]
"""Predicate: whether the caller may see and use an entry. Runs on the loop and must not block."""

Health = Callable[[], bool | Awaitable[bool]]
"""Predicate: whether a dependency of tools is healthy. Runs on the loop and must not block."""

if TYPE_CHECKING:
    from trunkline.registry.transforms import Transform

T = TypeVar("T")


class Guarding(Protocol):
    """A circuit breaker, of `Server.breaker` or of another library: `async with breaker.guard():` surrounds a call, and
    raises to refuse it."""

    def guard(self) -> AbstractAsyncContextManager[Any]: ...


class _ThreadOption(TypedDict, total=False):
    thread: bool | None  # False: run a plain function on the loop; it must not block


class AccessOptions(TypedDict, total=False):
    """Access to an entry. Clients without access neither see the entry nor receive its notifications."""

    scopes: Sequence[str] | None  # scopes that a token needs, all of them; `()` declares that none are needed
    allow: Allow | None  # a predicate for rules that scopes cannot express


class _RateOption(TypedDict, total=False):
    rate: str | None  # of the requests of all clients, such as "10/s", "100/min" or "10/s burst 50"


class LimitOptions(TypedDict, total=False):
    """Limits of a tool. A refused call has a failed result that states the reason."""

    max_concurrency: int | None  # concurrent calls, over all connections
    max_queue: int | None  # waiting calls; further ones are refused
    max_result_bytes: int | None  # size of a result as JSON
    requires: Sequence[str | Health]  # dependencies: predicates, or names registered with `health`


class ToolOptions(options.ToolOptions, AccessOptions, LimitOptions, _RateOption, _ThreadOption, total=False):
    """Options of `tool` and `add_tool`."""

    enabled: bool  # False: hidden until `server.tools.enable`
    process: bool  # True: run a plain function in a process of its own, which is killed if the call ends first
    breaker: Guarding | str | bool | None  # circuit breaker of its dependency, or the name of one; True: one of its own
    transform: "Transform | Iterable[Transform] | None"  # of `trunkline.transforms`: registers what they make of it


class ResourceOptions(options.ResourceOptions, AccessOptions, _RateOption, _ThreadOption, total=False):
    """Options of `resource` and `add_resource`."""

    guard: bool  # False: template values may contain `..`
    list: Callable[..., Any] | None  # returns the resources of a template, or their URIs, for resources/list


class FileOptions(options.ResourceOptions, AccessOptions, total=False):
    """Options of `add_file`."""


class DirectoryOptions(options.TemplateOptions, AccessOptions, total=False):
    """Options of `add_directory`."""

    listed: bool  # False: omit the files from lists, which otherwise walk the folder


class PromptOptions(options.PromptOptions, AccessOptions, _RateOption, _ThreadOption, total=False):
    """Options of `prompt` and `add_prompt`."""

    defaults: Mapping[str, str] | None  # of the placeholders of a text


class CompletionOptions(_ThreadOption, total=False):
    """Options of `completion` and `add_completion` besides the argument: one of the first three."""

    prompt: str | None  # the name of the prompt
    resource: str | None  # the template
    tool: str | None  # the name of the tool


class MethodOptions(AccessOptions, _ThreadOption, total=False):
    """Options of `method` and `notification` besides the name."""

    timeout: float | None  # seconds per call; default: `work_timeout`


class RouteOptions(_ThreadOption, total=False):
    """Options of `route` and `add_route` besides the path."""

    methods: Sequence[str]  # of HTTP; default: `GET`, which includes `HEAD`
    public: bool  # True: callers need no credentials
    scopes: Sequence[str] | None  # scopes that a token needs, all of them; `()` declares that none are needed
    timeout: float | None  # seconds per request; default: `work_timeout`


_OPTION_KINDS: Final[Mapping[str, OptionKind]] = {
    **dict.fromkeys(
        ("name", "title", "description", "mime_type", "prompt", "resource", "tool", "version", "rate"), TEXT
    ),
    **dict.fromkeys(("structured", "thread", "process", "enabled", "public", "guard", "listed", "deprecated"), FLAG),
    **dict.fromkeys(("max_concurrency", "max_queue", "max_result_bytes", "size"), INTEGER),
    **dict.fromkeys(("meta", "input_schema", "defaults", "experimental", "metadata"), MAPPING),
    "timeout": POSITIVE,
    "ttl": NUMBER,
    "scopes": instance_of("a list of scopes", Iterable),
    "list": FUNCTION,
    "breaker": OptionKind(
        "a circuit breaker, the name of one, or True",
        lambda value: isinstance(value, bool | str) or hasattr(value, "guard"),
    ),
    "requires": each_value(lambda one: isinstance(one, str) or callable(one), "a list of names and predicates"),
    "methods": instance_of("a list of methods", Iterable),
    "asks": instance_of("a list of capabilities", Iterable),
    "tags": instance_of("a set of texts", Collection),
}  # types of options; those not listed, and the items of `scopes` and `asks`, are checked where they are read


def check_options(what: str, kind: Any, values: Mapping[str, Any], key: str = "") -> None:
    """Raise `RegistrationError` for an unknown option or one of the wrong type. `key` names the entry in the message if
    there is no name."""
    known: frozenset[str] = kind.__optional_keys__
    if strange := [name for name in values if name not in known]:
        every = f"{what} has no option {strange[0]!r}; its options are {', '.join(sorted(known))}"
        raise RegistrationError(with_suggestion(every, strange[0], known))
    named: Any = values.get("name") or key
    called = f"{what.removeprefix('a ')} {named!r}" if isinstance(named, str) and named else what
    check_values(called, values, _OPTION_KINDS, RegistrationError)


def select_options(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return the options that belong to a TypedDict."""
    known: frozenset[str] = cast("Any", kind).__optional_keys__
    return cast("T", {name: value for name, value in values.items() if name in known})
