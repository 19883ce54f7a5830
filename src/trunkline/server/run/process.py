"""Running a server as a process: event loop, streams, listeners and orderly shutdown."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, MutableSet, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trunkline.clock import Clock
from trunkline.config import CertificateFiles, Settings
from trunkline.errors import ConfigError, MisuseError, TransportError, TrunklineError
from trunkline.errors.suggestions import did_you_mean
from trunkline.event_loop import find_loop_factory
from trunkline.server.run.signals import on_signals
from trunkline.server.shutdown import EXIT_CODES
from trunkline.transports.stdio.server import END_OF_INPUT, claim_stdio, serve_stdio

if TYPE_CHECKING:
    from ssl import SSLContext

    from trunkline.auth.server.dpop import SharedProofStore
    from trunkline.auth.server.resource_server import ResourceServer
    from trunkline.server.routes import SingleRoute
    from trunkline.server.run.runnable import RunnableServer
    from trunkline.transports.accept import ConnectionSource
    from trunkline.transports.addresses import Address
    from trunkline.transports.channel import Listener
    from trunkline.transports.http.app import CheckRate
    from trunkline.transports.http.asgi import App
    from trunkline.transports.http.authenticator import Authenticator, Identify
    from trunkline.transports.http.forwarding.outbound import Relay
    from trunkline.transports.http.health import Health
    from trunkline.transports.http.path_router import PathEndpoint
    from trunkline.transports.http.routes import RouteFinder
    from trunkline.transports.http.session.backend import SessionBackend
    from trunkline.transports.listener_limits import ListenerGuard
    from trunkline.transports.listening import ListeningSockets
    from trunkline.transports.tls import ServerTls

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
USAGE_ERROR: Final = 2
"""Exit code for wrong options, or an address that is not available."""

_FAILURE: Final = 1
TRANSPORT_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "stdio": frozenset(),
    "http": frozenset({"host", "port", "path", "tls", "workers", "uds", "systemd"}),
    "tcp": frozenset({"host", "port", "tls", "systemd"}),
    "unix": frozenset({"path", "systemd"}),
}  # of `run()`, by transport
_HTTP_ALIASES: Final = frozenset(
    {"sse", "streamable-http", "streamable_http", "streamablehttp", "ws", "websocket", "https"}
)
_SECURE_SCHEMES: Final = {"http": "https", "tcp": "tls"}
_PORTS: Final = range(1 << 16)
_EVENT_LOOP_PATHS: Final = (os.path.dirname(asyncio.__file__) + os.sep, "uvloop" + os.sep)

__all__ = [
    "TRANSPORT_OPTIONS",
    "USAGE_ERROR",
    "build_address",
    "check_no_loop",
    "exit_on_startup_error",
    "listener_name",
    "make_asgi_app",
    "make_authenticator",
    "make_endpoint",
    "make_tls",
    "open_listener",
    "require_http_extra",
    "run_listener",
    "run_on_loop",
    "run_stdio",
    "serve_address_embedded",
    "serve_stdio_embedded",
    "serve_until_stopped",
]


# --- options of run --------------------------------------------------------------------------------


def check_no_loop() -> None:
    """Raise `MisuseError` if an event loop runs on this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise MisuseError(
        "run() starts an event loop of its own, and there is one running here: call run() outside of async functions, "
        "or use `await server.run_stdio_async()` or `await server.run_http_async()`, which serve on the running loop "
        "until they are cancelled"
    )


@contextlib.contextmanager
def exit_on_startup_error() -> Generator[None]:
    """Exit with one line on standard error, instead of a traceback, if a server cannot start. On other threads than the
    main one, where exiting would have no effect, raise the error."""
    try:
        yield
    except TrunklineError as error:
        if threading.current_thread() is not threading.main_thread():
            raise
        print(f"trunkline: {error}", file=sys.stderr, flush=True)  # noqa: T201 - for a person
        raise SystemExit(USAGE_ERROR if isinstance(error, MisuseError | TransportError) else _FAILURE) from error


