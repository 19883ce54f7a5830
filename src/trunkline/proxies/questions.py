"""Questions of the server behind a proxy: elicitation, sampling and roots, passed to the client in front.

| front | behind | how |
| --- | --- | --- |
| handshake | handshake | a request of the server becomes a request of the proxy on the session in front |
| modern | modern | the result that asks passes unchanged, and so does the retry that answers |
| handshake | modern | the proxy asks the client with requests, and sends the call again with the answers |
| modern | handshake | the question is the result; the retry finds the call, which waits meanwhile (`Dialogue`) |
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from trunkline.client.connection import ClientConnection
from trunkline.client.multi_round import RawInputRequest
from trunkline.errors import BadAnswer, CapabilityNotSupported, ConnectionClosed, InternalError, PeerError
from trunkline.protocol.capabilities import Capabilities, is_declared
from trunkline.protocol.client_envelope import read_result_header
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import progress_token
from trunkline.protocol.types import INPUT_REQUIRED, ProgressParams
from trunkline.proxies.backend import Backend, FrontCall
from trunkline.proxies.errors import exact_error
from trunkline.server.connection import Connection
from trunkline.server.input.state_token import InvalidRequestState
from trunkline.wire import codec

__all__ = [
    "AskOne",
    "Dialogue",
    "Dialogues",
    "answer_by_request",
    "answer_questions",
    "ask_in_calls",
    "ask_in_rounds",
]

_MAX_SUSPENDED: Final = 1000  # calls that wait for the answers of their clients; the oldest is cancelled
_PROGRESS_TOKEN: Final = b'"progressToken"'
_as_object: Final = codec.json_decoder(dict[str, Any])
_ELICITATION: Final = "elicitation/create"
_ELICITATION_ID: Final = "elicitationId"  # of a URL, up to 2025-11-25
_NEEDED: Final = {"sampling/createMessage": "sampling", "roots/list": "roots"}  # capabilities of clients, by method


class _InputRequired(Struct, rename="camel"):
    input_requests: dict[str, RawInputRequest] = field(default_factory=dict[str, RawInputRequest])
    request_state: str | None = None


_decode_input_required: Final = codec.decoder(_InputRequired)

AskOne = Callable[[str, RawInputRequest], Coroutine[Any, Any, Raw]]
"""Asks the client in front a question with a key, and returns its answer."""


def _check_client(capabilities: Capabilities, method: str, params: Raw | dict[str, Any]) -> None:
    """Raise `CapabilityNotSupported` if a client must not be asked: not every server looks at what clients declare."""
    needed = _NEEDED.get(method)
    if method == _ELICITATION:
        declared: Any = capabilities.get("elicitation")
        has_modes = is_declared(capabilities, "elicitation.form") or is_declared(capabilities, "elicitation.url")
        mode = (params if isinstance(params, dict) else _as_object(params)).get("mode", "form")
        implied = declared is not None and not has_modes and mode == "form"
        needed = "elicitation" if implied else f"elicitation.{mode}"
    if needed is not None and not is_declared(capabilities, needed):
        raise CapabilityNotSupported(method, needed)


# --- handshake in front --------------------------------------------------------------------------


async def answer_by_request(backend: Backend, connection: ClientConnection, call: IncomingRequest, params: Raw) -> Raw:
    """Answer a request of the server with a request to the client in front, on the session that the connection
    belongs to. While the client answers, no call of the session times out."""
    front = backend.front
    if front is None:
        raise InternalError("this connection of the proxy belongs to no client")
    latest, passed, on_progress = backend.latest_call(), params, None
    if bytes(params).find(_PROGRESS_TOKEN) >= 0:
        passed = _as_object(params)
        call.token = progress_token(passed.get("_meta"))
        on_progress = _progress_relay(connection, call)
    waiting = [one.call for one in backend.calls.values()]
    for one in waiting:
        front.suspend_call(one, suspended=True)
    try:
        with backend.deadlines_suspended(connection):
            return await _ask(front, None if latest is None else latest.call, call.method.name, passed, on_progress)
    finally:
        for one in waiting:
            front.suspend_call(one, suspended=False)


async def ask_in_calls(
    front: FrontCall, _connection: ClientConnection, name: str, params: Any, result: Raw, _round: int
) -> Any:
    """Ask the client in front the questions in a result of the modern era; return the params of the next round."""

    def ask(_key: str, question: RawInputRequest) -> Coroutine[Any, Any, Raw]:
        return _ask(front.connection, front.call, question.method, _with_elicitation_id(question))

    return await ask_in_rounds(ask, name, params, result)


async def ask_in_rounds(ask: AskOne, name: str, params: Any, result: Raw) -> Any:
    """Ask the questions in a result of the modern era; return the params of the next round."""
    if read_result_header(result).result_type != INPUT_REQUIRED:
        raise BadAnswer(name, "unexpected result type")
    required = _decode_input_required(result)
    answers = await answer_questions(ask, required.input_requests)
    return replace(params, input_responses=answers or None, request_state=required.request_state)


async def answer_questions(ask: AskOne, questions: Mapping[str, RawInputRequest]) -> dict[str, Raw]:
    """Ask questions at the same time; return the answers by their keys."""
    try:
        async with asyncio.TaskGroup() as group:
            asked = {key: group.create_task(ask(key, question)) for key, question in questions.items()}
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return {key: task.result() for key, task in asked.items()}


def _with_elicitation_id(question: RawInputRequest) -> Raw | dict[str, Any]:
    """Return the params of a question of the modern era for a client of the handshake era, where a URL has an id."""
    if question.method != _ELICITATION:
        return question.params
    params = _as_object(question.params)
    return {_ELICITATION_ID: secrets.token_urlsafe(12), **params} if params.get("mode") == "url" else question.params


async def _ask(
    front: Connection,
    about: IncomingRequest | None,
    name: str,
    params: Any,
    on_progress: Callable[[ProgressParams], None] | None = None,
) -> Raw:
    """Send a request to the client in front; return its result, or raise its error as it is."""
    agreed = front.session.negotiated
    _check_client({} if agreed is None else agreed.client, name, params)
    timeout = front.settings.person_timeout  # the server behind decides how long it waits
    try:
        return await front.request(name, params, about=about, timeout=timeout, on_progress=on_progress)
    except PeerError as error:
        raise exact_error(error) from None
    except ConnectionClosed as error:
        raise InternalError("the client of the proxy has disconnected") from error


def _progress_relay(connection: ClientConnection, call: IncomingRequest) -> Callable[[ProgressParams], None]:
    return lambda params: connection.report_progress(call, params.progress, params.total, params.message)


# --- modern in front, handshake behind -------------------------------------------------------------


class _Question(Struct, eq=False):
    request: RawInputRequest
    answer: "asyncio.Future[Raw]"


class Dialogue:
    """A call of a modern client on a connection of the handshake era, which serves no other call meanwhile.

    Each round of the client sees it until it asks or ends. Between two rounds it is suspended.
    """

    def __init__(self, backend: Backend, front: FrontCall, binding: Any, on_end: Callable[[], object]) -> None:
        """`binding` identifies the request, in all of its rounds. `on_end` releases the connection."""
        self.backend = backend
        self.front = front
        self.binding = binding
        self._questions: dict[str, _Question] = {}
        self._asked = asyncio.Event()
        self._count = 0
        self._work: asyncio.Task[Raw] | None = None
        self._on_end = on_end

    def start(self, work: Coroutine[Any, Any, Raw]) -> None:
        """Run the call."""
        self._work = asyncio.get_running_loop().create_task(work)
        self._work.add_done_callback(self._ended)

    def _ended(self, work: "asyncio.Task[Raw]") -> None:
        if not work.cancelled():
            work.exception()  # retrieved by `next_outcome`, if the client still waits
        self._on_end()

    def cancel(self) -> None:
        """Cancel the call at the server."""
        if self._work is not None:
            self._work.cancel()

    async def ask(self, connection: ClientConnection, call: IncomingRequest, params: Raw) -> Raw:
        """Return the client's answer to a question of the server, once a round has brought it."""
        method, envelope = call.method.name, self.front.call.envelope
        _check_client({} if envelope is None else envelope.capabilities, method, params)
        self._count += 1
        question = _Question(
            RawInputRequest(method, _without_elicitation_id(method, params)), connection.loop.create_future()
        )
        key = f"{method}-{self._count}"
        self._questions[key] = question
        self._asked.set()
        try:
            with self.backend.deadlines_suspended(connection):
                return await question.answer
        finally:
            self._questions.pop(key, None)

    def continue_round(self, front: FrontCall, answers: Mapping[str, Raw]) -> None:
        """Continue with the answers of the client's next round. A question without an answer is asked again."""
        self.front.connection, self.front.call = front.connection, front.call
        for key, answer in answers.items():
            question = self._questions.pop(key, None)
            if question is not None and not question.answer.done():
                question.answer.set_result(answer)
        if not self._questions:
            self._asked.clear()

    async def next_outcome(self) -> Raw | dict[str, RawInputRequest]:
        """Wait until the call has ended or asks; return its result or its questions."""
        work = self._work
        if work is None:
            raise InternalError("the call was not started")
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait([work, asked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        return work.result() if work.done() else {key: one.request for key, one in self._questions.items()}


def _without_elicitation_id(method: str, params: Raw) -> Raw:
    """Return the params of a question of the handshake era for a client of the modern era, where a URL has no id."""
    if method != _ELICITATION:
        return params
    members = _as_object(params)
    return params if members.pop(_ELICITATION_ID, None) is None else codec.to_raw(members)


class Dialogues:
    """Suspended calls, by the state that their clients send back. They are in the memory of this process."""

    def __init__(self, lifetime: float) -> None:
        """`lifetime` are the seconds that a client has for its answer."""
        self._lifetime = lifetime
        self._suspended: dict[str, tuple[Dialogue, asyncio.TimerHandle]] = {}

    def suspend(self, dialogue: Dialogue) -> str:
        """Suspend a call until the next round; return its state."""
        if len(self._suspended) >= _MAX_SUSPENDED:
            self._expire(next(iter(self._suspended)))
        state = secrets.token_urlsafe(24)
        timer = asyncio.get_running_loop().call_later(self._lifetime, self._expire, state)
        self._suspended[state] = (dialogue, timer)
        return state

    def resume(self, state: str, binding: Any) -> Dialogue:
        """Return the suspended call of a state. Raises `InvalidRequestState` if that is not of this request."""
        dialogue, timer = self._suspended.get(state, (None, None))
        if dialogue is None or timer is None or dialogue.binding != binding:
            raise InvalidRequestState
        timer.cancel()
        del self._suspended[state]
        return dialogue

    def close(self) -> None:
        """Cancel all suspended calls."""
        for state in list(self._suspended):
            self._expire(state)

    def _expire(self, state: str) -> None:
        dialogue, timer = self._suspended.pop(state)
        timer.cancel()
        dialogue.cancel()
