"""Asking a client of the modern era: by answering its request with questions, and running the handler again.

The client sends the request once more, with the answers. What was answered in earlier rounds, and what a handler did
that must not be done twice, travels with it: as a state that only we can make, and that fits this one request alone.
Questions that a handler asks at once are asked in one round.
"""

import asyncio
import time
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
from trunkline.protocol.capabilities import declared
from trunkline.protocol.inflight import Running
from trunkline.protocol.methods import find
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
from trunkline.server.input.ask import ClientLacks, UnfitAnswer
from trunkline.transports.channel import ChannelInfo
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.connection import Connection
    from trunkline.server.input.state_keys import SealKeys
    from trunkline.server.input.state_token import Seal

__all__ = ["ASKABLE", "Once", "Round", "RoundAsker", "Seals", "asked_by", "begin", "blamed", "ending", "named"]

Askable = CallToolParams | GetPromptParams | ReadResourceParams
"""Parameters of requests that may be answered with questions."""

_ELICIT: Final = "elicitation/create"
_URLS: Final = "elicitation.url"
ASKABLE: Final = ("elicitation", "sampling", "roots")  # what a client declares that can be asked something
_SETTLING: Final = 3  # turns of the loop, in which a handler may ask something else as well


class _State(Struct):
    """What is known from earlier rounds."""

    answers: dict[str, Raw] = {}
    effects: dict[str, Raw] = {}


_read_state: Final = codec.decoder(_State)
_read_choice: Final = codec.decoder(ElicitResult)