def build_address(transport: Any, **given: Any) -> str | None:
    """Return the address to listen at for the options of `run()`; None for stdio. Raises `MisuseError` for an unknown
    transport, and for options that it does not use or that are invalid."""
    if not isinstance(transport, str) or transport not in TRANSPORT_OPTIONS:
        known = f"transport {transport!r} is not one of: {', '.join(TRANSPORT_OPTIONS)}."
        raise MisuseError(known + _suggest_transport(transport))
    given = {name: value for name, value in given.items() if value is not None and value is not False}
    for name in given:
        if name not in TRANSPORT_OPTIONS[transport]:
            used = [kind for kind, options in TRANSPORT_OPTIONS.items() if name in options]
            with_it = " or ".join(f'run("{kind}", {name}=…)' for kind in used)
            raise MisuseError(f'transport "{transport}" does not use {name}=; write {with_it}, or leave it out')
    _check_options(given)
    _check_conflicts(transport, given)
    path, secured = given.get("path"), "tls" in given
    endpoint = "/" + os.fspath(path or "mcp").lstrip("/") if transport == "http" else ""
    scheme = _SECURE_SCHEMES[transport] if secured else transport
    if (name := given.get("systemd")) is not None:
        return f"{scheme}+systemd://{'' if name is True else name}{endpoint}"
    if "uds" in given:
        return f"http+unix://{os.path.abspath(given['uds'])}:{endpoint}"
    if transport == "unix":
        if path is None:
            raise MisuseError('transport "unix" needs the path of a socket: run("unix", path="/run/server.sock")')
        return f"unix://{os.path.abspath(path)}"
    if transport == "stdio":
        return None
    from trunkline.transports.addresses import format_host_port  # imported here: stdio has no address

    host, port = given.get("host", "127.0.0.1"), given.get("port")
    if transport == "tcp":
        return f"{scheme}://{format_host_port(host, port or 0)}"
    return f"{scheme}://{format_host_port(host, 8000 if port is None else port)}{endpoint}"


def _suggest_transport(transport: Any) -> str:
    if not isinstance(transport, str):
        return ""
    if transport.lower() in _HTTP_ALIASES:
        return ' "http" serves Streamable HTTP, HTTP+SSE and WebSocket at one address.'
    return did_you_mean(transport, TRANSPORT_OPTIONS)


def _check_options(given: Mapping[str, Any]) -> None:
    host, port, path, workers = (given.get(name) for name in ("host", "port", "path", "workers"))
    if host is not None and (not isinstance(host, str) or "/" in host):
        raise MisuseError(f"host= is a name or an address such as 127.0.0.1, not {host!r}")
    if port is not None and (not _is_integer(port) or port not in _PORTS):
        raise MisuseError(f"port= is a whole number from 0 to {_PORTS[-1]}, not {port!r}; 0 lets the system choose")
    if path is not None and not isinstance(path, str | os.PathLike):
        raise MisuseError(f"path= is a text or a path, not {path!r}")
    uds, systemd = given.get("uds"), given.get("systemd", True)
    if uds is not None and not isinstance(uds, str | os.PathLike):
        raise MisuseError(f"uds= is the path of a Unix socket, such as /run/server.sock, not {uds!r}")
    if systemd is not True and not (isinstance(systemd, str) and systemd and not set(systemd) & {"/", ":"}):
        raise MisuseError(f"systemd= is True, or the name of a socket (FileDescriptorName=), not {systemd!r}")
    if workers is not None and (not _is_integer(workers) or workers < 1):
        raise MisuseError(f"workers= is the number of processes, 1 or more, not {workers!r}")
    if "tls" in given:
        _check_tls(given["tls"])


def _check_conflicts(transport: str, given: Mapping[str, Any]) -> None:
    """Raise `MisuseError` for options that exclude each other."""
    for chosen in ("systemd", "uds"):
        others = {"host", "port", "uds"} - {chosen} | ({"path"} if transport == "unix" else set[str]())
        if chosen in given and (named := sorted(others & given.keys())):
            raise MisuseError(f"{chosen}= says where to listen, and so does {named[0]}=; leave one of them out")
    if "uds" in given and "tls" in given:
        raise MisuseError("tls= is for connections over a network, and uds= is a local socket; leave tls= out")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_tls(tls: Any) -> None:
    """Raise `MisuseError` for a value that has no certificate."""
    import ssl  # imported here: TLS is rare and slow to import

    if not isinstance(tls, ssl.SSLContext | CertificateFiles):
        raise MisuseError(
            'tls= is CertificateFiles("server.pem", "server.key"), or an ssl.SSLContext with the certificate, '
            f"not {tls!r}"
        )


class _StartFailed(Exception):
    """A server could not start; `error` has the reason."""

    def __init__(self, error: TrunklineError) -> None:
        self.error = error


