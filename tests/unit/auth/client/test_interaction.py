"""The user's way to a login page and back: real sockets, real requests, a user who is a coroutine."""

import asyncio
import contextlib
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from tests.contract.connections import turns, until
from tests.limits import PATIENCE
from tests.ports import held_port

from trunkline import Settings
from trunkline.auth.client import loopback
from trunkline.auth.client.interaction import Redirected
from trunkline.auth.client.loopback import LoopbackBrowser
from trunkline.auth.client.terminal_login import Headless
from trunkline.errors import AuthorizationFailed, ConfigError

PAGE = "https://login.example/authorize?client_id=c&state=st%2Bate"
BACK = "code=abc&state=st%2Bate"


async def response_to(port: int, request: str) -> str:
    """The response to a request, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode("latin-1"))
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


def asks(uri: str, query: str = BACK, *, method: str = "GET", host: str | None = None, path: str | None = None) -> str:
    parts = urlsplit(uri)
    return f"{method} {path or parts.path}?{query} HTTP/1.1\r\nHost: {host or parts.netloc}\r\nCookie: a=b\r\n\r\n"


async def login_with_requests(
    *requests: Callable[[str], str], page: str = PAGE, **options: object
) -> tuple[str, str, list[str]]:
    """One login with these requests, one after the other: the redirect URI, the authorization response, the responses."""
    answers: list[str] = []

    async def open_page(url: str) -> None:
        assert url == page
        running.append(asyncio.ensure_future(browse()))

    async def browse() -> None:
        for request in requests:
            answers.append(await response_to(urlsplit(waiting.redirect_uri).port or 0, request(waiting.redirect_uri)))

    running: list[asyncio.Future[None]] = []
    async with asyncio.timeout(PATIENCE), LoopbackBrowser(open_page=open_page, **options).waiting() as waiting:
        came = await waiting.visit(page)
        await asyncio.gather(*running)
        return waiting.redirect_uri, came, answers


# --- with a local browser -----------------------------------------------------------------------


async def test_callback_url_is_returned_whole(capsys: pytest.CaptureFixture[str]) -> None:
    uri, came, answers = await login_with_requests(asks)
    assert uri == f"http://127.0.0.1:{urlsplit(uri).port}/callback"
    assert came == f"{uri}?{BACK}"
    head, _, body = answers[0].partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    for line in (
        "Cache-Control: no-store",
        "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
        "Referrer-Policy: no-referrer",
        "Connection: close",
    ):
        assert line in head
    assert "abc" not in answers[0]
    assert "close this page" in body
    out, err = capsys.readouterr()
    assert out == ""
    assert PAGE in err
    assert "abc" not in err


async def test_response_page_reflects_nothing() -> None:
    _, came, answers = await login_with_requests(lambda uri: asks(uri, BACK + "&error_description=<script>x</script>"))
    assert "<script>" in came
    assert "script" not in answers[0]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (lambda uri: asks(uri, path="/favicon.ico"), 404),
        (lambda uri: asks(uri, path="/"), 404),
        (lambda uri: asks(uri, path="/callback/"), 404),
        (lambda uri: asks(uri, method="POST"), 405),
        (lambda uri: asks(uri, method="HEAD"), 405),
        (lambda uri: asks(uri, host="evil.example"), 421),
        (lambda uri: asks(uri, host=f"evil.example:{urlsplit(uri).port}"), 421),
        (lambda uri: asks(uri, host="127.0.0.1"), 421),
        (lambda uri: asks(uri, host="127.0.0.1:1"), 421),
        (lambda uri: asks(uri, host=f"{urlsplit(uri).netloc}\r\nHost: {urlsplit(uri).netloc}"), 421),
        (lambda uri: f"GET /callback?{BACK} HTTP/1.1\r\n\r\n", 421),
        (lambda uri: asks(uri, "code=evil&state=other"), 400),
        (lambda uri: asks(uri, "code=evil"), 400),
        (lambda uri: asks(uri, f"{BACK}&state=other"), 400),
        (lambda uri: asks(uri, "state=" + "&a" * 200), 400),
        (lambda uri: "nonsense\r\n\r\n", 400),
        (lambda uri: "GET http://127.0.0.1/callback HTTP/1.1\r\n\r\n", 400),
        (lambda uri: "GET /callback HTTP/2.0\r\n\r\n", 400),
        (lambda uri: asks(uri, path="/callback\xe4"), 400),
        (lambda uri: f"GET /{'x' * 40_000} HTTP/1.1\r\nHost: {urlsplit(uri).netloc}", 431),
    ],
)
async def test_foreign_request_does_not_end_the_wait(request_, status: int) -> None:
    _, came, answers = await login_with_requests(request_, asks)
    assert came.endswith(f"?{BACK}")
    assert [answer.split(" ")[1] for answer in answers] == [str(status), "200"]
    assert "evil" not in answers[0]


async def test_silent_connection_does_not_end_the_wait() -> None:
    silent: list[socket.socket] = []

    def leave(uri: str) -> str:
        port = urlsplit(uri).port
        socket.create_connection(("127.0.0.1", port)).close()
        silent.append(socket.create_connection(("127.0.0.1", port)))
        return asks(uri)

    _, came, _ = await login_with_requests(leave)
    assert came.endswith(f"?{BACK}")
    with silent[0] as left:  # remaining clients get a response
        left.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert left.recv(1) == b""


async def test_incomplete_request_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "_HEAD_TIMEOUT", 0.05)
    async with LoopbackBrowser().waiting() as waiting:
        answer = await response_to(urlsplit(waiting.redirect_uri).port or 0, asks(waiting.redirect_uri)[:-2])
    assert answer.startswith("HTTP/1.1 408 ")


async def test_connection_limit_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "_MAX_CONNECTIONS", 1)
    async with LoopbackBrowser().waiting() as waiting:
        port = urlsplit(waiting.redirect_uri).port or 0
        first = asyncio.ensure_future(response_to(port, "GET"))
        await until(lambda: getattr(waiting, "_tasks"))  # noqa: B009 - the seam has none
        assert (await response_to(port, asks(waiting.redirect_uri))).startswith("HTTP/1.1 400 ")
    with contextlib.suppress(ConnectionResetError):
        assert await first == ""


async def test_localhost_host_header_is_accepted() -> None:
    _, came, _ = await login_with_requests(lambda uri: asks(uri, host=f"LocalHost:{urlsplit(uri).port}"))
    assert came.endswith(f"?{BACK}")


async def test_page_without_state_accepts_any_callback() -> None:
    _, came, _ = await login_with_requests(lambda uri: asks(uri, "code=1"), page="https://login.example/")
    assert came.endswith("?code=1")


async def test_request_before_visit_is_refused() -> None:
    async with LoopbackBrowser().waiting() as waiting:
        assert (await response_to(urlsplit(waiting.redirect_uri).port or 0, asks(waiting.redirect_uri))).startswith(
            "HTTP/1.1 400 "
        )


async def test_last_redirect_uri_is_reused_if_port_is_free() -> None:
    browser = LoopbackBrowser()
    async with browser.waiting() as first, browser.waiting(first.redirect_uri) as second:
        assert second.redirect_uri != first.redirect_uri
    async with browser.waiting(first.redirect_uri) as third:
        assert third.redirect_uri == first.redirect_uri


@pytest.mark.parametrize(
    "prefer", ["https://127.0.0.1:1/callback", "http://evil.example:80/callback", "http://[::1]:9/callback", "nonsense"]
)
async def test_foreign_redirect_uri_is_not_reused(prefer: str) -> None:
    async with LoopbackBrowser().waiting(prefer) as waiting:
        assert waiting.redirect_uri.startswith("http://127.0.0.1:")


async def test_callback_server_listens_on_loopback_only() -> None:
    async with LoopbackBrowser().waiting() as waiting:
        desk: object = waiting
        addresses = [sock.getsockname()[0] for sock in desk._server.sockets]  # type: ignore[attr-defined]
        assert addresses == ["127.0.0.1"]


async def test_callback_server_closes_after_visit() -> None:
    uri, _, _ = await login_with_requests(asks)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", urlsplit(uri).port)


async def test_registered_redirect_uri_is_fixed() -> None:
    with held_port() as port:
        uri, came, _ = await login_with_requests(asks, redirect_uri=f"http://localhost:{port}/back/here")
        assert came == f"http://localhost:{port}/back/here?{BACK}"
        async with LoopbackBrowser(redirect_uri=uri).waiting():
            with pytest.raises(AuthorizationFailed, match="the port is in use") as raised:
                async with LoopbackBrowser(redirect_uri=uri).waiting("http://127.0.0.1:9/callback"):
                    pass
    assert raised.value.hop == "authorization"


@pytest.mark.parametrize(
    "uri", ["https://127.0.0.1:1/", "http://127.0.0.1/a", "http://a.example:1/a", "http://localhost:1/?a"]
)
def test_unusable_redirect_uri_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="not a redirect URI"):
        LoopbackBrowser(redirect_uri=uri)


async def test_unfinished_login_times_out(capsys: pytest.CaptureFixture[str]) -> None:
    async def open_page(url: str) -> str:
        return "there is no screen"

    browser = LoopbackBrowser(settings=Settings(person_timeout=0.05), open_page=open_page)
    async with browser.waiting() as waiting:
        with pytest.raises(AuthorizationFailed, match=r"within 0\.05 s") as raised:
            await waiting.visit(PAGE)
    assert raised.value.hop == "authorization"
    assert "It could not be opened from here: there is no screen." in capsys.readouterr().err


async def test_slow_browser_does_not_delay_callback() -> None:
    async def open_page(url: str) -> None:
        running.append(
            asyncio.ensure_future(response_to(urlsplit(waiting.redirect_uri).port or 0, asks(waiting.redirect_uri)))
        )
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(url)

    ended: list[str] = []
    running: list[asyncio.Future[str]] = []
    async with asyncio.timeout(PATIENCE), LoopbackBrowser(open_page=open_page).waiting() as waiting:
        assert (await waiting.visit(PAGE)).endswith(BACK)
        await asyncio.gather(*running)
    assert ended == [PAGE]


# --- with a terminal, and with custom interaction -----------------------------------------------


async def test_headless_login_reads_pasted_url(capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["\n", "https://evil.example/?code=1\n", f"  http://127.0.0.1:33420/callback?{BACK} \r\n"])
    async with Headless(read=lambda: next(lines)).waiting("http://127.0.0.1:1/callback") as waiting:
        assert waiting.redirect_uri == "http://127.0.0.1:33420/callback"
        assert await waiting.visit(PAGE) == f"{waiting.redirect_uri}?{BACK}"
    out, err = capsys.readouterr()
    assert out == ""
    assert PAGE in err
    assert err.count("please paste the whole address") == 2
    assert "code=" not in err


async def test_end_of_input_fails_the_login() -> None:
    async with Headless(read=lambda: "").waiting() as waiting:
        with pytest.raises(AuthorizationFailed, match="the input ended"):
            await waiting.visit(PAGE)


async def test_error_of_reader_is_raised() -> None:
    def read() -> str:
        raise KeyError("own")

    async with Headless(read=read).waiting() as waiting:
        with pytest.raises(KeyError, match="own"):
            await waiting.visit(PAGE)


AT_A_TERMINAL = """
import asyncio
from trunkline import Settings
from trunkline.auth.client import loopback
from trunkline.auth.client.terminal_login import Headless
from trunkline.errors import AuthorizationFailed

