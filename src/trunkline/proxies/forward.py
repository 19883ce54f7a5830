"""Requests that pass through a proxy: from a client in front to the server behind it, and the result back.

Arguments and results stay encoded, and neither is validated: the server behind does the one, the client in front the
other. A request keeps its metadata, but for its progress token and its deadline, which are those of one hop. If the
client cancels a request, disconnects or has waited long enough, the request is cancelled at the server behind.

Most requests can be sent at once, and are answered once, with a result. These need neither a coroutine nor a task: the
result is passed on within the read that has brought it, see `ForwardedCall`. Everything else is written as coroutines,
which can also take over a request that was sent that way.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from msgspec import Raw, Struct, ValidationError, convert
from msgspec.structs import asdict, replace

from trunkline.client.connection import ClientConnection
from trunkline.client.multi_round import RawInputRequest
from trunkline.client.retry import (
    COMPLETE,
    Repeatable,
    SentRequest,
    ServerReply,
    always_repeatable,
    never_repeatable,
    with_time_limit,
)
from trunkline.client.tasks.status import TASK_RESULT_TYPE, decode_snapshot
from trunkline.errors import NotNow, PeerError, ProtocolError, TrunklineError
from trunkline.protocol.capabilities import restrict_to_revision
from trunkline.protocol.client_envelope import read_result_header
from trunkline.protocol.inflight import IncomingRequest, OutgoingRequest
from trunkline.protocol.meta import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    IDEMPOTENCY_KEY,
    LOG_LEVEL,
    PROTOCOL_VERSION,
)
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import (
    LOGGING_LEVELS,
    AskableParams,
    CallToolParams,
    CancelTaskParams,
    CompleteParams,
    GetPromptParams,
    Implementation,
    ProgressParams,
    ReadResourceParams,
)
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION
from trunkline.proxies.backend import Backend, FrontCall
from trunkline.proxies.backends import Backends
from trunkline.proxies.errors import to_front_error, to_handshake_error
from trunkline.proxies.questions import Dialogues, ask_in_calls
from trunkline.proxies.results import (
    ENVELOPE_KEYS,
    HOP_KEYS,
    input_required,
    make_checkpoint,
    to_handshake,
    to_modern,
    without_keys,
)
from trunkline.rpc.run_handler import CallbackWork, Cancellable, OnDone, start_work
from trunkline.rpc.threads import ThreadPool
from trunkline.server.access.owner_id import principal_name
from trunkline.server.connection import Connection
from trunkline.server.features.tools import ToolDisabled, prepare_run
from trunkline.server.input.multi_round import canonical_params
from trunkline.server.tasks.create import NewTask, adopt_task, has_extension
from trunkline.wire import codec

__all__ = ["ForwardedCall", "Forwarder", "ForwardingPolicy", "RequestGuard"]

_MODERN: Final = Revision.V2026_07_28
_URL_REQUIRED: Final = -32042  # an error of 2025-11-25: the user must visit URLs first
_MIN_LEFT: Final = 0.001  # seconds; the call is about to time out
_ALL_KEYS: Final = HOP_KEYS | ENVELOPE_KEYS
_HIGHEST_LEVEL: Final = len(LOGGING_LEVELS) - 1


class _Step(Struct):
    message: str
    url: str


class _Consent(Struct):
    action: str


class _UrlsRequired(Struct):
    elicitations: list[_Step]


_decode_consent: Final = codec.decoder(_Consent)


class RequestGuard(Protocol):
    """Admits the requests of a proxy: it may delay or refuse them, and learns how they end."""

    def try_admit(self) -> Any:
        """Return the permit of a request that need not wait; None for one that must wait or is refused."""
        ...

    async def admit(self) -> Any:
        """Return the permit of a request, or raise to refuse it."""
        ...

    def leave(self, permit: Any, call: IncomingRequest, error: BaseException | None) -> None:
        """Take back a permit. Errors are those of the connection; those of the server behind are `PeerError`."""
        ...


class ForwardingPolicy(Struct, frozen=True, kw_only=True):
    """Limits of the requests that a proxy forwards."""

    timeout: float | None = None  # seconds for a request, in all; None: as its client and the settings say
    retries: bool = True  # whether a lost request is sent again if that has no further effect
    guard: RequestGuard | None = None


class Forwarder:
    """Forwards the requests of all clients in front of a proxy."""

    def __init__(self, info: Implementation, state_lifetime: float, policy: ForwardingPolicy) -> None:
        self.policy = policy
        self.guard = policy.guard
        self.backends: Backends | None = None  # while the proxy is started
        self.blocked: Mapping[str, str] = {}  # reasons, by the names of tools; a call may have waited since its lookup
        self.dialogues = Dialogues(state_lifetime)
        self._server_info = codec.to_raw(info)
        self._envelopes: WeakKeyDictionary[Connection, dict[str, Any]] = WeakKeyDictionary()

    # --- for entries of the catalog ------------------------------------------------------------------

    def tool(self, name: str, *, repeatable: bool, may_become_task: bool) -> Callable[..., Any]:
        """Return the function that forwards the calls of a tool. `repeatable`: a second call has no further effect.
        `may_become_task`: the server behind may answer with a task."""
        may_repeat = always_repeatable if repeatable else _has_idempotency_key

        def forward(connection: Connection, call: IncomingRequest, params: CallToolParams, arguments: Any) -> Any:
            own = params
            if params.name != name or params.arguments is not arguments or params.task is not None:
                own = replace(params, name=name, arguments=arguments, task=None)
            forwarding = self.forward(connection, call, own, may_repeat)
            if may_become_task and call.envelope is not None and has_extension(connection, call):
                return self._adopt_task(connection, call, params, forwarding)
            return forwarding

        return forward

    async def _adopt_task(
        self,
        connection: Connection,
        call: IncomingRequest,
        params: CallToolParams,
        forwarding: "ForwardedCall",
    ) -> Any:
        """Return the result of a forwarded call. If the server behind has made it a task, create one that follows it:
        its id, its owner and its limits are those of the server in front."""
        result = await forwarding.run()
        if read_result_header(result).result_type != TASK_RESULT_TYPE:
            return result
        snapshot = decode_snapshot(result)
        entry = connection.catalog.tools.live.get(params.name)
        try:
            if entry is None:
                raise ToolDisabled(params.name)  # while the call was on its way
            return await adopt_task(
                NewTask(entry, connection, call, prepare_run(entry, connection.shared, params)),
                params,
                make_checkpoint(snapshot.task_id),
                ttl=snapshot.retention_seconds,
                poll_interval=snapshot.poll_seconds,
            )
        except ProtocolError:
            await self._cancel_task(connection, call, params, snapshot.task_id)
            raise

    async def _cancel_task(
        self, connection: Connection, call: IncomingRequest, params: CallToolParams, task_id: str
    ) -> None:
        """Cancel a task of the server behind that no task in front follows."""
        if self.backends is not None:
            cancel = CancelTaskParams(task_id, meta=without_keys(params.meta, HOP_KEYS))
            with suppress(TrunklineError):
                await self.backends.find(connection, call).send("tasks/cancel", cancel, repeatable=always_repeatable)

    def prompt(self, name: str) -> Callable[..., Any]:
        """Return the function that forwards the requests of a prompt."""

        def forward(connection: Connection, call: IncomingRequest, params: GetPromptParams, arguments: Any) -> Any:
            return self.forward(connection, call, replace(params, name=name, arguments=arguments))

        return forward

    def read(self, connection: Connection, call: IncomingRequest, params: ReadResourceParams, uri: str) -> Any:
        """Forward a read."""
        return self.forward(connection, call, replace(params, uri=uri))

    def complete(self, argument: str, **reference: str) -> Callable[..., Any]:
        """Return the function that forwards completions of an argument. The reference is a name or a URI."""

        def forward(connection: Connection, call: IncomingRequest, params: CompleteParams, _name: str) -> Any:
            named = replace(params.argument, name=argument)
            return self.forward(connection, call, replace(params, ref=replace(params.ref, **reference), argument=named))

        return forward

    # --- any request -----------------------------------------------------------------------------------

    def forward(
        self, connection: Connection, call: IncomingRequest, params: Any, repeatable: Repeatable = always_repeatable
    ) -> "ForwardedCall":
        """Return the work that forwards a request, with its result in the form of the client's era, or its error."""
        policy = self.policy
        if policy.timeout is not None and (call.deadline is None or call.deadline > connection.now() + policy.timeout):
            connection.set_call_timeout(call, policy.timeout)
        if not policy.retries:
            repeatable = never_repeatable
        timed = call.deadline is not None  # by the client or its entry; otherwise each hop has its default
        return ForwardedCall(self, FrontCall(connection, call, timed), params, repeatable)

    async def run(self, front: FrontCall, params: Any, repeatable: Repeatable) -> Raw:
        """Forward a request once it is admitted, and return its result."""
        guard = self.guard
        try:
            permit = None if guard is None else await guard.admit()
        except TrunklineError as error:
            raise to_front_error(error, modern=front.call.envelope is not None) from None
        return await self.finish(permit, front, self._send_on_own_connection(front, params, repeatable))

    async def finish(self, permit: Any, front: FrontCall, sending: Coroutine[Any, Any, Raw]) -> Raw:
        """Return the result of a request that was admitted. Raises its error in the form for the client in front."""
        call, guard, failed = front.call, self.guard, None
        try:
            return await sending
        except BaseException as error:
            failed = error
            if isinstance(error, TrunklineError):
                raise to_front_error(error, modern=call.envelope is not None) from None
            raise
        finally:
            if guard is not None:
                guard.leave(permit, call, failed)
            failed = None  # break the cycle: the error refers to this frame by its traceback

    async def _send_on_own_connection(self, front: FrontCall, params: Any, repeatable: Repeatable) -> Raw:
        """Send a request on the connection for its client."""
        connection, call, backends = front.connection, front.call, self.backends
        if backends is None:
            raise NotNow("the proxy is not started")
        if self.blocked and isinstance(params, CallToolParams) and params.name in self.blocked:
            raise ToolDisabled(params.name, self.blocked[params.name])
        if backends.needs_lease(call) and isinstance(params, AskableParams):
            return await self._converse(backends, front, params, repeatable)
        backend = backends.find(connection, call)
        if backend.connection is None:
            number = backend.enter(front)  # an idle connection may be closed
            try:
                await backend.open()
            finally:
                backend.leave(number)
        return await self.send(backend, front, params, repeatable)

    async def send(self, backend: Backend, front: FrontCall, params: Any, repeatable: Repeatable) -> Raw:
        """Send a request on a connection, and return its result. Raises its error as it is."""
        modern, number = backend.modern, backend.enter(front)
        try:
            if not modern:
                await backend.set_log_level(wanted_log_level(front))
            sent = self.outgoing_params(params, front, modern=modern)
            reply = await self._exchange(backend, front, sent, repeatable, modern=modern, timeout=time_left(front))
        finally:
            backend.leave(number)
        return self.incoming_result(front, reply.raw, modern=modern)

    async def resume(
        self,
        backend: Backend,
        front: FrontCall,
        params: Any,
        repeatable: Repeatable,
        first: SentRequest,
        *,
        timeout: float | None,
    ) -> Raw:
        """Take over a request that was sent, and whose outcome is known: answer its questions, or send it again."""
        await asyncio.sleep(0)  # until all that its connection's loss means is known
        modern = first.connection.modern
        reply = await self._exchange(backend, front, params, repeatable, modern=modern, timeout=timeout, first=first)
        return self.incoming_result(front, reply.raw, modern=modern)

    async def _exchange(
        self,
        backend: Backend,
        front: FrontCall,
        params: Any,
        repeatable: Repeatable,
        *,
        modern: bool,
        timeout: float | None,
        first: SentRequest | None = None,
    ) -> ServerReply:
        """Return the reply of the server behind; the client in front answers its questions."""
        call = front.call
        translated = modern and call.envelope is None
        try:
            return await backend.send(
                call.method.name,
                params,
                repeatable=repeatable,
                timeout=timeout,
                on_progress=progress_callback(front),
                next_params=partial(ask_in_calls, front) if translated else None,
                first=first,
            )
        except PeerError as error:
            raise (to_handshake_error(error, call.method.name) if translated else error) from None

    # --- messages of either side ---------------------------------------------------------------------------

    def find_open(self, front: FrontCall, params: Any) -> tuple[Backend, ClientConnection] | None:
        """Return the connection for a request that can be sent at once; None for one that cannot."""
        connection, call, backends = front.connection, front.call, self.backends
        if backends is None or backends.needs_lease(call):
            return None
        if self.blocked and isinstance(params, CallToolParams) and params.name in self.blocked:
            return None
        backend = backends.find(connection, call)
        behind = backend.connection
        if behind is None or behind.facts.observed:  # observers watch the future of a request
            return None
        if not behind.modern and not backend.covers_log_level(wanted_log_level(front)):
            return None
        return backend, behind

    def outgoing_params(self, params: Any, front: FrontCall, *, modern: bool) -> Any:
        """Return the params for the server behind."""
        meta = self._outgoing_meta(params.meta, front, modern=modern)
        return params if meta is params.meta else replace(params, meta=meta)

    def incoming_result(self, front: FrontCall, result: Raw, *, modern: bool) -> Raw:
        """Return a result in the form of the client's era."""
        call, connection = front.call, front.connection
        if call.envelope is not None:
            return result if modern else to_modern(call.method.name, result, self._server_info)
        return to_handshake(call.method.name, result, connection.session.effective_revision) if modern else result

    def _outgoing_meta(self, meta: dict[str, Any] | None, front: FrontCall, *, modern: bool) -> dict[str, Any] | None:
        """Return the metadata for the server behind: without that of this hop, and with or without an envelope."""
        if front.call.envelope is not None:
            return without_keys(meta, HOP_KEYS if modern else _ALL_KEYS)
        meta = without_keys(meta, HOP_KEYS)
        return {**self._envelope_of(front.connection), **(meta or {})} if modern else meta

    def _envelope_of(self, connection: Connection) -> dict[str, Any]:
        """Return the envelope for the requests of a session of the handshake era."""
        made = self._envelopes.get(connection)
        if made is None:
            agreed, peer = connection.session.negotiated, connection.session.peer
            declared = dict(restrict_to_revision({} if agreed is None else agreed.client, _MODERN))
            extensions = {name: it for name, it in declared.pop("extensions", {}).items() if name != TASKS_EXTENSION}
            if extensions:  # a session has no method to follow a task of the extension
                declared["extensions"] = extensions
            made = {PROTOCOL_VERSION: _MODERN.value, CLIENT_CAPABILITIES: codec.to_raw(declared)}
            if peer is not None:
                made[CLIENT_INFO] = codec.to_raw(project(peer, _MODERN))
            self._envelopes[connection] = made
        return {**made, LOG_LEVEL: LOGGING_LEVELS[connection.log_level]}

    # --- modern in front, handshake behind ---------------------------------------------------------------

    async def _converse(self, backends: Backends, front: FrontCall, params: Any, repeatable: Repeatable) -> Raw:
        """Forward one round of a call that the server may interrupt with questions."""
        call = front.call
        binding = (principal_name(call.origin.principal), call.method.name, canonical_params(params))
        if params.request_state is not None:
            dialogue = self.dialogues.resume(params.request_state, binding)
            dialogue.continue_round(front, params.input_responses or {})
        else:
            dialogue = backends.lease(front, binding)
            plain = replace(params, input_responses=None)
            dialogue.start(self.send(dialogue.backend, front, plain, repeatable))
        try:
            outcome = await dialogue.next_outcome()
        except PeerError as error:
            answers: dict[str, Raw] = params.input_responses or {}
            refused = any(map(_is_refused, answers.values()))
            if error.code == _URL_REQUIRED and not refused and (urls := _read_urls(error.data)):
                return input_required(urls)
            raise
        except BaseException:
            dialogue.cancel()
            raise
        return outcome if isinstance(outcome, Raw) else input_required(outcome, self.dialogues.suspend(dialogue))


