"""Context of a call, for handlers that declare a parameter for it.

It works the same for async handlers and for plain handlers on a thread, and in every revision. Methods that send
(progress, logs) return an awaitable, which waits while the peer reads too slowly and yields to other calls after
`_TURN_BYTES` bytes. On a thread the method itself blocks, once per `_TURN_BYTES` bytes. Methods that ask the client
(`elicit`, `sample`, `roots`) must be awaited; on a thread, `wait` does that.
"""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast, overload

import msgspec
from msgspec import UNSET

from trunkline.errors import InsufficientScope, InvalidUri, MisuseError
from trunkline.errors.text import shortened
from trunkline.protocol import types as t
from trunkline.protocol.capabilities import is_declared
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import ProgressToken
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types.logging import LOGGING_LEVELS, LoggingLevel, LoggingMessageParams
from trunkline.registry.access import is_scope
from trunkline.registry.options import from_mapping
from trunkline.server.access.rules import AccessControlled, scopes_of
from trunkline.wire import codec

if TYPE_CHECKING:
    import typing_extensions
    from typing_extensions import TypeForm

    from trunkline.http import Request
    from trunkline.rpc.threads import ThreadPool
    from trunkline.server.call_peer import CallPeer, ClientFacts
    from trunkline.server.input.ask import Asker, OnProgress
    from trunkline.server.input.forms import ElicitationAnswer
    from trunkline.server.resilience.circuit_breaker import BreakerGuard

    L_co = typing_extensions.TypeVar("L_co", covariant=True, default=Any)
else:
    L_co = TypeVar(
        "L_co", covariant=True
    )  # Python supports the default from 3.13 on; type checkers use the branch above

__all__ = ["Context", "SentMessage", "asker_and_call", "threads_of", "with_peer"]

T = TypeVar("T")

_TURN_BYTES: Final = 64 * 1024  # bytes that a handler may send before other calls run
_MESSAGE_OVERHEAD: Final = 1024  # bytes per message besides its data: at most 64 messages per turn


class SentMessage:
    """A sent message. Await it to wait while the peer reads too slowly."""

    __slots__ = ("_context",)

    def __init__(self, context: "Context") -> None:
        self._context = context

    def __await__(self) -> Generator[Any, None, None]:
        return self._context.settle().__await__()