class Round:
    """One run of a handler, and what it has been told."""

    __slots__ = ("_asked", "_asking", "_call", "_connection", "_counts", "_known", "_params", "_pending", "_settling")

    def __init__(self, connection: "Connection", call: Running, known: _State, params: Askable) -> None:
        self._connection = connection
        self._call = call
        self._known = known
        self._params = params
        self._counts: dict[str, int] = {}
        self._asked: set[str] = set()  # names of questions, in this run
        self._pending: dict[str, InputRequest] = {}  # those without an answer
        self._asking: list[asyncio.Future[Raw]] = []  # who waits for one
        self._settling = 0

    # --- questions -----------------------------------------------------------------------------

    def key(self, given: str | None, method: str) -> str:
        """The name of a question: what the handler calls it, or else which one of its kind it is. Raises `MisuseError`
        for one that was asked before: its answer is known, and would be the same for ever."""
        if given is None:
            number = self._counts[method] = self._counts.get(method, 0) + 1
            given = f"{method}-{number}"
        if given in self._asked:
            raise MisuseError(f"two questions of one call are both named {given!r}")
        self._asked.add(given)
        return given

    def answer(self, key: str) -> Raw | None:
        """What was answered to a question, if anything."""
        return self._known.answers.get(key)

    async def ask(self, key: str, request: InputRequest) -> Raw:
        """Asks, and never comes back: the answer finds another run of the handler, and this one is cancelled."""
        self._pending[key] = request
        waiting: asyncio.Future[Raw] = self._connection.loop.create_future()
        self._asking.append(waiting)
        if not self._settling:
            self._settling = _SETTLING
            self._settle()
        return await waiting

    def _settle(self) -> None:
        if self._settling:
            self._settling -= 1
            self._connection.loop.call_soon(self._settle)
            return
        try:
            self._connection.answer(self._call, self.result(self._pending), "input_required")
        except Exception as error:  # noqa: BLE001 - too large a state, for one
            self._connection.abandon(self._call, error)
        for waiting in self._asking:  # a plain handler waits on its thread, where nothing else would end it
            waiting.cancel()

    def result(self, questions: dict[str, InputRequest]) -> InputRequiredResult:
        """Questions, as the answer to the request."""
        expires = time.time() + self._connection.settings.state_lifetime
        sealed = self.seal.seal(codec.to_json(self._known), self.bound(), expires)
        return InputRequiredResult(input_requests=questions, request_state=sealed)

    def sent_away(self, required: UrlElicitationRequired) -> InputRequiredResult | ProtocolError:
        """What answers a handler that cannot go on until the user has been to some places: the way there. It is an
        error if the client cannot show it, or if the user does not want to go."""
        envelope = self._call.envelope
        if envelope is not None and not declared(envelope.capabilities, _URLS):
            return MissingCapability(_URLS)
        places = {f"url {step['url']}": step for step in required.data["elicitations"]}
        try:
            choices = [_read_choice(answer) for key in places if (answer := self.answer(key)) is not None]
        except codec.DecodeError as error:
            return InvalidParams(f"inputResponses: no answer to {_ELICIT}: {error}")
        if any(choice.action != "accept" for choice in choices):
            return required
        return self.result(
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
    def known(self) -> tuple[Mapping[str, Raw], Mapping[str, Raw]]:
        """What was answered in earlier rounds, and what was done that must not be done twice."""
        return self._known.answers, self._known.effects

    @property
    def seal(self) -> "Seal":
        """What makes states, on this line."""
        return self._connection.shared.seals.of(self._connection.channel.info)

    def bound(self) -> bytes:
        """What a state belongs to: this request of this caller, and no other."""
        from trunkline.server.input.state_token import binding

        return binding(named(self._call.origin.principal), self._call.method.name, asked_by(self._params))


class Once:
    """What a call does that must not be done twice, by the names that its handler gives."""

    __slots__ = ("_done", "_keep", "_turns")

    def __init__(self, done: dict[str, Raw], keep: Callable[[str, Raw], Awaitable[None]] | None = None) -> None:
        """`keep` is told of each thing that is done, before anybody may rely on it."""
        self._done = done
        self._keep = keep
        self._turns: dict[str, asyncio.Lock] = {}

    async def value(self, key: str, function: Callable[[], Any]) -> Any:
        """What a function gave, now or earlier; each time the same, as JSON has it."""
        async with self._turns.setdefault(key, asyncio.Lock()):
            if key not in self._done:
                value: Any = function()
                done = codec.to_raw(await value if isawaitable(value) else value)
                if self._keep is not None:
                    await self._keep(key, done)
                self._done[key] = done
        return codec.decoder(object)(self._done[key])


def begin(connection: "Connection", call: Running, params: Askable) -> None:
    """Readies a request that carries an envelope for being answered with questions. Raises `InvalidParams` for a state
    that is none of ours, or of another request."""
    known = _State({}, {})
    current = call.round = Round(connection, call, known, params)
    if params.request_state is not None:
        earlier = _read_state(current.seal.open(params.request_state, current.bound(), time.time()))
        known.answers, known.effects = earlier.answers, earlier.effects
    if params.input_responses:
        known.answers.update(params.input_responses)
    call.once = Once(known.effects)


def ending(call: Running, error: BaseException) -> InputRequiredResult | BaseException:
    """What a client of the modern era is told where a handler ends like that: what it lacks or got wrong is an error of
    the request, and where its user has to go is a question."""
    if isinstance(error, UrlElicitationRequired) and call.round is not None:
        return call.round.sent_away(error)
    return blamed(error)


def blamed(error: BaseException) -> BaseException:
    """What a client of the modern era is told of an error: what it lacks or got wrong is one of its request."""
    if isinstance(error, ClientLacks) and error.capability.partition(".")[0] in ASKABLE:
        return MissingCapability(error.capability)
    return InvalidParams(error.message) if isinstance(error, UnfitAnswer) else error


def asked_by(params: Askable) -> bytes:
    """What a request asks: its parameters without what changes from round to round."""
    match params:
        case CallToolParams(name=name, arguments=arguments):
            asked: Any = [name, _comparable(codec.as_written(arguments))]
        case GetPromptParams(name=name, arguments=arguments):
            asked = [name, arguments]
        case ReadResourceParams(uri=uri):
            asked = [uri]
    return codec.to_canonical(asked)


def _comparable(arguments: Raw) -> Any:
    """Arguments as values; as they were written if one is a number that only a `Decimal` can hold."""
    try:
        return codec.decoder(object)(arguments)
    except codec.DecodeError:
        return bytes(arguments).decode()


def named(principal: Any) -> str:
    """A principal in letters, each of them in others; nobody in particular in none."""
    return "" if principal is None else f"{type(principal).__qualname__} {principal!r}"


class Seals:
    """What makes states: within a process that keeps the line a name for what is kept here, elsewhere all of it."""

    def __init__(self, settings: Settings, kept: "SealKeys | None" = None) -> None:
        """`kept` are keys that outlive the process, where none are set."""
        self._settings = settings
        self._kept = kept
        self._made: dict[bool, Seal] = {}
        if kept is not None:
            kept.changed = lambda: self._made.pop(True, None)

    async def load(self) -> None:
        """Gets the keys that are kept; before anything is sealed."""
        if self._kept is not None:
            await self._kept.load()

    async def close(self) -> None:
        """Looks for new keys no more."""
        if self._kept is not None:
            await self._kept.close()

    def of(self, info: ChannelInfo) -> "Seal":
        """For a line of that kind."""
        if info.shared not in self._made:
            from trunkline.server.input.state_token import Handles, Sealed

            given = [key.encode() for key in self._settings.state_keys]
            keys = given if self._kept is None else self._kept.secrets()
            self._made[info.shared] = Sealed(keys) if info.shared else Handles()
        return self._made[info.shared]


class RoundAsker:
    """Asks by answering."""

    def __init__(self, connection: "Connection", call: Running) -> None:
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
        row = find(name)
        if row is None or row.result is None or row.needs not in ASKABLE:
            raise ClientLacks(name)
        if self._call.round is None or self._call.envelope is None:
            raise MisuseError(f"{name} cannot be asked here: {self._call.method.name} is answered without questions")
        for path in (row.needs, needs):
            if path is not None and not declared(self._call.envelope.capabilities, path):
                raise ClientLacks(path)
        current: Round = self._call.round
        own = current.key(key, name)
        answer = current.answer(own)
        if answer is None:
            answer = await current.ask(own, InputRequest(name, codec.to_raw(project(params, Revision.V2026_07_28))))
        try:
            return lenient.read(row.result, answer)
        except codec.DecodeError as error:
            raise UnfitAnswer(-32602, f"inputResponses.{own} is no answer to {name}: {error}") from None
