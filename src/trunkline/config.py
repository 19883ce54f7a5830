"""Settings, frozen and with defaults; and the only reader of environment variables and files.

A setting is a field. `Settings.load` takes it from keyword arguments, from environment variables
(`TRUNKLINE_` and the field's name in capitals), and from a TOML file, in this order of precedence.
What a setting may be follows from its annotation: see `_Kind`.
"""

import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from math import isfinite
from os import PathLike
from typing import Any, Final, Literal, NamedTuple, cast, get_args, get_origin

from msgspec import Struct
from msgspec.structs import force_setattr

from trunkline.errors import ConfigError
from trunkline.errors.suggestions import closest_match, did_you_mean

__all__ = [
    "OnDuplicate",
    "Settings",
    "browser_commands",
    "environment_values",
    "inherited_environment",
    "proxy_for",
    "system_program",
    "tokens_folder",
]

OnDuplicate = Literal["error", "replace", "warn"]

KIB: Final = 1024
MIB: Final = 1024 * KIB
_SMALLEST_MESSAGE: Final = 1 * KIB
_LARGEST_MESSAGE: Final = 100 * MIB
MIN_KEY_BYTES: Final = 32  # bytes: what the keys made of it have
_PREFIX: Final = "TRUNKLINE_"
_MAY_BE_ZERO: Final = frozenset({"backoff_jitter", "max_retries", "restart_intensity"})
_KEYS: Final = "state_keys"
# Kubernetes sets such variables in every pod for a service that is named after us: TRUNKLINE_SERVICE_HOST,
# TRUNKLINE_PORT_8000_TCP_ADDR.
_SERVICE_LINK: Final = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$")
_YES_NO: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_OFF: Final = frozenset({"", "none", "off"})


