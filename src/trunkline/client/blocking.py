"""The same client for scripts and notebooks: every call waits for its answer.

Behind it is a `Client` on an event loop of its own, which runs on a thread; so it works where a loop is running
already, as in a notebook, and from any thread. Handlers that it is given are called on that thread.
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
    """Tell type checkers that a method takes the arguments of another one; leave it as it is."""
    return lambda own: own


class BlockingClient:
    """An MCP client that waits: `with BlockingClient(target) as client`. Takes what `Client` takes."""

    @_same_parameters_as(Client.__init__)
    def __init__(self, target: Any, **options: Any) -> None:
        self._client = Client(target, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # to begin something; nobody waits for the server in it

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._client).removeprefix('<')}"

    # --- opening and closing -------------------------------------------------------------------

    def open(self) -> Self:
        """Connects, and waits until calls can be made; raises why not."""
        with self._lock:
            if self._loop is None:
                if self._thread is not None:
                    self._thread.join()  # it is being closed
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
        """Ends the connection and waits until nothing of it is left."""
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
            asked = _LoopCall(self._loop, ask)
        try:
            return asked.result()
        except CancelledError:
            raise OutcomeUnknown("the client was closed") from None
        except BaseException:  # Ctrl+C, for one: nobody waits any more
            asked.cancel()
            raise

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        while True:
            try:
                yield self._wait(partial(_next_item, items))
            except _IterationEnded:
                return

    # --- facts ---------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """Where the conversation stands."""
        return self._client.phase

    @property
    def server_info(self) -> Implementation | None:
        """Who the server says that it is."""
        return self._client.server_info

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the server can do."""
        return self._client.capabilities

    @property
    def instructions(self) -> str | None:
        """What the server has to say to a model that uses it."""
        return self._client.instructions

    def pending(self) -> list[Pending]:
        """The requests that are not answered yet, the oldest first."""
        return self._client.pending()

    # --- asking --------------------------------------------------------------------------------

    def ping(self, *, timeout: float | None = None) -> None:
        """Asks whether the server is there."""
        self._wait(partial(self._client.ping, timeout=timeout))

    def request(self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
        """Asks anything, by the name of the method and plain params."""
        return self._wait(partial(self._client.request, method, params, timeout=timeout))

    def set_log_level(self, level: LoggingLevel) -> None:
        """Asks for log messages of a level and above."""
        self._wait(partial(self._client.set_log_level, level))

    def list_tools(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListToolsResult:
        """All tools, or one page of them, as `Client.list_tools` gives."""
        return self._wait(partial(self._client.list_tools, cursor, timeout=timeout))

    def tools(self) -> Iterator[Tool]:
        """All tools, one by one, a page at a time."""
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
        """Calls a tool, as `Client.call_tool` does."""
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
        """Calls a tool and gives a handle on the call, as `Client.start_tool` does."""
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
        """A handle on a task that was made earlier, by its id, as `Client.task` gives."""
        return BlockingTask(self._client.task(task_id, name=name, returns=returns), self._wait)

    def list_resources(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListResourcesResult:
        """All resources, or one page of them, as `Client.list_resources` gives."""
        return self._wait(partial(self._client.list_resources, cursor, timeout=timeout))

    def resources(self) -> Iterator[Resource]:
        """All resources, one by one, a page at a time."""
        return self._iterate(self._client.resources())

    def list_resource_templates(
        self, cursor: Cursor = UNSET, *, timeout: float | None = None
    ) -> ListResourceTemplatesResult:
        """All resource templates, or one page of them, as `Client.list_resource_templates` gives."""
        return self._wait(partial(self._client.list_resource_templates, cursor, timeout=timeout))

    def resource_templates(self) -> Iterator[ResourceTemplate]:
        """All resource templates, one by one, a page at a time."""
        return self._iterate(self._client.resource_templates())

    def read_resource(self, uri: str, *, timeout: float | None = None) -> list[ResourceContents]:
        """What a resource holds."""
        return self._wait(partial(self._client.read_resource, uri, timeout=timeout))

    def subscribe(self, uri: str) -> None:
        """Asks to be told when a resource changes."""
        self._wait(partial(self._client.subscribe, uri))

    def unsubscribe(self, uri: str) -> None:
        """Asks not to be told any more."""
        self._wait(partial(self._client.unsubscribe, uri))

    def list_prompts(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListPromptsResult:
        """All prompts, or one page of them, as `Client.list_prompts` gives."""
        return self._wait(partial(self._client.list_prompts, cursor, timeout=timeout))

    def prompts(self) -> Iterator[Prompt]:
        """All prompts, one by one, a page at a time."""
        return self._iterate(self._client.prompts())

    def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """A prompt, filled in."""
        return self._wait(partial(self._client.get_prompt, name, arguments))

    def complete(self, kind: Literal["prompt", "resource"], name: str, argument: str, value: str = "") -> Completion:
        """How the value of an argument could go on."""
        return self._wait(partial(self._client.complete, kind, name, argument, value))

    def on(self, name: str, handler: Callable[[Any], Any]) -> Callable[[], None]:
        """Calls a function with the params of each notification of that name; gives what ends that."""
        return self._client.on(name, handler)


class BlockingTask(Generic[T_co]):
    """A call that a server works on, for whoever waits: what `Task` is to a `Client`."""

    def __init__(self, task: Task[T_co], wait: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]) -> None:
        self._task = task
        self._wait = wait

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._task).removeprefix('<')}"

    @property
    def id(self) -> str:
        """Its name at the server."""
        return self._task.id

    @property
    def status(self) -> TaskStatus:
        """How it stood when that was last heard of."""
        return self._task.status

    @property
    def message(self) -> str | None:
        """What the server said of that."""
        return self._task.message

    def refresh(self) -> TaskStatus:
        """Asks how it stands now."""
        return self._wait(self._task.refresh)

    def cancel(self) -> None:
        """Has the server stop working on it. What has ended stays as it is."""
        self._wait(self._task.cancel)

    def result(self, *, timeout: float | None = None, raise_on_error: bool = True) -> ToolResult[T_co]:
        """What the call comes to, as `Task.result` gives it."""
        return self._wait(partial(self._task.result, timeout=timeout, raise_on_error=raise_on_error))


class _LoopCall(Generic[T]):
    """Something that is done on the loop of a client. Its coroutine is made there, where no Ctrl+C comes between making
    and running it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make_coroutine: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop = loop
        self._make_coroutine = make_coroutine
        self._outcome: Future[T] = Future()
        self._task: asyncio.Task[T] | None = None
        loop.call_soon_threadsafe(self._start)

    def result(self) -> T:
        """What has come of it, which is waited for."""
        return self._outcome.result()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        if not self._outcome.done():
            with contextlib.suppress(RuntimeError):  # the loop has ended, and all that was done on it
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
    """There is no more to walk through."""


async def _next_item(items: AsyncIterator[T]) -> T:
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _IterationEnded from None


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
