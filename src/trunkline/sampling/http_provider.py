"""Provider of models behind an HTTP API: sends requests, reads streamed responses, and tries again.

One call makes up to `retries + 1` requests within `timeout` seconds. An attempt is repeated if nothing of the message
had arrived and the failure may pass: a lost connection, a rate limit or an error of the server. Cancelling a call
closes its connection.

Secrets: keys and header values are `Secret`s, which have no readable repr, and texts of the provider are searched for
them. Errors are raised outside of `except` blocks, so that no traceback leads into the frames of the HTTP client, whose
locals contain the request.
"""

import asyncio
import contextlib
import logging
import random
import re
import ssl
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, cast

from trunkline.config import MIB, Secret, Settings, proxy_for
from trunkline.errors import ConfigError, MisuseError, TransportError
from trunkline.errors.options import INTEGER, MAPPING, POSITIVE, OptionKind, check_options
from trunkline.protocol.types import CreateMessageParams, CreateMessageResult
from trunkline.sampling.api_key import ApiKey, KeyUnavailable
from trunkline.sampling.message_builder import InvalidReply, MessageBuilder
from trunkline.sampling.model_choice import choose_model, parse_models
from trunkline.sampling.problems import Backoff, Cause, Problem, problem_of_status, to_error
from trunkline.sampling.provider import ProgressReporter
from trunkline.transports.http.client.http_backend import Reply, ReplyTooLarge, media_type_of, read_body
from trunkline.transports.http.client.url import HttpUrl, parse_url
from trunkline.transports.proxy import Proxy
from trunkline.wire import codec
from trunkline.wire.framing import LineFramer
from trunkline.wire.media_types import EVENT_STREAM, JSON
from trunkline.wire.sse import SseDecoder, SseEvent

if TYPE_CHECKING:
    from trunkline.transports.http.client.connection_pool import ConnectionPool

__all__ = ["HttpProvider", "ProviderOptions", "ReplyReader", "WireFormat"]

_log: Final = logging.getLogger("trunkline")
_OK: Final = 200
_MAX_ERROR_BODY: Final = 64 * 1024  # bytes
_END_GRACE: Final = 0.2  # seconds
_LONGEST_DELAY: Final = 8.0  # seconds between two attempts, unless the provider asks for more
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_MIN_SECRET: Final = 4  # characters; a shorter text is not searched for


class ReplyReader(Protocol):
    """Reads the events of one response."""

    message: MessageBuilder
    done: bool  # no further event belongs to the message

    def feed(self, event: bytes) -> Problem | None: ...
    def finish(self) -> CreateMessageResult | None: ...


class WireFormat(Protocol):
    """Translation of requests and responses, without I/O."""

    path: str  # after the base URL
    streams_lines: bool  # responses are lines of JSON; otherwise server-sent events

    def headers(self, key: str) -> dict[str, str]: ...
    def request(self, params: CreateMessageParams, model: str) -> dict[str, Any]: ...
    def reader(self, params: CreateMessageParams, model: str) -> ReplyReader: ...


class ProviderOptions(TypedDict, total=False):
    """Options that all providers share."""

    retries: int  # attempts after the first; default: 2
    retry_delay: float  # seconds before the first of them, if the provider names no time; doubled each time
    max_response_bytes: int  # size of a response; default: 16 MiB
    headers: Mapping[str, str] | None  # added to each request
    extra_body: Mapping[str, Any] | None  # members that are added to the body of each request, or replace ours
    tls: ssl.SSLContext | None  # a context with your own certificate authority
    proxy: str | None  # overrides the proxy variables of the environment


