"""What `tool`, `resource`, `prompt` and their like can be told, one type each. Comments say what an option means."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar, cast

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
    "Health",
    "LimitOptions",
    "PromptOptions",
    "ResourceOptions",
    "ToolOptions",
    "check_options",
    "select_options",
]

Allow = Callable[[Context], bool | Awaitable[bool]]
"""Whether a session may have something, and is shown it. It runs on the loop, so it must not block."""

Health = Callable[[], bool | Awaitable[bool]]
"""Whether something that tools rely on is well. It runs on the loop, so it must not block."""

T = TypeVar("T")


class _ThreadOption(TypedDict, total=False):
    thread: bool | None  # False: a plain function runs on the loop, and must not block


class AccessOptions(TypedDict, total=False):
    """Who may have an entry. Whoever may not is not shown it either, nor told of changes."""

    scopes: Sequence[str] | None  # that a token must have, all of them; `()` says that none is needed
    allow: Allow | None  # says who may have it, for what scopes do not tell


class LimitOptions(TypedDict, total=False):
    """What a tool can be held to. Whoever is refused gets a failed result that says why."""

    max_concurrency: int | None  # calls that run at once, of all connections together
    max_queue: int | None  # calls that wait for their turn; more are refused
    max_result_bytes: int | None  # of a result, as JSON
    requires: Sequence[str | Health]  # what must be well: predicates, or names given to `health`


class ToolOptions(options.ToolOptions, AccessOptions, LimitOptions, _ThreadOption, total=False):
    """What `tool` and `add_tool` take."""

    enabled: bool  # False: not offered until `server.tools.enable`


class ResourceOptions(options.ResourceOptions, AccessOptions, _ThreadOption, total=False):
    """What `resource` and `add_resource` take."""

    guard: bool  # False: the values of a template may climb with `..`
    list: Callable[..., Any] | None  # gives the resources of a template, or their URIs, whenever clients list


class FileOptions(options.ResourceOptions, AccessOptions, total=False):
    """What `add_file` takes."""


class DirectoryOptions(options.TemplateOptions, AccessOptions, total=False):
    """What `add_directory` takes."""

    listed: bool  # False: not in lists, which otherwise walk through the folder


class PromptOptions(options.PromptOptions, AccessOptions, _ThreadOption, total=False):
    """What `prompt` and `add_prompt` take."""

    defaults: Mapping[str, str] | None  # of the places of a text


class CompletionOptions(_ThreadOption, total=False):
    """What `completion` and `add_completion` take besides the argument: one of the first three."""

    prompt: str | None  # the name of the prompt
    resource: str | None  # the template
    tool: str | None  # the name of the tool


_OPTION_KINDS: Final[Mapping[str, OptionKind]] = {
    **dict.fromkeys(("name", "title", "description", "mime_type", "prompt", "resource", "tool"), TEXT),
    **dict.fromkeys(("structured", "thread", "enabled", "public", "guard", "listed"), FLAG),
    **dict.fromkeys(("max_concurrency", "max_queue", "max_result_bytes", "size"), INTEGER),
    **dict.fromkeys(("meta", "input_schema", "defaults"), MAPPING),
    "timeout": POSITIVE,
    "ttl": NUMBER,
    "scopes": instance_of("a list of scopes", Iterable),
    "list": FUNCTION,
    "requires": each_value(lambda one: isinstance(one, str) or callable(one), "a list of names and predicates"),
    "asks": instance_of("a list of capabilities", Iterable),
}  # what each option has to be; the others, and what is in `scopes` and `asks`, are checked where they are read


def check_options(what: str, kind: Any, values: Mapping[str, Any], key: str = "") -> None:
    """Raises `RegistrationError` for an option that there is not, and for one that is not what it has to be. `key` is
    what the entry is called where no name is given."""
    known: frozenset[str] = kind.__optional_keys__
    if strange := [name for name in values if name not in known]:
        every = f"{what} has no option {strange[0]!r}; its options are {', '.join(sorted(known))}"
        raise RegistrationError(with_suggestion(every, strange[0], known))
    named: Any = values.get("name") or key
    called = f"{what.removeprefix('a ')} {named!r}" if isinstance(named, str) and named else what
    check_values(called, values, _OPTION_KINDS, RegistrationError)


def select_options(kind: type[T], values: Mapping[str, Any]) -> T:
    """Those of the options that are of a kind."""
    known: frozenset[str] = cast("Any", kind).__optional_keys__
    return cast("T", {name: value for name, value in values.items() if name in known})
