"""A blocking client for scripts and notebooks: every call waits for its result.

It wraps a `Client` on an event loop that runs on a thread of its own, so it works from any thread, and where a loop is
running already, as in a notebook. Handlers are called on that thread.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Literal, ParamSpec, Self

from msgspec import UNSET

from trunkline.client.client import Client, Pending
from trunkline.client.pagination import Cursor
from trunkline.client.results import UNSPECIFIED, T, T_co, ToolResult
from trunkline.client.retry import OnProgress
from trunkline.client.tasks.handle import Task
from trunkline.errors import MisuseError, OutcomeUnknown
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

__all__ = ["BlockingClient", "BlockingTask"]

P = ParamSpec("P")
_NOT_OPEN: Final = "the client is not open: `with client:` or `client.open()` comes first"
_WOULD_DEADLOCK: Final = "a handler of a blocking client cannot wait for it: that would be for ever"


def _same_parameters_as(
    method: Callable[Concatenate[Any, P], None],  # noqa: ARG001 - for type checkers
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Tell type checkers that a method takes the parameters of another one; return it unchanged."""
    return lambda own: own


class BlockingClient:
    """A blocking MCP client: `with BlockingClient(target) as client`. Takes the arguments of `Client`."""

    @_same_parameters_as(Client.__init__)
    def __init__(self, target: Any, **options: Any) -> None:
        self._client = Client(target, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # guards starting a call; never held while waiting for the server

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._client).removeprefix('<')}"

    # --- opening and closing -------------------------------------------------------------------

    def open(self) -> Self:
        """Connect and wait until calls can be made; raise the reason if they cannot."""
        with self._lock:
            if self._loop is None:
                if self._thread is not None:
                    self._thread.join()  # another thread is closing the client
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="trunkline-client", daemon=True
                )
                self._thread.start()
        try:
            self._wait(self._client.open)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close the connection and wait until all background work has ended."""
        with self._lock:
            loop, thread = self._loop, self._thread
            if thread is None:
                return
            if thread is threading.current_thread():
                raise MisuseError(_WOULD_DEADLOCK)
            closing = None if loop is None else _LoopCall(loop, self._client.close)
            self._loop = None
        try:
            if closing is not None:
                closing.result()
        finally:
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _wait(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with self._lock:
            if self._loop is None or threading.current_thread() is self._thread:
                raise MisuseError(_NOT_OPEN if self._loop is None else _WOULD_DEADLOCK)
            call = _LoopCall(self._loop, ask)
        try:
            return call.result()
        except CancelledError:
            raise OutcomeUnknown("the client was closed") from None
        except BaseException:  # for example, Ctrl+C
            call.cancel()
            raise

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        while True:
            try:
                yield self._wait(partial(_next_item, items))
            except _IterationEnded:
                return

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

    def request(self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
        """Send any request of the specification with plain params."""
        return self._wait(partial(self._client.request, method, params, timeout=timeout))

    def set_log_level(self, level: LoggingLevel) -> None:
        """Request log messages of a level and above."""
        self._wait(partial(self._client.set_log_level, level))

    def list_tools(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListToolsResult:
        """Return all tools, or one page of them, like `Client.list_tools`."""
        return self._wait(partial(self._client.list_tools, cursor, timeout=timeout))

    def tools(self) -> Iterator[Tool]:
        """Yield all tools, one page at a time."""
        return self._iterate(self._client.tools())

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

    def on(self, name: str, handler: Callable[[Any], Any]) -> Callable[[], None]:
        """Call a handler with the params of each notification of that name; return a function that removes it."""
        return self._client.on(name, handler)


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


class _LoopCall(Generic[T]):
    """A coroutine on the client's loop. It is created there, where no Ctrl+C can come between creating and
    running it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make_coroutine: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop = loop
        self._make_coroutine = make_coroutine
        self._outcome: Future[T] = Future()
        self._task: asyncio.Task[T] | None = None
        loop.call_soon_threadsafe(self._start)

    def result(self) -> T:
        """Wait for the result and return it."""
        return self._outcome.result()

    def cancel(self) -> None:
        """Cancel the coroutine."""
        if not self._outcome.done():
            with contextlib.suppress(RuntimeError):  # the loop has ended, and its tasks with it
                self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._make_coroutine())
        self._task.add_done_callback(self._on_done)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _on_done(self, task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            self._outcome.cancel()
        elif (error := task.exception()) is not None:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(task.result())


class _IterationEnded(Exception):
    """The async iterator is exhausted."""


async def _next_item(items: AsyncIterator[T]) -> T:
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _IterationEnded from None


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