def _is_delay(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _are_headers(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    items = cast("Mapping[Any, Any]", value).items()
    return all(
        isinstance(name, str) and _HEADER_NAME.fullmatch(name) and isinstance(text, str) and text.isprintable()
        for name, text in items
    )


_OPTION_KINDS: Final[Mapping[str, OptionKind]] = {
    "timeout": POSITIVE,
    "retries": OptionKind("0 or more", lambda value: INTEGER.fits(value) and value >= 0),
    "retry_delay": OptionKind("a number of 0 or more", _is_delay),
    "max_response_bytes": OptionKind("a whole number above 0", lambda value: INTEGER.fits(value) and value > 0),
    "headers": OptionKind("a dict of header names and values", _are_headers, secret=True),
    "extra_body": MAPPING,
    "tls": OptionKind("an ssl.SSLContext", lambda value: isinstance(value, ssl.SSLContext)),
}


class HttpProvider:
    """A provider that speaks a wire format over HTTP."""

    supports_tools: bool = True

    def __init__(
        self,
        name: str,
        wire_format: WireFormat,
        model: Any,
        key: ApiKey,
        *,
        base_url: str,
        timeout: float | None,
        retries: int = 2,
        retry_delay: float = 0.5,
        max_response_bytes: int = 16 * MIB,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
    ) -> None:
        options = {
            "timeout": timeout,
            "retries": retries,
            "retry_delay": retry_delay,
            "max_response_bytes": max_response_bytes,
            "headers": headers,
            "extra_body": extra_body,
            "tls": tls,
        }
        check_options(name, options, _OPTION_KINDS, ConfigError)
        self._pool_class = _import_pool(name)
        self._name = name
        self._format = wire_format
        self._models = parse_models(model)
        if "?" in base_url or "#" in base_url:  # which may contain a secret, so the message does not show it
            raise ConfigError(f"{name}: base_url= has a query; pass a key as api_key= or in headers=")
        self._url = parse_url(f"{base_url.rstrip('/')}{wire_format.path}")
        self._key = key
        self._timeout = timeout
        self._backoff = Backoff(retries, retry_delay, max(_LONGEST_DELAY, retry_delay))
        self._max_response = max_response_bytes
        self._headers = {field: Secret(value) for field, value in (headers or {}).items()}
        self._extra_body = dict(extra_body or {})
        self._tls = tls
        self._proxy = _choose_proxy(self._url, proxy)
        self._pools: dict[asyncio.AbstractEventLoop, ConnectionPool] = {}

    def __repr__(self) -> str:
        models = ", ".join(repr(model.name) for model in self._models)
        return f"<{self._name} at {self._url.name.removesuffix(self._format.path)}: {models}>"

    async def __call__(
        self, params: CreateMessageParams, context: ProgressReporter | None = None
    ) -> CreateMessageResult:
        """Return the model's next message. Raise `SamplingFailed`, or `InvalidParams` for a request that the provider
        cannot express."""
        model = choose_model(self._models, params.model_preferences).name
        body = codec.to_json({**self._format.request(params, model), **self._extra_body})
        limit = asyncio.timeout(self._timeout)
        outcome: CreateMessageResult | Problem
        try:
            async with limit:
                outcome = await self._try_repeatedly(_Sampling(params, model, body, context), limit.when())
        except TimeoutError:
            if not limit.expired():  # an error of the function that receives progress
                raise
            outcome = Problem(Cause.TIMED_OUT, f"did not answer within {self._timeout:g} s")
        if isinstance(outcome, CreateMessageResult):
            return outcome
        _log.warning("sampling with %s (%s): %s: %s", self._name, model, outcome.summary, outcome.detail or "-")
        raise to_error(outcome, self._name)

    async def close(self) -> None:
        """Close connections that no request uses. The provider can be used again afterwards."""
        pool = self._pools.get(asyncio.get_running_loop())
        if pool is not None:
            await pool.close_idle()

    # --- attempts -------------------------------------------------------------------------------

    async def _try_repeatedly(self, sampling: "_Sampling", deadline: float | None) -> CreateMessageResult | Problem:
        attempt = 1
        while True:
            outcome = await self._try_once(sampling)
            if isinstance(outcome, CreateMessageResult):
                return outcome
            delay = self._backoff.delay(attempt, outcome, random.random())  # noqa: S311 - jitter
            if delay is None or (deadline is not None and asyncio.get_running_loop().time() + delay >= deadline):
                return outcome
            await asyncio.sleep(delay)
            attempt += 1

    async def _try_once(self, sampling: "_Sampling") -> CreateMessageResult | Problem:
        try:
            key = await self._key.read()
        except KeyUnavailable as error:
            return Problem(Cause.FAILED, "cannot be used: there is no API key", str(error))
        hide = _make_redactor([key, *self._headers.values()])
        try:
            reply = await self._pool().send("POST", self._url.url, self._request_headers(key), sampling.body)
        except TransportError as error:
            return Problem(Cause.FAILED, "cannot be reached", hide(str(error)), retryable=True)
        try:
            outcome = await self._read(reply, sampling)
        except ReplyTooLarge as error:
            outcome = Problem(Cause.FAILED, "sent a response that is too large", str(error))
        except TransportError as error:
            outcome = Problem(Cause.FAILED, "broke off its response", str(error), retryable=True)
        finally:
            reply.close()
        if isinstance(outcome, Problem):
            return Problem(
                outcome.cause,
                outcome.summary,
                hide(outcome.detail),
                outcome.retryable and not sampling.begun,
                outcome.retry_after,
            )
        return outcome

    def _request_headers(self, key: Secret) -> dict[str, str]:
        return {
            "Content-Type": JSON,
            "Accept": "application/x-ndjson" if self._format.streams_lines else EVENT_STREAM,
            "Accept-Encoding": "identity",
            **{name: Secret(value) for name, value in self._format.headers(key).items()},
            **self._headers,
        }

    def _pool(self) -> "ConnectionPool":
        """Return the connections of this event loop."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            for each in [each for each in self._pools if each.is_closed()]:
                self._pools.pop(each, None)
            pool = self._pools[loop] = self._pool_class(Settings(), tls=self._tls, proxy=self._proxy, uds=self._url.uds)
        return pool

    # --- responses ------------------------------------------------------------------------------

    async def _read(self, reply: Reply, sampling: "_Sampling") -> CreateMessageResult | Problem:
        if reply.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
            return Problem(Cause.FAILED, "sent a compressed response, although the request forbids that")
        if reply.status != _OK:
            body = b"" if reply.status < _OK else await _read_start(reply)
            return problem_of_status(reply.status, reply.headers, body, time.time())
        if not self._format.streams_lines and media_type_of(reply) != EVENT_STREAM:
            return Problem(Cause.FAILED, "did not stream its response", f"its type is {media_type_of(reply)!r}")
        try:
            return await self._read_events(reply, sampling)
        except InvalidReply as error:
            return Problem(Cause.FAILED, "sent an invalid response", str(error))

    async def _read_events(self, reply: Reply, sampling: "_Sampling") -> CreateMessageResult | Problem:
        reader = self._format.reader(sampling.params, sampling.model)
        limit, received = self._max_response, 0
        split = _make_splitter(limit, lines=self._format.streams_lines)
        async for data in reply.chunks():
            received += len(data)
            if received > limit:
                raise ReplyTooLarge(f"it is larger than {limit} bytes (max_response_bytes)")
            problem = _feed(reader, split(data))
            sampling.report(reader.message)
            if problem is not None:
                return problem
            if reader.done:
                await _wait_for_end(reply)
                break
        else:
            if self._format.streams_lines and (problem := _feed(reader, split(b"\n"))) is not None:
                return problem
        message = reader.finish()
        return message or Problem(Cause.FAILED, "broke off its response", "it ended before the message was complete")


class _Sampling:
    """One call: its request, and the progress of its message."""

    __slots__ = ("_context", "_reported", "begun", "body", "model", "params")

    def __init__(self, params: CreateMessageParams, model: str, body: bytes, context: ProgressReporter | None) -> None:
        self.params = params
        self.model = model
        self.body = body
        self.begun = False  # some of the message has arrived
        self._context = context
        self._reported = 0

    def report(self, message: MessageBuilder) -> None:
        """Report progress: the number of characters so far, and the new text."""
        text = message.take_new_text()
        if message.size > self._reported:
            self.begun = True
            self._reported = message.size
            if self._context is not None:
                self._context.progress(message.size, None, text or None)


def _feed(reader: ReplyReader, events: list[bytes]) -> Problem | None:
    for event in events:
        if (problem := reader.feed(event)) is not None:
            return problem
        if reader.done:
            break
    return None


def _make_splitter(limit: int, *, lines: bool) -> Callable[[bytes], list[bytes]]:
    """Return a function that splits a response into events. None is too large: the response as a whole has the same
    limit."""
    if lines:
        framer = LineFramer(limit)
        return lambda data: [frame for frame in framer.feed(data) if isinstance(frame, bytes)]
    decoder = SseDecoder(limit)
    return lambda data: [event.data for event in decoder.feed(data) if isinstance(event, SseEvent) and event.data]


async def _wait_for_end(reply: Reply) -> None:
    """Wait a moment for the end of a complete response, so that its connection can be used again."""
    with contextlib.suppress(TimeoutError, TransportError):
        async with asyncio.timeout(_END_GRACE):
            async for _ in reply.chunks():
                pass


async def _read_start(reply: Reply) -> bytes:
    """Read an error's body, as far as it is of interest."""
    try:
        return await read_body(reply, _MAX_ERROR_BODY)
    except ReplyTooLarge:
        return b""


def _make_redactor(secrets: list[Secret]) -> Callable[[str], str]:
    """Return a function that removes secrets from a text of the provider, which may quote the request."""
    searched = sorted((secret for secret in secrets if len(secret) >= _MIN_SECRET), key=len, reverse=True)

    def hide(text: str) -> str:
        for secret in searched:
            text = text.replace(secret, "…")
        return text

    return hide


def _choose_proxy(url: HttpUrl, given: str | None) -> Secret | None:
    """Return the address of the proxy, which may contain a password. Raise `ConfigError` if it is invalid."""
    proxy = proxy_for(url.url) if given is None and url.uds is None else given
    if proxy is None:
        return None
    Proxy(proxy)
    return Secret(proxy)


def _import_pool(name: str) -> "type[ConnectionPool]":
    try:
        from trunkline.transports.http.client.connection_pool import ConnectionPool
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        raise MisuseError(f"{name} needs the library {library}: pip install 'trunkline[http]'") from error
    return ConnectionPool
