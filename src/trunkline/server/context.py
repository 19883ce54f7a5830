"""What a handler sees of the call that it answers. It is made only for handlers that ask for it.

Everything here works the same for async handlers and for plain ones on a thread, and in every revision. What is
told (progress, logs) returns something to await, which waits while the peer reads too slowly and, after `_TURN` bytes,
gives the other calls of the loop a turn. On a thread the call itself waits, once per `_TURN` bytes. What is asked
(`elicit`, `sample`, `roots`) must be awaited; on a thread, `wait` does that.
"""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, overload

import msgspec
from msgspec import UNSET

from trunkline.errors import InsufficientScope, InvalidUri, MisuseError
from trunkline.errors.text import shortened
from trunkline.protocol.capabilities import is_declared
from trunkline.protocol.extensions import negotiated_settings
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import ProgressToken
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import (
    LOGGING_LEVELS,
    CreateMessageParams,
    CreateMessageResult,
    ElicitationCompleteParams,
    ElicitParams,
    Empty,
    ListRootsResult,
    LoggingLevel,
    LoggingMessageParams,
    ModelPreferences,
    Root,
    SamplingMessage,
    TextContent,
    Tool,
    ToolChoice,
)
from trunkline.registry.access import is_scope
from trunkline.registry.options import from_mapping
from trunkline.registry.resources import check_uri
from trunkline.server.access.rules import AccessControlled, scopes_of
from trunkline.server.call_peer import CallPeer, ClientFacts
from trunkline.server.input.ask import Asker, ClientLacksCapability, OnProgress
from trunkline.server.input.multi_round import EffectLog
from trunkline.wire import codec

if TYPE_CHECKING:
    import typing_extensions
    from typing_extensions import TypeForm

    from trunkline.server.input.forms import ElicitationAnswer

    L_co = typing_extensions.TypeVar("L_co", covariant=True, default=Any)
else:
    L_co = TypeVar("L_co", covariant=True)  # its default is for type checkers: Python has them from 3.13 on

__all__ = ["ClientFacts", "Context", "SentMessage"]

T = TypeVar("T")

_TURN_BYTES: Final = 64 * 1024  # bytes that a handler may send before the loop turns to other calls
_MESSAGE_OVERHEAD: Final = 1024  # bytes that a message counts for besides its data: 64 messages at most in one turn


class SentMessage:
    """A message that a handler has sent. Await it to wait while the peer reads too slowly."""

    __slots__ = ("_context",)

    def __init__(self, context: "Context") -> None:
        self._context = context

    def __await__(self) -> Generator[Any, None, None]:
        return self._context.settle().__await__()


