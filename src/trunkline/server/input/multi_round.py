"""Multi-round requests: input from clients of the modern era.

The server answers a request with its questions. The client sends the request again, with the answers, and the server
runs the handler again. The `requestState` token carries the answers of earlier rounds and the results of effects that
must not happen twice; only the server can create it, and it is valid for this request alone. Questions that a handler
asks concurrently go into one round.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from msgspec import Raw, Struct

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import (
    InvalidParams,
    MissingCapability,
    MisuseError,
    ProtocolError,
    UrlElicitationRequired,
)
from trunkline.protocol import lenient
from trunkline.protocol.capabilities import is_declared
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import find_method
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import (
    CallToolParams,
    ElicitResult,
    GetPromptParams,
    InputRequest,
    InputRequiredResult,
    ReadResourceParams,
)
from trunkline.server.access.owner_id import principal_name
from trunkline.server.input.ask import ClientLacksCapability, InvalidInputResponse
from trunkline.transports.channel import Channel, ChannelInfo
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.input.state_keys import StateKeyRing
    from trunkline.server.input.state_token import StateSealer

__all__ = [
    "INPUT_CAPABILITIES",
    "EffectLog",
    "MultiRoundAsker",
    "Round",
    "StateSealers",
    "begin_round",
    "canonical_params",
    "to_modern_error",
    "to_modern_outcome",
]

MultiRoundParams = CallToolParams | GetPromptParams | ReadResourceParams
"""Parameters of the requests that a server may answer with `input_required`."""

_ELICIT: Final = "elicitation/create"
_URL_ELICITATION: Final = "elicitation.url"
INPUT_CAPABILITIES: Final = ("elicitation", "sampling", "roots")  # of clients
_SETTLE_TURNS: Final = 3  # iterations of the event loop in which a handler may ask further questions of the round


class RoundServices(Protocol):
    """Services of the server that rounds need."""

    @property
    def state_tokens(self) -> "StateSealers": ...
    @property
    def wall_clock(self) -> Clock: ...


class RoundConnection(Protocol):
    """Connection on which a round is answered."""

    channel: Channel
    settings: Settings

    @property
    def shared(self) -> RoundServices: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def reply_now(self, call: IncomingRequest, result: Any, outcome: str = "ok") -> None: ...
    def fail_now(self, call: IncomingRequest, error: BaseException) -> None: ...


class _State(Struct):
    """Answers and effects of earlier rounds, as `requestState` carries them."""

    answers: dict[str, Raw] = {}
    effects: dict[str, Raw] = {}


_decode_state: Final = codec.decoder(_State)
_decode_elicit_result: Final = codec.decoder(ElicitResult)


class _Questions:
    """The questions of one run of a handler."""

    __slots__ = ("counts", "pending", "turns_left", "used_keys", "waiters")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}  # of questions without a key of their own, by method
        self.used_keys: set[str] = set()
        self.pending: dict[str, InputRequest] = {}  # questions without an answer
        self.waiters: list[asyncio.Future[Raw]] = []
        self.turns_left = 0  # of the loop, until the questions are sent


class Round(Struct):  # a struct is made in half the time, and each modern call has one
    """One run of a handler: its questions, and the answers of earlier rounds. Most handlers ask none."""

    _connection: RoundConnection
    _call: IncomingRequest
    _params: MultiRoundParams
    _lazy_state: _State | None = None
    _lazy_questions: _Questions | None = None

    @property
    def _state(self) -> _State:
        if self._lazy_state is None:
            self._lazy_state = _State()
        return self._lazy_state

    def load_answers(self) -> None:
        """Load the answers of earlier rounds from the params. Raises `InvalidRequestState` for a state that this server
        did not create for this request."""
        params = self._params
        if params.request_state is not None:
            now = self._connection.shared.wall_clock.now()
            self._lazy_state = _decode_state(self.sealer.open(params.request_state, self.request_binding(), now))
        if params.input_responses:
            self._state.answers.update(params.input_responses)

    # --- questions -----------------------------------------------------------------------------

    @property
    def _questions(self) -> _Questions:
        if self._lazy_questions is None:
            self._lazy_questions = _Questions()
        return self._lazy_questions

    def question_key(self, key: str | None, method: str) -> str:
        """Return the key of a question: the handler's own, or else the method and a serial number. Raises `MisuseError`
        for a key that this run has used before: the second question would get the answer of the first."""
        questions = self._questions
        if key is None:
            number = questions.counts[method] = questions.counts.get(method, 0) + 1
            key = f"{method}-{number}"
        if key in questions.used_keys:
            raise MisuseError(f"two questions of one call have the key {key!r}; use different keys")
        questions.used_keys.add(key)
        return key

    def known_answer(self, key: str) -> Raw | None:
        """Return the answer to a question, if the client has sent one."""
        return self._state.answers.get(key)

    async def ask(self, key: str, request: InputRequest) -> Raw:
        """Ask a question; never returns. This run is cancelled, and the next run finds the answer."""
        questions = self._questions
        questions.pending[key] = request
        waiter: asyncio.Future[Raw] = self._connection.loop.create_future()
        questions.waiters.append(waiter)
        if not questions.turns_left:
            questions.turns_left = _SETTLE_TURNS
            self._answer_when_settled(questions)
        return await waiter

    def _answer_when_settled(self, questions: _Questions) -> None:
        if questions.turns_left:
            questions.turns_left -= 1
            self._connection.loop.call_soon(self._answer_when_settled, questions)
            return
        try:
            self._connection.reply_now(self._call, self.input_required(questions.pending), "input_required")
        except Exception as error:  # noqa: BLE001 - for example, a state that is too large
            self._connection.fail_now(self._call, error)
        for waiter in questions.waiters:  # a sync handler blocks its thread: nothing else would end it
            waiter.cancel()

    def input_required(self, questions: dict[str, InputRequest]) -> InputRequiredResult:
        """Return the result that asks the client questions."""
        expires = self._connection.shared.wall_clock.now() + self._connection.settings.state_lifetime
        sealed = self.sealer.seal(codec.to_json(self._state), self.request_binding(), expires)
        return InputRequiredResult(input_requests=questions, request_state=sealed)

    def require_urls(self, required: UrlElicitationRequired) -> InputRequiredResult | ProtocolError:
        """Return the result for a handler that needs the user to visit URLs first: a URL elicitation for each URL.
        Return an error if the client cannot show URLs, or if the user has declined."""
        envelope = self._call.envelope
        if envelope is not None and not is_declared(envelope.capabilities, _URL_ELICITATION):
            return MissingCapability(_URL_ELICITATION)
        elicitations = {f"url {step['url']}": step for step in required.data["elicitations"]}
        try:
            results = [
                _decode_elicit_result(answer) for key in elicitations if (answer := self.known_answer(key)) is not None
            ]
        except codec.DecodeError as error:
            return InvalidParams(f"inputResponses: not a result of {_ELICIT}: {error}")
        if any(result.action != "accept" for result in results):
            return required
        return self.input_required(
            {
                key: InputRequest(_ELICIT, {"mode": "url", "message": step["message"], "url": step["url"]})
                for key, step in elicitations.items()
            }
        )

    @property
    def has_asked(self) -> bool:
        """Whether this run has asked questions that have no answer yet."""
        return self._lazy_questions is not None and bool(self._lazy_questions.pending)

    @property
    def earlier_rounds(self) -> tuple[Mapping[str, Raw], Mapping[str, Raw]]:
        """The answers of earlier rounds, and the results of effects that must not happen twice."""
        return self._state.answers, self._state.effects

    def effect_log(self) -> "EffectLog":
        """Return the log of the effects of this run and of earlier rounds."""
        return EffectLog(self._state.effects)

    @property
    def sealer(self) -> "StateSealer":
        """The sealer for request states on this connection."""
        return self._connection.shared.state_tokens.for_channel(self._connection.channel.info)

    def request_binding(self) -> bytes:
        """Return what the state is bound to: this request of this principal."""
        from trunkline.server.input.state_token import request_binding

        return request_binding(
            principal_name(self._call.origin.principal), self._call.method.name, canonical_params(self._params)
        )


class EffectLog:
    """Results of a call's effects that must not happen twice, by the keys that its handler chooses."""

    __slots__ = ("_locks", "_results", "_save")

    def __init__(self, results: dict[str, Raw], save: Callable[[str, Raw], Awaitable[None]] | None = None) -> None:
        """`save` stores each new result before the handler sees it."""
        self._results = results
        self._save = save
        self._locks: dict[str, asyncio.Lock] = {}

    async def run_once(self, key: str, function: Callable[[], Any]) -> Any:
        """Return the result of a function, decoded from JSON. The function runs only if the key has no result yet."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._results:
                value: Any = function()
                result = codec.to_raw(await value if isawaitable(value) else value)
                if self._save is not None:
                    await self._save(key, result)
                self._results[key] = result
        return codec.decoder(object)(self._results[key])


def begin_round(connection: RoundConnection, call: IncomingRequest, params: MultiRoundParams) -> None:
    """Prepare a request with an envelope for multi-round input. Raises `InvalidRequestState` for a state that this
    server did not create for this request."""
    current = call.input_round = Round(connection, call, params)
    if params.request_state is not None or params.input_responses:
        current.load_answers()


def to_modern_outcome(call: IncomingRequest, error: BaseException) -> InputRequiredResult | BaseException:
    """Return what a modern client receives when a handler raises: for `UrlElicitationRequired` the questions, otherwise
    the error of `to_modern_error`."""
    if isinstance(error, UrlElicitationRequired) and call.input_round is not None:
        return cast("Round", call.input_round).require_urls(error)
    return to_modern_error(error)


def to_modern_error(error: BaseException) -> BaseException:
    """Return the error for a modern client: a missing capability or an invalid answer is an error of its request."""
    if isinstance(error, ClientLacksCapability) and error.capability.partition(".")[0] in INPUT_CAPABILITIES:
        return MissingCapability(error.capability)
    return InvalidParams(error.message) if isinstance(error, InvalidInputResponse) else error


def canonical_params(params: MultiRoundParams) -> bytes:
    """Return the canonical JSON of the parameters that are the same in every round."""
    match params:
        case CallToolParams(name=name, arguments=arguments):
            stable: Any = [name, _comparable_arguments(codec.original_json(arguments))]
        case GetPromptParams(name=name, arguments=arguments):
            stable = [name, arguments]
        case ReadResourceParams(uri=uri):
            stable = [uri]
    return codec.to_canonical(stable)


def _comparable_arguments(arguments: Raw) -> Any:
    """Return arguments as values, or as their text if one is a number that only `Decimal` can represent."""
    try:
        return codec.decoder(object)(arguments)
    except codec.DecodeError:
        return bytes(arguments).decode()


class StateSealers:
    """The sealers of a server: in memory for connections that stay in this process, encrypting for shared channels."""

    def __init__(self, settings: Settings, stored_keys: "StateKeyRing | None" = None) -> None:
        """`stored_keys` are used if the settings have no keys."""
        self._settings = settings
        self._stored_keys = stored_keys
        self._sealers: dict[bool, StateSealer] = {}
        if stored_keys is not None:
            stored_keys.on_change = lambda: self._sealers.pop(True, None)

    async def load(self) -> None:
        """Load the stored keys. Call it before any state is sealed."""
        if self._stored_keys is not None:
            await self._stored_keys.load()

    async def close(self) -> None:
        """Stop reloading the stored keys."""
        if self._stored_keys is not None:
            await self._stored_keys.close()

    def for_channel(self, info: ChannelInfo) -> "StateSealer":
        """Return the sealer for a kind of channel."""
        if info.stateless not in self._sealers:
            from trunkline.server.input.state_token import EncryptingSealer, InMemorySealer

            configured = [key.encode() for key in self._settings.state_keys]
            keys = configured if self._stored_keys is None else self._stored_keys.secrets()
            self._sealers[info.stateless] = EncryptingSealer(keys) if info.stateless else InMemorySealer()
        return self._sealers[info.stateless]


class MultiRoundAsker:
    """Requests input by answering the call with questions (modern era)."""

    def __init__(self, call: IncomingRequest) -> None:
        self._call = call

    async def ask(
        self,
        name: str,
        params: Any,
        *,
        needs: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - no request is in flight meanwhile
        on_progress: Any = None,  # noqa: ARG002 - the client reports none
        key: str | None = None,
        task: bool = False,  # noqa: ARG002 - the call has ended when the client answers
    ) -> Any:
        """Return the answer, if an earlier round has it; otherwise end the round. Raises `ClientLacksCapability`."""
        row = find_method(name)
        if row is None or row.result is None or row.capability not in INPUT_CAPABILITIES:
            raise ClientLacksCapability(name)
        if self._call.input_round is None or self._call.envelope is None:
            raise MisuseError(
                f"{name} is not possible here: {self._call.method.name} cannot be answered with questions"
            )
        for path in (row.capability, needs):
            if path is not None and not is_declared(self._call.envelope.capabilities, path):
                raise ClientLacksCapability(path)
        current = cast("Round", self._call.input_round)
        key = current.question_key(key, name)
        answer = current.known_answer(key)
        if answer is None:
            answer = await current.ask(key, InputRequest(name, codec.to_raw(project(params, Revision.V2026_07_28))))
        try:
            return lenient.read(row.result, answer)
        except codec.DecodeError as error:
            raise InvalidInputResponse(-32602, f"inputResponses.{key} is not a result of {name}: {error}") from None
