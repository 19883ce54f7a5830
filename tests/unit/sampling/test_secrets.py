"""API keys: where they come from, and that no output contains them."""

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.unit.sampling.model_server import DIALECTS, KEY, Dialect, Exchange, Step, Turn, asked, serving

from trunkline import Client, Context, Server
from trunkline.errors import ConfigError, SamplingFailed
from trunkline.sampling import Anthropic, LMStudio, Ollama, OpenAI
from trunkline.server.crash_dump import write_dump
from trunkline.testing import RecordingObserver

EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS, ids=[each.name for each in DIALECTS])
OTHER_SECRET = "org-secret-51f0c9"
HELLO = Turn(["Hello"])


def status(code: int) -> Callable[[Exchange], None]:
    """Answer with an error that quotes the key."""
    return lambda exchange: exchange.respond(
        code, exchange.server.dialect.error("x", f"wrong key {KEY} of {OTHER_SECRET}"), retry_after="0"
    )


def complain(exchange: Exchange) -> None:
    """Begin a stream, and quote the key in an error."""
    exchange.begin_stream()
    exchange.send_chunk(exchange.server.dialect.error_event("api_error", f"wrong key {KEY}"))
    exchange.send_chunk(b"")


def quote_in_plain_text(exchange: Exchange) -> None:
    exchange.respond(500, f"<html>{KEY}</html>".encode(), Content_Type="text/html")


def quote_in_nonsense(exchange: Exchange) -> None:
    exchange.begin_stream(f"text/{KEY}")
    exchange.send_chunk(f'data: {{"{KEY}": \n\n'.encode())
    exchange.send_chunk(b"")


def redirect(exchange: Exchange) -> None:
    exchange.respond(307, b"", Location=f"http://127.0.0.1:1/?key={KEY}")


def hang_up(exchange: Exchange) -> None:
    exchange.hang_up()


FAULTS: list[Step] = [
    *(status(400), status(401), status(404), status(429), status(500)),
    *(complain, quote_in_plain_text, quote_in_nonsense, redirect, hang_up, HELLO),
]


def output_of(error: BaseException) -> Iterator[str]:
    """Everything that a program may show of an error: its text, attributes, and the locals of our frames."""
    assert error.__cause__ is None
    assert error.__context__ is None
    yield from traceback.format_exception(error)
    yield f"{error!r} {error} {error.args} {vars(error)}"
    for frame in traceback.TracebackException.from_exception(error, capture_locals=True).stack:
        if "/src/trunkline/" in frame.filename:
            yield f"{frame.name}: {frame.locals}"