class Context(Generic[L_co]):
    """One call, from the inside. `Context[Database]` says of which type the server's lifespan value is."""

    __slots__ = ("_asker", "_bytes_this_turn", "_call", "_peer")

    def __init__(self, line: CallPeer, call: IncomingRequest) -> None:
        self._peer = line
        self._call = call
        self._bytes_this_turn = 0  # bytes sent in this turn of the loop
        self._asker: Asker = line.asker_of(call)

    def __repr__(self) -> str:
        call = self._call
        about = "" if call.target is None else f" of {shortened(call.target)}"
        return f"<Context: {call.method.name}{about}, request {self.request_id!r}>"

    # --- facts ---------------------------------------------------------------------------------

    @property
    def request_id(self) -> int | str:
        """The id of the request."""
        named = self._call.origin.original_id
        return self._call.id if named is None else named

    @property
    def session_id(self) -> int | None:
        """A number for the connection, the same for all of its calls; None where each call stands for itself, as over
        HTTP from 2026-07-28 on."""
        return self._peer.session_id

    @property
    def revision(self) -> Revision:
        """The revision of the specification that is spoken."""
        return self._peer.revision_of(self._call)

    @property
    def client(self) -> ClientFacts:
        """Who calls."""
        return self._peer.client_of(self._call)

    def extension(self, name: str) -> Mapping[str, Any] | None:
        """What the client says of an extension that both sides have; None if one of them has not."""
        return negotiated_settings(name, self._peer.catalog.capabilities(), self.client.capabilities)

    @property
    def principal(self) -> Any:
        """Who was verified to call: a `Principal` if the server checks tokens, what `identify` gave if it was told how
        to find out, and None where nobody was asked to prove anything, as on stdio."""
        return self._call.origin.principal

    def require(self, *scopes: str) -> None:
        """Raises `InsufficientScope` unless the caller has these scopes: for handlers that need them for some arguments
        only. What they always need is said by `scopes=`, where they are registered."""
        if strange := [scope for scope in scopes if not is_scope(scope)]:
            raise MisuseError(f"{strange[0]!r} is no scope, which is a text without spaces and quotes")
        held = scopes_of(self.principal, local=self._peer.local)
        if held is not None and not held.issuperset(scopes):
            entry: AccessControlled | None = self._call.admitted_entry
            always = () if entry is None or entry.access is None else entry.access.scopes
            raise InsufficientScope("this request", list(dict.fromkeys((*always, *scopes))))

    @property
    def trace(self) -> Mapping[str, str]:
        """What the request says of the trace that it is part of: W3C's `traceparent`, `tracestate` and `baggage`."""
        envelope = self._call.envelope
        return {} if envelope is None else envelope.trace

    @property
    def lifespan(self) -> L_co:
        """What the server's `lifespan` gave; None without one."""
        return self._peer.lifespan

    @property
    def progress_token(self) -> ProgressToken | None:
        """The token under which the caller wants to hear of progress."""
        return self._call.token

    @property
    def deadline(self) -> float | None:
        """Seconds left until the call is given up; None without a limit. Progress renews it."""
        deadline = self._call.deadline
        return None if deadline is None else max(0.0, deadline - self._peer.now())

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more. Plain handlers look here now and then."""
        return self._call.done

    def raise_if_cancelled(self) -> None:
        """Ends a plain handler whose answer nobody waits for."""
        if self._call.done:
            raise asyncio.CancelledError

    # --- telling -------------------------------------------------------------------------------

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> SentMessage:
        """Reports progress, if the caller asked for it. It must grow; it also renews the deadline."""
        told: tuple[Any, ...] = (progress,) if total is None else (progress, total)
        if strange := [number for number in told if not isinstance(number, int | float) or not isfinite(number)]:
            raise MisuseError(f"progress is told in numbers, not {strange[0]!r}")
        on_loop = self._peer.post(partial(self._peer.progress, self._call, progress, total, message))
        return self._count_message(0 if message is None else len(message), on_loop=on_loop)

    def log(self, level: LoggingLevel, data: Any, logger: str | None = None) -> SentMessage:
        """Sends a log message to the client, if it wants to hear of that level. `data` is any JSON."""
        if level not in LOGGING_LEVELS:
            raise MisuseError(f"log level {level!r} is not one of {', '.join(LOGGING_LEVELS)}")
        line = self._peer
        if LOGGING_LEVELS.index(level) < line.log_level_of(self._call):
            return self._count_message(0)
        said = codec.to_raw(data)  # as it is now; and what has no JSON is told here, to whoever gave it
        params = LoggingMessageParams(level=level, data=said, logger=logger)
        on_loop = line.post(partial(line.notify, "notifications/message", params, about=self._call))
        return self._count_message(len(bytes(said)), on_loop=on_loop)

    def debug(self, data: Any, logger: str | None = None) -> SentMessage:
        """Logs at level debug."""
        return self.log("debug", data, logger)

    def info(self, data: Any, logger: str | None = None) -> SentMessage:
        """Logs at level info."""
        return self.log("info", data, logger)

    def warning(self, data: Any, logger: str | None = None) -> SentMessage:
        """Logs at level warning."""
        return self.log("warning", data, logger)

    def error(self, data: Any, logger: str | None = None) -> SentMessage:
        """Logs at level error."""
        return self.log("error", data, logger)

    def elicitation_complete(self, elicitation_id: str) -> SentMessage:
        """Tells the client that its user is done at a URL."""
        params = ElicitationCompleteParams(elicitation_id=elicitation_id)
        on_loop = True
        if self._call.envelope is None:  # later clients find out by asking again
            on_loop = self._peer.post(partial(self._peer.notify, "notifications/elicitation/complete", params))
        return self._count_message(0, on_loop=on_loop)

    def _count_message(self, size: int, *, on_loop: bool = True) -> SentMessage:
        """Count a message against this turn of the loop; on a thread, block once a turn's worth was posted."""
        self._bytes_this_turn += _MESSAGE_OVERHEAD + size
        if self._bytes_this_turn >= _TURN_BYTES and not on_loop:
            self._block()
        return SentMessage(self)

    async def settle(self) -> None:
        """Wait while the peer reads too slowly; after a turn's worth of messages, give other calls a turn."""
        await self._peer.drain_of(self._call)()
        if self._bytes_this_turn >= _TURN_BYTES:
            self._bytes_this_turn = 0
            await asyncio.sleep(0)

    def _block(self) -> None:
        """Block the thread of a plain handler until the loop has sent its messages and the peer has read enough."""
        settling = self.settle()
        try:
            settled = asyncio.run_coroutine_threadsafe(settling, self._peer.loop)
        except RuntimeError:  # the loop is closed, and the connection with it
            settling.close()
            return
        with contextlib.suppress(concurrent.futures.CancelledError):
            settled.result()

    def close_stream(self) -> None:
        """Lets the client go, on a transport whose answers are streams, and has it come back for the rest: for calls
        that take long. Nothing is lost by that; other transports need none of it. A client of a revision before
        2025-11-25 stays, since the beginning of a stream does not tell it where to go on; so does one of 2026-07-28 or
        later, which would lose the answer."""
        stream = self._call.origin.stream
        if stream is not None and Revision.V2025_11_25 <= self.revision < Revision.V2026_07_28:
            self._peer.post(stream.close_stream)

    # --- asking --------------------------------------------------------------------------------

    @overload
    async def elicit(
        self,
        message: str,
        wanted: None = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        task: bool = False,
    ) -> "ElicitationAnswer[None]": ...
    @overload
    async def elicit(
        self,
        message: str,
        wanted: Mapping[str, Any],
        *,
        timeout: float | None = None,
        key: str | None = None,
        task: bool = False,
    ) -> "ElicitationAnswer[dict[str, Any]]": ...
    @overload
    async def elicit(
        self,
        message: str,
        wanted: "TypeForm[T]",
        *,
        timeout: float | None = None,
        key: str | None = None,
        task: bool = False,
    ) -> "ElicitationAnswer[T]": ...
    async def elicit(
        self,
        message: str,
        wanted: Any = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        task: bool = False,
    ) -> "ElicitationAnswer[Any]":
        """Asks the user by a form made of a dataclass, Struct, TypedDict or pydantic model, or of a schema.

        A single value (`str`, `bool`, a `Literal`, an `Enum`, a list of one of the last two, …) is asked for in a form
        with one field, `value`, and is the answer's data. Without a type the user only confirms.

        Raises `ClientLacks` where the client cannot show it: before 2025-11-25 there is no choice of several values,
        so that a field which is one is left out, and asking for one without a default is of no use. With `task` a
        client of 2025-11-25 that knows how answers at once that it will ask, and the answer is fetched later.
        """
        from trunkline.server.input.forms import build_form, read_answer, required_multi_select

        form = build_form(wanted)
        if self.revision < Revision.V2025_11_25 and (field := required_multi_select(form)) is not None:
            raise ClientLacksCapability(
                f"a choice of several values, which field {field!r} is; {self.revision} has none"
            )
        params = ElicitParams(message=message, requested_schema=form)
        needs = "elicitation.form" if self._declares_elicitation_mode() else None
        asked = await self._asker.ask("elicitation/create", params, needs=needs, timeout=timeout, key=key, task=task)
        return read_answer(asked, wanted)

    async def elicit_url(
        self,
        message: str,
        url: str,
        *,
        elicitation_id: str | None = None,
        timeout: float | None = None,
        key: str | None = None,
    ) -> "ElicitationAnswer[None]":
        """Sends the user to a URL, for what must not pass through the client. Says whether the user agreed to go."""
        import secrets

        from trunkline.server.input.forms import ElicitationAnswer

        try:
            check_uri(url, self._peer.settings)
        except InvalidUri as error:
            raise MisuseError(f"a user cannot be sent to {url[:200]!r}: {error}") from None
        ident = elicitation_id or secrets.token_urlsafe(16)
        params = ElicitParams(message=message, mode="url", url=url, elicitation_id=ident)
        asked = self._asker.ask("elicitation/create", params, needs="elicitation.url", timeout=timeout, key=key)
        result = await asked
        return ElicitationAnswer(result.action)

    def _declares_elicitation_mode(self) -> bool:
        """`elicitation: {}` means forms; once a mode is named, only named ones count (elicitation, "Capabilities")."""
        return self._client_supports("elicitation.url") or self._client_supports("elicitation.form")

    def _client_supports(self, capability: str) -> bool:
        """Whether the client has declared something."""
        return is_declared(self.client.capabilities, capability)

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage | str],
        *,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
        model_preferences: ModelPreferences | Mapping[str, Any] | None = None,
        include_context: Literal["none", "thisServer", "allServers"] | None = None,
        temperature: float | None = None,
        stop_sequences: Sequence[str] | None = None,
        tools: Sequence[Tool | str] | None = None,
        tool_choice: ToolChoice | Literal["auto", "required", "none"] | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        key: str | None = None,
        task: bool = False,
    ) -> CreateMessageResult:
        """Asks the client's language model for the next message. Raises `MisuseError` for values out of their range.

        `tools` are offered to the model: by the name of a tool of this server, or as they are. What the model asks of
        them is in the reply's `tool_uses`, and is answered in the very next message. `include_context` is a wish, and
        is not passed on to a client that cannot fulfil it.
        """
        from trunkline.server.input.sampling import check_messages, resolve_tools

        given = [messages] if isinstance(messages, str) else messages
        params = CreateMessageParams(
            messages=[SamplingMessage("user", TextContent(m)) if isinstance(m, str) else m for m in given],
            max_tokens=max_tokens,
            system_prompt=system_prompt,
            model_preferences=None if model_preferences is None else _parse_model_preferences(model_preferences),
            include_context=include_context if self._may_include_context() else None,
            temperature=temperature,
            stop_sequences=None if stop_sequences is None else list(stop_sequences),
            metadata=metadata,
            tools=None if tools is None else resolve_tools(tools, self._peer.catalog.tools),
            tool_choice=ToolChoice(tool_choice) if isinstance(tool_choice, str) else tool_choice,
        )
        check_messages(params.messages)
        needs = "sampling.tools" if tools is not None or tool_choice is not None else None
        return await self._asker.ask(
            "sampling/createMessage",
            _validate_sampling_params(params),
            needs=needs,
            timeout=timeout,
            on_progress=on_progress,
            key=key,
            task=task,
        )

    def _may_include_context(self) -> bool:
        """Since 2025-11-25 a client says that it can (sampling, "Capabilities")."""
        return self.revision < Revision.V2025_11_25 or self._client_supports("sampling.context")

    async def roots(self, *, timeout: float | None = None, key: str | None = None) -> list[Root]:
        """Asks where the client lets this server look."""
        result: ListRootsResult = await self._asker.ask("roots/list", Empty(), timeout=timeout, key=key)
        return result.roots

    async def once(self, key: str, function: Callable[[], Any]) -> Any:
        """What a function gives, async or plain, which is called once only: a handler that asks may be run again, with
        the answers, and what it did before must not be done twice. The value travels with the question, and comes back
        as JSON has it: a dict for a dataclass, a list for a tuple."""
        if self._call.once is None:
            self._call.once = EffectLog({})
        return await self._call.once.run_once(key, function)

    # --- tasks -----------------------------------------------------------------------------------

    async def checkpoint(self, value: Any) -> None:
        """Keeps what this task needs to go on from here, should its process die: any JSON, in place of what was kept
        before. Of a call that is no task nothing is kept."""
        await self._peer.save_checkpoint(self._call, codec.to_raw(value))

    @property
    def resumed_from(self) -> Any:
        """What was kept by `checkpoint` in an earlier run of this task; None if there was none."""
        kept = self._peer.checkpoint_of(self._call)
        return None if kept is UNSET else codec.decoder(object)(kept)

    async def begin_task(self) -> None:
        """Goes on as a task, for tools with `asks_first`: the client has its answer, and the handler is run once more
        as a task that knows all answers so far. In a task, and for a client that knows none, nothing happens."""
        await self._peer.begin_task(self._call)

    async def ping(self, *, timeout: float | None = None) -> None:
        """Asks whether the client is there. Raises `RequestTimeout` if it does not answer."""
        await self._asker.ask("ping", Empty(), timeout=timeout)

    def wait(self, asked: Awaitable[T]) -> T:
        """Waits, on the thread of a plain handler, for what an async one would await: `ctx.wait(ctx.roots())`."""
        loop = self._peer.loop
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            if asyncio.iscoroutine(asked):
                asked.close()  # it will never be awaited
            raise MisuseError("ctx.wait() is for plain handlers on a thread; an async handler awaits")
        try:
            return asyncio.run_coroutine_threadsafe(_as_coroutine(asked), loop).result()
        except concurrent.futures.CancelledError:  # an `except Exception` would take it for an error, and go on
            raise asyncio.CancelledError from None


def _parse_model_preferences(value: ModelPreferences | Mapping[str, Any]) -> ModelPreferences:
    error = partial(MisuseError, kind="invalid_model_preferences")
    return from_mapping("model_preferences", ModelPreferences, value, error)


def _validate_sampling_params(params: CreateMessageParams) -> CreateMessageParams:
    """The params, once more through their type: what a program builds is checked by nobody else."""
    try:
        return msgspec.convert(msgspec.to_builtins(params), CreateMessageParams)
    except msgspec.ValidationError as error:
        raise MisuseError(f"this cannot be sampled: {error}", kind="invalid_model_preferences") from None


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
