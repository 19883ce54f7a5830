"""Server: the public class that registers functions, assembles the components and runs them."""

import inspect
import logging as logging_
import sys
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, overload
from weakref import WeakSet

from msgspec.structs import replace

from trunkline.clock import Clock
from trunkline.config import CertificateFiles, Settings, has_log_variable
from trunkline.errors import MisuseError, RegistrationError
from trunkline.errors.options import check_name, describe_value
from trunkline.errors.options import check_options as check_values
from trunkline.facts import Observer, Observers, StoreCallEnded
from trunkline.protocol.meta import IDEMPOTENCY
from trunkline.protocol.types import Icon, Implementation
from trunkline.registry.dependencies import DependencyOverrides
from trunkline.registry.options import parse_icons
from trunkline.registry.registry import Registry
from trunkline.registry.signatures import accepts_positional, name_of, underlying_function
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.current_call import TRACKED_SERVERS
from trunkline.rpc.dispatch import Dispatcher, Feature
from trunkline.server.catalog import CapabilityFlags, ServerCatalog
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.features import FEATURES
from trunkline.server.limits.tool_limits import HealthPredicates
from trunkline.server.notifications.debounce import LIST_CHANGED_METHODS
from trunkline.server.options import (
    CompletionOptions,
    DirectoryOptions,
    FileOptions,
    Health,
    MethodOptions,
    PromptOptions,
    ResourceOptions,
    RouteOptions,
    ToolOptions,
    check_options,
)
from trunkline.server.registration import (
    as_decorator,
    build_method,
    build_prompt,
    build_resource,
    build_tool,
    check_uri_text,
    encode_meta,
    make_completer,
    parse_completion_target,
    read_handler,
    resolve_name,
)
from trunkline.server.runtime import ServerComponents, ServerRuntime
from trunkline.server.server_options import OPTION_KINDS, check_callback
from trunkline.server.server_store import ServerStore
from trunkline.server.shutdown import Shutdown
from trunkline.transports.channel import Channel, Listener
from trunkline.version import __version__

if TYPE_CHECKING:
    from ssl import SSLContext

    from trunkline.auth.server.dpop import SharedProofStore
    from trunkline.auth.server.resource_server import ResourceServer
    from trunkline.protocol.profiles import Profile, ProfileName
    from trunkline.receipts.options import Receipts
    from trunkline.registry.completions import CompletionEntry, Proposal
    from trunkline.registry.methods import MethodEntry
    from trunkline.registry.prompts import PromptEntry
    from trunkline.registry.resources import ResourceEntry, TemplateEntry
    from trunkline.registry.routes import RouteEntry
    from trunkline.registry.transforms import Transform
    from trunkline.registry.validators import CompileSchema
    from trunkline.rpc.dispatch import CustomMethod
    from trunkline.sampling.provider import SamplingProvider
    from trunkline.server.composition.mount import Mount, MountOptions
    from trunkline.server.files.watch import FileWatcher
    from trunkline.server.introspection.metrics import ServerMetrics
    from trunkline.server.introspection.process_state import CallStack, ServerState
    from trunkline.server.lifespan import Lifespan
    from trunkline.server.middleware import Middleware
    from trunkline.server.notifications.subscription_hooks import SubscriptionHook
    from trunkline.server.policies import Policy
    from trunkline.server.resilience.circuit_breaker import CircuitBreaker
    from trunkline.server.resilience.health_monitor import HealthReport
    from trunkline.server.routes import Routes, SingleRoute
    from trunkline.stores.store import Store
    from trunkline.supervision.child_table import RestartType
    from trunkline.supervision.supervisor import Supervised
    from trunkline.supervision.worker_channel import WorkerChannel
    from trunkline.transports.http.app import CheckRate
    from trunkline.transports.http.asgi import App
    from trunkline.transports.http.forwarding.outbound import Relay
    from trunkline.transports.http.health import Health as HealthEndpoint
    from trunkline.transports.http.path_router import PathEndpoint
    from trunkline.transports.listening import ListeningSockets
    from trunkline.transports.tls import ServerTls

__all__ = ["Server"]

M = TypeVar("M", bound="Middleware")
P = TypeVar("P", bound="Policy")
F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Health)
S = TypeVar("S", bound=Callable[[], Any])
R = TypeVar("R", bound=Callable[[Context], Awaitable[None]])
W = TypeVar("W", bound="SubscriptionHook")


