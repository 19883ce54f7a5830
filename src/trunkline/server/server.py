"""Server: what people write. Registers functions, puts the parts together, and runs."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar, overload

from trunkline.clock import Clock, LoopClock, Timer
from trunkline.config import Settings
from trunkline.errors import MisuseError, RegistrationError
from trunkline.facts import Observer, Observers
from trunkline.protocol.types import (
    Annotations,
    Empty,
    Icon,
    Implementation,
    ResourceUpdatedParams,
    ToolAnnotations,
)
from trunkline.registry import handlers
from trunkline.registry.completions import CompletionEntry, make_completion
from trunkline.registry.handlers import Handler
from trunkline.registry.prompts import PromptEntry, make_prompt, make_text_prompt
from trunkline.registry.registry import Registry
from trunkline.registry.resources import ResourceEntry, TemplateEntry, make_resource, make_template
from trunkline.registry.tools import ToolEntry, make_tool
from trunkline.server.coalescing import Coalescer
from trunkline.server.connection import Connection, Shared
from trunkline.server.context import Context
from trunkline.server.dispatch import Dispatcher, Feature
from trunkline.server.features import FEATURES
from trunkline.server.offer import Offer, Switches
from trunkline.server.threads import Threads
from trunkline.server.watchers import Watch, Watchers
from trunkline.transports.channel import Channel
from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Notification

__all__ = ["Server"]

F = TypeVar("F", bound=Callable[..., Any])

_CHANGED: Final = {
    "tool": "notifications/tools/list_changed",
    "resource": "notifications/resources/list_changed",
    "resource_template": "notifications/resources/list_changed",
    "prompt": "notifications/prompts/list_changed",
}


class Server:
    """An MCP server: decorate functions, then `run()`."""

    def __init__(
        self,
        name: str,
        *,
        version: str | None = None,
        title: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Icon] | None = None,
        instructions: str | None = None,
        settings: Settings | None = None,
        tools: bool | None = None,
        resources: bool | None = None,
        prompts: bool | None = None,
        completions: bool | None = None,
        logging: bool = True,
        subscribe: bool = True,
        list_changed: bool = True,
        experimental: Mapping[str, Any] | None = None,
        observers: Iterable[Observer] | None = None,
        features: Iterable[Feature] = FEATURES,
        clock: Clock | None = None,
    ) -> None:
        """`tools`, `resources`, `prompts` and `completions` declare a capability, or not; by default each is
        declared when there is something to offer. `observers` replaces the one that logs failures."""
        info = Implementation(
            name=name,
            version=version or _own_version(),
            title=title,
            description=description,
            website_url=website_url,
            icons=list(icons) if icons else None,
        )
        switches = Switches(tools, resources, prompts, completions, logging, subscribe, list_changed)
        self._offer = Offer(
            info,
            instructions=instructions,
            settings=settings,
            switches=switches,
            experimental=experimental,
            on_change=self._changed,
        )
        self._observers = Observers(_default_observers() if observers is None else observers)
        self._dispatcher = Dispatcher(features)
        self._watchers: Watchers[Connection] = Watchers()
        self._on_roots_changed: list[Callable[[Context], Awaitable[None]]] = []
        self._connections: dict[Connection, None] = {}
        self._coalescer = Coalescer(self._offer.settings.list_changed_interval)
        self._given_clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._shared: Shared | None = None
        self._timer: Timer | None = None
        self._background: set[asyncio.Task[None]] = set()

    # --- facts ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name."""
        return self._offer.info.name

    @property
    def settings(self) -> Settings:
        """Its settings."""
        return self._offer.settings

    @property
    def tools(self) -> Registry[ToolEntry]:
        """The tools, to be looked at, enabled, disabled and removed."""
        return self._offer.tools

    @property
    def resources(self) -> Registry[ResourceEntry]:
        """The resources."""
        return self._offer.resources

    @property
    def templates(self) -> Registry[TemplateEntry]:
        """The resource templates."""
        return self._offer.templates

    @property
    def prompts(self) -> Registry[PromptEntry]:
        """The prompts."""
        return self._offer.prompts

    @property
    def completions(self) -> Registry[CompletionEntry]:
        """The completers."""
        return self._offer.completions

    @property
    def connections(self) -> list[Connection]:
        """The peers that are on the line."""
        return list(self._connections)

    # --- registering: decorators leave a function a function -------------------------------------

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        annotations: ToolAnnotations | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        thread: bool | None = None,
        structured: bool = True,
    ) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Offers a function as a tool. With or without parentheses; the options are those of `add_tool`."""
        return _decorate(function, self.add_tool, options)

    def add_tool(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        annotations: ToolAnnotations | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        thread: bool | None = None,
        structured: bool = True,
    ) -> None:
        """Offers a function as a tool.

        Its parameters become the input schema and its return type the output schema (`structured=False`: none);
        `input_schema` replaces the former by one written by hand. A plain function runs on a thread, with
        `thread=False` on the loop. `timeout` is in seconds.
        """
        self.tools.add(
            make_tool(
                self._read(function, thread),
                self.settings,
                name=name,
                title=title,
                description=description,
                input_schema=input_schema,
                annotations=annotations,
                icons=list(icons) if icons else None,
                meta=dict(meta) if meta else None,
                timeout=timeout,
                structured=structured,
            )
        )

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: Annotations | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        thread: bool | None = None,
        guard: bool = True,
    ) -> Callable[[F], F]:
        """Offers what a function returns as a resource; with `{places}` in the URI, as a template of many."""
        options = {
            "name": name,
            "title": title,
            "description": description,
            "mime_type": mime_type,
            "size": size,
            "annotations": annotations,
            "icons": icons,
            "meta": meta,
            "thread": thread,
            "guard": guard,
        }
        if callable(uri):
            raise RegistrationError("@server.resource needs a URI: @server.resource('notes://today')")
        return _decorate(None, partial(self._add_resource_function, uri), options)

    def _add_resource_function(self, uri: str, function: Callable[..., Any], **options: Any) -> None:
        self.add_resource(uri, function, **options)

    def add_resource(
        self,
        uri: str,
        source: Any,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: Annotations | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        thread: bool | None = None,
        guard: bool = True,
    ) -> None:
        """Offers a resource: a value, or a function that makes it whenever it is read.

        Text goes out as text, bytes as base64, anything else as JSON. With `{places}` in the URI (RFC 6570) it is a
        template, and the function gets what stands there. `guard=False` lets those values climb with `..`.
        """
        handler = self._read(source, thread) if callable(source) else None
        shared: dict[str, Any] = {
            "name": name,
            "title": title,
            "description": description,
            "mime_type": mime_type,
            "annotations": annotations,
            "icons": list(icons) if icons else None,
            "meta": dict(meta) if meta else None,
        }
        if "{" in uri or "}" in uri:
            if handler is None:
                raise RegistrationError(f"resource template {uri!r} needs a function to read it with")
            self.templates.add(make_template(uri, handler, self.settings, guard=guard, **shared))
        else:
            self.resources.add(make_resource(uri, handler or source, self.settings, size=size, **shared))

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        thread: bool | None = None,
    ) -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Offers what a function returns as a prompt. With or without parentheses; options as of `add_prompt`."""
        return _decorate(function, self.add_prompt, options)

    def add_prompt(
        self,
        source: Callable[..., Any] | str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        defaults: Mapping[str, str] | None = None,
        input_schema: Mapping[str, Any] | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        thread: bool | None = None,
    ) -> None:
        """Offers a prompt: a function, or a text with `{places}`, each of which is an argument.

        A function returns text, a message, or a list of messages.
        """
        shared: dict[str, Any] = {
            "title": title,
            "description": description,
            "input_schema": input_schema,
            "icons": list(icons) if icons else None,
            "meta": dict(meta) if meta else None,
        }
        if isinstance(source, str):
            self.prompts.add(make_text_prompt(name or "", source, self.settings, defaults=defaults, **shared))
        else:
            self.prompts.add(make_prompt(self._read(source, thread), self.settings, name=name, **shared))

    def completion(
        self,
        *,
        argument: str,
        prompt: str | None = None,
        resource: str | None = None,
        tool: str | None = None,
        thread: bool | None = None,
    ) -> Callable[[F], F]:
        """Proposes values for an argument of a prompt, a resource template or a tool.

        The function gets the text so far and, if it has a second parameter, the arguments already filled in.
        """
        named = {"prompt": prompt, "resource": resource, "tool": tool}
        given = [(kind, target) for kind, target in named.items() if target is not None]
        if len(given) != 1:
            raise RegistrationError("completion needs one of prompt=, resource= or tool=")
        kind, target = given[0]

        def register(function: F) -> F:
            self.completions.add(make_completion(kind, target, argument, self._read(function, thread)))
            return function

        return register

    def remove_tool(self, name: str) -> None:
        """Takes a tool away."""
        self.tools.remove(name)

    def remove_resource(self, uri: str) -> None:
        """Takes a resource or a template away."""
        (self.templates if uri in self.templates else self.resources).remove(uri)

    def remove_prompt(self, name: str) -> None:
        """Takes a prompt away."""
        self.prompts.remove(name)

    def on_roots_changed(self, function: Callable[[Context], Awaitable[None]]) -> Callable[[Context], Awaitable[None]]:
        """Calls an async function when a client tells that its roots have changed."""
        self._on_roots_changed.append(function)
        return function

    def on_first_subscriber(self, watch: Watch) -> Watch:
        """Calls a function with a resource's URI when it gets its first subscriber. If it raises, there is none."""
        self._watchers.on_first.append(watch)
        return watch

    def on_last_unsubscribed(self, watch: Watch) -> Watch:
        """Calls a function with a resource's URI when its last subscriber has gone."""
        self._watchers.on_last.append(watch)
        return watch

    def _read(self, function: Callable[..., Any], thread: bool | None) -> Handler:
        return handlers.read(function, Context, thread=thread)

    # --- telling clients -------------------------------------------------------------------------

    def notify_updated(self, uri: str) -> None:
        """Tells the subscribers of a resource that it has changed. Callable from any thread."""
        self._post(partial(self._send_updated, uri))

    def _send_updated(self, uri: str) -> None:
        name = "notifications/resources/updated"
        subscribers = self._watchers.subscriptions.subscribers(uri)
        if subscribers:
            frame = Encoded(codec.encode(Notification(name, ResourceUpdatedParams(uri=uri))))
            for connection in subscribers:
                connection.broadcast(name, frame)

    def _changed(self, kind: str) -> None:
        """A registry has changed."""
        if kind in _CHANGED and self._connections:
            self._post(partial(self._announce, kind))

    def _announce(self, kind: str) -> None:
        if self._shared is None:
            return
        name = _CHANGED[kind]
        if self._coalescer.changed(name, self._shared.clock.now()):
            self._send_changed(name)
        elif self._timer is None and (due := self._coalescer.next_due()) is not None:
            self._timer = self._shared.clock.call_at(due, self._announce_late)

    def _announce_late(self) -> None:
        self._timer = None
        if self._shared is None:
            return
        for name in self._coalescer.due(self._shared.clock.now()):
            self._send_changed(name)
        if (due := self._coalescer.next_due()) is not None:
            self._timer = self._shared.clock.call_at(due, self._announce_late)

    def _send_changed(self, name: str) -> None:
        frame = Encoded(codec.encode(Notification(name, Empty())))
        for connection in list(self._connections):
            connection.broadcast(name, frame)

    def _post(self, action: Callable[[], None]) -> None:
        if self._loop is None or threading.get_ident() == self._thread:
            action()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it everybody to be told
                self._loop.call_soon_threadsafe(action)

    # --- serving ---------------------------------------------------------------------------------

    def connect(self, channel: Channel) -> Connection:
        """Serves one channel, on the running loop, until it closes. What it gives back is the channel's receiver."""
        connection = Connection(self._ready(), channel)
        self._connections[connection] = None
        return connection

    def _ready(self) -> Shared:
        loop = asyncio.get_running_loop()
        if self._shared is None or self._loop is not loop:
            if self._connections:
                raise MisuseError("a server serves on one event loop at a time")
            self._loop = loop
            self._thread = threading.get_ident()
            self._shared = Shared(
                offer=self._offer,
                dispatcher=self._dispatcher,
                threads=Threads(loop, self.settings.max_threads),
                clock=self._given_clock or LoopClock(loop),
                observers=self._observers,
                watchers=self._watchers,
                on_roots_changed=self._on_roots_changed,
                departed=self._departed,
            )
        return self._shared

    def _departed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        orphaned = self._watchers.subscriptions.drop(connection)
        if orphaned and self._watchers.on_last and self._loop is not None:
            task = self._loop.create_task(self._watchers.ended(orphaned))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def aclose(self) -> None:
        """Ends every connection in good order and lets go of everything. A closed server can serve again."""
        timeout = self.settings.drain_timeout
        await asyncio.gather(*(connection.finish(timeout) for connection in self.connections))
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._shared is not None:
            self._shared.threads.close()
            self._shared = None
        self._loop = self._thread = None

    def run(self, transport: Literal["stdio"] = "stdio") -> None:
        """Serves until the other side goes, or Ctrl+C. This is the last line of most programs."""
        if transport != "stdio":
            raise MisuseError(f"transport {transport!r} is not one of: stdio")
        from trunkline.server.run import run_stdio

        run_stdio(self)


def _decorate(function: Any, add: Callable[..., None], options: dict[str, Any]) -> Any:
    """A decorator with or without parentheses, that leaves the function as it is."""
    if function is not None:
        add(function, **options)
        return function

    def register(function: F) -> F:
        add(function, **options)
        return function

    return register


def _own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # needed once, and dear to import

    try:
        return version("trunkline")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"


def _default_observers() -> list[Observer]:
    from trunkline.observers.logs import LogObserver

    return [LogObserver()]
