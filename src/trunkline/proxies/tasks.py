"""Tasks that pass through a proxy.

A task of a client in front is a task of the server that the client talks to: the proxy, a server that it is mounted in,
or a gateway. Its work is the call at the server behind, which runs there as a task too if that server agrees. So each
side has the dialect of its era, and ids, owners, limits and the store are those of the server in front. Cancellation,
questions, progress and status messages pass.

| front | behind | how a call becomes a task |
| --- | --- | --- |
| handshake | any | the client asks for it; the task begins, and calls the server behind |
| modern | handshake | the tool supports tasks; the task begins, and calls the server behind |
| modern | modern | the server behind answers with a task, which the server in front adopts |

The checkpoint of a task is the id of the task behind. A process that takes it over follows that one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from msgspec import Raw, Struct

from trunkline.client.connection import ClientConnection
from trunkline.client.multi_round import RawInputRequest
from trunkline.client.progress_deadline import ProgressDeadline
from trunkline.client.retry import always_repeatable, never_repeatable
from trunkline.client.tasks.handle import ClientTasks, Task
from trunkline.client.tasks.status import FINAL_STATUSES, TaskSnapshot, TaskStarted, decode_call_result
from trunkline.errors import MisuseError, NotNow, OutcomeUnknown, PeerError, TaskCancelled, TrunklineError
from trunkline.protocol.capabilities import restrict_to_revision
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, PROTOCOL_VERSION
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.protocol.tasks import TaskCaller
from trunkline.protocol.types import CallToolParams, CallToolResult, ProgressParams
from trunkline.protocol.types.base import TaskMetadata
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION
from trunkline.proxies.backend import Backend
from trunkline.proxies.backends import Backends
from trunkline.proxies.errors import exact_error, to_front_error
from trunkline.proxies.forward import Forwarder
from trunkline.proxies.questions import answer_questions, ask_in_rounds
from trunkline.proxies.results import (
    ENVELOPE_KEYS,
    HOP_KEYS,
    make_checkpoint,
    read_checkpoint,
    to_handshake,
    without_keys,
    without_related_task,
)
from trunkline.registry.handlers import Run
from trunkline.server.context import Context, asker_and_call
from trunkline.server.features.tools import ForwardedRequest, ToolDisabled
from trunkline.server.tasks.errors import WorkCancelled
from trunkline.server.tasks.runner import TaskRunner
from trunkline.wire import codec

__all__ = ["TaskForwarder"]

T = TypeVar("T")

_MODERN: Final = Revision.V2026_07_28
_DROPPED_KEYS: Final = HOP_KEYS | ENVELOPE_KEYS


class _ResultHead(Struct, rename="camel"):
    is_error: bool = False


_decode_head: Final = codec.json_decoder(_ResultHead)


class _FollowedTask:
    """The task behind, for one run of the task in front."""

    def __init__(self, context: Context) -> None:
        asker, self.call = asker_and_call(context)
        if not isinstance(asker, TaskRunner):
            raise MisuseError("a forwarded tool runs only as a task, or its call is forwarded")
        self.context = context
        self.runner = asker
        self.task_id: str | None = None  # once the server behind has answered with a task
        self._progress = float("-inf")

    @property
    def caller(self) -> TaskCaller:
        """The client in front that has created the task."""
        return self.runner.caller

    # --- to the server behind ------------------------------------------------------------------------

    def envelope(self) -> dict[str, Any]:
        """Return the metadata of requests of the modern era: those of the client, who follows tasks."""
        declared = dict(restrict_to_revision(self.caller.capabilities, _MODERN))
        declared["extensions"] = {**declared.get("extensions", {}), TASKS_EXTENSION: {}}
        made: dict[str, Any] = {PROTOCOL_VERSION: _MODERN.value, CLIENT_CAPABILITIES: codec.to_raw(declared)}
        if self.caller.info is not None:
            made[CLIENT_INFO] = codec.to_raw(project(self.caller.info, _MODERN))
        return made

    def call_params(
        self, name: str, arguments: Any, meta: dict[str, Any] | None, *, now: float, modern: bool
    ) -> CallToolParams:
        """Return the params of the call. Up to 2025-11-25 they ask for a task that lives as long as the one in
        front."""
        meta = without_keys(meta, _DROPPED_KEYS)
        if modern:
            return CallToolParams(name=name, arguments=arguments, meta={**(meta or {}), **self.envelope()})
        expires = self.runner.record.expires_at
        ttl = None if expires is None else max(round((expires - now) * 1000), 1)
        return CallToolParams(name=name, arguments=arguments, meta=meta, task=TaskMetadata(ttl))

    # --- from the server behind ----------------------------------------------------------------------

    async def ask(self, connection: ClientConnection, call: IncomingRequest, params: Raw) -> Raw:  # noqa: ARG002
        """Answer a request of the server."""
        return await self.answer(None, RawInputRequest(call.method.name, without_related_task(params)))

    async def answer(self, key: str | None, question: RawInputRequest) -> Raw:
        """Return the answer of the client in front to a question of the server."""
        try:
            return await self.runner.ask_encoded(question.method, question.params, key)
        except PeerError as error:
            raise exact_error(error) from None

    def note(self, snapshot: TaskSnapshot) -> None:
        """Pass on the progress and the status message of the task behind."""
        if (seen := snapshot.progress) is not None:
            self._report_progress(seen.progress, seen.total, seen.message)
        self.note_status(snapshot.status_message)

    def note_progress(self, params: ProgressParams) -> None:
        """Pass on a notification about the progress of the call."""
        self._report_progress(params.progress, params.total, params.message)

    def note_status(self, message: str | None) -> None:
        """Pass on a status message."""
        if message is not None:
            self.runner.report_status(message)

    def _report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        if progress > self._progress:
            self._progress = progress
            self.context.progress(progress, total, message)

    def convert_result(self, result: Raw, *, modern: bool) -> Raw:
        """Return a result of the server in the form of the client's era."""
        if modern and not self.caller.modern:
            result = to_handshake("tools/call", result, Revision(self.caller.revision))
        return without_related_task(result)