@pytest.mark.parametrize("fault", FAULTS)
@EVERY_DIALECT
async def test_no_output_contains_key(
    dialect: Dialect, fault: Step, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    client_facts, server_facts = RecordingObserver(), RecordingObserver()
    server, shown = Server("t", observers=[server_facts]), list[str]()

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            shown.append(repr(await ctx.sample("Hi")))
        except Exception as error:
            shown.extend([repr(error), repr(vars(error)), *traceback.format_exception(error)])
            raise
        return ""

    async with serving(dialect, fault) as model:
        provider = model.provider(headers={"OpenAI-Organization": OTHER_SECRET})
        shown += [repr(provider), str(provider), repr(vars(provider))]
        options = {"sampling": provider, "revision": "2025-11-25", "observers": [client_facts]}
        async with asyncio.timeout(PATIENCE), Client(server, **options) as client:
            result = await client.call_tool("ask", raise_on_error=False)
            shown += [repr(result), repr(client), repr(vars(client))]
        try:
            await provider(asked())
        except SamplingFailed as error:
            shown += output_of(error)
            dump = write_dump(str(tmp_path), 1, error, {"provider": repr(provider)})
            shown.append(Path(dump).read_text("utf-8"))
        await provider.close()
        assert dialect.key_of(model.exchanges[0]) == KEY
        assert model.exchanges[0].headers["openai-organization"] == OTHER_SECRET
    shown += [repr(fact) for fact in (*client_facts.facts, *server_facts.facts)]
    shown += [f"{record.getMessage()} {record.args}" for record in caplog.records]
    everything = "\n".join(shown)
    assert len(everything) > 500
    assert KEY not in everything
    assert OTHER_SECRET not in everything
    assert KEY[:12] not in everything


# --- sources ------------------------------------------------------------------------------------


async def _later() -> str:
    return KEY


@pytest.mark.parametrize(
    "source",
    [KEY, f" {KEY}\n", lambda: KEY, _later, partial(_later)],
    ids=["text", "spaces", "plain", "async", "partial"],
)
async def test_key_is_a_text_or_a_function(source: Any) -> None:
    async with serving(DIALECTS[0], HELLO) as model:
        provider = model.provider(api_key=source)
        await provider(asked())
        await provider.close()
        assert model.exchanges[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.row("S09", "S10")
@pytest.mark.parametrize(("dialect", "variable"), [(DIALECTS[0], "OPENAI_API_KEY"), (DIALECTS[1], "ANTHROPIC_API_KEY")])
async def test_key_is_read_from_environment(dialect: Dialect, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, KEY)
    async with serving(dialect, HELLO) as model:
        provider = model.provider(api_key=None)
        await provider(asked())
        await provider.close()
        assert dialect.key_of(model.exchanges[0]) == KEY


@pytest.mark.parametrize(("provider", "variable"), [(OpenAI, "OPENAI_API_KEY"), (Anthropic, "ANTHROPIC_API_KEY")])
def test_missing_key_names_the_variable(provider: Any, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match=f"needs a key: set {variable}, or pass api_key="):
        provider("m")


@EVERY_DIALECT
async def test_empty_key_is_not_sent(dialect: Dialect) -> None:
    async with serving(dialect, HELLO) as model:
        provider = model.provider(api_key="")
        await provider(asked())
        await provider.close()
        assert dialect.key_of(model.exchanges[0]) is None
        assert "authorization" not in model.exchanges[0].headers


def _raise() -> str:
    raise RuntimeError(f"the vault says {KEY}")


@pytest.mark.parametrize("source", [_raise, lambda: 5, lambda: f"{KEY}\nx"], ids=["raises", "wrong type", "invalid"])
async def test_failing_function_for_the_key_fails_without_its_message(
    source: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(DIALECTS[0], HELLO) as model:
        with pytest.raises(SamplingFailed, match="there is no API key") as caught:
            await model.provider(api_key=source)(asked())
        assert model.exchanges == []
    assert KEY not in "".join([*output_of(caught.value), caplog.text])


@pytest.mark.parametrize("provider", [Ollama, LMStudio])
async def test_local_providers_need_no_key(provider: Any) -> None:
    assert KEY not in repr(provider("m"))


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": 5},
        {"model": []},
        {"model": 5},
        {"model": ""},
        {"timeout": 0},
        {"retries": -1},
        {"retry_delay": -1},
        {"max_response_bytes": 0},
        {"headers": {"a b": "c"}},
        {"headers": {"a": "c\n"}},
        {"headers": [("a", "b")]},
        {"extra_body": []},
        {"tls": True},
        {"base_url": "ftp://example.org"},
        {"base_url": f"https://example.org/v1?key={KEY}"},
        {"base_url": f"https://me:{KEY}@example.org"},
        {"proxy": f"socks5://me:{KEY}@example.org"},
        {"api_key": f"{KEY}\nx"},
    ],
    ids=str,
)
def test_invalid_option_is_refused_without_its_secret(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAI(**{"model": "m", "api_key": KEY, **options})
    assert "c\n" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_password_of_proxy_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{KEY}@proxy.example")
    for provider in (OpenAI("m", api_key="x"), Ollama("m", proxy=f"http://me:{KEY}@proxy.example")):
        assert KEY not in f"{provider!r} {vars(provider)}"