class ForwardedCall(CallbackWork):
    """A request that is forwarded: the work of a call of the client in front, and the waiter of its response.

    It is admitted and sent at once if nothing has to wait, and ends with its result. A request that has to wait before,
    and any other outcome, is continued by a coroutine of the forwarder.
    """

    __slots__ = (
        *("_backend", "_behind", "_call", "_done", "_forwarder", "_front", "_number", "_on_done", "_outcome"),
        *("_params", "_permit", "_repeatable", "_request", "_sent", "_threads", "_timeout", "_work"),
    )

    def __init__(self, forwarder: Forwarder, front: FrontCall, params: Any, repeatable: Repeatable) -> None:
        self._forwarder = forwarder
        self._front = front
        self._params = params
        self._repeatable = repeatable
        self._done = False  # the response is known, or no longer wanted
        self._request: OutgoingRequest | None = None
        self._outcome: asyncio.Future[Raw] | None = None  # a response that a coroutine continues with
        self._work: Cancellable | None = None  # the coroutine, if there is one

    def run(self) -> Coroutine[Any, Any, Raw]:
        """Return the coroutine that forwards the request."""
        return self._forwarder.run(self._front, self._params, self._repeatable)

    def start(self, threads: ThreadPool, on_done: OnDone, call: Any) -> Cancellable | None:
        """Send the request at once, or start the coroutine if that is impossible."""
        forwarder, front = self._forwarder, self._front
        guard, permit = forwarder.guard, None
        try:
            found = forwarder.find_open(front, self._params)
        except TrunklineError:
            found = None  # the coroutine raises it again
        if found is None or (guard is not None and (permit := guard.try_admit()) is None):
            return start_work(self.run(), threads, on_done, call)
        self._threads, self._on_done, self._call, self._permit = threads, on_done, call, permit
        backend, behind = self._backend, self._behind = found
        self._number = backend.enter(front)
        left = self._timeout = time_left(front)
        try:
            sent = self._sent = forwarder.outgoing_params(self._params, front, modern=behind.modern)
            self._request = behind.send_request(
                front.call.method.name,
                sent if left is None else with_time_limit(sent, left),
                timeout=left,
                on_progress=progress_callback(front),
                waiter=self,
            )
        except Exception:  # noqa: BLE001 - the coroutine raises it again
            backend.leave(self._number)
            sending = forwarder.send(backend, front, self._params, self._repeatable)
            return start_work(forwarder.finish(permit, front, sending), threads, on_done, call)
        if self._outcome is not None:  # it has failed within the sending
            self._continue(self._request, self._outcome)
        return None if self._done and self._work is None else self

    def cancel(self) -> None:
        """Cancel the request at the server behind, and end."""
        if self._work is not None:
            self._work.cancel()
        elif not self._done:
            self._done = True
            if self._request is not None:
                self._behind.cancel_request(self._request)
            self._end(None, asyncio.CancelledError())

    # --- ResponseWaiter ------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Return whether a response is no longer expected."""
        return self._done

    def exception(self) -> None:
        """Do nothing: every error is passed on."""

    def set_result(self, result: Raw) -> None:
        """Pass on a result; let a coroutine answer one that asks a client of the handshake era a question."""
        self._done = True
        front, modern, value, failed = self._front, self._behind.modern, None, None
        if modern and front.call.envelope is None and read_result_header(result).result_type != COMPLETE:
            self._settle(lambda outcome: outcome.set_result(result))
            return
        try:
            value = self._forwarder.incoming_result(front, result, modern=modern)
        except Exception as error:  # noqa: BLE001 - passed to `on_done`
            failed = error
        self._end(value, failed)

    def set_exception(self, error: Exception) -> None:
        """Let a coroutine send the request again, or raise the error."""
        self._done = True
        self._settle(lambda outcome: outcome.set_exception(error))

    # --- the end -------------------------------------------------------------------------------------------

    def _settle(self, set_outcome: "Callable[[asyncio.Future[Raw]], None]") -> None:
        outcome: asyncio.Future[Raw] = self._behind.loop.create_future()
        set_outcome(outcome)
        outcome.exception()  # mark it as retrieved: the call may be cancelled before the coroutine awaits it
        self._outcome = outcome
        if self._request is not None:
            self._continue(self._request, outcome)

    def _continue(self, request: OutgoingRequest, outcome: "asyncio.Future[Raw]") -> None:
        request.waiter, self._request = outcome, None
        self._work = start_work(
            self._resume(SentRequest(self._behind, request)), self._threads, self._on_done, self._call
        )

    async def _resume(self, first: SentRequest) -> Raw:
        forwarder, backend, front = self._forwarder, self._backend, self._front
        try:
            sending = forwarder.resume(backend, front, self._sent, self._repeatable, first, timeout=self._timeout)
            return await forwarder.finish(self._permit, front, sending)
        finally:
            backend.leave(self._number)

    def _end(self, value: Raw | None, error: BaseException | None) -> None:
        self._request = None
        self._backend.leave(self._number)
        call, guard = self._front.call, self._forwarder.guard
        if guard is not None:
            guard.leave(self._permit, call, error)
        if isinstance(error, TrunklineError):
            error = to_front_error(error, modern=call.envelope is not None)
        self._on_done(self._call, value, error)