class _TasksBehind(ClientTasks):
    """The client's part of a task behind: its questions go to the client in front, and its result stays encoded."""

    def __init__(self, backend: Backend, followed: _FollowedTask) -> None:
        super().__init__(backend.runtime)
        self.backend = backend
        self.result = Raw(b"{}")  # once the task has one
        self._followed = followed

    async def request(self, name: str, params: Any) -> Any:
        """Send a request about the task, in the name of the client in front."""
        if self.backend.modern:
            params.meta = self._followed.envelope()
        repeatable = never_repeatable if name == "tasks/update" else always_repeatable
        return (await self.backend.send(name, params, repeatable=repeatable)).raw

    async def answer_input_requests(self, requests: Mapping[str, RawInputRequest]) -> dict[str, Raw]:
        """Ask the client in front."""
        return await answer_questions(self._followed.answer, requests)

    def listen(self) -> None:
        """Do nothing: the connection has many clients, and its `subscriptions/listen` is that of the catalog."""

    def decode_result(self, raw: Any) -> CallToolResult:
        """Keep the encoded result; return as much of it as following the task needs."""
        self.result = raw
        return CallToolResult([], is_error=_decode_head(raw).is_error)


class TaskForwarder:
    """Runs the tasks of forwarded tools."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no task runs."""
        await self._idle.wait()

    def tool(self, name: str, *, repeatable: bool) -> Run:
        """Return the run of a tool as a task. `repeatable`: a second call has no further effect."""

        async def run(arguments: Any, context: Context, request: ForwardedRequest) -> Raw:
            followed = _FollowedTask(context)
            self._running += 1
            self._idle.clear()
            try:
                return await self._run(followed, name, arguments, request, repeatable=repeatable)
            except TaskCancelled:
                raise WorkCancelled("the server behind the proxy has cancelled the task") from None
            except TrunklineError as error:
                raise to_front_error(error, modern=followed.caller.modern) from None
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()

        return run

    async def _run(
        self, followed: _FollowedTask, name: str, arguments: Any, request: ForwardedRequest, *, repeatable: bool
    ) -> Raw:
        """Start or continue the task behind, and follow it to its end."""
        known = read_checkpoint(followed.context.resumed_from)
        if known is None and followed.runner.record.attempt > 1 and not repeatable:
            raise OutcomeUnknown("the process that ran this task has died")
        if name in self._forwarder.blocked:
            raise ToolDisabled(name, self._forwarder.blocked[name])
        with contextlib.ExitStack() as stack:

            async def begin() -> tuple[_TasksBehind, Task[Any] | Raw]:
                principal = followed.context.principal
                capabilities = followed.caller.capabilities
                connect = self._backends.task_connection(followed, principal, capabilities, request.session)
                backend = stack.enter_context(connect)
                await backend.open()
                tasks = _TasksBehind(backend, followed)
                if known is None:
                    return tasks, await self._start(tasks, followed, name, arguments, request, repeatable=repeatable)
                followed.task_id = known
                return tasks, Task(tasks, TaskSnapshot(known), on_update=followed.note)

            tasks, begun = await self._admit(followed.call, begin)
            result = await self._follow(tasks, begun, followed) if isinstance(begun, Task) else begun
            return followed.convert_result(result, modern=tasks.modern)

    @property
    def _backends(self) -> Backends:
        if self._forwarder.backends is None:
            raise NotNow("the proxy is not started")
        return self._forwarder.backends

    async def _admit(self, call: IncomingRequest, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        guard, failed = self._forwarder.guard, None
        if guard is None:
            return await start()
        permit = await guard.admit()
        try:
            return await start()
        except BaseException as error:
            failed = error
            raise
        finally:
            guard.leave(permit, call, failed)
            failed = None  # break the cycle: the error refers to this frame by its traceback

    async def _start(
        self,
        tasks: _TasksBehind,
        followed: _FollowedTask,
        name: str,
        arguments: Any,
        request: ForwardedRequest,
        *,
        repeatable: bool,
    ) -> Task[Any] | Raw:
        """Call the tool; return the task that the server answers with, or the result. If the run is cancelled
        meanwhile, a late task is cancelled, too."""
        backend = tasks.backend
        wall = followed.runner.wall_clock
        policy = self._forwarder.policy
        try:
            reply = await backend.send(
                "tools/call",
                followed.call_params(name, arguments, request.meta, now=wall.now(), modern=backend.modern),
                repeatable=always_repeatable if repeatable and policy.retries else never_repeatable,
                timeout=policy.timeout,
                on_progress=followed.note_progress,
                next_params=_ask_followed(followed) if backend.modern else None,
                on_abandoned=tasks.abandon_call,
            )
        finally:
            await tasks.finish_cancellations()
        if not (reply.is_task or reply.request.as_task):
            return reply.raw
        started = decode_call_result(reply.raw, reply.request, is_task=reply.is_task)
        if not isinstance(started, TaskStarted):
            return reply.raw
        task = Task[Any](tasks, started.snapshot, request=started.request, on_update=followed.note)
        followed.task_id = task.id
        try:
            await followed.context.checkpoint(make_checkpoint(task.id))
        except BaseException:
            await _cancel(task, backend)
            raise
        return task

    async def _follow(self, tasks: _TasksBehind, task: Task[Any], followed: _FollowedTask) -> Raw:
        """Return the result of the task behind. If the run ends before it, cancel it, unless another run continues."""
        try:
            await task.outcome(ProgressDeadline(tasks.now, None), raise_on_error=False)
        except BaseException as error:
            continues = isinstance(error, asyncio.CancelledError) and followed.runner.may_continue
            if task.status not in FINAL_STATUSES and not continues:
                await _cancel(task, tasks.backend)
            raise
        return tasks.result


def _ask_followed(followed: _FollowedTask) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the function that answers the questions of a call that is not a task yet."""

    async def next_round(_connection: ClientConnection, name: str, params: Any, result: Raw, _round: int) -> Any:
        return await ask_in_rounds(followed.answer, name, params, result)

    return next_round


async def _cancel(task: Task[Any], backend: Backend) -> None:
    """Cancel a task behind, unless that takes long."""
    with contextlib.suppress(TrunklineError, TimeoutError):
        async with asyncio.timeout(backend.runtime.settings.stop_timeout):
            await task.cancel()
