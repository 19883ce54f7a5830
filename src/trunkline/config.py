"""Settings: frozen, with defaults; and certificate files. The only module that reads environment variables and settings
files.

A setting is a field. `Settings.load` reads it from keyword arguments, environment variables (`TRUNKLINE_` and the
field's name in capitals) and a TOML file, in this order of precedence. The annotation of a field defines its allowed
values: see `_SettingKind`.
"""

import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from inspect import get_annotations
from math import isfinite
from os import PathLike
from typing import Any, Final, Literal, NamedTuple, cast, get_args, get_origin

from msgspec import Struct
from msgspec.structs import force_setattr

from trunkline.errors import ConfigError, MisuseError
from trunkline.errors.suggestions import closest_match, did_you_mean

__all__ = [
    "CertificateFiles",
    "HealthDetails",
    "LogFormat",
    "LogLevel",
    "LogPrincipals",
    "OnDuplicate",
    "Secret",
    "SettingSource",
    "Settings",
    "UnixSocketAccess",
    "browser_commands",
    "environment_values",
    "has_log_variable",
    "inherited_environment",
    "manifests_folder",
    "pins_file",
    "proxy_for",
    "read_log_variable",
    "read_settings",
    "secret_variable",
    "system_program",
    "take_environment",
    "tokens_folder",
]