def run_stdio(server: "RunnableServer") -> None:
    """Serve on standard input and output until the client closes its end, or Ctrl+C."""
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    with claim_stdio() as (wire_in, wire_out):
        run_on_loop(server, _serve(server, wire_in, wire_out, at_terminal=at_terminal))


async def _serve(server: "RunnableServer", wire_in: int, wire_out: int, *, at_terminal: bool) -> Sequence[str]:
    async def start() -> None:
        await server.start()
        if at_terminal:
            _print_introduction(server)

    serve = partial(_serve_streams, server, wire_in, wire_out)
    on_hangup = server.hang_up if server.handles_hangup else None
    return await _serve_until_signal(server, start(), serve, sole=True, on_hangup=on_hangup)


async def _serve_streams(server: "RunnableServer", wire_in: int, wire_out: int) -> None:
    if await serve_stdio(server.connect, server.settings, wire_in, wire_out) == END_OF_INPUT:
        for connection in server.connections:
            connection.fail_pending_requests(END_OF_INPUT)


async def serve_stdio_embedded(server: "RunnableServer") -> None:
    """Serve on standard input and output on the running loop, until the client closes its end or this is cancelled."""
    with claim_stdio() as (wire_in, wire_out):
        await _serve_embedded(server, server.start(), partial(_serve_streams, server, wire_in, wire_out))


async def serve_address_embedded(
    server: "RunnableServer",
    address: str,
    tls: "SSLContext | CertificateFiles | None",
    on_listening: Callable[[str], object] | None,
) -> None:
    """Serve the clients of an address on the running loop, until this is cancelled."""

    async def opened() -> None:
        made = await server.listen(address, tls=tls)
        if on_listening is not None:
            on_listening(made.address)

    await _serve_embedded(server, opened(), asyncio.Event().wait)


async def _serve_embedded(
    server: "RunnableServer", start: Coroutine[Any, Any, None], serve: Callable[[], Coroutine[Any, Any, Any]]
) -> None:
    """Start a server and serve until serving or the server ends, or the caller is cancelled; then shut down. The loop,
    its exception handler and the signals belong to the program."""
    try:
        await start
        await _wait_for_first(server, serve(), server.stopping())
    finally:
        await server.shutdown()
    if server.crash is not None:
        raise server.crash


def run_listener(server: "RunnableServer", address: str, tls: "SSLContext | CertificateFiles | None") -> None:
    """Serve the clients of an address until Ctrl+C or SIGTERM."""
    from trunkline.fdlimit import DescriptorReserve  # imported here: for listeners only

    DescriptorReserve(server.settings.descriptor_reserve).raise_limit(server.settings.max_connections)
    run_on_loop(server, _listen(server, address, tls))


async def _listen(server: "RunnableServer", address: str, tls: "SSLContext | CertificateFiles | None") -> Sequence[str]:
    async def opened() -> None:
        made = await server.listen(address, tls=tls)
        print(f"{server.name} listens at {made.address}", file=sys.stderr, flush=True)  # noqa: T201 - for a person

    on_hangup = server.hang_up if isinstance(tls, CertificateFiles) or server.handles_hangup else None
    return await _serve_until_signal(server, opened(), asyncio.Event().wait, on_hangup=on_hangup)


def run_on_loop(server: "RunnableServer", main: Coroutine[Any, Any, Sequence[str]]) -> None:
    """Run a server on a new loop; exit with a code if a stage of shutdown exceeded its limit. Remaining work, such as a
    task that ignores cancellation or a blocked thread, does not delay the exit."""
    _raise_malloc_threshold()
    runner = asyncio.Runner(loop_factory=find_loop_factory())
    code = _FAILURE
    failure: TrunklineError | None = None
    try:
        overran = runner.run(main)
        code = EXIT_CODES[overran[0]] if overran else 0
    except _StartFailed as error:
        failure = error.error
    finally:
        with _exit_if_slower(server.settings.stage_timeout, code or EXIT_CODES["Terminate"]):
            runner.close()
    if failure is not None:
        with exit_on_startup_error():
            raise failure
    if code:
        raise SystemExit(code)