class Context(Generic[L_co]):
    """One call, as its handler sees it. `Context[Database]` states the type of the server's lifespan value."""

    __slots__ = ("_bytes_this_turn", "_call", "_lazy_asker", "_peer")

    def __init__(self, line: "CallPeer", call: IncomingRequest) -> None:
        self._peer = line
        self._call = call
        self._bytes_this_turn = 0  # bytes sent in this turn of the loop
        self._lazy_asker: Asker | None = None

    def __repr__(self) -> str:
        call = self._call
        about = "" if call.target is None else f" of {shortened(call.target)}"
        return f"<Context: {call.method.name}{about}, request {self.request_id!r}>"

    # --- state ---------------------------------------------------------------------------------

    @property
    def request_id(self) -> int | str:
        """The id of the request."""
        named = self._call.origin.original_id
        return self._call.id if named is None else named

    @property
    def method(self) -> str:
        """The method of the request or notification, such as "tools/call"."""
        return self._call.method.name

    @property
    def session_id(self) -> int | None:
        """A number for the connection, the same for all of its calls; None where requests are independent, as over HTTP
        from 2026-07-28 on."""
        return self._peer.session_id

    @property
    def revision(self) -> Revision:
        """The revision of the specification in use."""
        return self._peer.revision_of(self._call)

    @property
    def client(self) -> "ClientFacts":
        """Name and capabilities of the client."""
        return self._peer.client_of(self._call)

    def extension(self, name: str) -> Mapping[str, Any] | None:
        """Return the settings that the client declares for an extension; None unless both sides declare it."""
        from trunkline.protocol.extensions import negotiated_settings  # imported here: few handlers ask

        return negotiated_settings(name, self._peer.catalog.capabilities(), self.client.capabilities)

    @property
    def principal(self) -> Any:
        """The verified caller: a `Principal` if the server checks tokens, the value that `identify` returned, or None
        without authentication, as on stdio."""
        return self._call.origin.principal

    @property
    def request(self) -> "Request | None":
        """The HTTP request that carried the call; for a WebSocket, its handshake. None on other transports, in tasks,
        and once the call has ended.

        If another process has received and forwarded the request, it has no other headers than `Accept`,
        `Content-Type`, `Last-Event-ID`, `Mcp-*` and those of the trace context, and no query.
        """
        origin = self._call.origin
        if origin.request is None:
            return None
        from trunkline.server.http_request import make_request

        peer = self._peer
        return make_request(origin.request, origin.headers, origin.principal, peer.lifespan, transport=peer.transport)

    def require(self, *scopes: str) -> None:
        """Raise `InsufficientScope` unless the caller has these scopes: for handlers that need them for some arguments
        only. Scopes that every call needs belong in `scopes=` at registration."""
        if invalid := [scope for scope in scopes if not is_scope(scope)]:
            raise MisuseError(f"invalid scope {invalid[0]!r}: a scope is a string without spaces and quotes")
        held = scopes_of(self.principal, local=self._peer.local)
        if held is not None and not held.issuperset(scopes):
            entry = cast("AccessControlled | None", self._call.admitted_entry)
            always = () if entry is None or entry.access is None else entry.access.scopes
            raise InsufficientScope("this request", list(dict.fromkeys((*always, *scopes))))

    @property
    def trace(self) -> Mapping[str, str]:
        """Trace context of the request: W3C's `traceparent`, `tracestate` and `baggage`, from the envelope of a request
        of 2026-07-28 or from the HTTP headers. In a task, that of the request which created it."""
        from trunkline.protocol.trace_context import stated_trace  # imported here: few handlers ask

        return stated_trace(self._call)

    @property
    def lifespan(self) -> L_co:
        """The value of the server's `lifespan`; None without one."""
        return self._peer.lifespan

    def breaker(self, name: str) -> "BreakerGuard":
        """Return a context manager around one use of a dependency: `async with ctx.breaker("database"):`, or `with` in
        a plain handler on a thread. It raises `BreakerOpen`, a refusal, while the circuit breaker of that name is
        open. `Server.breaker` configures it."""
        from trunkline.server.resilience.circuit_breaker import BreakerGuard

        return BreakerGuard(self._peer.breakers.find(name), self._call, self.wait)

    @property
    def progress_token(self) -> ProgressToken | None:
        """The progress token of the request, if the caller wants progress."""
        return self._call.token

    @property
    def deadline(self) -> float | None:
        """Seconds until the call times out; None without a limit. Progress renews it."""
        deadline = self._call.deadline
        return None if deadline is None else max(0.0, deadline - self._peer.now())

    @property
    def cancelled(self) -> bool:
        """Whether the call has ended, for example because the client cancelled it. Plain handlers poll this."""
        return self._call.done

    def raise_if_cancelled(self) -> None:
        """Raise `CancelledError` in a plain handler whose call has ended."""
        if self._call.done:
            raise asyncio.CancelledError

    # --- sending -------------------------------------------------------------------------------

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> SentMessage:
        """Report progress, if the caller wants it. Values must grow; a report renews the deadline."""
        values: tuple[Any, ...] = (progress,) if total is None else (progress, total)
        if invalid := [number for number in values if not isinstance(number, int | float) or not isfinite(number)]:
            raise MisuseError(f"progress values are finite numbers, not {invalid[0]!r}")
        on_loop = self._peer.post(partial(self._peer.progress, self._call, progress, total, message))
        return self._count_message(0 if message is None else len(message), on_loop=on_loop)

    def log(self, level: LoggingLevel, data: Any, logger: str | None = None) -> SentMessage:
        """Send a log message to the client, if the client wants that level. `data` is any JSON value."""
        if level not in LOGGING_LEVELS:
            raise MisuseError(f"log level {level!r} is not one of {', '.join(LOGGING_LEVELS)}")
        peer = self._peer
        if LOGGING_LEVELS.index(level) < peer.log_level_of(self._call):
            return self._count_message(0)
        payload = codec.to_raw(data)  # encoded now: the caller gets the error for data without JSON
        params = LoggingMessageParams(level=level, data=payload, logger=logger)
        on_loop = peer.post(partial(peer.notify, "notifications/message", params, about=self._call))
        return self._count_message(len(bytes(payload)), on_loop=on_loop)

    def debug(self, data: Any, logger: str | None = None) -> SentMessage:
        """Log at level debug."""
        return self.log("debug", data, logger)

    def info(self, data: Any, logger: str | None = None) -> SentMessage:
        """Log at level info."""
        return self.log("info", data, logger)

    def warning(self, data: Any, logger: str | None = None) -> SentMessage:
        """Log at level warning."""
        return self.log("warning", data, logger)

    def error(self, data: Any, logger: str | None = None) -> SentMessage:
        """Log at level error."""
        return self.log("error", data, logger)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> SentMessage:
        """Send a notification of a method outside of the specification to the client. It belongs to this call: from
        2026-07-28 on, it can be sent until the call has ended."""
        _check_custom_name(method)
        payload = codec.to_raw(dict(params or {}))  # encoded now: the caller gets the error for params without JSON
        on_loop = self._peer.post(partial(self._peer.notify, method, payload, about=self._call))
        return self._count_message(len(bytes(payload)), on_loop=on_loop)

    async def send_request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Send a request of a method outside of the specification to the client, and return its result. Raises
        `ClientLacksCapability` from 2026-07-28 on, where servers send no requests, and in tasks."""
        _check_custom_name(method)
        from trunkline.server.input.ask import ClientLacksCapability, RequestAsker

        if not isinstance(self._asker, RequestAsker):
            raise ClientLacksCapability(f"requests of servers, such as {method!r}")
        return await self._asker.ask(method, dict(params or {}), timeout=timeout)

    def elicitation_complete(self, elicitation_id: str) -> SentMessage:
        """Notify the client that its user has finished at a URL."""
        params = t.ElicitationCompleteParams(elicitation_id=elicitation_id)
        on_loop = True
        if self._call.envelope is None:  # modern clients poll instead
            on_loop = self._peer.post(partial(self._peer.notify, "notifications/elicitation/complete", params))
        return self._count_message(0, on_loop=on_loop)

    def _count_message(self, size: int, *, on_loop: bool = True) -> SentMessage:
        """Count a message against this turn of the loop; on a thread, block after a full turn."""
        self._bytes_this_turn += _MESSAGE_OVERHEAD + size
        if self._bytes_this_turn >= _TURN_BYTES and not on_loop:
            self._block()
        return SentMessage(self)

    async def settle(self) -> None:
        """Wait while the peer reads too slowly; after a full turn of messages, yield to other calls."""
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
        """Close the response stream of a long call, on transports that stream; the client reconnects for the rest and
        loses nothing. It has no effect before 2025-11-25, when the start of a stream has no event id to resume from,
        and from 2026-07-28 on, when the client would lose the response."""
        stream = self._call.origin.stream
        if stream is not None and Revision.V2025_11_25 <= self.revision < Revision.V2026_07_28:
            self._peer.post(stream.close_stream)

    # --- asking --------------------------------------------------------------------------------

    @property
    def _asker(self) -> "Asker":
        if self._lazy_asker is None:
            asker, fallback = self._peer.asker_of(self._call), self._peer.catalog.sampling
            if fallback is not None:
                from trunkline.server.input.fallback import (
                    FallbackAsker,
                )  # imported here: few servers sample themselves

                asker = FallbackAsker(asker, fallback, self.client.capabilities, self.once)
            self._lazy_asker = asker
        return self._lazy_asker

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
        """Ask the user with a form made from a dataclass, Struct, TypedDict, pydantic model or schema.

        A single value (`str`, `bool`, a `Literal`, an `Enum`, a list of one of the last two, …) uses a form with one
        field, `value`; the answer's data is that value. Without a type the user only confirms.

        Raises `ClientLacksCapability` if the client cannot show the form: before 2025-11-25 there are no multiple
        choices, so forms omit such a field, and one without a default is an error. With `task`, a client of 2025-11-25
        that supports it replies at once with a task, and the server fetches the answer later.
        """
        from trunkline.server.input.forms import build_form, read_answer, required_multi_select

        form = build_form(wanted)
        if self.revision < Revision.V2025_11_25 and (field := required_multi_select(form)) is not None:
            from trunkline.server.input.ask import ClientLacksCapability

            raise ClientLacksCapability(
                f"a choice of several values, which field {field!r} is; {self.revision} has none"
            )
        params = t.ElicitParams(message=message, requested_schema=form)
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
        """Send the user to a URL, for data that must not pass through the client. The answer states whether the user
        agreed."""
        import secrets

        from trunkline.registry.resources import check_uri
        from trunkline.server.input.forms import ElicitationAnswer

        try:
            check_uri(url, self._peer.settings)
        except InvalidUri as error:
            raise MisuseError(f"invalid URL for elicitation {url[:200]!r}: {error}") from None
        ident = elicitation_id or secrets.token_urlsafe(16)
        params = t.ElicitParams(message=message, mode="url", url=url, elicitation_id=ident)
        asked = self._asker.ask("elicitation/create", params, needs="elicitation.url", timeout=timeout, key=key)
        result = await asked
        return ElicitationAnswer(result.action)

    def _declares_elicitation_mode(self) -> bool:
        """`elicitation: {}` means forms; a client that names a mode supports only named ones (elicitation,
        "Capabilities")."""
        return self._client_supports("elicitation.url") or self._client_supports("elicitation.form")

    def _client_supports(self, capability: str) -> bool:
        """Return whether the client declares a capability."""
        return is_declared(self.client.capabilities, capability)

    async def sample(
        self,
        messages: "str | Sequence[t.SamplingMessage | str]",
        *,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
        model_preferences: "t.ModelPreferences | Mapping[str, Any] | None" = None,
        include_context: Literal["none", "thisServer", "allServers"] | None = None,
        temperature: float | None = None,
        stop_sequences: Sequence[str] | None = None,
        tools: "Sequence[t.Tool | str] | None" = None,
        tool_choice: "t.ToolChoice | Literal['auto', 'required', 'none'] | None" = None,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = None,
        on_progress: "OnProgress | None" = None,
        key: str | None = None,
        task: bool = False,
    ) -> "t.CreateMessageResult":
        """Ask the client's language model for the next message; if the client cannot sample, the server's own
        (`Server(sampling=…)`). Raises `MisuseError` for values out of range.

        `tools` are tools for the model: names of this server's tools, or definitions. The reply's `tool_uses` has the
        calls of the model; the very next message must answer them. `include_context` is a request: the server omits it
        for a client that does not support it.
        """
        from trunkline.server.input.sampling import check_messages, resolve_tools

        given = [messages] if isinstance(messages, str) else messages
        params = t.CreateMessageParams(
            messages=[t.SamplingMessage("user", t.TextContent(m)) if isinstance(m, str) else m for m in given],
            max_tokens=max_tokens,
            system_prompt=system_prompt,
            model_preferences=None if model_preferences is None else _parse_model_preferences(model_preferences),
            include_context=include_context if self._may_include_context() else None,
            temperature=temperature,
            stop_sequences=None if stop_sequences is None else list(stop_sequences),
            metadata=metadata,
            tools=None if tools is None else resolve_tools(tools, self._peer.catalog.tools),
            tool_choice=t.ToolChoice(tool_choice) if isinstance(tool_choice, str) else tool_choice,
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
        """Since 2025-11-25 a client declares the support (sampling, "Capabilities")."""
        return self.revision < Revision.V2025_11_25 or self._client_supports("sampling.context")

    async def roots(self, *, timeout: float | None = None, key: str | None = None) -> "list[t.Root]":
        """Ask the client for its roots."""
        result: t.ListRootsResult = await self._asker.ask("roots/list", t.Empty(), timeout=timeout, key=key)
        return result.roots

    async def once(self, key: str, function: Callable[[], Any]) -> Any:
        """Call a function, async or plain, once per request and return its value. A handler that asks the client may
        run again with the answers; earlier effects must not repeat. The value travels in the request state and returns
        as JSON: a dict for a dataclass, a list for a tuple."""
        if self._call.once is None:
            from trunkline.server.input.multi_round import EffectLog  # imported here: few handlers have effects

            earlier = self._call.input_round
            self._call.once = EffectLog({}) if earlier is None else earlier.effect_log()
        return await self._call.once.run_once(key, function)

    # --- tasks -----------------------------------------------------------------------------------

    async def checkpoint(self, value: Any) -> None:
        """Store what this task needs to resume here if its process dies: any JSON value, replacing the previous
        checkpoint. No effect for a call that is not a task."""
        await self._peer.save_checkpoint(self._call, codec.to_raw(value))

    @property
    def resumed_from(self) -> Any:
        """The last `checkpoint` of an earlier run of this task; None without one."""
        kept = self._peer.checkpoint_of(self._call)
        return None if kept is UNSET else codec.decoder(object)(kept)

    async def begin_task(self) -> None:
        """Continue as a task, for tools with `asks_first`: the client receives the task, and the handler runs once more
        as a task that has all answers so far. No effect in a task, or if the client does not support tasks."""
        await self._peer.begin_task(self._call)

    async def ping(self, *, timeout: float | None = None) -> None:
        """Check that the client responds. Raises `RequestTimeout` if it does not."""
        await self._asker.ask("ping", t.Empty(), timeout=timeout)

    def wait(self, asked: Awaitable[T]) -> T:
        """Wait, on the thread of a plain handler, for an awaitable of this context: `ctx.wait(ctx.roots())`."""
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
        except concurrent.futures.CancelledError:  # unlike this one, `except Exception` does not catch asyncio's
            raise asyncio.CancelledError from None


def with_peer(context: Context, enter: "Callable[[CallPeer], CallPeer]") -> Context:
    """Return the context of the same call with another peer: `enter` returns the peer as a mounted server sees it."""
    return Context(enter(context._peer), context._call)  # pyright: ignore[reportPrivateUsage]


def asker_and_call(context: Context) -> "tuple[Asker, IncomingRequest]":
    """Return what asks the client of a context, and the call of the context."""
    peer, call = context._peer, context._call  # pyright: ignore[reportPrivateUsage]
    return peer.asker_of(call), call


def threads_of(context: Context) -> "ThreadPool":
    """Return the threads that the plain handlers of a call run on."""
    return context._peer.threads  # pyright: ignore[reportPrivateUsage]


def _parse_model_preferences(value: "t.ModelPreferences | Mapping[str, Any]") -> "t.ModelPreferences":
    error = partial(MisuseError, kind="invalid_model_preferences")
    return from_mapping("model_preferences", t.ModelPreferences, value, error)


def _validate_sampling_params(params: "t.CreateMessageParams") -> "t.CreateMessageParams":
    """Convert the params through their type once more: values from application code are not validated elsewhere."""
    try:
        return msgspec.convert(msgspec.to_builtins(params), t.CreateMessageParams)
    except msgspec.ValidationError as error:
        raise MisuseError(f"invalid sampling parameters: {error}", kind="invalid_model_preferences") from None


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _check_custom_name(method: str) -> None:
    from trunkline.protocol.custom_methods import find_name_fault  # imported here: few handlers send such methods

    if (fault := find_name_fault(method)) is not None:
        raise MisuseError(fault)