class _Secret(str):
    """A text that is not shown by chance, in a log or a traceback."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that can be set. Times are seconds, sizes are bytes, None means off."""

    # How large a message may be, by transport; the boundary itself is still accepted.
    stdio_message_size_limit: int = 16 * MIB
    tcp_message_size_limit: int = 16 * MIB
    http_body_size_limit: int = 16 * MIB
    ws_message_size_limit: int = 16 * MIB
    sse_event_size_limit: int = 16 * MIB

    # How long things may take.
    work_timeout: float | None = 60.0  # where user code runs: tools, prompts, resources, sampling
    quick_timeout: float | None = 5.0  # ping and lists
    person_timeout: float | None = 3600.0  # while a person is being asked
    longest_call: float | None = 3600.0  # however much progress is reported
    initialize_timeout: float | None = 30.0
    drain_timeout: float | None = 5.0  # for what is in flight when a server ends; less than hosts wait before a kill
    stage_timeout: float | None = 5.0  # for each other stage of that end

    # Lines over a network.
    connect_timeout: float | None = 10.0  # to get through to a server
    keepalive_interval: float | None = 30.0  # of silence, until the peer is sent a ping
    keepalive_timeout: float = 10.0  # of silence after that, until it is taken for dead
    max_connections: int = 1000  # of one listener, or as many as descriptors last for; more are turned away
    descriptor_reserve: int = 64  # file descriptors that connections leave to all else; a quarter of the limit at most
    allowed_hosts: tuple[str, ...] = ()  # names that a server is known by, beside those of its own machine; "*": any
    allowed_origins: tuple[str, ...] = ()  # of pages that may talk to it, beside its own; "*": any
    trusted_proxies: tuple[str, ...] = ()  # addresses and networks whose X-Forwarded-* headers are believed

    # Requests that are about authorization.
    egress_allowed: tuple[str, ...] = ()  # names, "*.names" and networks that they may go to, though not public
    egress_timeout: float | None = 30.0  # for one of them, with all redirects
    egress_answer_limit: int = 1 * MIB  # of an answer

    # How servers on HTTP keep connections, sessions and streams.
    max_header_bytes: int = 64 * KIB  # of all headers of a request
    header_timeout: float | None = 10.0  # for the headers of a request to arrive
    write_timeout: float | None = 30.0  # for a peer that reads nothing of what it is sent
    idle_timeout: float = 75.0  # a connection between two requests
    http_sessions: bool = True  # False: every request stands for itself
    legacy_sse: bool = True  # HTTP+SSE of 2024-11-05 at /sse and /messages
    session_ttl: float | None = 3600.0  # a session that is not used for so long is ended
    session_confirm_timeout: float | None = 30.0  # for `initialized` after `initialize`, until a session is ended
    session_unused_ttl: float | None = 300.0  # a session that sends nothing after its handshake is ended
    session_sweep: float = 60.0  # between two looks for such sessions
    max_sessions: int = 10_000  # of one endpoint; unused ones make room for new ones, then more are turned away
    max_sessions_per_principal: int | None = 1000  # in all processes that share a store
    max_sessions_per_address: int | None = 5000  # of clients without a principal, by address or IPv6 network of 64 bits
    replay_events: int = 1000  # of one stream, kept for a peer who lost the line
    replay_bytes: int = 4 * MIB
    replay_streams: int = 64  # of one session
    replay_session_bytes: int = 32 * MIB  # of all streams of one session; those that were answered first go first
    stream_retry: float = 1.0  # what a peer who lost the line is told to wait; clients: 0.5 s at least, 300 s at most
    stream_keepalive: float = 15.0  # of silence on a stream, until it is sent a comment
    body_timeout: float | None = 30.0  # for the body of a request to arrive

    # Workers, and who watches over a server on HTTP.
    worker_timeout: float | None = 30.0  # of silence, until a worker is killed, and another one started
    health: bool = True  # answers at /livez and /readyz, beside the endpoint

    # Tasks.
    max_tasks: int = 1000  # at work at once in one process; more are refused
    max_tasks_per_principal: int | None = 100  # at work at once in all processes that share a store
    task_ttl: float = 3600.0  # that a task is kept, from its creation, if nobody says otherwise
    max_task_ttl: float = 24 * 3600.0  # whatever a client wishes
    task_poll_interval: float = 1.0  # what clients are told to wait between two looks
    task_lease: float = 10.0  # after which a task is taken over from a process that has died

    # Processes that share a store.
    process_lease: float = 5.0  # of silence, after which a process can be declared dead by another

    # Calls that carry an idempotency key.
    idempotency_ttl: float = 24 * 3600.0  # that the outcome of such a call is kept
    idempotency_lease: float = 10.0  # after which a call is given up whose process has died

    # State of a request that its client carries, sealed, from 2026-07-28 on.
    state_lifetime: float = 600.0  # for the client to come back with what it was asked for
    state_keys: tuple[str, ...] = ()  # random texts of 32 bytes or more: the first seals, all open; or one is made up

    # How a client keeps its line.
    probe_timeout: float | None = 5.0  # for a server to say which era it speaks; who says nothing is taken for older
    auto_reconnect: bool = True
    max_retries: int | None = None  # attempts in a row to reach a server again; None: as often as it takes
    backoff_first: float = 1.0  # before the second attempt, twice as long before each further one; the first is at once
    backoff_longest: float = 30.0
    backoff_jitter: float = 0.1  # the share of a wait that chance may add, so that clients do not come back as one
    restart_intensity: int = 5  # so many losses in a period are made good; one more, and it is given up; workers, too
    restart_period: float = 60.0
    max_heard: int = 1024  # notifications that wait for one reader; the oldest go first
    max_list_pages: int = 1000  # of one list, where all pages are read as one; a longer list is refused
    max_list_items: int = 100_000  # of one list, likewise

    # Servers that a client starts as processes.
    stop_timeout: float = 2.0  # to end once its input is closed, and again after SIGTERM, before it is killed
    stderr_kept: int = 64 * KIB  # of what it wrote last to standard error

    # How much one connection may occupy.
    max_calls: int = 256  # running at once; more wait their turn
    max_waiting: int = 1024  # waiting their turn; at this many, reading stops
    max_subscriptions: int = 1000  # to resources, of a session, a connection or one `subscriptions/listen`
    unsent_high: int = 4 * MIB  # unsent bytes at which reading stops
    unsent_limit: int = 64 * MIB  # unsent bytes at which a peer that does not read is cut off

    # What is left behind by a crash.
    crash_folder: str | None = None  # where it is written down, for its owner alone; None: nowhere
    crash_dumps: int = 10  # that are kept there; the oldest go first

    # What a server offers.
    page_size: int = 1000  # some hosts read the first page only
    max_page_size: int = 1000
    cursor_lifetime: float | None = None  # for how long the next page may be asked for
    list_changed_interval: float = 0.1  # at most one notification per kind in this time
    file_poll_interval: float = 0.5  # between two looks at the files that somebody is subscribed to
    max_tool_description: int = 10_000  # characters
    max_uri: int = 2048  # characters
    max_text: int | None = None  # characters of one text block
    max_binary: int | None = None  # bytes of one decoded binary block
    max_file: int | None = 32 * MIB  # bytes of a file that is read as a resource; a larger one is refused unread
    file_read_budget: int = 64 * MIB  # bytes of files that are read at once; further reads wait their turn
    max_threads: int = 32  # for plain functions
    on_duplicate: OnDuplicate = "error"
    expose_errors: bool | None = None  # peers see what handlers raise; None: only those in this process

    def __post_init__(self) -> None:
        """Refuses what cannot work, saying what can."""
        for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            value = getattr(self, name)
            if value is not default:
                force_setattr(self, name, _KINDS[name].validate(name, value))
        force_setattr(self, _KEYS, tuple(_Secret(key) for key in self.state_keys))
        if self.page_size > self.max_page_size:
            raise ConfigError(f"page_size {self.page_size} is above max_page_size {self.max_page_size}")
        if self.unsent_high > self.unsent_limit:
            raise ConfigError(f"unsent_high {self.unsent_high} is above unsent_limit {self.unsent_limit}")

    def __repr__(self) -> str:
        """What differs from the defaults; keys are not shown."""
        names = zip(self.__struct_fields__, self.__struct_defaults__, strict=True)
        changed = [(name, value) for name, default in names if (value := getattr(self, name)) != default]
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in changed)})"

    @classmethod
    def load(
        cls, path: str | PathLike[str] | None = None, *, environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> "Settings":
        """Settings from a file, the environment and keyword arguments; the last named wins. Warns of variables that
        begin with `TRUNKLINE_` and are not settings."""
        found: dict[str, Any] = {} if path is None else _load_file(path)
        found.update(_load_environment(os.environ if environ is None else environ))
        for name in overrides:
            _check_name(f"unknown setting {name!r}", name)
        found.update(overrides)
        return cls(**found)


class _SettingKind(NamedTuple):
    """What a setting may be."""

    type: type  # int, float, bool, str, or tuple for a list of texts
    may_be_none: bool
    choices: tuple[str, ...]
    least: float | None  # None: above 0
    most: float | None
    secret: bool  # its value is not shown

    @classmethod
    def of(cls, name: str, annotation: Any) -> "_SettingKind":
        """The kind of a setting, read off its annotation."""
        options = get_args(annotation) if type(None) in get_args(annotation) else (annotation,)
        main: Any = next(option for option in options if option is not type(None))
        choices = get_args(main) if get_origin(main) is Literal else ()
        sized = name.endswith("_size_limit")
        return cls(
            type=str if choices else get_origin(main) or main,
            may_be_none=len(options) > 1,
            choices=choices,
            least=_SMALLEST_MESSAGE if sized else 0 if name in _MAY_BE_ZERO else None,
            most=_LARGEST_MESSAGE if sized else None,
            secret=name == _KEYS,
        )

    def validate(self, name: str, value: Any) -> Any:
        """The value; a list as a tuple. Raises `ConfigError` for one that the setting cannot have."""
        if value is None and self.may_be_none:
            return None
        if self.secret:
            return _validate_keys(name, value)
        if self.type is tuple and isinstance(value, list | tuple | set | frozenset):
            value = tuple(cast("Iterable[Any]", value))
        if not self._fits(value):
            raise ConfigError(
                f"{name} must be {self._describe_allowed()}{' or None' if self.may_be_none else ''}, not {value!r}"
            )
        return value

    def _fits(self, value: Any) -> bool:
        if self.type is tuple:
            return isinstance(value, tuple) and all(
                isinstance(item, str) and item for item in cast("tuple[Any, ...]", value)
            )
        if self.type is str:
            return isinstance(value, str) and (value in self.choices if self.choices else bool(value))
        if self.type is bool or isinstance(value, bool):
            return self.type is bool and isinstance(value, bool)
        if not isinstance(value, int if self.type is int else int | float) or not isfinite(value):
            return False
        return (value > 0 if self.least is None else value >= self.least) and (self.most is None or value <= self.most)

    def _describe_allowed(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.type is str:
            return "the path of a folder, as text"
        if self.type is tuple:
            return "a list of texts"
        if self.type is bool:
            return "True or False"
        number = "a whole number" if self.type is int else "a number"
        if self.most is not None:
            return f"{number} from {_SMALLEST_MESSAGE} (1 KiB) to {_LARGEST_MESSAGE} (100 MiB)"
        return f"{number} above 0" if self.least is None else f"{number} of 0 or more"

    def parse(self, variable: str, text: str) -> Any:
        """The value that the text of an environment variable means; raises `ConfigError` if it means none."""
        if self.type is tuple:
            return self.validate(variable, tuple(part.strip() for part in text.split(",") if part.strip()))
        if self.may_be_none and self.type is not bool and text.lower() in _OFF:
            return None
        if self.type is bool:
            allowed, value = f"one of {', '.join(_YES_NO)}", _YES_NO.get(text.lower())
        else:
            allowed, value = self._describe_allowed(), self._number(text) if self.type in {int, float} else text
        if not self._fits(value):
            raise ConfigError(f"{variable} must be {allowed}{' or off' if self.may_be_none else ''}, not {text!r}")
        return value

    def _number(self, text: str) -> float | None:
        try:
            return int(text) if self.type is int else float(text)
        except ValueError:
            return None


_KINDS: Final = {name: _SettingKind.of(name, Settings.__annotations__[name]) for name in Settings.__struct_fields__}


def _validate_keys(name: str, keys: Any) -> tuple[str, ...]:
    """Keys that can be used; says what is wrong with others without showing any."""
    if isinstance(keys, str):
        raise ConfigError(f"{name} must be a list of keys, not a text")
    if not isinstance(keys, list | tuple):
        raise ConfigError(f"{name} must be a list of keys, not of type {type(keys).__name__}")
    for position, key in enumerate(cast("list[Any]", keys)):
        if not isinstance(key, str) or len(key.encode()) < MIN_KEY_BYTES:
            raise ConfigError(f"{name}[{position}] must be a text of at least {MIN_KEY_BYTES} bytes")
    return tuple(cast("list[str]", keys))


def _check_name(problem: str, name: str) -> None:
    """Raises `ConfigError` if there is no setting of a name."""
    if name not in _KINDS:
        hint = did_you_mean(name, _KINDS)
        raise ConfigError(f"{problem}.{hint}" if hint else f"{problem}; the settings are {', '.join(sorted(_KINDS))}")


_INHERITED: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
    if os.name == "posix"
    else {
        *("APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT", "PROCESSOR_ARCHITECTURE"),
        *("PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR"),
    }
)


def inherited_environment(extra: Iterable[str] = ()) -> dict[str, str]:
    """What a process that we start may know of our environment: where things are and which language is spoken, what
    `also` names, and nothing else, since there may be secrets in it."""
    named = frozenset(extra)
    return {
        name: value
        for name, value in os.environ.items()
        if name in named
        or ((name in _INHERITED or name.startswith("LC_")) and not value.startswith("()"))  # a shell's function
    }


def environment_values() -> list[str]:
    """What stands in our environment, where things are and which language is spoken left out: there may be secrets in
    it, which must not be written down."""
    return [value for name, value in os.environ.items() if name not in _INHERITED and not name.startswith("LC_")]


def proxy_for(url: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The proxy that the environment names for an address; None if there is none, or the address is excepted. This
    machine itself always is. Names in lower case come first."""
    from urllib.parse import urlsplit

    found = dict(os.environ if environ is None else environ)
    if "REQUEST_METHOD" in found:  # a CGI script: there HTTP_PROXY is a header that the caller has made up
        found.pop("HTTP_PROXY", None)
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or {"https": 443}.get(parts.scheme, 80)
    named = (found.get(name) for base in (f"{parts.scheme}_proxy", "all_proxy") for name in (base, base.upper()))
    proxy = next(filter(None, named), None)
    if proxy is None or _bypasses_proxy(host, port, found.get("no_proxy") or found.get("NO_PROXY") or ""):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise ConfigError(
            f"the environment names a proxy of the kind {proxy.partition('://')[0]!r}; only http:// works"
        )
    return proxy


def _bypasses_proxy(host: str, port: int, exceptions: str) -> bool:
    named = filter(None, (part.strip().lower() for part in exceptions.split(",")))
    return (
        host == "localhost"
        or _in_network(host, "127.0.0.0/8")
        or host == "::1"
        or any(_matches_no_proxy(exception, host, port) for exception in named)
    )


def _matches_no_proxy(exception: str, host: str, port: int) -> bool:
    """Whether an exception means a host: it is a name with all below it, with or without a port, or a network."""
    if exception == "*" or _in_network(host, exception):
        return True
    name, _, only = exception.rpartition(":")
    if ":" not in host and only.isdecimal():
        exception = name if int(only) == port else ""
    bare = exception.removeprefix("*").removeprefix(".")
    return bool(bare) and (host == bare or host.endswith(f".{bare}"))


def _in_network(host: str, network: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def tokens_folder(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> str:
    """Where tokens are kept, by the custom of each system."""
    found = os.environ if environ is None else environ
    if platform == "win32":
        named, usual = found.get("LOCALAPPDATA", ""), ("AppData", "Local")
    elif platform == "darwin":
        named, usual = "", ("Library", "Application Support")
    else:
        named, usual = found.get("XDG_STATE_HOME", ""), (".local", "state")
    if not os.path.isabs(named):  # which is to be ignored, says XDG
        named = os.path.join(os.path.expanduser("~"), *usual)
    return os.path.join(named, "trunkline", "tokens")


def browser_commands(environ: Mapping[str, str] | None = None) -> str:
    """What the environment names as the browser: commands, one after the other."""
    return (os.environ if environ is None else environ).get("BROWSER", "")


def system_program(name: str, environ: Mapping[str, str] | None = None) -> str:
    """A program of Windows itself, and not one of its name that lies in the current folder."""
    found = os.environ if environ is None else environ
    root = found.get("SYSTEMROOT") or r"C:\Windows"
    return rf"{root}\System32\{name}"


def _load_file(path: str | PathLike[str]) -> dict[str, Any]:
    import tomllib  # costs more to import than all of this module

    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read settings from {path}: {error}") from error
    for name in found:
        _check_name(f"unknown setting {name!r} in {path}", name)
    return {name: _KINDS[name].validate(f"{path}: {name}", value) for name, value in found.items()}


def _load_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {f"{_PREFIX}{name.upper()}": name for name in _KINDS}
    for variable in sorted(environ):
        if variable.startswith(_PREFIX) and variable not in known and not _SERVICE_LINK.search(variable):
            name = closest_match(variable.removeprefix(_PREFIX).lower(), _KINDS)
            meant = "" if name is None else f". Did you mean {_PREFIX}{name.upper()}?"
            told = f"the environment variable {variable} is not a setting and is ignored{meant}"
            warnings.warn(told, stacklevel=3)  # at the call of Settings.load
    return {
        name: _KINDS[name].parse(variable, environ[variable]) for variable, name in known.items() if variable in environ
    }
