"""One typed coroutine for each thing that a server can be asked, and iterators over what comes in pages."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from trunkline.client.client_options import check_level
from trunkline.client.connection import ClientConnection
from trunkline.client.known_tools import KnownTools
from trunkline.client.progress_deadline import ProgressDeadline, ProgressRelay
from trunkline.client.results import UNSPECIFIED, T, ToolResult, build_tool_result
from trunkline.client.retry import LIVENESS_CHECK, OnProgress
from trunkline.client.tasks.handle import Task, TaskClient
from trunkline.client.tasks.status import FINAL_STATUSES, TaskSnapshot, TaskStarted
from trunkline.config import Settings
from trunkline.errors import BadAnswer, MisuseError
from trunkline.protocol.meta import IDEMPOTENCY_KEY
from trunkline.protocol.methods import find_method
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
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    LoggingLevel,
    PaginatedParams,
    Prompt,
    ReadResourceParams,
    ReadResourceResult,
    Reference,
    Resource,
    ResourceContents,
    ResourceTemplate,
    SetLevelParams,
    SubscribeParams,
    TaskMetadata,
    Tool,
    UnsubscribeParams,
)
from trunkline.registry import type_adapters
from trunkline.wire import codec

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = ["Calls", "Cursor", "fetch_all_pages", "iterate_pages"]

P = TypeVar("P")
Cursor = str | None | UnsetType
"""Which page of a list is asked for: that of a cursor, None for the first one, or all of them if it is not given."""


class Calls:
    """Everything that a server can be asked."""

    settings: Settings

    def __init__(self) -> None:
        self._known_tools = KnownTools()
        self._subscriptions: dict[str, None] = {}  # that are renewed with the line
        self._log_level: LoggingLevel | None = None

    async def _request(
        self,
        name: str,
        params: Any,
        *,
        repeatable: Callable[[ClientConnection], bool] = lambda _: True,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Asks, and gives the answer in its type. With the answer of a tool comes what is known of tools."""
        raise NotImplementedError

    async def _task_support(self, name: str, timeout: float | None) -> str | None:  # noqa: ARG002 - for who can
        """Whether calls of a tool run as tasks where clients say which do; None elsewhere. That is known once there is
        a line, for which it waits."""
        return None

    def _current_time(self) -> float:
        """The time on the clock of the client."""
        raise NotImplementedError

    def _make_task_client(self, finish: Callable[[CallToolResult, bool], ToolResult]) -> TaskClient:
        """What a task of ours needs of us; `finish` makes of its result what its caller wants."""
        raise NotImplementedError

    def _cancel_task(self, task: Task) -> None:
        """Has the server stop working on a task that nobody wants any more, as well as that can be done."""
        raise NotImplementedError

    async def _run_on_own_loop(self, work: Coroutine[Any, Any, P]) -> P:
        """Does something on the loop that the line lives on."""
        return await work

    def _set_request_log_level(self, level: LoggingLevel) -> bool:  # noqa: ARG002 - for who can
        """Says with every request which log messages are wanted; False if that is asked for once."""
        return False

    async def _update_listen(self, uri: str, timeout: float | None, *, subscribe: bool) -> bool:  # noqa: ARG002 - for who can
        """Has the server tell of a resource, or no more; False if that is asked for by a request of its own."""
        return False

    # --- the line ------------------------------------------------------------------------------

    async def ping(self, *, timeout: float | None = None) -> None:
        """Asks whether the server is there. Raises `RequestTimeout` if it does not answer."""
        await self._request(LIVENESS_CHECK, Empty(), timeout=timeout)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Asks anything, by the name of the method and plain params. Gives the result in the method's type. It is not
        asked again if the line is lost."""
        row = find_method(method)
        if row is None or row.result is None:
            raise MisuseError(f"{method!r} is not a request of the specification")
        try:
            typed = _params_decoder(method)(codec.to_json(params or {}))
        except (TypeError, ValueError, RecursionError) as error:  # no JSON, or not of the method's type
            raise MisuseError(f"params of {method}: {error}") from None
        return await self._request(method, typed, repeatable=lambda _: False, timeout=timeout, on_progress=on_progress)

    async def set_log_level(self, level: LoggingLevel, *, timeout: float | None = None) -> None:
        """Asks for log messages of a level and above; asked again whenever the line is made again."""
        check_level(level)
        if not self._set_request_log_level(level):
            await self._request("logging/setLevel", SetLevelParams(level), timeout=timeout)
        self._log_level = level

    # --- tools ---------------------------------------------------------------------------------

    async def _list_pages(self, method: str, cursor: Cursor, timeout: float | None) -> Any:
        """A page of a list, or all pages as one, for which there are `timeout` seconds together."""
        patience = ProgressDeadline(self._current_time, timeout)

        async def page(cursor: str | None) -> Any:
            return await self._request(method, PaginatedParams(cursor=cursor), timeout=patience.remaining)

        return (
            await fetch_all_pages(method, page, self.settings) if isinstance(cursor, UnsetType) else await page(cursor)
        )

    async def list_tools(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListToolsResult:
        """All tools, of all pages; with `cursor` one page, which is the first one for None. `tools()` gives them one by
        one. `timeout` is for all pages. Raises `BadAnswer` for more than `max_list_pages` or `max_list_items`."""
        changes = self._known_tools.changes
        listed: ListToolsResult = await self._list_pages("tools/list", cursor, timeout)
        if not isinstance(cursor, str) and listed.next_cursor is None:
            self._known_tools.fill(listed.tools, changes)
        return listed

    async def tools(self) -> AsyncIterator[Tool]:
        """All tools, one by one, a page at a time."""
        changes, found = self._known_tools.changes, list[Tool]()
        async for page in iterate_pages(self.list_tools):
            for tool in page.tools:
                found.append(tool)
                yield tool
        self._known_tools.fill(found, changes)

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
        """Calls a tool. `arguments` is a mapping, or an object with those members; `returns` is the type of `data`.

        Raises `ToolFailed` if the tool says that it failed, unless `raise_on_error=False`. If the line is lost before
        the answer comes, a tool that calls itself read-only or idempotent is called again; for any other,
        `OutcomeUnknown` is raised.

        `idempotency_key` names what is asked: a server that minds such keys does it once, and answers with the same
        result as often as it is called with the key. If it declares that it does so whatever becomes of its process,
        such a call is made again by itself if the line is lost.
        """
        patience, signs = (
            ProgressDeadline(self._current_time, timeout),
            None if on_progress is None else ProgressRelay(on_progress),
        )
        if signs is not None:
            signs.deadlines.add(patience)
        sent = await self._send_tool_call(
            CallToolParams(name=name, arguments=_encode_arguments(name, arguments), meta=meta),
            task=TaskMetadata() if await self._task_support(name, timeout) == "required" else None,
            timeout=patience.remaining,
            on_progress=signs,
            idempotency_key=idempotency_key,
        )
        if isinstance(sent, TaskStarted):
            task = Task(self._task_client_for(name, returns), sent.snapshot, request=sent.request, progress_relay=signs)
            return await self._run_on_own_loop(self._finish_task(task, patience, raise_on_error=raise_on_error))
        return build_tool_result(name, sent, self._known_tools.get(name), returns, raise_on_error=raise_on_error)

    async def _send_tool_call(
        self,
        params: CallToolParams,
        *,
        task: TaskMetadata | None,
        timeout: float | None,
        on_progress: OnProgress | None,
        idempotency_key: str | None,
    ) -> CallToolResult | TaskStarted:
        """Calls a tool, as a task if that is wished; again, if the line is lost, where that does no harm."""
        keyed, catalogue = idempotency_key is not None, self._known_tools
        if keyed:
            params.meta = {**(params.meta or {}), IDEMPOTENCY_KEY: idempotency_key}
        params.task = task
        return await self._request(
            "tools/call",
            params,
            repeatable=lambda lost: catalogue.repeatable(params.name) or (keyed and lost.supports_idempotency_keys),
            timeout=timeout,
            on_progress=on_progress,
        )

    async def _finish_task(self, task: Task[T], deadline: ProgressDeadline, *, raise_on_error: bool) -> ToolResult[T]:
        """What a task comes to whose caller knows nothing of it: if nobody waits any more, nobody wants it."""
        try:
            return await task.outcome(deadline, raise_on_error=raise_on_error)
        except BaseException:
            if task.status not in FINAL_STATUSES:
                self._cancel_task(task)
            raise

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
        """Calls a tool and gives a handle on the call, which the server works on as a task: its result can be asked for
        later, also after a restart by `task(id)`. `ttl` is for how many seconds the server should keep it, which it may
        know better. Where a server does not make a task of it, the call is over when this returns. `timeout` is for the
        server to say that. Progress is told for as long as the handle is held; in 2026-07-28, when it is looked at.
        """
        patience, signs = (
            ProgressDeadline(self._current_time, timeout),
            None if on_progress is None else ProgressRelay(on_progress),
        )
        support = await self._task_support(name, timeout)
        sent = await self._send_tool_call(
            CallToolParams(name=name, arguments=_encode_arguments(name, arguments), meta=meta),
            task=None if support in {None, "forbidden"} else TaskMetadata(None if ttl is None else round(ttl * 1000)),
            timeout=patience.remaining,
            on_progress=signs,
            idempotency_key=idempotency_key,
        )
        host = self._task_client_for(name, returns)
        if isinstance(sent, TaskStarted):
            return Task(host, sent.snapshot, request=sent.request, progress_relay=signs)
        return Task(host, TaskSnapshot("", "failed" if sent.is_error else "completed"), result=sent)

    def task(self, task_id: str, *, name: str = "", returns: "TypeForm[T]" = UNSPECIFIED) -> Task[T]:
        """A handle on a task that was made earlier, by its id. `name` is that of its tool, if what is known of it shall
        be used to read the result."""
        return Task(self._task_client_for(name, returns), TaskSnapshot(task_id))

    def _task_client_for(self, name: str, returns: Any) -> TaskClient:
        """What a task of ours needs of us."""

        def finish(sent: CallToolResult, raise_on_error: bool) -> ToolResult:
            return build_tool_result(name, sent, self._known_tools.get(name), returns, raise_on_error=raise_on_error)

        return self._make_task_client(finish)

    # --- resources -----------------------------------------------------------------------------

    async def list_resources(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListResourcesResult:
        """All resources, as `list_tools` gives the tools; `resources()` gives them one by one."""
        return await self._list_pages("resources/list", cursor, timeout)

    async def resources(self) -> AsyncIterator[Resource]:
        """All resources, one by one, a page at a time."""
        async for page in iterate_pages(self.list_resources):
            for resource in page.resources:
                yield resource

    async def list_resource_templates(
        self, cursor: Cursor = UNSET, *, timeout: float | None = None
    ) -> ListResourceTemplatesResult:
        """All resource templates, as `list_tools` gives the tools; `resource_templates()` gives them one by one."""
        return await self._list_pages("resources/templates/list", cursor, timeout)

    async def resource_templates(self) -> AsyncIterator[ResourceTemplate]:
        """All resource templates, one by one, a page at a time."""
        async for page in iterate_pages(self.list_resource_templates):
            for template in page.resource_templates:
                yield template

    async def read_resource(
        self, uri: str, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> list[ResourceContents]:
        """What a resource holds."""
        params = ReadResourceParams(uri=uri)
        result: ReadResourceResult = await self._request(
            "resources/read", params, timeout=timeout, on_progress=on_progress
        )
        return result.contents

    async def subscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Asks to be told when a resource changes; asked again whenever the line is made again."""
        if not await self._update_listen(uri, timeout, subscribe=True):
            await self._request("resources/subscribe", SubscribeParams(uri=uri), timeout=timeout)
        self._subscriptions[uri] = None

    async def unsubscribe(self, uri: str, *, timeout: float | None = None) -> None:
        """Asks not to be told any more."""
        self._subscriptions.pop(uri, None)
        if not await self._update_listen(uri, timeout, subscribe=False):
            await self._request("resources/unsubscribe", UnsubscribeParams(uri=uri), timeout=timeout)

    # --- prompts and completion ----------------------------------------------------------------

    async def list_prompts(self, cursor: Cursor = UNSET, *, timeout: float | None = None) -> ListPromptsResult:
        """All prompts, as `list_tools` gives the tools; `prompts()` gives them one by one."""
        return await self._list_pages("prompts/list", cursor, timeout)

    async def prompts(self) -> AsyncIterator[Prompt]:
        """All prompts, one by one, a page at a time."""
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
        """A prompt, filled in."""
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
        """How the value of an argument could go on: of a prompt by its name, or of a resource template by its URI."""
        reference = Reference("ref/prompt", name=name) if kind == "prompt" else Reference("ref/resource", uri=name)
        filled = None if context is None else CompletionContext(dict(context))
        params = CompleteParams(ref=reference, argument=CompletionArgument(argument, value), context=filled)
        result: CompleteResult = await self._request("completion/complete", params, timeout=timeout)
        return result.completion