@contextlib.contextmanager
def _exit_if_slower(seconds: float | None, code: int) -> Generator[None]:
    """Exit the process with a code if the block takes longer than `seconds`."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, _force_exit, [code])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _force_exit(code: int) -> None:
    with contextlib.suppress(Exception):
        print("the server did not stop in time; exiting", file=sys.stderr, flush=True)  # noqa: T201 - for a person
    os._exit(code)


async def _serve_until_signal(
    server: "RunnableServer",
    start: Coroutine[Any, Any, None],
    serve: Callable[[], Coroutine[Any, Any, Any]],
    *,
    sole: bool = False,
    on_hangup: Callable[[], object] | None = None,
) -> Sequence[str]:
    """Start a server and serve until serving or the server ends, or a signal arrives; SIGHUP only calls `on_hangup`, if
    there is one."""
    told = asyncio.Event()
    with on_signals(asyncio.get_running_loop(), told.set, on_hangup):
        return await serve_until_stopped(server, start, serve, told, sole=sole)


async def serve_until_stopped(
    server: "RunnableServer",
    start: Coroutine[Any, Any, None],
    serve: Callable[[], Coroutine[Any, Any, Any]],
    stop: asyncio.Event,
    *,
    sole: bool = False,
) -> Sequence[str]:
    """Start a server and serve until serving ends, the server shuts down, or `stop` is set. Return the shutdown stages
    that exceeded their limit; raise the error of a crash. `sole` means that the process serves one connection only."""
    try:
        try:
            await start
        except TrunklineError as error:
            raise _StartFailed(error) from error
        asyncio.get_running_loop().set_exception_handler(partial(_handle_loop_exception, server, sole))
        async with _control_socket(server, sole=sole):
            await _wait_for_first(server, serve(), server.stopping(), stop.wait())
    finally:
        overran = await server.shutdown()
    if server.crash is not None:
        raise server.crash
    return overran


@contextlib.asynccontextmanager
async def _control_socket(server: "RunnableServer", *, sole: bool) -> AsyncGenerator[None]:
    """Keep a control socket open, if the settings want one."""
    folder = server.settings.control_folder
    if folder is None or (folder == "auto" and sole) or not hasattr(socket, "AF_UNIX"):
        yield
        return
    from trunkline.server.introspection.control_socket import ControlSocket  # imported here: for listeners only

    control = ControlSocket(None if folder == "auto" else folder, server.describe, server.stacks)
    await control.open()
    try:
        yield
    finally:
        await control.close()


async def _wait_for_first(server: "RunnableServer", *ways: Coroutine[Any, Any, Any]) -> None:
    """Wait for the first of several coroutines; if it raises, the server crashes with its error."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            server.abort(error)


