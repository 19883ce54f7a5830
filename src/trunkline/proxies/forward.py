"""Requests that pass through a proxy: from a client in front to the server behind it, and the result back.

Arguments and results stay encoded, and neither is validated: the server behind does the one, the client in front the
other. A request keeps its metadata, but for its progress token and its deadline, which are those of one hop. If the
client cancels a request, disconnects or has waited long enough, the request is cancelled at the server behind.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from msgspec import Raw, Struct, ValidationError, convert
from msgspec.structs import asdict, replace

from trunkline.client.connection import ClientConnection
from trunkline.client.multi_round import RawInputRequest
from trunkline.client.retry import Repeatable, always_repeatable, never_repeatable
from trunkline.errors import NotNow, PeerError, TrunklineError
from trunkline.protocol.capabilities import restrict_to_revision
from trunkline.protocol.inflight import IncomingRequest
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
    CompleteParams,
    GetPromptParams,
    Implementation,
    ProgressParams,
    ReadResourceParams,
)
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION
from trunkline.proxies.backend import Backend, FrontCall
from trunkline.proxies.backends import Backends
from trunkline.proxies.errors import to_front_error
from trunkline.proxies.questions import Dialogues, ask_in_rounds
from trunkline.proxies.results import ENVELOPE_KEYS, HOP_KEYS, input_required, to_handshake, to_modern, without_keys
from trunkline.proxies.task_owners import TaskOwners
from trunkline.server.access.owner_id import principal_name
from trunkline.server.connection import Connection
from trunkline.server.features.tools import ToolDisabled
from trunkline.server.input.multi_round import canonical_params
from trunkline.wire import codec

__all__ = ["Forwarder", "ForwardingPolicy", "RequestGuard"]

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

    async def run(self, call: IncomingRequest, start: Callable[[], Coroutine[Any, Any, Raw]]) -> Raw:
        """Return the result of a request, or raise to refuse it. `start` sends it; its errors are raised as they are,
        those of the server behind as `PeerError`."""
        ...


class ForwardingPolicy(Struct, frozen=True, kw_only=True):
    """Limits of the requests that a proxy forwards."""

    timeout: float | None = None  # seconds for a request, in all; None: as its client and the settings say
    retries: bool = True  # whether a lost request is sent again if that has no further effect
    guard: RequestGuard | None = None


class Forwarder:
    """Forwards the requests of all clients in front of a proxy."""

    def __init__(self, info: Implementation, state_lifetime: float, policy: ForwardingPolicy) -> None:
        self._policy = policy
        self.backends: Backends | None = None  # while the proxy is started
        self.blocked: Mapping[str, str] = {}  # reasons, by the names of tools; a call may have waited since its lookup
        self.dialogues = Dialogues(state_lifetime)
        self.task_owners = TaskOwners()
        self._server_info = codec.to_raw(info)
        self._envelopes: WeakKeyDictionary[Connection, dict[str, Any]] = WeakKeyDictionary()

    # --- for entries of the catalog ------------------------------------------------------------------

    def tool(self, name: str, *, repeatable: bool) -> Callable[..., Any]:
        """Return the function that forwards the calls of a tool. `repeatable`: a second call has no further effect."""
        may_repeat = always_repeatable if repeatable else _has_idempotency_key

        def forward(connection: Connection, call: IncomingRequest, params: CallToolParams, arguments: Any) -> Any:
            if params.name != name or params.arguments is not arguments:
                params = replace(params, name=name, arguments=arguments)
            return self.forward(connection, call, params, may_repeat)

        return forward

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
    ) -> Coroutine[Any, Any, Raw]:
        """Forward a request; return its result in the form of the client's era. Raises its error as it is."""
        policy = self._policy
        if policy.timeout is not None and (call.deadline is None or call.deadline > connection.now() + policy.timeout):
            connection.set_call_timeout(call, policy.timeout)
        if not policy.retries:
            repeatable = never_repeatable
        timed = call.deadline is not None  # by the client or its entry; otherwise each hop has its default
        return self._forward(FrontCall(connection, call, timed), params, repeatable)

    async def _forward(self, front: FrontCall, params: Any, repeatable: Repeatable) -> Raw:
        call, guard = front.call, self._policy.guard
        try:
            if guard is None:
                return await self._send_on_own_connection(front, params, repeatable)
            return await guard.run(call, lambda: self._send_on_own_connection(front, params, repeatable))
        except TrunklineError as error:
            raise to_front_error(error, modern=call.envelope is not None) from None

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
        return await self._send(backend, front, params, repeatable)

    async def _send(self, backend: Backend, front: FrontCall, params: Any, repeatable: Repeatable) -> Raw:
        connection, call = front.connection, front.call
        modern, next_params = backend.modern, None
        number = backend.enter(front)
        try:
            if modern and call.envelope is None:
                next_params = partial(ask_in_rounds, front)
            elif not modern:
                await backend.set_log_level(min(connection.log_level_of(call), _HIGHEST_LEVEL))
            meta = self._outgoing_meta(params.meta, front, modern=modern)
            if meta is not params.meta:
                params = replace(params, meta=meta)
            reply = await backend.send(
                call.method.name,
                params,
                repeatable=repeatable,
                timeout=_time_left(front),
                on_progress=None if call.token is None else partial(_report_progress, front),
                next_params=next_params,
            )
        finally:
            backend.leave(number)
        if (principal := call.origin.principal) is not None and (reply.is_task or getattr(params, "task", None)):
            self.task_owners.note(reply.raw, principal_name(principal))
        return self._incoming_result(call, connection, reply.raw, modern=modern)

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

    def _incoming_result(self, call: IncomingRequest, connection: Connection, result: Raw, *, modern: bool) -> Raw:
        if call.envelope is not None:
            return result if modern else to_modern(call.method.name, result, self._server_info)
        return to_handshake(call.method.name, result, connection.session.effective_revision) if modern else result

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
            dialogue.start(self._send(dialogue.backend, front, plain, repeatable))
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


def _time_left(front: FrontCall) -> float | None:
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