@cache
def _params_decoder(method: str) -> Callable[[Any], Any]:
    """What reads the params of a method into their type."""
    row = find_method(method)
    return codec.json_decoder(Empty if row is None else row.params)


def _encode_arguments(name: str, given: Any) -> Raw:
    try:
        return NO_ARGUMENTS if given is None else Raw(type_adapters.to_json(given))
    except (TypeError, ValueError, RecursionError) as error:  # no JSON, an integer of too many digits, or a circle
        raise MisuseError(f"arguments of tool {name!r}: {error}") from error


_LIST_FIELDS: Final = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resource_templates",
    "prompts/list": "prompts",
}  # of the result of a method, where its list is


async def iterate_pages(fetch: Callable[[str | None], Awaitable[P]]) -> AsyncIterator[P]:
    """Page after page. Raises `BadAnswer` where a server would lead in a circle."""
    seen: set[str] = set()
    cursor: str | None = None
    while True:
        page: Any = await fetch(cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
        if cursor in seen:
            raise BadAnswer("a list", f"the cursor {cursor!r} leads back to a page that was read already")
        seen.add(cursor)


async def fetch_all_pages(method: str, fetch: Callable[[str | None], Awaitable[P]], settings: Settings) -> P:
    """All pages of a list as one. Raises `BadAnswer` for a list of more pages or items than the settings allow."""
    member, count = _LIST_FIELDS[method], 0
    items: list[Any] = []
    first: Any = None
    async for page in iterate_pages(fetch):
        first, count = first or page, count + 1
        items += getattr(page, member)
        more = cast("Any", page).next_cursor is not None
        if len(items) > settings.max_list_items:
            raise BadAnswer(method, f"it has more than {settings.max_list_items} items (max_list_items)")
        if more and count >= settings.max_list_pages:
            raise BadAnswer(method, f"it has more than {settings.max_list_pages} pages (max_list_pages)")
    return replace(first, **{member: items}, next_cursor=None)
