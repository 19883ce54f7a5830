"""A blocking client for scripts and notebooks: every call waits for its result.

It wraps a `Client` on an event loop that runs on a thread of its own, so it works from any thread, and where a loop is
running already, as in a notebook. Handlers are called on that thread.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, Self

from msgspec import UNSET

from trunkline.client.client import Client, Pending
from trunkline.client.loop_thread import LoopThread
from trunkline.client.notifications import Handler
from trunkline.client.pagination import Cursor
from trunkline.client.results import UNSPECIFIED, T, T_co, ToolResult
from trunkline.client.retry import OnProgress
from trunkline.client.tasks.handle import Task
from trunkline.errors import MisuseError
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.types import (
    Completion,
    GetPromptResult,
    Implementation,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    LoggingLevel,
    Prompt,
    Resource,
    ResourceContents,
    ResourceTemplate,
    TaskStatus,
    Tool,
)

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = ["BlockingClient", "BlockingTask", "BlockingToolFunctions", "ClientOnThread", "same_parameters_as"]

P = ParamSpec("P")


def same_parameters_as(
    method: Callable[Concatenate[Any, P], None],  # noqa: ARG001 - for type checkers
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Tell type checkers that a method takes the parameters of another one; return it unchanged."""
    return lambda own: own


class ClientOnThread(NamedTuple):
    """A client on the loop of a thread that has other uses too: a target of `BlockingClient`."""

    client: Client
    thread: LoopThread


