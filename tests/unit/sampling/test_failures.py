"""Failures of providers: statuses, rate limits, lost connections, half-sent streams, timeouts and cancellation."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.unit.sampling.model_server import DIALECTS, KEY, Dialect, Exchange, Step, Turn, Use, asked, serving

from trunkline import Client, Context, PeerError, Server
from trunkline.errors import (
    ModelNotAvailable,
    SamplingFailed,
    SamplingRateLimited,
    SamplingTimeout,
)

EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS, ids=[each.name for each in DIALECTS])
HELLO = Turn(["Hello, ", "you."])


def status(code: int, kind: str = "", **headers: str) -> Callable[[Exchange], None]:
    """Answer with an error."""
    return lambda exchange: exchange.respond(
        code, exchange.server.dialect.error(kind, f"the reason of {KEY}"), **headers
    )


def killed(exchange: Exchange) -> None:
    exchange.hang_up()


def send_beginning(exchange: Exchange) -> None:
    """Send the events of a message up to its first text."""
    exchange.begin_stream()
    for piece in exchange.events(HELLO):
        exchange.send_chunk(piece)
        if b"Hello" in piece:
            break


def half_sent(exchange: Exchange) -> None:
    """Send the first text of a message, and lose the connection."""
    send_beginning(exchange)
    exchange.write(b"5\r\nda")
    exchange.server.loop.call_soon(exchange.hang_up)


def ended_early(exchange: Exchange) -> None:
    """End the response properly, but without the end of the message."""
    send_beginning(exchange)
    exchange.send_chunk(b"")


def silent(exchange: Exchange) -> None:
    """Never answer."""


def stalled(exchange: Exchange) -> None:
    """Send half of a message, and nothing more."""
    send_beginning(exchange)


async def failure(dialect: Dialect, *steps: Step, attempts: int = 1, **options: Any) -> SamplingFailed:
    """Return the error of a request, after so many attempts."""
    async with serving(dialect, *steps) as model:
        provider = model.provider(**options)
        with pytest.raises(SamplingFailed) as caught:
            await provider(asked())
        assert len(model.exchanges) == attempts
        await provider.close()
    return caught.value


@pytest.mark.row("S16")
@pytest.mark.parametrize(
    ("answer", "error", "attempts"),
    [
        (status(500), SamplingFailed, 3),
        (status(503), SamplingFailed, 3),
        (status(529, "overloaded_error"), SamplingFailed, 3),
        (status(400, "invalid_request_error"), SamplingFailed, 1),
        (status(401, "authentication_error"), SamplingFailed, 1),
        (status(404, "not_found_error"), ModelNotAvailable, 1),
        (status(408), SamplingTimeout, 3),
        (status(429, retry_after="0"), SamplingRateLimited, 3),
        (status(429, x_should_retry="false"), SamplingRateLimited, 1),
        (status(500, x_should_retry="false"), SamplingFailed, 1),
        (killed, SamplingFailed, 3),
        (half_sent, SamplingFailed, 1),
        (ended_early, SamplingFailed, 1),
    ],
)
@EVERY_DIALECT
async def test_failure_has_its_kind_and_attempts(
    dialect: Dialect, answer: Step, error: type[SamplingFailed], attempts: int
) -> None:
    raised = await failure(dialect, answer, attempts=attempts)
    assert type(raised) is error
    assert raised.code == -32603
    assert raised.data["kind"] == error.kind


@EVERY_DIALECT
@pytest.mark.parametrize("fault", [status(500), status(429, retry_after="0"), status(429, retry_after_ms="1"), killed])
async def test_attempt_after_fault_succeeds(dialect: Dialect, fault: Step) -> None:
    async with serving(dialect, fault, fault, HELLO) as model:
        provider = model.provider()
        assert (await provider(asked())).text == "Hello, you."
        assert len(model.exchanges) == 3
        await provider.close()


async def test_unreachable_provider_fails() -> None:
    async with serving(DIALECTS[0], HELLO) as model:
        pass
    provider = model.provider()  # whose server has closed
    with pytest.raises(SamplingFailed, match="OpenAI cannot be reached"):
        await provider(asked())


@pytest.mark.row("S16")
async def test_rate_limit_beyond_budget_is_not_waited_for() -> None:
    error = await failure(DIALECTS[1], status(429, retry_after="3600"))
    assert isinstance(error, SamplingRateLimited)
    assert error.retry_after == 3600
    assert error.data == {"kind": "sampling_rate_limited", "retryAfterMs": 3_600_000}


async def test_retry_waits_as_long_as_provider_asks() -> None:
    times: list[float] = []

    def limited(exchange: Exchange) -> None:
        times.append(exchange.server.loop.time())
        exchange.respond(429, {}, retry_after_ms="250")

    async with serving(DIALECTS[0], limited, limited, HELLO) as model:
        provider = model.provider()
        await provider(asked())
        await provider.close()
    assert times[1] - times[0] >= 0.25


@pytest.mark.row("S16")
@pytest.mark.parametrize("fault", [silent, stalled])
@EVERY_DIALECT
async def test_slow_provider_times_out_and_is_disconnected(dialect: Dialect, fault: Step) -> None:
    async with serving(dialect, fault) as model:
        with pytest.raises(SamplingTimeout, match=f"{dialect.name} did not answer within 0.2 s") as caught:
            await model.provider(timeout=0.2)(asked())
        assert isinstance(caught.value, TimeoutError)
        for exchange in model.exchanges:
            await asyncio.wait_for(exchange.ended.wait(), PATIENCE)


@pytest.mark.parametrize("fault", [silent, stalled])
@EVERY_DIALECT
async def test_cancellation_closes_the_request(dialect: Dialect, fault: Step) -> None:
    async with serving(dialect, fault) as model:
        call = asyncio.create_task(model.provider()(asked()))
        await asyncio.wait_for(model.arrived.wait(), PATIENCE)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(model.exchanges[0].ended.wait(), PATIENCE)


async def test_cancelled_sampling_request_closes_the_http_request() -> None:
    server = Server("t", observers=[])

    @server.tool
    async def ask(ctx: Context) -> str:
        sampling = asyncio.create_task(ctx.sample("Hi"))
        await model.arrived.wait()
        sampling.cancel()
        await model.exchanges[0].ended.wait()
        return "closed"

    async with serving(DIALECTS[0], silent) as model:
        client = Client(server, sampling=model.provider(), revision="2025-11-25")
        async with asyncio.timeout(PATIENCE), client:
            assert (await client.call_tool("ask")).data == "closed"


@EVERY_DIALECT
async def test_response_size_is_bounded(dialect: Dialect) -> None:
    def endless(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.send_chunk(b"x" * 2000)

    error = await failure(dialect, endless, max_response_bytes=1000)
    assert error.message == f"{dialect.name} sent a response that is too large"


@EVERY_DIALECT
async def test_size_of_error_is_bounded(dialect: Dialect) -> None:
    error = await failure(dialect, lambda exchange: exchange.respond(400, b"x" * 100_000))
    assert (error.message, error.detail) == (f"{dialect.name} failed (HTTP 400)", "")


@pytest.mark.parametrize("place", ["", "http://127.0.0.1:1/other"])
@EVERY_DIALECT
async def test_redirect_is_not_followed(dialect: Dialect, place: str) -> None:
    async with serving(dialect, HELLO) as other:
        target = place or f"{other.url}/elsewhere"
        error = await failure(dialect, lambda exchange: exchange.respond(307, b"", Location=target))
        assert other.exchanges == []
    assert error.message == f"{dialect.name} answered HTTP 307"


@EVERY_DIALECT
async def test_invalid_event_fails(dialect: Dialect) -> None:
    def talk_nonsense(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.send_chunk(b"data: {]\n\n" if dialect.media_type == "text/event-stream" else b"{]\n")

    assert (await failure(dialect, talk_nonsense)).message == f"{dialect.name} sent an invalid response"


@pytest.mark.parametrize("last", [b'{"error": "out of memory"}', b'{"done": true}'])
async def test_last_line_may_lack_its_end(last: bytes) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.send_chunk(b'{"message": {"content": "x"}}\n' + last)
        exchange.send_chunk(b"")

    if b"error" in last:
        assert (await failure(DIALECTS[2], answer)).detail == "out of memory"
        return
    async with serving(DIALECTS[2], answer) as model:
        provider = model.provider()
        assert (await provider(asked())).text == "x"
        await provider.close()


async def test_response_that_does_not_end_costs_only_its_connection() -> None:
    def answer(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.send_chunk(b"".join(exchange.events(HELLO)))
        exchange.send_chunk(b": a comment\n\n")

    async with serving(DIALECTS[0], answer) as model:
        assert (await model.provider()(asked())).text == "Hello, you."
        await asyncio.wait_for(model.exchanges[0].ended.wait(), PATIENCE)


async def test_response_without_stream_fails() -> None:
    error = await failure(DIALECTS[0], lambda exchange: exchange.respond(200, {"choices": []}))
    assert error.message == "OpenAI did not stream its response"


async def test_compressed_response_fails() -> None:
    error = await failure(DIALECTS[0], lambda exchange: exchange.respond(200, b"x", Content_Encoding="gzip"))
    assert "compressed" in error.message


@EVERY_DIALECT
async def test_error_within_stream_fails(dialect: Dialect) -> None:
    def complain(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.send_chunk(dialect.error_event("rate_limit_error", "slow down"))
        exchange.send_chunk(b"")

    limited = dialect.name != "Ollama"  # whose errors are texts
    error = await failure(dialect, complain, attempts=3 if limited else 1)
    assert isinstance(error, SamplingRateLimited) is limited
    assert error.detail == "slow down"


@EVERY_DIALECT
async def test_error_after_text_is_not_retried(dialect: Dialect) -> None:
    def complain(exchange: Exchange) -> None:
        send_beginning(exchange)
        exchange.send_chunk(dialect.error_event("overloaded_error", "busy"))

    assert (await failure(dialect, complain)).detail == "busy"


async def test_arguments_that_are_not_json_fail() -> None:
    def call(exchange: Exchange) -> None:
        events = exchange.events(Turn((), [Use("add", {"a": 1})], "toolUse"))
        exchange.begin_stream()
        exchange.send_chunk(b"".join(events).replace(json.dumps('{"a').encode(), json.dumps("[").encode()))

    error = await failure(DIALECTS[0], call)
    assert "'add'" in error.detail


@pytest.mark.row("S16")
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (status(500), "sampling_failed"),
        (silent, "sampling_timeout"),
        (status(404), "model_not_available"),
        (status(429), "sampling_rate_limited"),
    ],
)
async def test_server_receives_kind_without_details(answer: Step, kind: str) -> None:
    server, raised = Server("t", observers=[]), list[PeerError]()

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            await ctx.sample("Hi")
        except PeerError as error:
            raised.append(error)
        return ""

    async with serving(DIALECTS[0], answer) as model:
        provider = model.provider(timeout=0.2 if answer is silent else PATIENCE, retries=0)
        async with asyncio.timeout(PATIENCE), Client(server, sampling=provider, revision="2025-11-25") as client:
            await client.call_tool("ask")
    (error,) = raised
    assert (error.code, error.data["kind"]) == (-32603, kind)
    assert "the reason" not in f"{error} {error.data}"
