"""Asking a client of the modern era: by answering its request with questions, and running the handler again.

The client sends the request once more, with the answers. What was answered in earlier rounds, and what a handler did
that must not be done twice, travels with it: as a state that only we can make, and that fits this one request alone.
Questions that a handler asks at once are asked in one round.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw, Struct

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
from trunkline.transports.channel import ChannelInfo
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.connection import Connection
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
"""Parameters of requests that may be answered with questions."""

_ELICIT: Final = "elicitation/create"
_URL_ELICITATION: Final = "elicitation.url"
INPUT_CAPABILITIES: Final = ("elicitation", "sampling", "roots")  # what a client declares that can be asked something
_SETTLE_TURNS: Final = 3  # turns of the loop, in which a handler may ask something else as well


class _State(Struct):
    """What is known from earlier rounds."""

    answers: dict[str, Raw] = {}
    effects: dict[str, Raw] = {}


_decode_state: Final = codec.decoder(_State)
_decode_elicit_result: Final = codec.decoder(ElicitResult)


class Round:
    """One run of a handler, and what it has been told."""

    __slots__ = (
        "_call",
        "_connection",
        "_counts",
        "_params",
        "_pending",
        "_state",
        "_turns_left",
        "_used_keys",
        "_waiters",
    )

    def __init__(
        self, connection: "Connection", call: IncomingRequest, state: _State, params: MultiRoundParams
    ) -> None:
        self._connection = connection
        self._call = call
        self._state = state
        self._params = params
        self._counts: dict[str, int] = {}
        self._used_keys: set[str] = set()  # names of questions, in this run
        self._pending: dict[str, InputRequest] = {}  # those without an answer
        self._waiters: list[asyncio.Future[Raw]] = []  # who waits for one
        self._turns_left = 0

    # --- questions -----------------------------------------------------------------------------

    def question_key(self, key: str | None, method: str) -> str:
        """The name of a question: what the handler calls it, or else which one of its kind it is. Raises `MisuseError`
        for one that was asked before: its answer is known, and would be the same for ever."""
        if key is None:
            number = self._counts[method] = self._counts.get(method, 0) + 1
            key = f"{method}-{number}"
        if key in self._used_keys:
            raise MisuseError(f"two questions of one call are both named {key!r}")
        self._used_keys.add(key)
        return key

    def known_answer(self, key: str) -> Raw | None:
        """What was answered to a question, if anything."""
        return self._state.answers.get(key)

    async def ask(self, key: str, request: InputRequest) -> Raw:
        """Asks, and never comes back: the answer finds another run of the handler, and this one is cancelled."""
        self._pending[key] = request
        waiting: asyncio.Future[Raw] = self._connection.loop.create_future()
        self._waiters.append(waiting)
        if not self._turns_left:
            self._turns_left = _SETTLE_TURNS
            self._answer_when_settled()
        return await waiting

    def _answer_when_settled(self) -> None:
        if self._turns_left:
            self._turns_left -= 1
            self._connection.loop.call_soon(self._answer_when_settled)
            return
        try:
            self._connection.reply_now(self._call, self.input_required(self._pending), "input_required")
        except Exception as error:  # noqa: BLE001 - too large a state, for one
            self._connection.fail_now(self._call, error)
        for waiting in self._waiters:  # a plain handler waits on its thread, where nothing else would end it
            waiting.cancel()

    def input_required(self, questions: dict[str, InputRequest]) -> InputRequiredResult:
        """Questions, as the answer to the request."""
        expires = self._connection.shared.wall_clock.now() + self._connection.settings.state_lifetime
        sealed = self.sealer.seal(codec.to_json(self._state), self.request_binding(), expires)
        return InputRequiredResult(input_requests=questions, request_state=sealed)

    def require_urls(self, required: UrlElicitationRequired) -> InputRequiredResult | ProtocolError:
        """What answers a handler that cannot go on until the user has been to some places: the way there. It is an
        error if the client cannot show it, or if the user does not want to go."""
        envelope = self._call.envelope
        if envelope is not None and not is_declared(envelope.capabilities, _URL_ELICITATION):
            return MissingCapability(_URL_ELICITATION)
        places = {f"url {step['url']}": step for step in required.data["elicitations"]}
        try:
            choices = [
                _decode_elicit_result(answer) for key in places if (answer := self.known_answer(key)) is not None
            ]
        except codec.DecodeError as error:
            return InvalidParams(f"inputResponses: no answer to {_ELICIT}: {error}")
        if any(choice.action != "accept" for choice in choices):
            return required
        return self.input_required(
            {
                key: InputRequest(_ELICIT, {"mode": "url", "message": step["message"], "url": step["url"]})
                for key, step in places.items()
            }
        )

    @property
    def has_asked(self) -> bool:
        """Whether this run has come to questions that it has no answers to."""
        return bool(self._pending)

    @property
    def earlier_rounds(self) -> tuple[Mapping[str, Raw], Mapping[str, Raw]]:
        """What was answered in earlier rounds, and what was done that must not be done twice."""
        return self._state.answers, self._state.effects

    @property
    def sealer(self) -> "StateSealer":
        """What makes states, on this line."""
        return self._connection.shared.state_tokens.for_channel(self._connection.channel.info)

    def request_binding(self) -> bytes:
        """What a state belongs to: this request of this caller, and no other."""
        from trunkline.server.input.state_token import request_binding

        return request_binding(
            principal_name(self._call.origin.principal), self._call.method.name, canonical_params(self._params)
        )


class EffectLog:
    """What a call does that must not be done twice, by the names that its handler gives."""

    __slots__ = ("_locks", "_results", "_save")

    def __init__(self, results: dict[str, Raw], save: Callable[[str, Raw], Awaitable[None]] | None = None) -> None:
        """`keep` is told of each thing that is done, before anybody may rely on it."""
        self._results = results
        self._save = save
        self._locks: dict[str, asyncio.Lock] = {}

    async def run_once(self, key: str, function: Callable[[], Any]) -> Any:
        """What a function gave, now or earlier; each time the same, as JSON has it."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._results:
                value: Any = function()
                done = codec.to_raw(await value if isawaitable(value) else value)
                if self._save is not None:
                    await self._save(key, done)
                self._results[key] = done
        return codec.decoder(object)(self._results[key])


