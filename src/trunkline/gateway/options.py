"""Options of a gateway and of its backends: the members `trunkline` of a configuration file. Pure.

```json
{
  "mcpServers": {"weather": {"command": "weather-server", "trunkline": {"timeout": 20, "max_concurrency": 4}}},
  "trunkline": {"commands": ["weather-server"]}
}
```
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

from msgspec import Struct, ValidationError, convert

from trunkline.client.group.names import make_prefix
from trunkline.errors import ConfigError, RegistrationError
from trunkline.errors.suggestions import with_suggestion
from trunkline.registry.prefixes import Prefix, parse_prefix
from trunkline.registry.resources import ResourceEntry, TemplateEntry
from trunkline.registry.switches import Tagged
from trunkline.registry.templates import UriTemplate
from trunkline.registry.tools import ToolEntry, check_tool_name

__all__ = [
    "BackendOptions",
    "BreakerOptions",
    "CallerOptions",
    "FileOptions",
    "can_be_named",
    "find_prefixes",
    "make_filter",
    "parse_options",
]

T = TypeVar("T", bound=Struct)
_TAG: Final = "tag:"


class BreakerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The circuit breaker of a backend, with the options of `Server.breaker`."""

    failures: int = 5
    failure_rate: float | None = 0.5
    window: int = 10
    open_seconds: float = 30.0
    successes: int = 1


class BackendOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one backend."""

    prefix: str | None = None  # of names and URIs; None: the name of the backend, "": none
    include: tuple[str, ...] = ()  # patterns of names or URIs, or tags as "tag:read"; empty: everything
    exclude: tuple[str, ...] = ()  # likewise; counts more than `include`
    timeout: float | None = None  # seconds for a request, in all; None: as its client and the settings say
    retry: bool = True  # send a request again that was lost with its connection, if it is read-only or idempotent
    max_concurrency: int | None = None  # requests that run at the same time; None: no limit
    max_queue: int = 64  # requests that wait, if there is a limit
    breaker: BreakerOptions | bool = True  # False: none
    lazy: bool = False  # start with the first request, once the lists are known
    start_timeout: float = 30.0  # seconds to connect and to list
    shared: bool = False  # all principals share one connection; False: each has its own
    max_principals: int = 100  # with a connection of their own
    idle_seconds: float = 300.0  # without a request, until the connection of a principal is closed

    def __post_init__(self) -> None:
        """Raise `ValueError` for a number that is too small."""
        for name, least in (("timeout", 0.001), ("start_timeout", 0.001), ("idle_seconds", 0.001)):
            value: float | None = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"`{name}` must be above 0, not {value:g}")
        for name, least in (("max_concurrency", 1), ("max_queue", 0), ("max_principals", 1)):
            count: int | None = getattr(self, name)
            if count is not None and count < least:
                raise ValueError(f"`{name}` must be {least} or more, not {count}")


class CallerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which callers a gateway accepts over HTTP."""

    issuer: str | None = None  # of JSON Web Tokens
    tokens: dict[str, str] = {}  # fixed tokens: the names of environment variables, by the subjects of principals
    public_url: str | None = None  # of the gateway as clients write it, and the audience of tokens
    scopes: tuple[str, ...] = ()  # required for every request


class FileOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a whole configuration file."""

    commands: tuple[str, ...] | None = None  # that may be started; None: all of the file
    auth: CallerOptions | None = None  # None: callers are not authenticated


def parse_options(kind: type[T], given: Mapping[str, Any], where: str) -> T:
    """Return the options in a JSON object. Raises `ConfigError` that names the one at fault."""
    for name in given:
        if name not in kind.__struct_fields__:
            raise ConfigError(with_suggestion(f"{where} has no option {name!r}", name, kind.__struct_fields__))
    try:
        return convert(given, kind)
    except ValidationError as error:
        raise ConfigError(f"{where}: {str(error).replace(' - at `$.', ' - `').replace(' - at `$`', '')}") from None


def find_prefixes(options: Mapping[str, BackendOptions]) -> dict[str, Prefix]:
    """Return the prefixes of all backends by their names. Raises `ConfigError` if two are the same."""
    found: dict[str, Prefix] = {}
    for name, chosen in options.items():
        text = make_prefix(name) if chosen.prefix is None else chosen.prefix
        try:
            found[name] = parse_prefix(text or None)
        except RegistrationError as error:
            raise ConfigError(f"backend {name!r}: {error}") from None
    owners: dict[str, str] = {}
    for name, prefix in found.items():
        other = owners.setdefault(prefix.text.lower(), name)
        if other != name and prefix:
            raise ConfigError(f"the backends {other!r} and {name!r} have the same prefix {prefix.text!r}; change one")
    return found


class _Filter(Struct, frozen=True):
    """Chooses the entries of a backend that a gateway offers."""

    include: tuple[str, ...]
    exclude: tuple[str, ...]
    prefix: Prefix

    def __call__(self, entry: Tagged) -> bool:
        if not self._fits(entry):
            return False
        if self.include and not any(_matches(pattern, entry) for pattern in self.include):
            return False
        return not any(_matches(pattern, entry) for pattern in self.exclude)

    def _fits(self, entry: Tagged) -> bool:
        """Return whether an entry can have the prefix; one that cannot must not take the others down."""
        if isinstance(entry, ToolEntry):
            return can_be_named(self.prefix, entry.key)
        try:
            if isinstance(entry, ResourceEntry):
                self.prefix.add_to_uri(entry.key)
            elif isinstance(entry, TemplateEntry) and self.prefix:
                UriTemplate(self.prefix.add_to_uri(entry.key))
        except RegistrationError:
            return False
        return True


def can_be_named(prefix: Prefix, tool: str) -> bool:
    """Return whether a tool can have its name with a prefix."""
    try:
        check_tool_name(prefix.add_to_name(tool))
    except RegistrationError:
        return False
    return True


def make_filter(options: BackendOptions, prefix: Prefix) -> "_Filter":
    """Return the predicate for the entries of a backend that a gateway offers."""
    return _Filter(options.include, options.exclude, prefix)


def _matches(pattern: str, entry: Tagged) -> bool:
    if pattern.startswith(_TAG):
        return pattern.removeprefix(_TAG) in entry.tags
    return fnmatchcase(entry.key, pattern)