OnDuplicate = Literal["error", "replace", "warn"]
UnixSocketAccess = Literal["owner", "group", "all"]
HealthDetails = Literal["off", "local", "all"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
LogPrincipals = Literal["plain", "hashed", "off"]

KIB: Final = 1024
MIB: Final = 1024 * KIB
_SMALLEST_MESSAGE: Final = 1 * KIB
_LARGEST_MESSAGE: Final = 100 * MIB
MIN_KEY_BYTES: Final = 32  # bytes: the size of the keys derived from it
_PREFIX: Final = "TRUNKLINE_"
_MAY_BE_ZERO: Final = frozenset({"backoff_jitter", "max_retries", "restart_intensity"})
_KEYS: Final = "state_keys"
_SECRETS: Final = frozenset({_KEYS, "metrics_token"})
_MIN_TOKEN: Final = 16  # characters: a token that cannot be guessed is longer
_TOKEN_SYNTAX: Final = rf"[!-~]{{{_MIN_TOKEN},}}"
# Kubernetes sets such variables in every pod if a service is called "trunkline": TRUNKLINE_SERVICE_HOST,
# TRUNKLINE_PORT_8000_TCP_ADDR.
_SERVICE_LINK: Final = r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$"
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
_LOG_VARIABLE: Final = f"{_PREFIX}LOG"


class Secret(str):
    """A string that hides its value in its repr, so that logs and tracebacks do not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


class Settings(Struct, frozen=True, kw_only=True):
    """All settings. Times are seconds, sizes are bytes, None means off."""

    # Size limits of a message, by transport; a message of exactly this size is accepted.
    stdio_message_size_limit: int = 16 * MIB
    tcp_message_size_limit: int = 16 * MIB
    http_body_size_limit: int = 16 * MIB
    ws_message_size_limit: int = 16 * MIB
    sse_event_size_limit: int = 16 * MIB

    # Timeouts.
    work_timeout: float | None = 60.0  # requests that run user code: tools, prompts, resources, sampling
    quick_timeout: float | None = 5.0  # ping and lists
    person_timeout: float | None = 3600.0  # requests that wait for a person
    longest_call: float | None = 3600.0  # for one request in all, even if it reports progress
    initialize_timeout: float | None = 30.0
    drain_timeout: float | None = 5.0  # for requests in flight at shutdown; shorter than hosts wait before they kill
    stage_timeout: float | None = 5.0  # for each other stage of the shutdown

    # Network connections.
    connect_timeout: float | None = 10.0  # to connect to a server
    keepalive_interval: float | None = 30.0  # of silence, before the peer is pinged
    keepalive_timeout: float = 10.0  # of silence after the ping, before the connection is closed
    max_connections: int = 1000  # of one listener, or as file descriptors allow; further ones are refused
    descriptor_reserve: int = 64  # file descriptors reserved for other uses; at most a quarter of the limit
    allowed_hosts: tuple[str, ...] = ()  # host names of the server, besides those of its machine; "*": any
    allowed_origins: tuple[str, ...] = ()  # of web pages that may use the server, besides its own; "*": any
    trusted_proxies: tuple[str, ...] = ()  # whose X-Forwarded-* headers are trusted: addresses, networks, or "unix"
    certificate_check_interval: float | None = 10.0  # between two checks of certificate files; None: only on SIGHUP
    reuse_port: bool = False  # share the port with other processes of the same user (SO_REUSEPORT)
    unix_socket_access: UnixSocketAccess = "owner"  # users that may connect to a Unix socket, by its file mode

    # Outgoing requests for authorization.
    egress_allowed: tuple[str, ...] = ()  # host names, "*.names" and networks that are allowed although not public
    egress_timeout: float | None = 30.0  # for one request, including redirects
    egress_answer_limit: int = 1 * MIB  # of a response body

    # Connections, sessions and streams of HTTP servers.
    max_header_bytes: int = 64 * KIB  # of all headers of a request
    header_timeout: float | None = 10.0  # for the headers of a request to arrive
    write_timeout: float | None = 30.0  # for a peer that does not read its responses
    idle_timeout: float = 75.0  # of a connection between two requests
    http_sessions: bool = True  # False: no sessions, each request is independent
    legacy_sse: bool = True  # HTTP+SSE of 2024-11-05 at /sse and /messages
    session_ttl: float | None = 3600.0  # idle time after which a session expires
    session_confirm_timeout: float | None = 30.0  # for `initialized` after `initialize`, before the session expires
    session_unused_ttl: float | None = 300.0  # for the first request after the handshake, before the session expires
    session_sweep: float = 60.0  # between two searches for expired sessions
    max_sessions: int = 10_000  # of one endpoint; unused sessions are dropped for new ones, then new ones are refused
    max_sessions_per_principal: int | None = 1000  # in all processes that share a store
    max_sessions_per_address: int | None = 5000  # without a principal, by address or IPv6 /64 network
    replay_events: int = 1000  # of one stream, stored for a client that reconnects
    replay_bytes: int = 4 * MIB
    replay_streams: int = 64  # of one session
    replay_session_bytes: int = 32 * MIB  # of all streams of one session; answered streams are dropped first
    stream_retry: float = 1.0  # reconnection delay sent to clients; clients wait 0.5 s to 300 s
    stream_keepalive: float = 15.0  # of silence on a stream at the longest; then the server sends a comment
    body_timeout: float | None = 30.0  # for the body of a request to arrive

    # Workers, and health checks of HTTP servers.
    worker_timeout: float | None = 30.0  # without a heartbeat, before a worker is killed and replaced
    health: bool = True  # serve /livez, /readyz and /healthz, besides the endpoint
    health_details: HealthDetails = "off"  # who sees the components at /healthz; "local": callers on this machine

    # Metrics of a server.
    metrics: bool = False  # collect metrics, and serve them over HTTP at /metrics, besides the endpoint
    metrics_token: str | None = None  # bearer token for /metrics; None: the authentication of the endpoint, if any

    # Rate limits of a server, such as "100/s", "600/min" or "10/s burst 50"; processes that share a store share them.
    server_rate: str | None = None  # requests of all clients
    principal_rate: str | None = None  # requests of one principal, or of one address without a principal
    session_rate: str | None = None  # requests of one session or connection; HTTP has none from 2026-07-28 on
    tool_rate: str | None = None  # calls of one tool, unless it has a `rate` of its own
    http_rate: str | None = None  # HTTP requests of one principal or address; status 429 before the message is read

    # Tasks.
    max_tasks: int = 1000  # running in one process; further ones are refused
    max_tasks_per_principal: int | None = 100  # running in all processes that share a store
    task_ttl: float = 3600.0  # lifetime of a task from its creation, if the client requests none
    max_task_ttl: float = 24 * 3600.0  # the longest lifetime that a client can request
    task_poll_interval: float = 1.0  # poll interval sent to clients
    task_lease: float = 10.0  # between scans for tasks of dead processes; lease of a task in a store without a bus

    # Processes that share a store.
    process_lease: float = 5.0  # without a heartbeat, after which other processes may evict a process

    # Calls with an idempotency key.
    idempotency_ttl: float = 24 * 3600.0  # lifetime of the stored outcome
    idempotency_lease: float = 10.0  # after which processes of older releases abandon a call of this one

    # Encrypted request state that the client sends back, from 2026-07-28 on.
    state_lifetime: float = 600.0  # for the client to send the input that the server requested
    state_keys: tuple[str, ...] = ()  # random strings of 32 bytes: the first encrypts, all decrypt; empty: generated

    # Reconnection of clients.
    probe_timeout: float | None = 5.0  # for the era probe; a server that does not answer is of the handshake era
    auto_reconnect: bool = True
    max_retries: int | None = None  # consecutive attempts to reconnect; None: unlimited
    backoff_first: float = 1.0  # before the second attempt, doubled before each further one; the first is immediate
    backoff_longest: float = 30.0
    backoff_jitter: float = 0.1  # random share added to a delay, so that clients do not reconnect at once
    restart_intensity: int = 5  # restarts per period, of connections, listeners and workers; one more is an error
    restart_period: float = 60.0
    restart_pause: float | None = 300.0  # before a degraded listener is tried again; None: only by hand
    retry_rate: str | None = "1/s burst 10"  # retries of requests that the server refused for their rate; None: none
    max_heard: int = 1024  # unread notifications of one reader; the oldest are dropped first
    max_list_pages: int = 1000  # of one list that is read to its end; a longer list is refused
    max_list_items: int = 100_000  # of one list, likewise

    # Servers that a client starts as child processes.
    stop_timeout: float = 2.0  # to exit after its stdin is closed, and again after SIGTERM, before SIGKILL
    stderr_kept: int = 64 * KIB  # of the end of its standard error

    # Limits of one connection.
    max_calls: int = 256  # running at once; further calls are queued
    max_waiting: int = 1024  # queued calls; at this many, reading stops
    max_subscriptions: int = 1000  # resource subscriptions of a session, a connection or one `subscriptions/listen`
    unsent_high: int = 4 * MIB  # unsent bytes at which reading stops
    unsent_limit: int = 64 * MIB  # unsent bytes at which the connection of a slow reader is closed

    # Logging of a server process to standard error.
    log_level: LogLevel | None = None  # None: as the program configures it; from "info" on, one line for each request
    log_format: LogFormat = "text"
    log_principals: LogPrincipals = "plain"  # in the log of requests: their subject, a digest, or nothing
    log_probes: bool = False  # log pings, too

    # Crash dumps.
    crash_folder: str | None = None  # folder for crash dumps, readable by the owner only; None: no dumps
    crash_dumps: int = 10  # kept in the folder; the oldest are deleted first

    # Introspection.
    control_folder: str | None = "auto"  # of the sockets for `trunkline ps`; "auto": of the user, for listening servers
    slow_call: float | None = None  # after which a call is logged with its stack

    # Lists, content and handlers of a server.
    page_size: int = 1000  # large, since some hosts read the first page only
    max_page_size: int = 1000
    cursor_lifetime: float | None = None  # lifetime of a cursor
    list_changed_interval: float = 0.1  # between two notifications of one kind
    file_poll_interval: float = 0.5  # between two checks of files with subscribers
    max_tool_description: int = 10_000  # characters
    max_uri: int = 2048  # characters
    max_text: int | None = None  # characters of one text block
    max_binary: int | None = None  # bytes of one decoded binary block
    max_file: int | None = 32 * MIB  # bytes of a file resource; a larger file is refused unread
    file_read_budget: int = 64 * MIB  # bytes of files being read at once; further reads wait
    max_threads: int = 32  # for synchronous handlers
    max_processes: int = 4  # for tools with `process=True`; each process of a server has its own
    on_duplicate: OnDuplicate = "error"
    expose_errors: bool | None = None  # peers see exceptions of handlers; None: in-process peers only

    def __post_init__(self) -> None:
        """Validate the values; raise `ConfigError` with the allowed values."""
        for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            value = getattr(self, name)
            if value is not default:
                force_setattr(self, name, _kinds()[name].validate(name, value))
        force_setattr(self, _KEYS, tuple(Secret(key) for key in self.state_keys))
        if self.page_size > self.max_page_size:
            raise ConfigError(f"page_size {self.page_size} is above max_page_size {self.max_page_size}")
        if self.unsent_high > self.unsent_limit:
            raise ConfigError(f"unsent_high {self.unsent_high} is above unsent_limit {self.unsent_limit}")

    def __repr__(self) -> str:
        """Show settings that differ from their defaults; keys are hidden."""
        names = zip(self.__struct_fields__, self.__struct_defaults__, strict=True)
        changed = [(name, value) for name, default in names if (value := getattr(self, name)) != default]
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in changed)})"

    @classmethod
    def load(
        cls, path: str | PathLike[str] | None = None, *, environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> "Settings":
        """Load settings from a file, the environment and keyword arguments; later sources win. Warn about `TRUNKLINE_`
        variables that are not settings."""
        found: dict[str, Any] = {} if path is None else _load_file(path)
        found.update(_load_environment(os.environ if environ is None else environ))
        for name in overrides:
            _check_name(f"unknown setting {name!r}", name)
        found.update(overrides)
        return cls(**found)


class SettingSource(NamedTuple):
    """The value of a setting, and where it was set."""

    value: Any
    source: str  # such as "TRUNKLINE_WORK_TIMEOUT" or "trunkline.toml"


def read_settings(
    path: str | PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> dict[str, SettingSource]:
    """Return the settings that a file, the environment and the flags of a command line set, with their sources; later
    sources win. Raises `ConfigError` for an unknown setting or a value that is not allowed."""
    found = {} if path is None else {name: SettingSource(value, str(path)) for name, value in _load_file(path).items()}
    environ = os.environ if environ is None else environ
    for name, value in _load_environment(environ).items():
        variable = f"{_PREFIX}{name.upper()}"
        found[name] = SettingSource(value, variable if variable in environ else _LOG_VARIABLE)
    for name, text in (flags or {}).items():
        _check_name(f"unknown setting {name!r}", name)
        flag = f"--{name.replace('_', '-')}"
        found[name] = SettingSource(_kinds()[name].parse(flag, text), flag)
    return found


class CertificateFiles(Struct, frozen=True):
    """PEM files with the certificate of a server, for `tls=`. A listener loads them again when they change.

    `certfile` has the certificate and its chain, and the private key unless `keyfile` has it; `password` decrypts the
    key. With `client_cafile`, clients have to show a certificate of one of these authorities.
    """

    certfile: str | PathLike[str]
    keyfile: str | PathLike[str] | None = None
    password: str | None = None
    client_cafile: str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Raise `MisuseError` for a value of the wrong type; hide the password."""
        for name in ("certfile", "keyfile", "client_cafile"):
            value: Any = getattr(self, name)
            if not isinstance(value, str | PathLike) and (value is not None or name == "certfile"):
                raise MisuseError(f"{name}= of CertificateFiles is the path of a PEM file, not {value!r}")
        password: Any = self.password
        if password is not None:
            if not isinstance(password, str):
                raise MisuseError(f"password= of CertificateFiles is a text, not of type {type(password).__name__}")
            force_setattr(self, "password", Secret(password))

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all files."""
        named = (self.certfile, self.keyfile, self.client_cafile)
        return tuple(os.fspath(path) for path in named if path is not None)


class _SettingKind(Struct, frozen=True):
    """The type, bounds and choices of one setting."""

    type: type  # int, float, bool, str, or tuple for a list of strings
    may_be_none: bool
    choices: tuple[str, ...]
    least: float | None  # None: above 0
    most: float | None
    secret: bool  # messages do not show its value
    rate: bool  # a text that states a rate

    @classmethod
    def of(cls, name: str, annotation: Any) -> "_SettingKind":
        """Derive the kind of a setting from its annotation."""
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
            secret=name in _SECRETS,
            rate=name.endswith("_rate"),
        )

    def validate(self, name: str, value: Any) -> Any:
        """Return a valid value, a list as a tuple; raise `ConfigError` for any other."""
        if value is None and self.may_be_none:
            return None
        if self.secret:
            return _validate_keys(name, value) if self.type is tuple else _validate_token(name, value)
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
        if self.rate:
            return _is_rate(value)
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
        if self.rate:
            from trunkline.token_bucket import RATE_EXAMPLES

            return RATE_EXAMPLES
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
        """Parse the text of an environment variable; raise `ConfigError` if it is not valid."""
        if self.type is tuple:
            return self.validate(variable, tuple(part.strip() for part in text.split(",") if part.strip()))
        if self.may_be_none and self.type is not bool and text.lower() in _OFF:
            return None
        if self.secret:
            return self.validate(variable, text)
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


@cache
def _kinds() -> Mapping[str, _SettingKind]:
    """Return the kind of each setting; most servers use the defaults and need none."""
    annotations = get_annotations(Settings)
    return {name: _SettingKind.of(name, annotations[name]) for name in Settings.__struct_fields__}


def _is_rate(value: Any) -> bool:
    from trunkline.token_bucket import parse_rate  # imported here: few servers limit rates

    try:
        parse_rate(value)
    except MisuseError:
        return False
    return True


def _validate_keys(name: str, keys: Any) -> tuple[str, ...]:
    """Return valid keys; raise `ConfigError` without showing any key."""
    if isinstance(keys, str):
        raise ConfigError(f"{name} must be a list of keys, not a string")
    if not isinstance(keys, list | tuple):
        raise ConfigError(f"{name} must be a list of keys, not of type {type(keys).__name__}")
    for position, key in enumerate(cast("list[Any]", keys)):
        if not isinstance(key, str) or len(key.encode()) < MIN_KEY_BYTES:
            raise ConfigError(f"{name}[{position}] must be a string of at least {MIN_KEY_BYTES} bytes")
    return tuple(cast("list[str]", keys))


def _validate_token(name: str, token: Any) -> str:
    """Return a valid bearer token; raise `ConfigError` without showing it."""
    if not isinstance(token, str) or not re.fullmatch(_TOKEN_SYNTAX, token):
        raise ConfigError(
            f"{name} must be a text of at least {_MIN_TOKEN} characters that a header can have, without spaces"
        )
    return Secret(token)


def _check_name(problem: str, name: str) -> None:
    """Raise `ConfigError` if no setting has this name."""
    if name not in _kinds():
        hint = did_you_mean(name, _kinds())
        raise ConfigError(f"{problem}.{hint}" if hint else f"{problem}; the settings are {', '.join(sorted(_kinds()))}")


_INHERITED: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
    if os.name == "posix"
    else {
        *("APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT", "PROCESSOR_ARCHITECTURE"),
        *("PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR"),
    }
)


def inherited_environment(extra: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment for child processes: paths, locale and the variables in `extra`. Other variables may hold
    secrets."""
    named = frozenset(extra)
    return {
        name: value
        for name, value in os.environ.items()
        if name in named
        or ((name in _INHERITED or name.startswith("LC_")) and not value.startswith("()"))  # an exported shell function
    }


def take_environment(names: Iterable[str]) -> dict[str, str]:
    """Remove variables from the environment, so that child processes do not inherit them; return their values."""
    return {name: os.environ.pop(name) for name in names if name in os.environ}


def environment_values() -> list[str]:
    """Return the values of environment variables that may be secrets, so that crash dumps can redact them."""
    return [value for name, value in os.environ.items() if name not in _INHERITED and not name.startswith("LC_")]


def secret_variable(name: str) -> Secret | None:
    """Return the secret in an environment variable; None if it is unset or blank."""
    value = os.environ.get(name, "").strip()
    return Secret(value) if value else None


def proxy_for(url: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the proxy that the environment names for a URL; None if there is none or `NO_PROXY` excludes the host.
    Loopback addresses never use a proxy. Lower-case variables take precedence."""
    from urllib.parse import urlsplit

    found = dict(os.environ if environ is None else environ)
    if "REQUEST_METHOD" in found:  # a CGI script: there the client can set HTTP_PROXY by a `Proxy` header
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
    """Return whether an entry of `NO_PROXY` matches: a domain with its subdomains, optionally with a port, or a
    network."""
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
    """Return the folder of the token store, by the convention of the platform."""
    return os.path.join(_state_folder(environ, platform), "tokens")


def pins_file(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> str:
    """Return the file of the pin store, by the convention of the platform."""
    return os.path.join(_state_folder(environ, platform), "pins.json")


def manifests_folder(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> str:
    """Return the folder of the lists that a gateway has read, by the convention of the platform."""
    return os.path.join(_state_folder(environ, platform), "manifests")


def _state_folder(environ: Mapping[str, str] | None, platform: str) -> str:
    found = os.environ if environ is None else environ
    if platform == "win32":
        named, default = found.get("LOCALAPPDATA", ""), ("AppData", "Local")
    elif platform == "darwin":
        named, default = "", ("Library", "Application Support")
    else:
        named, default = found.get("XDG_STATE_HOME", ""), (".local", "state")
    if not os.path.isabs(named):  # XDG: ignore relative paths
        named = os.path.join(os.path.expanduser("~"), *default)
    return os.path.join(named, "trunkline")


def browser_commands(environ: Mapping[str, str] | None = None) -> str:
    """Return the browser commands that the environment variable BROWSER lists."""
    return (os.environ if environ is None else environ).get("BROWSER", "")


def system_program(name: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the path of a Windows system program, never of a file in the current folder."""
    found = os.environ if environ is None else environ
    root = found.get("SYSTEMROOT") or r"C:\Windows"
    return rf"{root}\System32\{name}"


def _load_file(path: str | PathLike[str]) -> dict[str, Any]:
    import tomllib  # slow to import

    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read settings from {path}: {error}") from error
    for name in found:
        _check_name(f"unknown setting {name!r} in {path}", name)
    return {name: _kinds()[name].validate(f"{path}: {name}", value) for name, value in found.items()}


def read_log_variable(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings that TRUNKLINE_LOG states: a level, a format, or both, such as "info,json"."""
    text = (os.environ if environ is None else environ).get(_LOG_VARIABLE, "")
    found: dict[str, str] = {}
    for part in filter(None, (part.strip().lower() for part in text.split(","))):
        name = next((name for name in ("log_level", "log_format") if part in _kinds()[name].choices), None)
        if name is None or name in found:
            levels, formats = (", ".join(_kinds()[name].choices) for name in ("log_level", "log_format"))
            raise ConfigError(
                f"{_LOG_VARIABLE} must be a level ({levels}), a format ({formats}) or both, such as info,json; "
                f"not {text!r}"
            )
        found[name] = part
    return found if "log_level" in found or not found else {"log_level": "info", **found}


def has_log_variable() -> bool:
    """Return whether TRUNKLINE_LOG is set."""
    return _LOG_VARIABLE in os.environ


def _load_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {f"{_PREFIX}{name.upper()}": name for name in _kinds()}
    for variable in sorted(environ):
        if variable == _LOG_VARIABLE:
            continue
        if variable.startswith(_PREFIX) and variable not in known and not re.search(_SERVICE_LINK, variable):
            name = closest_match(variable.removeprefix(_PREFIX).lower(), _kinds())
            meant = "" if name is None else f". Did you mean {_PREFIX}{name.upper()}?"
            message = f"the environment variable {variable} is not a setting and is ignored{meant}"
            warnings.warn(message, stacklevel=3)  # at the call of Settings.load
    return {
        **read_log_variable(environ),
        **{
            name: _kinds()[name].parse(variable, environ[variable])
            for variable, name in known.items()
            if variable in environ
        },
    }