def wanted_log_level(front: FrontCall) -> int:
    """Return the lowest log level that the client in front wants, of those that can be requested."""
    return min(front.connection.log_level_of(front.call), _HIGHEST_LEVEL)


def progress_callback(front: FrontCall) -> Callable[[ProgressParams], None] | None:
    """Return the function that passes on progress, if the client in front has asked for it."""
    return None if front.call.token is None else partial(_report_progress, front)


def time_left(front: FrontCall) -> float | None:
    """Return the seconds that are left for a call, if its client or its entry has set a limit."""
    deadline = front.call.deadline
    return max(deadline - front.connection.now(), _MIN_LEFT) if front.timed and deadline is not None else None


def _has_idempotency_key(connection: ClientConnection, params: CallToolParams) -> bool:
    return IDEMPOTENCY_KEY in (params.meta or {}) and connection.supports_idempotency_keys


def _read_urls(data: Any) -> dict[str, RawInputRequest]:
    """Return the questions that stand for the URLs in the data of an error."""
    try:
        required = convert(data, _UrlsRequired)
    except ValidationError:
        return {}
    return {
        f"url-{number}": RawInputRequest("elicitation/create", codec.to_raw({"mode": "url", **asdict(step)}))
        for number, step in enumerate(required.elicitations, 1)
    }


def _is_refused(answer: Raw) -> bool:
    """Return whether the user has not agreed to visit a URL."""
    try:
        return _decode_consent(answer).action != "accept"
    except codec.DecodeError:
        return True


def _report_progress(front: FrontCall, progress: ProgressParams) -> None:
    front.connection.report_progress(front.call, progress.progress, progress.total, progress.message)