async def main():
    async with Headless(settings=Settings(person_timeout=PATIENCE)).waiting() as waiting:
        try:
            print(await waiting.visit("https://login.example/?state=1"))
        except AuthorizationFailed as failed:
            print(failed.hop, failed)

asyncio.run(main())
"""


def at_a_terminal(patience: float, typed: bytes | None) -> str:
    """The output of a program with or without a terminal; its standard input is something else."""
    script = [sys.executable, "-c", AT_A_TERMINAL.replace("PATIENCE", str(patience))]
    master, slave = pty.openpty()
    if typed is not None:
        os.write(master, typed)
        takes = f"import fcntl, os, sys, termios; fcntl.ioctl({slave}, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
        script = [sys.executable, "-c", takes, *script]
    done = subprocess.run(
        script,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,
        pass_fds=[slave],
        timeout=PATIENCE,
    )
    os.close(master)
    os.close(slave)
    return done.stdout.decode()


def test_terminal_is_read_instead_of_stdin() -> None:
    url = "http://127.0.0.1:33420/callback?code=1&state=1"
    assert at_a_terminal(30, f"{url}\n".encode()) == f"{url}\n"


def test_missing_terminal_is_reported() -> None:
    assert "authorization there is no terminal" in at_a_terminal(30, None)


def test_waiting_terminal_does_not_block_exit() -> None:
    assert "within 0.05 s" in at_a_terminal(0.05, b"")


async def test_redirected_calls_the_function() -> None:
    async def function(url: str) -> str:
        assert url == PAGE
        return f"myapp://back?{BACK}"

    async with Redirected("myapp://back", function).waiting("other") as waiting:
        assert waiting.redirect_uri == "myapp://back"
        assert await waiting.visit(PAGE) == f"myapp://back?{BACK}"


async def test_redirected_has_the_user_timeout() -> None:
    async def slow(url: str) -> str:
        await asyncio.Event().wait()
        return ""

    async def failing(url: str) -> str:
        raise TimeoutError("its own")

    settings = Settings(person_timeout=0.05)
    async with Redirected("myapp://back", slow, settings=settings).waiting() as waiting:
        with pytest.raises(AuthorizationFailed, match=r"within 0\.05 s"):
            await waiting.visit(PAGE)
    async with Redirected("myapp://back", failing, settings=settings).waiting() as waiting:
        with pytest.raises(TimeoutError, match="its own"):
            await waiting.visit(PAGE)


@pytest.mark.row("SEC-06")
async def test_non_web_url_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async def function(url: str) -> str:
        raise AssertionError

    ways = [Redirected("myapp://back", function), Headless(read=lambda: ""), LoopbackBrowser(open_page=function)]
    for way in ways:
        async with way.waiting() as waiting:
            for url in ("javascript:alert(1)", "http://login.example/", "https://a.example/\x1b[2J"):
                with pytest.raises(AuthorizationFailed, match="login page"):
                    await waiting.visit(url)
    await turns()
    assert capsys.readouterr().err == ""
