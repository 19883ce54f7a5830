"""`Client`: the public API of a client, one typed coroutine for each request that a server answers."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, cast

from msgspec import UNSET, Raw, Struct, UnsetType

from trunkline.client.client_options import OPTION_KINDS, check_level
from trunkline.client.host_callbacks import Elicit, HostCallbacks, OpenUrl, RootLike, Sample, to_root
from trunkline.client.notifications import Handler, NotificationReader
from trunkline.client.pagination import Cursor, fetch_all_pages, iterate_pages
from trunkline.client.progress_deadline import ProgressDeadline, ProgressRelay
from trunkline.client.results import UNSPECIFIED, T, ToolResult, build_tool_result, decode_custom_result
from trunkline.client.retry import LIVENESS_CHECK, OnProgress, Repeatable, always_repeatable, never_repeatable
from trunkline.client.runtime import ClientDeclaration, ClientRuntime, refusal_of, reports_timeout
from trunkline.client.targets import allowed_reach, display_name, in_process_server, make_connector
from trunkline.client.tasks.handle import ClientTasks, Task
from trunkline.client.tasks.status import TaskSnapshot, TaskStarted, decode_call_result
from trunkline.client.tool_functions import ToolFunctions
from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import ConnectionClosed, MethodNotFound, MisuseError, PeerError, RequestTimeout, TrunklineError
from trunkline.errors.options import check_name, check_options, describe_value
from trunkline.facts import Observer, Observers
from trunkline.protocol.custom_methods import find_name_fault
from trunkline.protocol.extensions import negotiated_settings, validate_extensions
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.meta import IDEMPOTENCY_KEY
from trunkline.protocol.methods import find_method
from trunkline.protocol.revisions import HANDSHAKE, Revision
from trunkline.protocol.types import (
    NO_ARGUMENTS,
    CallToolParams,
    CallToolResult,
    CompleteParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    Empty,
    GetPromptParams,
    GetPromptResult,
    Implementation,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    LoggingLevel,
    LoggingMessageParams,
    PaginatedParams,
    Prompt,
    ReadResourceParams,
    ReadResourceResult,
    Reference,
    Resource,
    ResourceContents,
    ResourceTemplate,
    Root,
    SetLevelParams,
    SubscribeParams,
    TaskMetadata,
    Tool,
    UnsubscribeParams,
)
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION
from trunkline.registry import type_adapters
from trunkline.rpc.current_call import TRACKED_SERVERS
from trunkline.version import __version__
from trunkline.wire import codec

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from trunkline.protocol.profiles import Profile, ProfileName
    from trunkline.sampling.provider import SamplingProvider
    from trunkline.transports.http.client.credentials import Auth

__all__ = ["Client", "Pending"]

F = TypeVar("F", bound=Callable[..., Any])

_LISTEN: Final = find_method("subscriptions/listen")


class Pending(Struct, frozen=True):
    """A request that has no response yet."""

    id: int | str
    method: str
    age: float  # seconds


class Client:
    """An MCP client: `async with Client(target) as client`.

    The target is a command (a list, or one string), a script, an address (`https://…`, `wss://…`, `tcp://host:port`,
    `unix:///path`), or a `Server` in this process. A background task owns the connection, so a client can be opened
    and closed from any task, any number of times.
    """

    def __init__(
        self,
        target: Any,
        *,
        auth: "Auth | None" = None,
        name: str = "trunkline",
        version: str | None = None,
        title: str | None = None,
        settings: Settings | None = None,
        revision: str | None = None,
        sampling: "Sample | SamplingProvider | None" = None,
        sampling_tools: bool | None = None,
        elicitation: Elicit | None = None,
        open_url: OpenUrl | None = None,
        roots: Iterable[RootLike] | None = None,
        on_log: Callable[[LoggingMessageParams], Any] | None = None,
        log_level: LoggingLevel | None = None,
        on_failed: Callable[[TrunklineError], object] | None = None,
        on_phase: Callable[[Phase], object] | None = None,
        experimental: Mapping[str, Any] | None = None,
        extensions: Mapping[str, Mapping[str, Any]] | None = None,
        observers: Iterable[Observer] | None = None,
        compat: "ProfileName | None" = None,
        clock: Clock | None = None,
    ) -> None:
        """`auth` authenticates the client to an HTTP or WebSocket server: a token, or a provider of tokens such as
        `trunkline.auth.OAuth()`. `revision` is the newest revision to negotiate. `sampling`, `elicitation`, `open_url`
        and `roots` answer requests of the server; the client declares the capabilities of those that you pass.
        `on_failed` is called when the client gives up reconnecting; `on_phase` with `Phase.RECONNECTING` when the
        connection is lost, and with `Phase.READY` when there is another. `compat="erlmcp"` is for servers that follow
        the founding documents."""
        options = {
            "version": version,
            "title": title,
            "settings": settings,
            "sampling": sampling,
            "sampling_tools": sampling_tools,
            "elicitation": elicitation,
            "open_url": open_url,
            "roots": roots,
            "on_log": on_log,
            "log_level": log_level,
            "on_failed": on_failed,
            "on_phase": on_phase,
            "experimental": experimental,
            "extensions": extensions,
            "observers": observers,
            "clock": clock,
        }
        check_name("a client", name, 'name="my-app"')
        check_options("client", options, OPTION_KINDS)
        profile = None if compat is None else _find_profile(compat)
        self._settings = settings or Settings()
        if profile is not None:
            self._settings = profile.limit_times(self._settings)
        self._sampling = sampling
        self._connector = make_connector(target, self._settings, auth)
        self._extensions = validate_extensions(extensions)
        declaration = ClientDeclaration(
            info=Implementation(name=name, version=version or __version__, title=title),
            revisions=_revisions_up_to(revision, profile),
            experimental=dict(experimental or {}),
            extensions={TASKS_EXTENSION: {}, **self._extensions},
            profile=profile,
        )
        callbacks = HostCallbacks(
            sampling=sampling,
            sampling_tools=sampling_tools,
            elicitation=elicitation,
            open_url=open_url,
            roots=roots,
            reach=allowed_reach(self._connector, self._settings),
        )
        self._runtime = ClientRuntime(
            self._connector,
            declaration,
            callbacks,
            settings=self._settings,
            observers=Observers(_default_observers() if observers is None else observers),
            clock=clock,
            log_level=log_level,
            default_log_level=None if on_log is None else "info",  # the default level of servers
            on_failed=on_failed,
            on_phase=on_phase,
        )
        self._tasks = ClientTasks(self._runtime)
        if on_log is not None:
            self._runtime.notifications.on("notifications/message", on_log)

    def __repr__(self) -> str:
        revision = "" if self.revision is None else f", {self.revision}"
        return f"<Client of {display_name(self._connector)!r}: {self.phase.name.lower()}{revision}>"

    # --- opening and closing -------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect and wait until calls can be made; raise the reason if they cannot. An open client stays open."""
        if self._runtime.on_other_loop:
            return await self._runtime.run_from_other_loop(self.open())
        TRACKED_SERVERS.add_client(in_process_server(self._connector))
        await self._runtime.open()
        return self

    async def close(self) -> None:
        """Close the connection and wait until all background work has ended. A closed client can be opened again."""
        runtime = self._runtime
        if runtime.on_other_loop:
            with contextlib.suppress(ConnectionClosed):  # the client's loop has ended first
                await runtime.run_from_other_loop(self.close())
        elif runtime.supervisor is not None:
            runtime.stop_waiters()
            await self._tasks.finish_cancellations()
            await runtime.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    # --- state ---------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """The phase of the connection's lifecycle."""
        return Phase.NEW if self._runtime.supervisor is None else self._runtime.supervisor.phase

    @property
    def initialized(self) -> bool:
        """Whether calls can be made now."""
        return self.phase is Phase.READY

    @property
    def revision(self) -> Revision | None:
        """The negotiated revision of the specification."""
        return self._runtime.revision

    @property
    def server_info(self) -> Implementation | None:
        """The name and version that the server reports."""
        session = self._runtime.session
        return None if session is None else session.peer

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """The capabilities that the server has declared."""
        return self._runtime.server_capabilities

    def extension(self, name: str) -> Mapping[str, Any] | None:
        """Return the server's settings of an extension; None unless both sides have declared it."""
        return negotiated_settings(name, {"extensions": self._extensions}, self.capabilities)

    @property
    def instructions(self) -> str | None:
        """The server's instructions for a model that uses it."""
        latest = self._runtime.latest
        return None if latest is None else latest.instructions

    @property
    def request_id(self) -> int:
        """The id of the last request on this connection."""
        session = self._runtime.session
        return 0 if session is None else session.last_id

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The URIs of subscribed resources."""
        return tuple(self._runtime.subscriptions)

    @property
    def settings(self) -> Settings:
        """The settings, such as `auto_reconnect` and the time limits."""
        return self._settings

    @property
    def sampling(self) -> "Sample | SamplingProvider | None":
        """The function or provider that answers requests for messages of a model."""
        return self._sampling

    @property
    def roots(self) -> tuple[Root, ...]:
        """The roots that the client declares."""
        return tuple(self._runtime.callbacks.roots or ())

    @property
    def notification_handlers(self) -> Mapping[str, tuple[Handler, ...]]:
        """The handlers registered with `on`, by notification."""
        return self._runtime.notifications.handlers

    @property
    def losses(self) -> int:
        """The number of lost connections since the client was opened."""
        return 0 if self._runtime.supervisor is None else self._runtime.supervisor.losses

    def pending(self) -> list[Pending]:
        """Return the requests without a response, the oldest first. The client's listen request is not among them."""
        session, clock = self._runtime.session, self._runtime.clock
        if session is None or clock is None:
            return []
        now, requests = clock.now(), session.outgoing_requests.values()
        return [Pending(one.id, one.method.name, now - one.started) for one in requests if one.method is not _LISTEN]

    # --- requests ------------------------------------------------------------------------------

    async def _request(
        self,
        name: str,
        params: Any,
        *,
        repeatable: Repeatable = always_repeatable,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        return await self._runtime.request(
            name, params, repeatable=repeatable, timeout=timeout, on_progress=on_progress
        )

    async def ping(self, *, timeout: float | None = None) -> None:
        """Check that the server responds. Raises `RequestTimeout` if it does not."""
        await self._request(LIVENESS_CHECK, Empty(), timeout=timeout)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        returns: "TypeForm[T]" = UNSPECIFIED,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Send any request with plain params, and return the result: of a method of the specification in its type, of
        another one as the type `returns`, by default a dict. The client does not repeat it after a lost connection."""
        row = find_method(method)
        if row is None and find_name_fault(method) is None:
            plain = _copy_params(method, params)
            result = await self._request(
                method, plain, repeatable=never_repeatable, timeout=timeout, on_progress=on_progress
            )
            return decode_custom_result(method, result, returns)
        if row is None or row.result is None:
            why = "nor a name outside of it, such as 'acme/ping'"
            raise MisuseError(f"{method!r} is not a request of the specification, {why}")
        try:
            typed = _params_decoder(method)(codec.to_json(params or {}))
        except (TypeError, ValueError, RecursionError) as error:  # no JSON, or not of the method's type
            raise MisuseError(f"params of {method}: {error}") from None
        if isinstance(typed, CallToolParams):
            return await self._runtime.call_tool(
                typed,
                repeatable=never_repeatable,
                timeout=timeout,
                on_progress=on_progress,
                on_abandoned=self._tasks.abandon_call,
            )
        return await self._request(method, typed, repeatable=never_repeatable, timeout=timeout, on_progress=on_progress)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> None:
        """Send a notification of a method outside of the specification. Waits for a connection; a notification is lost
        with its connection."""
        if (fault := find_name_fault(method)) is not None:
            raise MisuseError(fault)
        runtime = self._runtime
        await runtime.run_on_own_loop(runtime.notify(method, _copy_params(method, params), timeout))

    def method(self, name: str) -> Callable[[F], F]:
        """Register a function that answers requests of the server of a method outside of the specification, such as
        "acme/ask". The members of the params are its arguments, and it returns an object or None. It may be async; a
        plain function runs on a thread. One parameter may be a `CallbackContext`."""

        def register(function: F) -> F:
            self._runtime.request_handlers.add(name, function)
            return function

        return register

    async def set_log_level(self, level: LoggingLevel, *, timeout: float | None = None) -> None:
        """Request log messages of a level and above, again after each reconnect."""
        check_level(level)
        if not self._runtime.set_request_log_level(level):
            await self._request("logging/setLevel", SetLevelParams(level), timeout=timeout)
        self._runtime.log_level = level

    # --- tools ---------------------------------------------------------------------------------

    async def _list_pages(self, method: str, cursor: Cursor, timeout: float | None) -> Any:
        """Return one page of a list, or all pages as one within `timeout` seconds altogether."""
        deadline = ProgressDeadline(self._runtime.now, timeout)

        async def page(cursor: str | None) -> Any:
            return await self._request(method, PaginatedParams(cursor=cursor), timeout=deadline.remaining)

        if isinstance(cursor, UnsetType):
            return await fetch_all_pages(method, page, self._settings)
        return await page(cursor)

    async def list_tools(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListToolsResult:
        """Return all tools of all pages; with `cursor` one page, the first one for None. `tools()` yields them one by
        one. `timeout` is for all pages. Raises `BadAnswer` above `max_list_pages` or `max_list_items`."""
        known_tools = self._runtime.known_tools
        changes = known_tools.changes
        listed: ListToolsResult = await self._list_pages("tools/list", cursor, timeout)
        if not isinstance(cursor, str) and listed.next_cursor is None:
            known_tools.fill(listed.tools, changes)
        return listed

    @property
    def tools(self) -> ToolFunctions:
        """The tools as functions: `await client.tools.add(a=1)`, and `client.tools["read-file"]` for a name that is no
        identifier. `client.tools()` yields the definitions of all tools."""
        return ToolFunctions(self)

    async def iterate_tools(self) -> AsyncIterator[Tool]:
        """Yield the definitions of all tools, one page at a time, as `tools()` does."""
        known_tools = self._runtime.known_tools
        changes, found = known_tools.changes, list[Tool]()
        async for page in iterate_pages(self.list_tools):
            for tool in page.tools:
                found.append(tool)
                yield tool
        known_tools.fill(found, changes)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | Any | None = None,
        *,
        returns: "TypeForm[T]" = UNSPECIFIED,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        meta: dict[str, Any] | None = None,
        raise_on_error: bool = True,
        idempotency_key: str | None = None,
    ) -> ToolResult[T]:
        """Call a tool. `arguments` is a mapping, or an object with those attributes; `returns` is the type of `data`.

        Raises `ToolFailed` if the tool reports a failure, unless `raise_on_error=False`. If the connection is lost
        before the response, the client repeats the call of a tool that is marked read-only or idempotent; for any other
        tool it raises `OutcomeUnknown`.

        `idempotency_key` identifies the call: a server that supports such keys runs it once, and answers every call
        with that key with the same result. If the server declares that this also holds across restarts, the client
        repeats such a call after a lost connection.
        """
        runtime = self._runtime
        supervisor, known_tools = runtime.supervisor, runtime.known_tools
        relay = deadline = task = None
        if timeout is not None or on_progress is not None:
            relay, deadline = _relay(on_progress), ProgressDeadline(runtime.now, timeout)
            if relay is not None:
                relay.deadlines.add(deadline)
        connection = None if supervisor is None else supervisor.connection
        if (connection is None or connection.supports_tool_tasks) and (
            await runtime.task_support(name, timeout) == "required"
        ):
            task = TaskMetadata()
        if idempotency_key is not None:
            meta = {**(meta or {}), IDEMPOTENCY_KEY: idempotency_key}
        params = CallToolParams(
            name=name,
            arguments=NO_ARGUMENTS if arguments is None else _encode_arguments(name, arguments),
            meta=meta,
            task=task,
        )
        reply = await runtime.send_tool_call(
            params,
            repeatable=known_tools.may_repeat,
            timeout=None if deadline is None else deadline.remaining,
            on_progress=relay,
            on_abandoned=self._tasks.abandon_call,
        )
        result = decode_call_result(reply.raw, reply.request, is_task=reply.is_task)
        if refusal_of(result):
            repeating = runtime.repeat_refused_call(
                reply,
                params,
                repeatable=known_tools.may_repeat,
                due=None if deadline is None else deadline.due,
                on_progress=relay,
                on_abandoned=self._tasks.abandon_call,
            )
            reply, result = await runtime.run_on_own_loop(repeating)
        if deadline is not None:
            _check_timeout(result, deadline)
        if not known_tools.fresh:
            await runtime.wait_for_tools(result, None if deadline is None else deadline.due)
        if isinstance(result, TaskStarted):
            started: Task[T] = Task(
                self._tasks, result.snapshot, tool=name, returns=returns, request=result.request, progress_relay=relay
            )
            deadline = deadline or ProgressDeadline(runtime.now, timeout)
            work = self._tasks.finish_unowned(started, deadline, raise_on_error=raise_on_error)
            return await runtime.run_on_own_loop(work)
        size = memoryview(reply.raw).nbytes
        known = known_tools.by_name.get(name)
        return build_tool_result(name, result, known, returns, raise_on_error=raise_on_error, json_size=size)

    async def start_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | Any | None = None,
        *,
        ttl: float | None = None,
        returns: "TypeForm[T]" = UNSPECIFIED,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        meta: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Task[T]:
        """Call a tool and return a handle of the task that the server runs it as.

        The result can be fetched later, also after a restart, with `task(id)`. `ttl` is the number of seconds that the
        server should retain the task; the server may choose another. If the server does not run the call as a task, it
        has ended when this returns. `timeout` limits the wait for that response. Progress is reported while the handle
        exists; in 2026-07-28, each time the client polls the task.
        """
        deadline, relay = ProgressDeadline(self._runtime.now, timeout), _relay(on_progress)
        support = await self._runtime.task_support(name, timeout)
        task = None if support in {None, "forbidden"} else TaskMetadata(None if ttl is None else round(ttl * 1000))
        encoded = NO_ARGUMENTS if arguments is None else _encode_arguments(name, arguments)
        if idempotency_key is not None:
            meta = {**(meta or {}), IDEMPOTENCY_KEY: idempotency_key}
        result = await self._runtime.call_tool(
            CallToolParams(name=name, arguments=encoded, meta=meta, task=task),
            repeatable=self._runtime.known_tools.may_repeat,
            timeout=deadline.remaining,
            on_progress=relay,
            on_abandoned=self._tasks.abandon_call,
        )
        _check_timeout(result, deadline)
        if isinstance(result, TaskStarted):
            return Task(
                self._tasks, result.snapshot, tool=name, returns=returns, request=result.request, progress_relay=relay
            )
        snapshot = TaskSnapshot("", "failed" if result.is_error else "completed")
        return Task(self._tasks, snapshot, tool=name, returns=returns, result=result)

    def task(self, task_id: str, *, name: str = "", returns: "TypeForm[T]" = UNSPECIFIED) -> Task[T]:
        """Return a handle of an existing task. With the `name` of its tool, the tool's schema decodes the result."""
        return Task(self._tasks, TaskSnapshot(task_id), tool=name, returns=returns)

    # --- resources -----------------------------------------------------------------------------

    async def list_resources(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListResourcesResult:
        """Return all resources, like `list_tools`; `resources()` yields them one by one."""
        return await self._list_pages("resources/list", cursor, timeout)

    async def resources(self) -> AsyncIterator[Resource]:
        """Yield all resources, one page at a time."""
        async for page in iterate_pages(self.list_resources):
            for resource in page.resources:
                yield resource

    async def list_resource_templates(
        self, cursor: Cursor = UNSET, *, timeout: float | None = None
    ) -> ListResourceTemplatesResult:
        """Return all resource templates, like `list_tools`; `resource_templates()` yields them one by one. A server
        that has resources, but not this method, has no templates."""
        try:
            return await self._list_pages("resources/templates/list", cursor, timeout)
        except PeerError as error:
            if error.code != MethodNotFound.code:
                raise
            return ListResourceTemplatesResult([])

    async def resource_templates(self) -> AsyncIterator[ResourceTemplate]:
        """Yield all resource templates, one page at a time."""
        async for page in iterate_pages(self.list_resource_templates):
            for template in page.resource_templates:
                yield template

    async def read_resource(
        self, uri: str, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> list[ResourceContents]:
        """Return the contents of a resource."""
        params = ReadResourceParams(uri=uri)
        result: ReadResourceResult = await self._request(
            "resources/read", params, timeout=timeout, on_progress=on_progress
        )
        return result.contents

    async def subscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Subscribe to the updates of a resource, again after each reconnect."""
        if not await self._runtime.update_listen(uri, timeout, subscribe=True):
            await self._request("resources/subscribe", SubscribeParams(uri=uri), timeout=timeout)
        self._runtime.subscriptions[uri] = None

    async def unsubscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """End the subscription to a resource."""
        self._runtime.subscriptions.pop(uri, None)
        if not await self._runtime.update_listen(uri, timeout, subscribe=False):
            await self._request("resources/unsubscribe", UnsubscribeParams(uri=uri), timeout=timeout)

    # --- prompts and completion ----------------------------------------------------------------

    async def list_prompts(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListPromptsResult:
        """Return all prompts, like `list_tools`; `prompts()` yields them one by one."""
        return await self._list_pages("prompts/list", cursor, timeout)

    async def prompts(self) -> AsyncIterator[Prompt]:
        """Yield all prompts, one page at a time."""
        async for page in iterate_pages(self.list_prompts):
            for prompt in page.prompts:
                yield prompt

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> GetPromptResult:
        """Return a prompt, rendered with arguments."""
        params = GetPromptParams(name=name, arguments=None if arguments is None else dict(arguments))
        return await self._request("prompts/get", params, timeout=timeout, on_progress=on_progress)

    async def complete(
        self,
        kind: Literal["prompt", "resource"],
        name: str,
        argument: str,
        value: str = "",
        *,
        context: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Complete the value of an argument: of a prompt by its name, or of a resource template by its URI."""
        reference = Reference("ref/prompt", name=name) if kind == "prompt" else Reference("ref/resource", uri=name)
        filled = None if context is None else CompletionContext(dict(context))
        params = CompleteParams(ref=reference, argument=CompletionArgument(argument, value), context=filled)
        result: CompleteResult = await self._request("completion/complete", params, timeout=timeout)
        return result.completion

    # --- notifications -------------------------------------------------------------------------

    def on(self, name: str, handler: Handler) -> Callable[[], None]:
        """Call a handler with the params of each notification of that name; return a function that removes it.

        A handler of two parameters gets the name as well, before the params. Names outside of the specification are
        allowed; their params are a dict, or of the type of the parameter's annotation. The handler may be async, or
        plain and quick. Its exceptions are reported to observers, and do not affect the connection.
        """
        self._runtime.notifications.on(name, handler)
        return partial(self._runtime.notifications.off, name, handler)

    def notifications(self, *names: str) -> NotificationReader:
        """Return an async iterator over the notifications of these names, or all, until the client is closed."""
        return self._runtime.notifications.open_reader(*names)

    async def set_roots(self, roots: Iterable[RootLike]) -> None:
        """Replace the roots and notify the server. The client must have been created with `roots=`."""
        callbacks, supervisor = self._runtime.callbacks, self._runtime.supervisor
        if callbacks.roots is None:
            raise MisuseError("this client was created without roots; pass Client(…, roots=[]) to set some later")
        callbacks.roots = [to_root(root) for root in roots]
        if supervisor is not None and supervisor.connection is not None:
            supervisor.connection.notify("notifications/roots/list_changed")


def _check_timeout(result: CallToolResult | TaskStarted, deadline: ProgressDeadline) -> None:
    """Raise `RequestTimeout` if the server has noticed first that the time is over."""
    if reports_timeout(result) and deadline.expired:
        raise RequestTimeout("tools/call", round(deadline.elapsed, 3))


def _relay(on_progress: OnProgress | None) -> ProgressRelay | None:
    return None if on_progress is None else ProgressRelay(on_progress)


@cache
def _params_decoder(method: str) -> Callable[[Any], Any]:
    row = find_method(method)
    return codec.json_decoder(Empty if row is None else row.params)


def _copy_params(method: str, params: Any) -> dict[str, Any]:
    """Return the params of a method outside of the specification as a dict. Raises `MisuseError` for other values."""
    if params is not None and not isinstance(params, Mapping):
        raise MisuseError(f"params of {method}: expected a mapping, not {describe_value(params)}")
    return dict(cast("Mapping[str, Any]", params or {}))


def _encode_arguments(name: str, arguments: Any) -> Raw:
    try:
        return Raw(type_adapters.to_json(arguments))
    except (TypeError, ValueError, RecursionError) as error:  # no JSON, an integer of too many digits, or a cycle
        raise MisuseError(f"arguments of tool {name!r}: {error}") from error


def _revisions_up_to(revision: str | None, profile: "Profile | None") -> tuple[Revision, ...]:
    """Return the revisions to negotiate. A profile is for the handshake era."""
    if revision is not None and revision not in list(Revision):
        raise MisuseError(f"revision= must be one of {', '.join(Revision)}, not {revision!r}")
    known = tuple(Revision) if profile is None else HANDSHAKE
    return known if revision is None else tuple(one for one in known if one.value <= revision)


def _find_profile(name: str) -> "Profile":
    from trunkline.protocol.profiles import find_profile  # imported here: few clients have a profile

    return find_profile(name)


def _default_observers() -> list[Observer]:
    from trunkline.observers.logs import LogObserver

    return [LogObserver()]