class Server:
    """An MCP server: decorate functions, then call `run()`."""

    def __init__(
        self,
        name: str,
        *,
        version: str | None = None,
        title: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Icon | Mapping[str, Any]] | None = None,
        instructions: str | None = None,
        settings: Settings | None = None,
        expose_errors: bool | None = None,
        auth: "ResourceServer | None" = None,
        store: "Store | None" = None,
        sampling: "SamplingProvider | None" = None,
        receipts: "Receipts | None" = None,
        tools: bool | None = None,
        resources: bool | None = None,
        prompts: bool | None = None,
        completions: bool | None = None,
        logging: bool = True,
        subscribe: bool = True,
        list_changed: bool = True,
        experimental: Mapping[str, Any] | None = None,
        extensions: Mapping[str, Any] | None = None,
        cache: Mapping[str, float] | None = None,
        observers: Iterable[Observer] | None = None,
        lifespan: "Callable[[Server], AbstractAsyncContextManager[Any] | AsyncIterator[Any]] | None" = None,
        features: Iterable[Feature] = FEATURES,
        validator: "CompileSchema | None" = None,
        compat: "ProfileName | None" = None,
        clock: Clock | None = None,
    ) -> None:
        """`expose_errors` overrides the setting of that name: True sends the type and message of handler exceptions to
        every peer, False to none. `auth` verifies the tokens of HTTP requests: a `ResourceServer`. `store` holds the
        data that outlives a call: a `SqliteStore`, a `RedisStore`, or by default a store in memory; the server opens
        and closes it. `sampling` answers `ctx.sample` for clients that cannot: a provider of `trunkline.sampling`.
        `receipts` writes a receipt of every call to a log that shows changes: a `Receipts`.
        `tools`, `resources`, `prompts` and `completions` declare a capability or not; by default the server declares
        those that have an entry. `extensions` maps the declared extensions to their settings, `{}` for none. `cache`
        has the seconds that clients may cache results: "tools", "prompts", "resources", "resource_templates" and
        "discover". `observers` replaces the default observer, which logs failures. `lifespan` is an async context
        manager function of the server: the server enters it before the first connection and exits it in `aclose()` and
        at the end of `run()`; handlers read its value from `ctx.lifespan`. `validator` compiles the input schemas of
        tools and prompts with another JSON Schema library. `compat="erlmcp"` is for clients that follow the founding
        documents."""
        options = {
            "version": version,
            "title": title,
            "description": description,
            "website_url": website_url,
            "instructions": instructions,
            "settings": settings,
            "expose_errors": expose_errors,
            "auth": auth,
            "store": store,
            "sampling": sampling,
            "receipts": receipts,
            "tools": tools,
            "resources": resources,
            "prompts": prompts,
            "completions": completions,
            "logging": logging,
            "subscribe": subscribe,
            "list_changed": list_changed,
            "experimental": experimental,
            "extensions": extensions,
            "cache": cache,
            "observers": observers,
            "features": features,
            "validator": validator,
            "clock": clock,
        }
        check_name("a server", name, 'Server("notes")')
        check_values(f"server {name!r}", options, OPTION_KINDS)
        info = Implementation(
            name=name,
            version=version or __version__,
            title=title,
            description=description,
            website_url=website_url,
            icons=parse_icons(f"server {name!r}", icons),
        )
        if expose_errors is not None:
            settings = replace(settings or Settings(), expose_errors=expose_errors)
        observing = _default_observers() if observers is None else [*observers]
        if (importing := sys.modules.get("trunkline.server.run.importing")) is not None:
            settings, store = importing.apply_overrides(settings, store)
            observing.extend(importing.additional_observers())
        profile = None if compat is None else _find_profile(compat)
        if profile is not None:  # for listeners; its sessions have all of its time limits
            limited = profile.limit_times(settings or Settings())
            settings = replace(settings or Settings(), initialize_timeout=limited.initialize_timeout)
        lasting = store is not None and store.lasting
        flags = CapabilityFlags(tools, resources, prompts, completions, logging, subscribe, list_changed)
        catalog = ServerCatalog(
            info,
            instructions=instructions,
            settings=settings,
            capability_flags=flags,
            experimental=experimental if not lasting else {IDEMPOTENCY: {}, **(experimental or {})},
            extensions=extensions,
            cache=cache,
            on_change=self._registry_changed,
            profile=profile,
            sampling=sampling,
        )
        metrics = _make_metrics(catalog) if catalog.settings.metrics else None
        if metrics is not None:
            observing.append(metrics.observer)
        observed_by = Observers(observing)
        components = ServerComponents(
            catalog=catalog,
            observers=observed_by,
            dispatcher=Dispatcher(features, partial(_find_custom, catalog)),
            store=ServerStore(store, _make_memory_store, observed_by, partial(_observe_store, observed_by)),
            health=HealthPredicates(),
            lifespan=None if lifespan is None else _make_lifespan(lifespan),
            clock=clock,
            receipts=receipts,
            metrics=metrics,
        )
        self._metrics = metrics
        self._catalog = catalog
        self._health = components.health
        self._observers = components.observers
        self._runtime = ServerRuntime(components, self._begin_shutdown)
        self._shutdown = Shutdown(self._runtime, components.observers, catalog.settings)
        self._auth = auth
        self._compile_schema = validator
        self._store = components.store
        self._dispatcher = components.dispatcher
        self._overrides = DependencyOverrides()
        self._middleware: list[Middleware] = []
        self._mounts: list[Mount] = []
        self._forwarder: Relay | None = None
        self._certificates: WeakSet[ServerTls] = WeakSet()
        self._on_hangup: list[Callable[[], Any]] = []
        self._checked_completions_version = 0  # registry version of the last check
        TRACKED_SERVERS.add_server(self)

    def __repr__(self) -> str:
        offered = {
            "tools": self.tools,
            "resources": self.resources,
            "templates": self.templates,
            "prompts": self.prompts,
        }
        counts = ", ".join(f"{what}={len(entries)}" for what, entries in offered.items() if len(entries))
        return f"<Server {self.name!r}: {counts or 'nothing offered'}>"

    # --- state ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the server."""
        return self._catalog.info.name

    @property
    def catalog(self) -> ServerCatalog:
        """The entries and declarations of the server."""
        return self._catalog

    @property
    def settings(self) -> Settings:
        """The settings of the server."""
        return self._catalog.settings

    @property
    def tools(self) -> Registry[ToolEntry]:
        """The tools: list, enable, disable and remove them here."""
        return self._catalog.tools

    @property
    def resources(self) -> "Registry[ResourceEntry]":
        """The resources."""
        return self._catalog.resources

    @property
    def templates(self) -> "Registry[TemplateEntry]":
        """The resource templates."""
        return self._catalog.templates

    @property
    def prompts(self) -> "Registry[PromptEntry]":
        """The prompts."""
        return self._catalog.prompts

    @property
    def completions(self) -> "Registry[CompletionEntry]":
        """The completers."""
        return self._catalog.completions

    @property
    def methods(self) -> "Registry[MethodEntry]":
        """The methods outside of the specification."""
        return self._catalog.methods

    def scoped(self) -> list[str]:
        """Return the names of the entries that need scopes; a server that has some needs authentication."""
        routes = [f"route {each.path!r}" for each in self._routes() if each.access is not None and each.access.scopes]
        return [*self._catalog.scoped(), *routes]

    def undeclared(self) -> list[str]:
        """Return the names of the entries without `scopes` and `allow`, and of the routes that are not public and have
        no `scopes`. `scopes=()` declares that none are needed."""
        routes = [f"route {each.path!r}" for each in self._routes() if each.access is None and not each.public]
        return [*self._catalog.undeclared(), *routes]

    # --- registering ---------------------------------------------------------------------------

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, called: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Register a function as a tool. Works with and without parentheses; takes the options of `add_tool`, and the
        name may come first: `@server.tool("add")`."""
        if isinstance(function, str):
            options["name"] = resolve_name("tool", function, options.get("name"))
            function = None
        add = partial(self.add_tool, **options)
        return as_decorator(add) if function is None else as_decorator(add)(function)

    def add_tool(self, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        """Register a function as a tool.

        Its parameters become the input schema and its return type the output schema. A plain function runs on a thread,
        with `thread=False` on the loop, with `process=True` in another process. Callers that lack its `scopes`, or that
        `allow` refuses, do not see it either.
        """
        entry = build_tool(
            function,
            options,
            self.settings,
            overrides=self._overrides,
            health=self._health,
            get_processes=self._runtime.get_processes,
            find_breaker=self._find_breaker,
            compile_schema=self._compile_schema,
        )
        self.tools.add(entry, enabled=options.get("enabled", True))

    def health(
        self,
        name: str,
        *,
        interval: float | None = None,
        timeout: float = 0.8,
        critical: bool = True,
        failures: int = 1,
    ) -> Callable[[H], H]:
        """Register a named predicate without arguments, plain or async, as a health check: `/readyz` and `/healthz`
        report it, and tools can require it with `requires=["database"]`. It runs every `interval` seconds while the
        server serves; without an interval it runs for a page, and its result is reused for half a second. It fails if
        it has no result within `timeout`, and is unhealthy after `failures` consecutive failures. If it is not
        `critical`, the server stays ready."""
        from trunkline.server.resilience.health_monitor import make_check

        check_name("a predicate", name, '@server.health("database")')
        make = partial(make_check, name, interval=interval, timeout=timeout, critical=critical, failures=failures)

        def add(predicate: Any) -> None:
            self._health.add(name, make, predicate)
            self._runtime.start_health_checks()

        return as_decorator(add)

    def remove_health(self, name: str) -> None:
        """Remove a health check, if there is one of that name. No tool may require it."""
        self._health.remove(name)

    async def check_health(self) -> "HealthReport":
        """Run the health checks and return the state of the server and its components, as `/healthz` does."""
        return await self._runtime.health_monitor().report((self._shutdown.readiness,))

    def breaker(
        self,
        name: str,
        *,
        failures: int = 5,
        failure_rate: float | None = 0.5,
        window: int = 10,
        open_seconds: float = 60.0,
        successes: int = 2,
        is_failure: Callable[[Exception], bool] | None = None,
        shared: bool = True,
    ) -> "CircuitBreaker":
        """Create the circuit breaker of a dependency. It opens after `failures` consecutive failures, or if the share
        `failure_rate` of the last `window` calls has failed, and refuses calls for `open_seconds`. Then it admits one
        call at a time, and closes after `successes` of them. `is_failure` tells whether an exception is a failure; by
        default all are, except those about the caller, such as `ToolError` and `InvalidParams`. Processes that share a
        store share the breaker, unless `shared` is False."""
        from trunkline.server.resilience.circuit_breaker import counts_as_failure, make_policy

        policy = make_policy(
            name,
            {
                "failures": failures,
                "failure_rate": failure_rate,
                "window": window,
                "open_seconds": open_seconds,
                "successes": successes,
            },
        )
        if is_failure is not None:
            check_callback("is_failure=", is_failure)
        return self._runtime.breakers.configure(name, policy, is_failure or counts_as_failure, shared=shared)

    def _find_breaker(self, name: str) -> "CircuitBreaker":
        return self._runtime.breakers.find(name)

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Register a function whose result is a resource; with `{placeholders}` in the URI it is a template."""
        if callable(uri):
            raise RegistrationError("@server.resource needs a URI: @server.resource('notes://today')")
        check_uri_text(uri)
        return as_decorator(partial(self.add_resource, uri, **options))

    def add_resource(self, uri: str, source: Any, **options: Unpack[ResourceOptions]) -> None:
        """Register a resource: a value, or a function that the server calls for every read.

        The server sends text as text, bytes as base64 and other values as JSON. A URI with `{placeholders}` (RFC 6570)
        makes a template, and the function receives their values.
        """
        from trunkline.registry.resources import TemplateEntry  # imported here: many servers have no resources

        entry = build_resource(uri, source, options, self.settings, self._overrides)
        if isinstance(entry, TemplateEntry):
            self.templates.add(entry)
        else:
            self.resources.add(entry)

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(self, called: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Unpack[PromptOptions]) -> Any:
        """Register a function as a prompt. Works with and without parentheses; takes the options of `add_prompt`, and
        the name may come first: `@server.prompt("review")`."""
        if isinstance(function, str):
            options["name"] = resolve_name("prompt", function, options.get("name"))
            function = None
        add = partial(self.add_prompt, **options)
        return as_decorator(add) if function is None else as_decorator(add)(function)

    def add_prompt(self, source: Callable[..., Any] | str, **options: Unpack[PromptOptions]) -> None:
        """Register a prompt: a function, or a text with `{placeholders}`, each of which is an argument.

        A function returns text, a message, or a list of messages.
        """
        entry = build_prompt(source, options, self.settings, self._overrides, compile_schema=self._compile_schema)
        self.prompts.add(entry)

    def completion(self, *, argument: str, **options: Unpack[CompletionOptions]) -> Callable[[F], F]:
        """Register a completer for an argument of a prompt, a resource template or a tool.

        The function receives the text so far and, if it has a second parameter, the arguments already filled in. It
        returns a list of values, or of pairs `(value, label)`; replies of the specification have no place for labels.
        """
        from trunkline.registry.completions import make_completion  # imported here: few servers complete arguments

        kind, target = parse_completion_target(argument, options)

        def register(function: F) -> F:
            handler = read_handler(function, options.get("thread"), self._overrides)
            made = make_completion(kind, target, argument, handler)
            there = self._catalog.find_completion_target(kind, target) is not None
            if there and (fault := self._catalog.completion_fault(made)) is not None:
                raise RegistrationError(fault)
            self.completions.add(made)
            return function

        return register

    def add_completion(
        self, values: "Callable[..., Any] | Iterable[Proposal]", *, argument: str, **options: Unpack[CompletionOptions]
    ) -> None:
        """Register completion values for an argument: a list that is matched with the text so far, or a function."""
        if callable(values):
            self.completion(argument=argument, **options)(values)
            return
        complete = make_completer(values, argument)
        options["thread"] = False
        self.completion(argument=argument, **options)(complete)

    def method(self, name: str, **options: Unpack[MethodOptions]) -> Callable[[F], F]:
        """Register a function that answers requests of a method outside of the specification, such as "acme/ping".

        The members of the params are its arguments, and it returns an object or None. Time limits, limits on concurrent
        calls, access rules and middleware apply as for tools.
        """
        return as_decorator(partial(self._add_method, name, options, request=True))

    def notification(self, name: str, **options: Unpack[MethodOptions]) -> Callable[[F], F]:
        """Register a function that is called with each notification of a method outside of the specification, such as
        "acme/changed". Its arguments are the members of the params. Observers receive what it raises."""
        return as_decorator(partial(self._add_method, name, options, request=False))

    def _add_method(self, name: str, options: MethodOptions, function: Callable[..., Any], *, request: bool) -> None:
        self.methods.add(build_method(name, function, options, self._overrides, request=request))

    def remove_tool(self, name: str) -> None:
        """Remove a tool."""
        self.tools.remove(name)

    def remove_resource(self, uri: str) -> None:
        """Remove a resource or a template."""
        (self.templates if "{" in uri else self.resources).remove(uri)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt."""
        self.prompts.remove(name)

    # --- custom HTTP routes --------------------------------------------------------------------

    def route(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        """Answer HTTP requests to a path beside the MCP endpoint with a function, async or plain. It takes a
        `trunkline.http.Request` and returns a `Response`, a text, bytes, a value to send as JSON, or None. `{name}`
        segments of the path are in `request.path_params`. Routes exist over HTTP only."""
        if callable(path):
            raise RegistrationError("@server.route needs a path: @server.route('/version')")
        return as_decorator(partial(self.add_route, path, **options))

    def add_route(self, path: str, function: Callable[..., Any], **options: Unpack[RouteOptions]) -> None:
        """Answer HTTP requests to a path with a function. A plain function runs on a thread, with `thread=False` on the
        loop. Callers need the same credentials as for MCP, unless the route is `public`."""
        from trunkline.server.routes import build_route

        self._get_routes().add(build_route(path, function, options))

    def _get_routes(self) -> "Routes":
        if self._runtime.routes is None:
            from trunkline.server.routes import Routes

            self._runtime.routes = routes = Routes(self.settings, self._runtime.get_services)
            if self.settings.legacy_sse and self.settings.http_sessions:
                routes.reserve("/sse", "HTTP+SSE")
                routes.reserve("/messages", "HTTP+SSE")
            if self.settings.health:
                routes.reserve("/livez/*", "health checks")
                routes.reserve("/healthz", "health checks")
                routes.reserve("/readyz/*", "health checks")
            if self._auth is not None:
                routes.reserve("/.well-known/oauth-protected-resource/*", "authorization metadata")
            if self._metrics is not None:
                self._add_metrics_route(self._metrics, routes)
        return self._runtime.routes

    def _add_metrics_route(self, metrics: "ServerMetrics", routes: "Routes") -> None:
        """Serve the metrics; with a token of their own, callers need no other credentials."""
        from trunkline.server.introspection.metrics import PATH
        from trunkline.server.routes import build_route

        options: RouteOptions = {"public": self.settings.metrics_token is not None, "scopes": ()}
        routes.add(build_route(PATH, metrics.respond, options))

    def _routes(self) -> "Iterable[RouteEntry]":
        return () if self._runtime.routes is None else self._runtime.routes

    # --- client events -------------------------------------------------------------------------

    def on_roots_changed(self, function: R) -> R:
        """Call an async function when a client announces that its roots have changed."""
        check_callback("on_roots_changed", function)
        self._runtime.on_roots_changed.append(function)
        return function

    def on_first_subscriber(self, watch: W) -> W:
        """Call a function with a resource's URI when it gets its first subscriber. If it raises, the subscription
        fails."""
        check_callback("on_first_subscriber", watch)
        self._runtime.subscription_hooks.on_first.append(watch)
        return watch

    def on_last_unsubscribed(self, watch: W) -> W:
        """Call a function with a resource's URI when its last subscriber has unsubscribed or disconnected."""
        check_callback("on_last_unsubscribed", watch)
        self._runtime.subscription_hooks.on_last.append(watch)
        return watch

    # --- files -----------------------------------------------------------------------------------

    def add_file(self, uri: str, path: str | PathLike[str], **options: Unpack[FileOptions]) -> None:
        """Register a file as a resource. The server watches it while a client is subscribed."""
        from trunkline.server.files.entries import make_file

        _check_file_arguments(uri, path)
        check_options("a file", FileOptions, options, uri)
        read = partial(read_handler, thread=True)
        self.resources.add(make_file(uri, path, self._catalog, read, self._file_watch().reader, **options))

    def add_directory(self, uri: str, folder: str | PathLike[str], **options: Unpack[DirectoryOptions]) -> None:
        """Register the files of a folder and its subfolders as `scheme://{+path}`; links cannot lead outside the
        folder."""
        from trunkline.server.files.entries import make_directory

        _check_file_arguments(uri, folder)
        check_options("a directory", DirectoryOptions, options, uri)
        read = partial(read_handler, thread=True)
        files = self._file_watch()
        made = make_directory(uri, folder, self._catalog, read, files.reader, on_listed=files.watch_folder, **options)
        self.templates.add(made)

    def _file_watch(self) -> "FileWatcher":
        from trunkline.server.files.watch import FileWatcher

        runtime = self._runtime
        if runtime.file_watch is None:
            name = LIST_CHANGED_METHODS[self.resources.kind]
            changed = partial(runtime.relist, name, everywhere=False)  # other processes watch the files themselves
            runtime.file_watch = FileWatcher(
                self._catalog, runtime.get_services, runtime.resource_updates.send, changed
            )
            self.on_first_subscriber(runtime.file_watch.watch)
            self.on_last_unsubscribed(runtime.file_watch.unwatch)
        return runtime.file_watch

    # --- middleware -----------------------------------------------------------------------------

    def middleware(self, function: M) -> M:
        """Wrap an async function `(call, next)` around every request that runs a handler; the first is outermost."""
        from trunkline.server.middleware import WRAPPED_METHODS, wrap_with_middleware

        if not inspect.iscoroutinefunction(underlying_function(function)):
            raise RegistrationError(f"middleware {name_of(function)} must be an async function")
        if not accepts_positional(function, 2):
            raise RegistrationError(f"middleware {name_of(function)} must take two arguments: (call, next)")
        self._middleware.append(function)
        wrap = partial(wrap_with_middleware, middlewares=tuple(self._middleware))
        self._dispatcher.wrap_handlers(WRAPPED_METHODS, wrap)
        self._dispatcher.wrap_custom_requests(wrap)
        for follower in self._catalog.followers:
            follower.refresh_all()
        return function

    @overload
    def policy(self, function: P, /) -> P: ...
    @overload
    def policy(self, /, *, code: int = ..., results: bool = ...) -> Callable[[P], P]: ...

    def policy(self, function: "Policy | None" = None, /, *, code: int = 1001, results: bool = False) -> Any:
        """Let a function judge every request that runs a handler, before it runs. It takes the `Call` and returns the
        reason to refuse it, or None; it may be async. The refusal has the `code`: 1001 for a violation of a policy,
        1002 for one of safety guidelines, 1006 for unacceptable input, or one of your own. With `results` the function
        takes `(call, result)` after the handler, and its reason replaces the result."""
        from trunkline.server.policies import judge_requests, judge_results

        if function is None:
            return partial(self.policy, code=code, results=results)
        if not callable(function) or not accepts_positional(function, 2 if results else 1):
            takes = "(call, result)" if results else "(call)"
            raise RegistrationError(f"policy {name_of(function)} must be a function that takes {takes}")
        self.middleware((judge_results if results else judge_requests)(function, code))
        return function

    # --- overriding dependencies -----------------------------------------------------------------

    def override(self, replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> AbstractContextManager[None]:
        """Run other functions instead of dependencies, in calls that start within the block: `with
        server.override({get_database: fake_database})`. A replacement is anything that `Depends` takes, and may have
        dependencies of its own. Blocks of several tests may overlap; each ends its own replacements."""
        return self._overrides.block(replacements)

    # --- notifying clients -----------------------------------------------------------------------

    def forward_logs(self, name: str = "", *, level: int | str = logging_.INFO) -> logging_.Handler:
        """Send the records that a logger and its children log during a call to the client of that call.

        The logger lets such records through from then on. Returns the handler, for `removeHandler`.
        """
        from trunkline.server.log_handler import ClientLogHandler

        self.track_calls()
        logger = logging_.getLogger(name)
        try:
            handler = ClientLogHandler(self._catalog, level)
        except (TypeError, ValueError):
            raise MisuseError(f"level= must be one of `logging`, such as 'INFO', not {describe_value(level)}") from None
        if logger.getEffectiveLevel() > handler.level:
            logger.setLevel(handler.level)
        logger.addHandler(handler)
        return handler

    def track_calls(self) -> None:
        """Make each call known to the code that it runs, without a `Context`: a `Client` in a handler has the time that
        is left for the call. Opening a client of another server calls this. Callable from any thread."""
        if not self._catalog.tracks_current_call:
            self._catalog.tracks_current_call = True
            self._runtime.post(self._track_open_connections)

    def _track_open_connections(self) -> None:
        for connection in self.connections:
            connection.track_current_call()

    def notify_updated(self, uri: str, *, meta: Mapping[str, Any] | None = None) -> None:
        """Notify the subscribers of a resource, in all processes that share the store, that it has changed. `meta`
        describes the change, such as `{"version": 2}`: clients receive it in `_meta`. Callable from any thread."""
        self._runtime.post(partial(self._runtime.resource_updated, uri, None if meta is None else encode_meta(meta)))

    def notify_list_changed(self, what: Literal["tools", "resources", "prompts"]) -> None:
        """Notify every client that a list has changed although no entry was added or removed, for example because
        `allow` or `list=` returns something else. Callable from any thread."""
        name = f"notifications/{what}/list_changed"
        if name not in LIST_CHANGED_METHODS.values():
            why = f"there is no list of {what!r}; there are tools, resources and prompts"
            raise MisuseError(why, kind="invalid_notification_type")
        self._runtime.relist(name, everywhere=True)

    def replace_entries(self, other: "Server") -> None:
        """Replace all tools, resources, prompts, completions and methods by those of another server, as a reload of
        changed code does, also in mounted servers. Clients stay connected and learn which lists have changed; calls in
        progress finish with the code that they began with. The lifespan, middleware and other options stay. Callable
        from any thread."""
        self._catalog.replace_entries(other._catalog)
        if not (self._mounts or other._mounts):
            return
        new = {(mount.mounted.server.name, mount.options.prefix): mount for mount in other._mounts}
        for mount in list(self._mounts):
            twin = new.pop((mount.mounted.server.name, mount.options.prefix), None)
            if twin is None:
                mount.detach()
            else:
                mount.mounted.server.replace_entries(twin.mounted.server)
                mount.reconfigure(twin.options)
        for mount in new.values():
            self._mount(mount.mounted.server, mount.options)

    # --- composition -------------------------------------------------------------------------------

    def mount(
        self,
        other: "Server",
        *,
        prefix: str | None = None,
        where: "Callable[[Any], bool] | None" = None,
        transform: "Transform | Iterable[Transform] | Mapping[str, Transform | Iterable[Transform]] | None" = None,
    ) -> None:
        """Offer the tools, resources, prompts and completions of another server, now and as they change. With a prefix
        the tool `forecast` is named `weather__forecast`, and `notes://today` is `notes://weather/today`. `where`
        returns False for entries to leave out. `transform` changes tools: one or several of `trunkline.transforms`, or
        a mapping from names of tools to these. The lifespan of the other server is entered with that of this one. Its
        middleware runs inside of this server's. Raises `NameClash` if both have an entry of the same name."""
        from trunkline.registry.prefixes import parse_prefix
        from trunkline.registry.transforms import parse_transform
        from trunkline.server.composition.mount import MountOptions

        if not isinstance(other, Server):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MisuseError(f"mount() needs a Server, not {describe_value(other)}")
        options = MountOptions(parse_prefix(prefix), where, None if transform is None else parse_transform(transform))
        if self._find_mount(other, prefix) is not None:
            raise MisuseError(f"server {other.name!r} is mounted in {self.name!r} {_mounted_as(prefix)} already")
        self._mount(other, options)

    def _mount(self, other: "Server", options: "MountOptions") -> None:
        from trunkline.server.composition.mount import Mount, check_mountable
        from trunkline.server.runtime import MountedServer

        check_mountable(self._runtime, other._runtime)
        mount = Mount(
            options,
            parent=self._catalog,
            catalog=other._catalog,
            siblings=self._mounts,
            runtimes=(self._runtime, other._runtime),
            mounted=MountedServer(other, other._runtime, other.shutdown),
            get_middlewares=lambda: other._middleware,
        )
        mount.attach()

    def unmount(self, other: "Server", *, prefix: str | None = None) -> None:
        """Stop offering the entries of a mounted server. Calls in progress go on; its lifespan stays entered until this
        server shuts down, or `await other.aclose()`."""
        mount = self._find_mount(other, prefix)
        if mount is None:
            raise MisuseError(f"server {other.name!r} is not mounted in {self.name!r} {_mounted_as(prefix)}")
        mount.detach()

    def _find_mount(self, other: "Server", prefix: str | None) -> "Mount | None":
        wanted = (other._catalog, prefix or "")
        return next((mount for mount in self._mounts if (mount.catalog, mount.options.prefix.text) == wanted), None)

    def enable(self, *, tags: Collection[str] = (), names: Collection[str] = ()) -> None:
        """Enable the entries that have one of the tags, or one of the names or URIs: those that are registered now, and
        those that are added later. Of several switches for an entry the last one counts."""
        from trunkline.registry.switches import make_switch

        self._catalog.switch(make_switch(tags, names, on=True))

    def disable(self, *, tags: Collection[str] = (), names: Collection[str] = ()) -> None:
        """Disable the entries that have one of the tags, or one of the names or URIs, now and later: they are neither
        listed nor callable until they are enabled again."""
        from trunkline.registry.switches import make_switch

        self._catalog.switch(make_switch(tags, names, on=False))

    def _registry_changed(self, kind: str) -> None:
        """Announce a change of a registry; the catalog calls this."""
        self._runtime.registry_changed(kind)

    # --- serving ---------------------------------------------------------------------------------

    def connect(self, channel: Channel) -> Connection:
        """Serve one channel on the running loop until it closes. Returns the channel's receiver."""
        return self._runtime.connect(channel)

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return list(self._runtime.connections)

    def describe(self) -> "ServerState":
        """Return the state of the server, as `trunkline ps` shows it. Called on the event loop of the server."""
        return self._runtime.describe()

    def stacks(self) -> "list[CallStack]":
        """Return the calls that run, with the stacks of their coroutines or threads. Called on the event loop of the
        server."""
        from trunkline.server.introspection.process_state import describe_stacks  # imported on use

        return describe_stacks(self._runtime.connections)

    def metrics_text(self) -> str:
        """Return the metrics of the server in the text format of Prometheus, as `/metrics` serves them: of all workers.
        Called on the event loop of the server. Raises `MisuseError` without the setting `metrics`."""
        if self._metrics is None:
            raise MisuseError("metrics are off: use Server(settings=Settings(metrics=True))")
        return self._metrics.text()

    def running_calls(self, session_id: int | None = None) -> Counter[str]:
        """Count the requests whose handlers run, by feature: "tools", "resources", "prompts" and so on. With the number
        of `ctx.session_id`, count those of one session. Called on the event loop of the server."""
        counted = Counter[str]()
        for connection in self._runtime.connections:
            if session_id is None or connection.session_id == session_id:
                counted += connection.running_calls()
        return counted

    def pause(self, *, wait: bool = False) -> None:
        """Stop accepting requests until `resume()`: refuse them with error 1008, or queue them with `wait`. Running
        requests continue, and the server answers pings. Callable from any thread."""
        self._runtime.post(partial(self._runtime.connections.pause, wait=wait))

    def resume(self) -> None:
        """Accept requests again; queued requests start first. Callable from any thread."""
        self._runtime.post(self._runtime.connections.resume)

    def pause_session(self, session_id: int, *, wait: bool = False) -> None:
        """Stop accepting requests of one session, as `pause()` does for all, until `resume_session()`. `session_id` is
        that of `ctx.session_id`; a session that has ended is ignored. Callable from any thread."""
        _check_session_id(session_id)
        self._runtime.post(partial(self._runtime.connections.pause_session, session_id, wait=wait))

    def resume_session(self, session_id: int) -> None:
        """Accept requests of a session again; queued requests start first. A pause of the whole server goes on.
        Callable from any thread."""
        _check_session_id(session_id)
        self._runtime.post(partial(self._runtime.connections.resume_session, session_id))

    async def start(self) -> None:
        """Open the store and enter the lifespan, unless that has happened. `run()` calls this."""
        self._check_startable()
        await self._runtime.start(self)

    async def attach(self, client: object) -> None:
        """Start for a client in this process; `Client(server)` calls this. The server exits the lifespan when the last
        client detaches, unless `start()`, `listen()` or `run()` was called as well."""
        self._check_startable()
        await self._runtime.attach(self, client)

    async def detach(self, client: object) -> None:
        """Undo `attach`. Observers receive errors of exiting the lifespan."""
        await self._runtime.detach(client)

    def _check_startable(self) -> None:
        if self._auth is not None and self._auth.strict:
            self._require_access_rules()
        self._shutdown.crash = None
        self._warn_unused_completions()

    def _warn_unused_completions(self) -> None:
        """Warn of completers without a target: a target may be registered later, but not after the start."""
        if self._checked_completions_version != self.completions.version:
            self._checked_completions_version = self.completions.version
            for entry in self.completions.all():
                if (fault := self._catalog.completion_fault(entry)) is not None:
                    warnings.warn(fault, stacklevel=4)

    def _require_access_rules(self) -> None:
        """Raise `MisuseError` if an entry has neither `scopes` nor `allow`."""
        if missing := self.undeclared():
            raise MisuseError(f"no access rule for {', '.join(missing)}; strict=True requires scopes= or allow=")

    # --- shutting down ---------------------------------------------------------------------------

    @property
    def profile(self) -> "Profile | None":
        """The compatibility profile of all clients of the handshake era; None without `compat`."""
        return self._catalog.profile

    @property
    def observers(self) -> Observers:
        """The observers that receive the server's facts."""
        return self._observers

    @property
    def crash(self) -> BaseException | None:
        """The error that the server crashed with since it was last started; None if it has not."""
        return self._shutdown.crash

    def on_shutdown(self, function: S) -> S:
        """Call a function, plain or async, at shutdown, after all connections are closed. The function added last runs
        first. The server reports what a function raises to the observers and calls the remaining ones."""
        check_callback("on_shutdown", function)
        self._shutdown.add_callback(function)
        return function

    async def shutdown(self) -> tuple[str, ...]:
        """Shut down in stages: refuse new requests, finish running ones, close the connections, persist what outlives
        the process and release all resources. Return the names of the stages that exceeded their time limit.
        Concurrent calls share one shutdown. `run()` returns afterwards, and the server can serve again."""
        return await self._shutdown.run()

    async def aclose(self) -> None:
        """Shut down in stages, as `shutdown()` does."""
        await self._shutdown.run()

    def abort(self, error: BaseException) -> None:
        """Crash: log the error, write a crash dump if `crash_folder` is set, and close everything without waiting for
        running requests. `run()` raises the error. Callable from any thread."""
        self._runtime.post(partial(self._shutdown.abort, error))

    def on_hangup(self, function: S) -> S:
        """Call a function, plain or async, when the process gets SIGHUP while `run()` serves. Observers receive what it
        raises. Without such a function SIGHUP ends the process, as usual, unless it reloads certificates."""
        check_callback("on_hangup", function)
        self._on_hangup.append(function)
        return function

    @property
    def handles_hangup(self) -> bool:
        """Whether there is a function for SIGHUP."""
        return bool(self._on_hangup)

    def hang_up(self) -> None:
        """Load the certificates again, and call the functions for SIGHUP. `run()` calls this."""
        self.reload_certificates()
        for function in self._on_hangup:
            self._runtime.run_in_background(partial(_call_hook, function), "SIGHUP")

    def on_stopping(self, function: Callable[[], object]) -> None:
        """Call a function once, when the next shutdown begins and before requests are drained, or after a crash.
        `Directory.register` uses this."""
        self._runtime.on_stopping.append(function)

    async def stopping(self) -> None:
        """Wait until a shutdown begins."""
        await self._shutdown.wait_begun()

    def loop_failed(self, error: BaseException, incident: str) -> None:
        """Report an exception that only the event loop's exception handler caught."""
        self._shutdown.report_loop_failure(error, incident)

    # --- supervision -----------------------------------------------------------------------------

    def supervise(
        self,
        name: str,
        child: "Supervised | Callable[[], Awaitable[Any]]",
        *,
        restart: "RestartType" = "permanent",
        stop_timeout: float | None = 10.0,
    ) -> None:
        """Keep a child running until the server shuts down: an async function, another supervisor, or an object with a
        `kind` and a coroutine `run(started)`. It stops before the running requests are drained. Called on the event
        loop of a started server; see the design page on supervision."""
        self._runtime.supervisor.add(name, child, restart=restart, stop_timeout=stop_timeout)

    async def unsupervise(self, name: str) -> None:
        """Stop a child and forget it, if there is one of that name."""
        await self._runtime.release_child(name)

    def _begin_shutdown(self) -> object:
        return self._shutdown.begin()

    # --- listening -------------------------------------------------------------------------------

    async def listen(self, address: str, *, tls: "SSLContext | CertificateFiles | None" = None) -> Listener:
        """Listen for clients until `aclose()`: at `tcp://127.0.0.1:4000`, `http://127.0.0.1:8000/mcp`,
        `unix:///run/server.sock`, `http+unix:///run/server.sock:/mcp`, or at `tls://…` and `https://…` with the
        server's certificate: `CertificateFiles`, which are loaded again when they change, or a context. With port 0 the
        system chooses a port; the listener's `address` has it. `http+systemd://name/mcp`, `tcp+systemd://name` and
        `unix+systemd://name` take over sockets that systemd passed."""
        return await self._listen(address, tls)

    def reload_certificates(self) -> None:
        """Load the `CertificateFiles` of all listeners again, for new connections. `run()` calls this on SIGHUP. If the
        files cannot be loaded, the log has the reason, and the previous certificate stays in use."""
        for secured in list(self._certificates):
            secured.reload()

    async def _listen(
        self,
        address: str,
        tls: "SSLContext | CertificateFiles | None",
        opened: "ListeningSockets | None" = None,
        worker_channel: "WorkerChannel | None" = None,
        previous_tls: "SSLContext | None" = None,
    ) -> Listener:
        """Listen at an address; the supervisor has `opened` the sockets of a worker, which receives its connections
        through `worker_channel` and uses `previous_tls` if the certificate files cannot be loaded."""
        from trunkline.server.run.process import listener_name, open_listener

        if worker_channel is not None:
            self._runtime.worker_channel = worker_channel
            if self._metrics is not None:
                self._metrics.use_slot(worker_channel.number)
        await self.start()
        shared, health = self._runtime.get_services(), partial(self._make_health, worker_channel)
        made = await open_listener(
            self,
            address,
            tls,
            shared.clock,
            self._auth,
            session_backend=shared.durable_sessions,
            forwarder=self._get_forwarder(),
            dpop_replays=self._get_dpop_replays,
            health=health,
            check_rate=self._get_rate_check(),
            routes=self._get_routes,
            certificates=self._certificates,
            opened=opened,
            source=worker_channel,
            previous_tls=previous_tls,
        )
        self._runtime.listeners.append(made)
        if worker_channel is None:
            self._runtime.supervise_listener(listener_name(made.address), made)
        return made

    async def serve_path(self, path: str, host_names: Sequence[str] = ()) -> "PathEndpoint":
        """Serve at a path of a listener that several servers share, until `aclose()`; `Directory.listen` calls this."""
        from trunkline.server.run.process import make_endpoint

        await self.start()
        shared = self._runtime.get_services()
        made = make_endpoint(
            self,
            path,
            shared.clock,
            self._auth,
            host_names,
            session_backend=shared.durable_sessions,
            forwarder=self._get_forwarder(),
            dpop_replays=self._get_dpop_replays,
            check_rate=self._get_rate_check(),
            page=self._get_metrics_page(path),
        )
        self._runtime.listeners.append(made)
        return made

    def _get_metrics_page(self, path: str) -> "SingleRoute | None":
        """Return the route of the metrics beside an endpoint at a shared listener; None without metrics."""
        if self._metrics is None:
            return None
        from trunkline.server.introspection.metrics import PATH
        from trunkline.server.routes import SingleRoute

        return SingleRoute(self._get_routes(), PATH, path.rpartition("/")[0] + PATH)

    def _get_forwarder(self) -> "Relay | None":
        """Return the forwarder of requests between processes, shared by all listeners; None without a cluster."""
        runtime, shared = self._runtime, self._runtime.get_services()
        if shared.cluster is None:
            return None
        if self._forwarder is None or self._forwarder.cluster is not shared.cluster:
            from trunkline.server.access.principal_codec import PrincipalCodec
            from trunkline.transports.http.forwarding.outbound import Relay

            self._forwarder = runtime.forwarder = Relay(shared.cluster, PrincipalCodec(), self.settings, shared.clock)
        return self._forwarder

    def _get_dpop_replays(self) -> "SharedProofStore | None":
        """Return the DPoP replay cache in the shared store; None if the store is not shared."""
        store = self._runtime.get_services().store
        if not store.lasting:
            return None
        from trunkline.server.access.dpop_replays import DpopReplayStore

        return DpopReplayStore(store, self.name)

    def _make_health(self, worker_channel: "WorkerChannel | None" = None) -> "HealthEndpoint | None":
        """Make the health endpoint for this server, or for all workers."""
        from trunkline.transports.http.health import Health as HealthEndpoint

        if not self.settings.health:
            return None
        states = worker_channel.worker_states if worker_channel is not None else lambda: (self._shutdown.readiness,)
        monitor = self._runtime.health_monitor()
        details = self.settings.health_details
        return HealthEndpoint(states, self._store.writable, monitor.run_checks, monitor.report, details)

    def _get_rate_check(self) -> "CheckRate | None":
        """Return the function that checks the rate of HTTP requests; None without a limit."""
        if self.settings.http_rate is None:
            return None
        return lambda principal, host: self._runtime.get_services().get_rate_limits().check_http(principal, host)

    def asgi(self, *, path: str = "/", identify: "Callable[[dict[str, Any]], Any] | None" = None) -> "App":
        """Return an ASGI application: Streamable HTTP and WebSocket at a path, HTTP+SSE at /sse and custom routes
        beside it. It runs under any ASGI server and can be mounted under any path. `identify` returns the principal of
        a request from its ASGI scope, after other middleware has verified it; a session belongs to the principal that
        opened it. A server with `auth=` needs no `identify`."""
        from trunkline.server.run.process import make_asgi_app, make_authenticator

        if not isinstance(cast("Any", path), str):
            raise MisuseError(f"path= must be a text such as '/mcp', not {describe_value(path)}")
        if identify is not None:
            check_callback("identify=", identify)
        if identify is not None and self._auth is not None:
            raise MisuseError("identify= is for servers without auth=, which identifies callers by their tokens")
        routes = self._get_routes()
        routes.reserve("/" + path.strip("/"), "MCP")
        gate = make_authenticator(self, path, self._auth, identify, dpop_replays=self._get_dpop_replays)
        ready = self._runtime.get_services
        released = self._runtime.end_listen_streams
        return make_asgi_app(
            self,
            lambda: ready().clock,
            path,
            gate,
            released,
            session_backend=lambda: ready().durable_sessions,
            forwarder=self._get_forwarder,
            health=self._make_health(),
            check_rate=self._get_rate_check(),
            routes=routes,
        )

    def run(
        self,
        transport: Literal["stdio", "http", "tcp", "unix"] = "stdio",
        *,
        host: str | None = None,
        port: int | None = None,
        path: str | PathLike[str] | None = None,
        tls: "SSLContext | CertificateFiles | None" = None,
        uds: str | PathLike[str] | None = None,
        systemd: bool | str = False,
        workers: int | None = None,
    ) -> None:
        """Serve until Ctrl+C or SIGTERM, on stdio also until the client closes its end. This is the last line of most
        programs. `host` (127.0.0.1), `port` and `tls` are for "http" (port 8000, path /mcp) and "tcp", `path` is for
        "http" and "unix". `uds` is the path of a Unix socket to serve "http" on. `systemd` takes over the sockets that
        systemd passed instead of opening any: all of them, or those with a name. `workers` is the number of processes
        that serve together over "http": this process starts them, watches them and distributes the connections. If the
        server cannot start, because of a wrong option or an address in use, the process prints one line on standard
        error and exits with code 2."""
        from trunkline.server.run.process import (
            build_address,
            check_no_loop,
            exit_on_startup_error,
            run_listener,
            run_stdio,
        )

        if _is_only_imported(self):
            return
        check_no_loop()
        with exit_on_startup_error():
            address = build_address(
                transport, host=host, port=port, path=path, tls=tls, uds=uds, systemd=systemd, workers=workers
            )
        if self.settings.log_level is not None or has_log_variable():
            from trunkline.server.run.log_setup import (
                configure_logging,
            )  # imported here: most programs log by themselves

            with exit_on_startup_error():
                configure_logging(self)
        if address is None:
            run_stdio(self)
        elif workers is None:
            run_listener(self, address, tls)
        else:
            with exit_on_startup_error():
                self._run_workers(address, tls, workers)

    async def run_stdio_async(self) -> None:
        """Serve on standard input and output on the running loop, for a program that owns the loop. Returns when the
        client closes its end or the server is shut down; shuts down when it is cancelled. Installs no signal handlers.
        What the program prints goes to standard error from then on."""
        from trunkline.server.run.process import serve_stdio_embedded

        await serve_stdio_embedded(self)

    async def run_http_async(
        self,
        *,
        host: str | None = None,
        port: int | None = None,
        path: str | PathLike[str] | None = None,
        tls: "SSLContext | CertificateFiles | None" = None,
        uds: str | PathLike[str] | None = None,
        on_listening: Callable[[str], object] | None = None,
    ) -> None:
        """Serve over HTTP on the running loop, for a program that owns the loop, with the options of `run("http")`.
        Returns when the server is shut down; shuts down when it is cancelled. Installs no signal handlers.
        `on_listening` is called with the URL; with `port=0` the system chooses the port."""
        from trunkline.server.run.process import build_address, serve_address_embedded

        address = build_address("http", host=host, port=port, path=path, tls=tls, uds=uds)
        await serve_address_embedded(self, cast("str", address), tls, on_listening)

    def _run_workers(self, address: str, tls: "SSLContext | CertificateFiles | None", count: int) -> None:
        """Run workers; without a configured store they share a temporary one."""
        from trunkline.server.run.workers import WorkerJob, check_workers_supported, run_workers, temporary_store_folder
        from trunkline.transports.addresses import parse_address

        check_workers_supported()
        count_restart = None if self._metrics is None else self._metrics.share(count)
        self._get_routes().reserve(parse_address(address).path, "MCP")
        work = WorkerJob(self, self._listen, lambda: self._shutdown.readiness, tls, on_restart=count_restart)
        if (store := self._store.configured) is not None:
            if not store.lasting:
                raise MisuseError("workers need a store that processes can share, such as SqliteStore(path)")
            run_workers(work, address, count)
            return
        from trunkline.stores.sqlite.store import SqliteStore

        with temporary_store_folder() as folder:
            self._store.configure(SqliteStore(folder / "store", synchronous="NORMAL"))
            self._catalog.declare_experimental(IDEMPOTENCY)
            run_workers(replace(work, store_folder=folder), address, count)


async def _call_hook(function: Callable[[], Any]) -> None:
    value = function()
    if inspect.isawaitable(value):
        await value


def _mounted_as(prefix: str | None) -> str:
    return "without a prefix" if prefix is None else f"with the prefix {prefix!r}"


def _check_file_arguments(uri: Any, path: Any) -> None:
    """Raise `RegistrationError` for an invalid URI or path of a file or folder."""
    check_uri_text(uri)
    if not isinstance(path, str | PathLike):
        raise RegistrationError(f"resource {uri!r}: a path is a text or a Path, not {describe_value(path)}")


def _is_only_imported(server: Server) -> bool:
    """Return whether the program was imported for its functions, by a process that runs tools, or for its servers, by
    the command line."""
    worker = sys.modules.get("trunkline.server.processes.worker")
    importing = sys.modules.get("trunkline.server.run.importing")
    return (worker is not None and worker.is_worker()) or (importing is not None and importing.note_run(server))


def _find_custom(catalog: ServerCatalog, name: str) -> "CustomMethod | None":
    if not catalog.methods.live:
        return None
    from trunkline.server.features.custom import find_custom  # imported here: few servers have such methods

    return find_custom(catalog, name)


def _check_session_id(session_id: Any) -> None:
    """Raise `MisuseError` for a session id that is not one, such as the None of independent requests."""
    if not isinstance(session_id, int):
        raise MisuseError(f"a session id is the number of ctx.session_id, not {describe_value(session_id)}")


def _make_lifespan(factory: Callable[[Any], Any]) -> "Lifespan":
    from trunkline.server.lifespan import Lifespan

    return Lifespan(factory)


def _find_profile(name: str) -> "Profile":
    from trunkline.protocol.profiles import find_profile  # imported here: few servers have a profile

    return find_profile(name)


def _make_memory_store(clock: Clock) -> "Store":
    from trunkline.stores.memory import MemoryStore

    return MemoryStore.ready(clock)


def _observe_store(observers: Observers, store: "Store") -> "Store":
    if not observers.want(StoreCallEnded):
        return store
    from trunkline.stores.observed import ObservedStore  # imported here: few observers want that

    return ObservedStore(store, observers)


def _make_metrics(catalog: ServerCatalog) -> "ServerMetrics":
    from trunkline.protocol.methods import METHODS
    from trunkline.server.introspection.metrics import ServerMetrics  # imported here: most servers have none

    known = frozenset(method.name for method in METHODS)
    return ServerMetrics(
        is_known_method=lambda name: name in known or name in catalog.methods,
        is_known_tool=lambda name: name in catalog.tools.live,
        token=catalog.settings.metrics_token,
    )


def _default_observers() -> list[Observer]:
    from trunkline.observers.logs import LogObserver

    return [LogObserver()]