class BlockingClient:
    """A blocking MCP client: `with BlockingClient(target) as client`. Takes the arguments of `Client`, or a `Client`
    that is not open."""

    @same_parameters_as(Client.__init__)
    def __init__(self, target: Any, **options: Any) -> None:
        if isinstance(target, Client) and options:
            raise MisuseError(f"{next(iter(options))}= belongs to the Client that this one wraps")
        self._owns_thread = not isinstance(target, ClientOnThread)
        if isinstance(target, ClientOnThread):
            self._client, self._thread = target
            return
        self._client = target if isinstance(target, Client) else Client(target, **options)
        self._thread = LoopThread("client")

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._client).removeprefix('<')}"

    # --- opening and closing -------------------------------------------------------------------

    def open(self) -> Self:
        """Connect and wait until calls can be made; raise the reason if they cannot."""
        if self._owns_thread:
            self._thread.start()
        try:
            self._wait(self._client.open)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close the connection and wait until all background work has ended."""
        if self._owns_thread:
            self._thread.stop(self._client.close)
        else:
            self._wait(self._client.close)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _wait(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._thread.wait(ask)

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        return self._thread.iterate(items)

    # --- state ---------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """The phase of the connection's lifecycle."""
        return self._client.phase

    @property
    def server_info(self) -> Implementation | None:
        """The name and version that the server reports."""
        return self._client.server_info

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """The capabilities that the server has declared."""
        return self._client.capabilities

    @property
    def instructions(self) -> str | None:
        """The server's instructions for a model that uses it."""
        return self._client.instructions

    def pending(self) -> list[Pending]:
        """Return the requests without a response, the oldest first."""
        return self._client.pending()

    # --- requests ------------------------------------------------------------------------------

    def ping(self, *, timeout: float | None = None) -> None:
        """Check that the server responds."""
        self._wait(partial(self._client.ping, timeout=timeout))

    def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        returns: "TypeForm[T]" = UNSPECIFIED,
        timeout: float | None = None,
    ) -> Any:
        """Send any request with plain params."""
        return self._wait(partial(self._client.request, method, params, returns=returns, timeout=timeout))

    def notify(self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> None:
        """Send a notification of a method outside of the specification."""
        self._wait(partial(self._client.notify, method, params, timeout=timeout))

    def set_log_level(self, level: LoggingLevel) -> None:
        """Request log messages of a level and above."""
        self._wait(partial(self._client.set_log_level, level))

    def list_tools(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListToolsResult:
        """Return all tools, or one page of them, like `Client.list_tools`."""
        return self._wait(partial(self._client.list_tools, cursor, timeout=timeout))

    @property
    def tools(self) -> "BlockingToolFunctions":
        """The tools as functions, like `Client.tools`: `client.tools.add(a=1)`. `client.tools()` yields the definitions
        of all tools."""
        return BlockingToolFunctions(self)

    def iterate_tools(self) -> Iterator[Tool]:
        """Yield the definitions of all tools, one page at a time, as `tools()` does."""
        return self._iterate(self._client.iterate_tools())

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | Any | None = None,
        *,
        returns: "TypeForm[T]" = UNSPECIFIED,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        raise_on_error: bool = True,
        idempotency_key: str | None = None,
    ) -> ToolResult[T]:
        """Call a tool, like `Client.call_tool`."""
        return self._wait(
            partial(
                self._client.call_tool,
                name,
                arguments,
                returns=returns,
                timeout=timeout,
                on_progress=on_progress,
                raise_on_error=raise_on_error,
                idempotency_key=idempotency_key,
            )
        )

    def start_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | Any | None = None,
        *,
        ttl: float | None = None,
        returns: "TypeForm[T]" = UNSPECIFIED,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        idempotency_key: str | None = None,
    ) -> "BlockingTask[T]":
        """Call a tool and return a handle of its task, like `Client.start_tool`."""
        return BlockingTask(
            self._wait(
                partial(
                    self._client.start_tool,
                    name,
                    arguments,
                    ttl=ttl,
                    returns=returns,
                    timeout=timeout,
                    on_progress=on_progress,
                    idempotency_key=idempotency_key,
                )
            ),
            self._wait,
        )

    def task(self, task_id: str, *, name: str = "", returns: "TypeForm[T]" = UNSPECIFIED) -> "BlockingTask[T]":
        """Return a handle of an existing task, like `Client.task`."""
        return BlockingTask(self._client.task(task_id, name=name, returns=returns), self._wait)

    def list_resources(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListResourcesResult:
        """Return all resources, or one page of them, like `Client.list_resources`."""
        return self._wait(partial(self._client.list_resources, cursor, timeout=timeout))

    def resources(self) -> Iterator[Resource]:
        """Yield all resources, one page at a time."""
        return self._iterate(self._client.resources())

    def list_resource_templates(
        self, cursor: Cursor = UNSET, *, timeout: float | None = None
    ) -> ListResourceTemplatesResult:
        """Return all resource templates, or one page of them, like `Client.list_resource_templates`."""
        return self._wait(partial(self._client.list_resource_templates, cursor, timeout=timeout))

    def resource_templates(self) -> Iterator[ResourceTemplate]:
        """Yield all resource templates, one page at a time."""
        return self._iterate(self._client.resource_templates())

    def read_resource(self, uri: str, *, timeout: float | None = None) -> list[ResourceContents]:
        """Return the contents of a resource."""
        return self._wait(partial(self._client.read_resource, uri, timeout=timeout))

    def subscribe(self, uri: str) -> None:
        """Subscribe to the updates of a resource."""
        self._wait(partial(self._client.subscribe, uri))

    def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource."""
        self._wait(partial(self._client.unsubscribe, uri))

    def list_prompts(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListPromptsResult:
        """Return all prompts, or one page of them, like `Client.list_prompts`."""
        return self._wait(partial(self._client.list_prompts, cursor, timeout=timeout))

    def prompts(self) -> Iterator[Prompt]:
        """Yield all prompts, one page at a time."""
        return self._iterate(self._client.prompts())

    def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """Return a prompt, rendered with arguments."""
        return self._wait(partial(self._client.get_prompt, name, arguments))

    def complete(self, kind: Literal["prompt", "resource"], name: str, argument: str, value: str = "") -> Completion:
        """Complete the value of an argument."""
        return self._wait(partial(self._client.complete, kind, name, argument, value))

    def on(self, name: str, handler: Handler) -> Callable[[], None]:
        """Call a handler with the params of each notification of that name; return a function that removes it."""
        return self._client.on(name, handler)


class BlockingToolFunctions:
    """The tools of a server as functions: what `ToolFunctions` is to a `Client`."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def __call__(self) -> Iterator[Tool]:
        """Yield the definitions of all tools, one page at a time."""
        return self._client.iterate_tools()

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return the tool of that name: a function of its arguments that returns the data of its result."""

        def call(**arguments: Any) -> Any:
            return self._client.call_tool(name, arguments).data

        return call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self[name]


class BlockingTask(Generic[T_co]):
    """The blocking handle of a task: what `Task` is to a `Client`."""

    def __init__(self, task: Task[T_co], wait: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]) -> None:
        self._task = task
        self._wait = wait

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._task).removeprefix('<')}"

    @property
    def id(self) -> str:
        """The id that the server has given the task."""
        return self._task.id

    @property
    def status(self) -> TaskStatus:
        """The status in the latest response about the task."""
        return self._task.status

    @property
    def message(self) -> str | None:
        """The status message of the server."""
        return self._task.message

    def refresh(self) -> TaskStatus:
        """Request the current status and return it."""
        return self._wait(self._task.refresh)

    def cancel(self) -> None:
        """Cancel the task. A task that has ended keeps its outcome."""
        self._wait(self._task.cancel)

    def result(self, *, timeout: float | None = None, raise_on_error: bool = True) -> ToolResult[T_co]:
        """Wait for the result and return it, like `Task.result`."""
        return self._wait(partial(self._task.result, timeout=timeout, raise_on_error=raise_on_error))