def _handle_loop_exception(
    server: "RunnableServer", sole: bool, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Report an exception that reached the event loop, and close the transport in question. The process continues to
    serve other connections. If it serves only one connection, an internal error crashes the server."""
    error: Any = context.get("exception")
    incident = os.urandom(6).hex()
    loop.default_exception_handler({**context, "message": f"{context.get('message')} (incident {incident})"})
    abort = getattr(context.get("transport"), "abort", None)
    if abort is not None:
        abort()
    if isinstance(error, Exception):
        server.loop_failed(error, incident)
        if sole and not context.keys() & {"task", "future"} and _raised_by_trunkline(error):
            server.abort(error)


def _raised_by_trunkline(error: BaseException) -> bool:
    """Return whether the loop called our code, and not foreign code that may have called ours."""
    from traceback import extract_tb  # imported here: for a crash only

    places = (frame.filename for frame in extract_tb(error.__traceback__))
    return next((place.startswith(_PACKAGE) for place in places if not place.startswith(_EVENT_LOOP_PATHS)), False)


async def open_listener(
    server: "RunnableServer",
    address: str,
    tls: "SSLContext | CertificateFiles | None",
    clock: Clock,
    auth: "ResourceServer | None" = None,
    *,
    session_backend: "SessionBackend | None" = None,
    forwarder: "Relay | None" = None,
    dpop_replays: "Callable[[], SharedProofStore | None] | None" = None,
    health: "Callable[[], Health | None]" = lambda: None,
    check_rate: "CheckRate | None" = None,
    routes: "Callable[[], RouteFinder | None]" = lambda: None,
    certificates: "MutableSet[ServerTls] | None" = None,
    opened: "ListeningSockets | None" = None,
    source: "ConnectionSource | None" = None,
    previous_tls: "SSLContext | None" = None,
) -> "Listener":
    """Open a listener for a server at an address. The transport receives the listener limits, which create the
    connections; over HTTP also the session backend, the forwarder, the custom routes, and in a worker the sockets that
    the supervisor has `opened`, and the `source` of the connections that it accepts. The TLS of the listener is added
    to `certificates`; it uses `previous_tls` if the certificate files cannot be loaded."""
    from trunkline.transports.addresses import parse_address  # imported here: stdio has no address
    from trunkline.transports.listening import warn_if_unencrypted

    where = parse_address(address)
    if tls is not None:
        _check_tls(tls)
    if where.transport in {"ws", "wss"}:
        raise ConfigError(f"{address} is not an address to listen at: http:// and https:// serve WebSockets as well")
    if (tls is not None) is not where.secure:
        raise ConfigError(
            f"{address} and tls= do not match: tls:// and https:// need a certificate, other schemes take none"
        )
    if auth is None:
        _check_no_scopes(server)
    if auth is not None and where.transport != "http":
        raise ConfigError(f"{address} has no authentication: a server with auth= listens at http:// or https://")
    secured = make_tls(tls, clock, server.settings.certificate_check_interval, previous_tls)
    if secured is not None and certificates is not None:
        certificates.add(secured)
    if where.transport == "http":
        with require_http_extra():
            from trunkline.transports.http.listen import listen_http
        async with _open_unless(opened, where, server.settings) as listening:
            names = listening.host_names
            gate = make_authenticator(server, where.path, auth, host_names=names, dpop_replays=dpop_replays)
            if opened is None:
                warn_if_unencrypted(where, listening)
            return await listen_http(
                _make_listener_limits(server, clock, names),
                opened=listening,
                path=where.path,
                tls=secured,
                authenticator=gate,
                session_backend=session_backend,
                relay=forwarder,
                health=health(),
                check_rate=check_rate,
                routes=routes(),
                source=source,
            )
    from trunkline.transports.tcp import listen_tcp
    from trunkline.transports.unix import listen_unix

    async with _open_unless(opened, where, server.settings) as listening:
        guard = _make_listener_limits(server, clock)
        if opened is None:
            warn_if_unencrypted(where, listening)
        if where.transport == "unix":
            return await listen_unix(guard, opened=listening)
        return await listen_tcp(guard, tls=secured, opened=listening)


def listener_name(address: str) -> str:
    """Return the name of a listener in the supervision tree: `tcp:7000`, `unix:server.sock`."""
    from trunkline.transports.addresses import parse_address

    where = parse_address(address)
    return f"{where.scheme}:{os.path.basename(where.socket_path) or where.port}"


def make_endpoint(
    server: "RunnableServer",
    path: str,
    clock: Clock,
    auth: "ResourceServer | None",
    host_names: Iterable[str],
    *,
    session_backend: "SessionBackend | None",
    forwarder: "Relay | None",
    dpop_replays: "Callable[[], SharedProofStore | None] | None",
    check_rate: "CheckRate | None",
    page: "SingleRoute | None" = None,
) -> "PathEndpoint":
    """Make the endpoint of a server at a path of a listener that it shares with others. `page` is another page of the
    server."""
    from trunkline.transports.http.app import HttpApp
    from trunkline.transports.http.path_router import PathEndpoint

    if auth is None:
        _check_no_scopes(server)
    app = HttpApp(
        _make_listener_limits(server, clock, host_names),
        path,
        make_authenticator(server, path, auth, host_names=host_names, dpop_replays=dpop_replays),
        session_backend=session_backend,
        relay=forwarder,
        check_rate=check_rate,
        routes=page,
        keeps_path=False,
    )
    return PathEndpoint(app, path, *(() if page is None else (page.path,)))


def make_tls(
    tls: "SSLContext | CertificateFiles | None",
    clock: Clock,
    interval: float | None,
    previous: "SSLContext | None" = None,
) -> "ServerTls | None":
    """Make the TLS of a listener; None without a certificate."""
    if tls is None:
        return None
    from trunkline.transports.tls import ServerTls

    return ServerTls(tls, clock, interval, previous)


@contextlib.asynccontextmanager
async def _open_unless(
    opened: "ListeningSockets | None", where: "Address", settings: Settings
) -> AsyncGenerator["ListeningSockets"]:
    """Open the sockets of an address, unless they are `opened` already; close them if the block fails."""
    if opened is not None:
        yield opened
        return
    from trunkline.transports.listening import open_sockets, resolve

    named = where.inherited or where.socket_path
    own = open_sockets(where, settings, None if named else await resolve(where.host, where.port))
    try:
        yield own
    except BaseException:
        own.close()
        raise


@contextlib.contextmanager
def require_http_extra() -> Generator[None]:
    """Raise `ConfigError` with the package to install if an import in the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"HTTP needs {str(error.name).partition('.')[0]}: pip install 'trunkline[http]'") from error