def begin_round(connection: "Connection", call: IncomingRequest, params: MultiRoundParams) -> None:
    """Readies a request that carries an envelope for being answered with questions. Raises `InvalidParams` for a state
    that is none of ours, or of another request."""
    known = _State({}, {})
    current = call.input_round = Round(connection, call, known, params)
    if params.request_state is not None:
        earlier = _decode_state(
            current.sealer.open(params.request_state, current.request_binding(), connection.shared.wall_clock.now())
        )
        known.answers, known.effects = earlier.answers, earlier.effects
    if params.input_responses:
        known.answers.update(params.input_responses)
    call.once = EffectLog(known.effects)


def to_modern_outcome(call: IncomingRequest, error: BaseException) -> InputRequiredResult | BaseException:
    """What a client of the modern era is told where a handler ends like that: what it lacks or got wrong is an error of
    the request, and where its user has to go is a question."""
    if isinstance(error, UrlElicitationRequired) and call.input_round is not None:
        return call.input_round.require_urls(error)
    return to_modern_error(error)


def to_modern_error(error: BaseException) -> BaseException:
    """What a client of the modern era is told of an error: what it lacks or got wrong is one of its request."""
    if isinstance(error, ClientLacksCapability) and error.capability.partition(".")[0] in INPUT_CAPABILITIES:
        return MissingCapability(error.capability)
    return InvalidParams(error.message) if isinstance(error, InvalidInputResponse) else error


def canonical_params(params: MultiRoundParams) -> bytes:
    """What a request asks: its parameters without what changes from round to round."""
    match params:
        case CallToolParams(name=name, arguments=arguments):
            asked: Any = [name, _comparable_arguments(codec.original_json(arguments))]
        case GetPromptParams(name=name, arguments=arguments):
            asked = [name, arguments]
        case ReadResourceParams(uri=uri):
            asked = [uri]
    return codec.to_canonical(asked)


def _comparable_arguments(arguments: Raw) -> Any:
    """Arguments as values; as they were written if one is a number that only a `Decimal` can hold."""
    try:
        return codec.decoder(object)(arguments)
    except codec.DecodeError:
        return bytes(arguments).decode()


class StateSealers:
    """What makes states: within a process that keeps the line a name for what is kept here, elsewhere all of it."""

    def __init__(self, settings: Settings, stored_keys: "StateKeyRing | None" = None) -> None:
        """`kept` are keys that outlive the process, where none are set."""
        self._settings = settings
        self._stored_keys = stored_keys
        self._sealers: dict[bool, StateSealer] = {}
        if stored_keys is not None:
            stored_keys.on_change = lambda: self._sealers.pop(True, None)

    async def load(self) -> None:
        """Gets the keys that are kept; before anything is sealed."""
        if self._stored_keys is not None:
            await self._stored_keys.load()

    async def close(self) -> None:
        """Looks for new keys no more."""
        if self._stored_keys is not None:
            await self._stored_keys.close()

    def for_channel(self, info: ChannelInfo) -> "StateSealer":
        """For a line of that kind."""
        if info.shared not in self._sealers:
            from trunkline.server.input.state_token import EncryptingSealer, InMemorySealer

            given = [key.encode() for key in self._settings.state_keys]
            keys = given if self._stored_keys is None else self._stored_keys.secrets()
            self._sealers[info.shared] = EncryptingSealer(keys) if info.shared else InMemorySealer()
        return self._sealers[info.shared]


class MultiRoundAsker:
    """Asks by answering."""

    def __init__(self, connection: "Connection", call: IncomingRequest) -> None:
        self._connection = connection
        self._call = call

    async def ask(
        self,
        name: str,
        params: Any,
        *,
        needs: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - the client takes as long as it takes
        on_progress: Any = None,  # noqa: ARG002 - there is none of what nobody works on
        key: str | None = None,
        task: bool = False,  # noqa: ARG002 - the client keeps the question anyhow
    ) -> Any:
        """The answer, if it is known by now. Raises `ClientLacks` for what the client has not declared."""
        row = find_method(name)
        if row is None or row.result is None or row.capability not in INPUT_CAPABILITIES:
            raise ClientLacksCapability(name)
        if self._call.input_round is None or self._call.envelope is None:
            raise MisuseError(f"{name} cannot be asked here: {self._call.method.name} is answered without questions")
        for path in (row.capability, needs):
            if path is not None and not is_declared(self._call.envelope.capabilities, path):
                raise ClientLacksCapability(path)
        current: Round = self._call.input_round
        own = current.question_key(key, name)
        answer = current.known_answer(own)
        if answer is None:
            answer = await current.ask(own, InputRequest(name, codec.to_raw(project(params, Revision.V2026_07_28))))
        try:
            return lenient.read(row.result, answer)
        except codec.DecodeError as error:
            raise InvalidInputResponse(-32602, f"inputResponses.{own} is no answer to {name}: {error}") from None
