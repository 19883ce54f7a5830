"""A peer names the page that a browser opens (CVE-2025-6514), and any page may send the redirect back."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.attacks.oauth_login import login
from tests.attacks.raw import Caller, request, within

from trunkline.auth import Headless, LoopbackBrowser, MemoryTokens, Redirected
from trunkline.auth.client.browser import open_page
from trunkline.auth.client.interaction import Interaction
from trunkline.errors import AuthorizationFailed

HOSTILE = [
    *("javascript:alert(1)", "JavaScript:alert(1)//", "file:///etc/passwd", "data:text/html,<script>", "vbscript:x"),
    *("$(calc)", "a:$(calc)?", '" & calc', "`id`", "; id", "| id", "-private", "--help", "-url x", "/bin/sh", "calc.exe"),
    *("http://login.example/authorize", "http://169.254.169.254/", "HTTP://evil.example", "ftp://evil.example/"),
    *("https://evil.example/\r\nx", "https://evil.example/\x00", "https://evil.example/ -x", "https://evil.example/\x1b[2J"),
    *("https://user:pass@evil.example/", "https:evil.example", "https:///x", "\\\\evil.example\\share", "ms-msdt:/id"),
    *("https://evil.example\\..\\calc.exe", "search-ms:query=x", "shell:startup", "", " https://evil.example/", "chrome://x"),
    *("https://evil.example/\ncalc", "\thttps://evil.example/", "smb://evil.example/x", "blob:https://evil.example/x"),
]  # fmt: skip
SHELLISH = [  # web pages whose addresses a shell would interpret
    "https://login.example/$(touch$IFS'owned')",
    "https://login.example/?a=`touch${IFS}owned`&b=;touch%20owned|c>owned&calc",
    "https://login.example/?%PATH%^&'touch'\"owned\"*{a,b}~!",
]


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A browser program on the PATH that records its arguments."""
    program = tmp_path / "browser"
    program.write_text(
        f"#!/bin/sh\nprintf '%s\\0' \"$@\" > '{tmp_path}/new' && mv '{tmp_path}/new' '{tmp_path}/argv'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(program))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "argv"


async def test_forged_page_reaches_no_browser(browser: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **_: started.append(args) or SimpleNamespace(wait=lambda: 0))
    monkeypatch.setattr(os, "system", started.append)
    async with login() as one:
        interactions: list[Interaction] = [
            LoopbackBrowser(),
            Headless(read=lambda: ""),
            Redirected("http://127.0.0.1:1/callback", one.person),
        ]
        for named, interaction in zip(HOSTILE, cycle(interactions), strict=False):
            one.authority.metadata["authorization_endpoint"] = named
            error = await one.fails(one.engine(interaction=interaction, store=MemoryTokens()))
            assert error.hop in {"authorization-server-metadata", "authorization"}, named
        assert (started, one.person.shown, browser.exists()) == ([], [], False)


async def test_page_url_is_one_argument(browser: Path) -> None:
    for url in HOSTILE:
        with suppress(AuthorizationFailed):
            await open_page(url)
        assert not browser.exists(), url
    for url in SHELLISH:
        assert await open_page(url) is None
        assert browser.read_bytes() == url.encode() + b"\0"
        browser.unlink()
    assert sorted(path.name for path in browser.parent.iterdir()) == ["browser"]


# --- the redirect listener ---------------------------------------------------------------------------

PAGE = "https://login.example/authorize?state=the-state"
GOOD = "code=good&state=the-state"


@asynccontextmanager
async def waiting() -> AsyncIterator[tuple[int, "asyncio.Future[str]"]]:
    """A login that waits for its redirect: the port and the login's future."""
    shown = asyncio.Event()

    async def open_(_: str) -> None:
        shown.set()

    async with LoopbackBrowser(open_page=open_).waiting() as desk:
        coming = asyncio.ensure_future(desk.visit(PAGE))
        await shown.wait()
        try:
            yield urlsplit(desk.redirect_uri).port or 0, coming
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def response_to(port: int, method: str, path: str, body: bytes | None = None, **headers: str | None) -> bytes:
    async with Caller(port) as caller:
        caller.say(request(method, path, body, **{"host": f"127.0.0.1:{port}", **headers}))
        return await caller.rest()


async def test_only_the_matching_callback_counts() -> None:
    async with waiting() as (port, coming):
        evil = "/callback?code=injected"
        visits: list[tuple[str, str, dict[str, str | None]]] = [
            ("GET", evil, {}),
            ("GET", f"{evil}&state=", {}),
            ("GET", f"{evil}&state=guessed", {}),
            ("GET", f"{evil}&state=the-state&state=guessed", {}),
            ("GET", "/callback?error=access_denied", {}),
            ("GET", "/?code=injected&state=the-state", {}),
            ("GET", f"http://evil.example{evil}&state=the-state", {}),
            ("POST", f"{evil}&state=the-state", {"origin": "https://evil.example"}),
            ("PUT", f"{evil}&state=the-state", {}),
            ("GET", f"{evil}&state=the-state", {"host": "evil.example"}),
            ("GET", f"{evil}&state=the-state", {"host": f"evil.example:{port}"}),
            ("GET", f"{evil}&state=the-state", {"host": f"127.0.0.1.evil.example:{port}"}),
            ("GET", f"{evil}&state=the-state", {"host": None}),
        ]
        for method, path, headers in visits:
            answer = await response_to(port, method, path, b"" if method != "GET" else None, **headers)
            assert answer.split(b" ")[1] in {b"400", b"404", b"405", b"421"}, (path, headers)
            assert b"injected" not in answer
            assert b"Access-Control" not in answer
            assert not coming.done(), (path, headers)
        assert (await response_to(port, "GET", f"/callback?{GOOD}")).startswith(b"HTTP/1.1 200")
        assert (await within(coming, "the person")).endswith(GOOD)


@asynccontextmanager
async def many_clients(port: int, says: bytes) -> AsyncIterator[list[Caller]]:
    """Many clients that connect and stay."""
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(Caller(port)) for _ in range(40)]
        for caller in callers:
            caller.say(says)
        yield callers


async def test_oversized_callback_is_not_read() -> None:
    async with (
        waiting() as (port, coming),
        many_clients(port, b"GET /callback?" + b"x" * 40_000) as callers,
    ):  # and no end
        for caller in callers:
            await caller.rest()
        assert not coming.done()


async def test_connection_flood_does_not_block_callback() -> None:
    async with waiting() as (port, coming), many_clients(port, b"GET /callback?"):
        assert (await response_to(port, "GET", f"/callback?{GOOD}")).startswith(b"HTTP/1.1 200")
        assert (await within(coming, "the person")).endswith(GOOD)


async def test_callback_server_is_not_reachable_from_outside() -> None:
    async with waiting() as (port, _):
        found: list[str] = []
        for address in ("127.0.0.2", "127.1.1.1"):  # it would find listeners on all addresses, too
            with suppress(OSError, AssertionError):
                async with Caller(port, host=address):
                    found.append(address)
        assert found == []