def _make_listener_limits(server: "RunnableServer", clock: Clock, host_names: Iterable[str] = ()) -> "ListenerGuard":
    from trunkline.transports.listener_limits import ListenerGuard

    return ListenerGuard(
        server.connect,
        server.settings,
        clock,
        hosts=host_names,
        observers=server.observers,
        profile=server.profile,
    )


def _check_no_scopes(server: "RunnableServer") -> None:
    """Raise `ConfigError` for a server that needs scopes at an endpoint without authentication."""
    if names := server.scoped():
        named = names[0] if len(names) == 1 else f"{names[0]}, as {len(names) - 1} more,"
        raise ConfigError(
            f"{named} needs scopes, but callers are not authenticated: use Server(auth=ResourceServer(…)) or "
            "asgi(identify=…)"
        )


def make_authenticator(
    server: "RunnableServer",
    path: str,
    auth: "ResourceServer | None",
    identify: "Identify | None" = None,
    *,
    host_names: Iterable[str] = (),
    dpop_replays: "Callable[[], SharedProofStore | None] | None" = None,
) -> "Authenticator | None":
    """Make the authenticator of an endpoint: from `auth`, or from `identify`; None without either. `dpop_replays`
    returns the replay cache that processes share."""
    if auth is not None:
        from trunkline.transports.origin_policy import ANY_IP_ADDRESS

        known = (*host_names, *server.settings.allowed_hosts)
        named = not any(name.startswith("*") or name == ANY_IP_ADDRESS for name in known)
        return auth.within(path, named=named, proxies=bool(server.settings.trusted_proxies), memory=dpop_replays)
    if identify is not None:
        from trunkline.transports.http.authenticator import CallbackAuthenticator

        return CallbackAuthenticator(identify)
    return None


def make_asgi_app(
    server: "RunnableServer",
    clock: Callable[[], Clock],
    path: str,
    authenticator: "Authenticator | None",
    end_listen_requests: Callable[[], None],
    *,
    session_backend: "Callable[[], SessionBackend | None]",
    forwarder: "Callable[[], Relay | None]",
    health: "Health | None",
    check_rate: "CheckRate | None" = None,
    routes: "RouteFinder | None" = None,
) -> "App":
    """Make the ASGI application of a server. `end_listen_requests` ends the open `subscriptions/listen` requests;
    `session_backend` and `forwarder` return their objects once the server has started."""
    from trunkline.transports.http.asgi import App

    async def start() -> "ListenerGuard":
        if authenticator is None:
            _check_no_scopes(server)
        await server.start()
        return _make_listener_limits(server, clock())

    return App(
        start,
        server.aclose,
        path=path,
        authenticator=authenticator,
        close_listeners=end_listen_requests,
        session_backend=session_backend,
        relay=forwarder,
        health=health,
        check_rate=check_rate,
        routes=routes,
    )


def _raise_malloc_threshold() -> None:
    """Free one large block: afterwards glibc reuses blocks of that size instead of mapping each one anew."""
    bytes(31 << 20)


def _print_introduction(server: "RunnableServer") -> None:
    """Explain the program to a person at a terminal, where stdio would show nothing."""
    program = os.path.basename(sys.argv[0]) or "server.py"
    by_command_line = program == "trunkline" or sys.argv[0].startswith(_PACKAGE)  # `python -m trunkline`
    command = f"trunkline {' '.join(sys.argv[1:])}" if by_command_line else f"python {program}"
    print(  # noqa: T201 - for a person
        f"{server.name} is an MCP server: it speaks JSON-RPC on standard input and output, for a program to talk to.\n"
        f"To try it, paste this line:\n"
        f'  {{"jsonrpc":"2.0","id":1,"method":"ping"}}\n'
        f"To use it, let an MCP client start it:  {command}\n"
        f"Ctrl+C or Ctrl+D ends it.",
        file=sys.stderr,
        flush=True,
    )
