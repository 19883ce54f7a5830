"""Login from a terminal, with a browser on any machine."""

import asyncio
import os
import sys
from asyncio import AbstractEventLoop, Future
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from threading import Thread
from typing import Final

from trunkline.auth.client.browser import check_login_url
from trunkline.auth.client.interaction import Waiting, print_to_user, wait_for_user
from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed

__all__ = ["Headless"]

_DEFAULT_REDIRECT_URI: Final = (
    "http://127.0.0.1:33420/callback"  # no server listens there: the user copies the URL from the browser
)
_PROMPT: Final = """To log in, open this page in any browser:

    {url}

At the end the browser is sent to an address that begins with {back}
and that it may not be able to open. Paste that whole address here:"""


class Headless:
    """Prints the URL of the login page, and reads the callback URL from the terminal or from `read`."""

    def __init__(
        self,
        *,
        redirect_uri: str = _DEFAULT_REDIRECT_URI,
        read: Callable[[], str] | None = None,
        settings: Settings | None = None,
    ) -> None:
        """`read` returns one line, or an empty string at the end of input; it runs on a thread of its own."""
        self.redirect_uri = redirect_uri
        self._read = read or _read_terminal
        self._timeout = (settings or Settings()).person_timeout

    @asynccontextmanager
    async def waiting(self, prefer: str | None = None) -> AsyncGenerator[Waiting]:  # noqa: ARG002 - the seam's
        """Use the only redirect URI; `prefer` is ignored."""
        yield self

    async def visit(self, url: str) -> str:
        """Print the URL, and read lines until one is a callback URL."""
        print_to_user(_PROMPT.format(url=check_login_url(url), back=self.redirect_uri))
        return await wait_for_user(self._read_callback_url(), self._timeout)

    async def _read_callback_url(self) -> str:
        while True:
            line = await _read_on_thread(self._read)
            if not line:
                raise AuthorizationFailed("the input ended before the callback URL was pasted", hop="authorization")
            if line.strip().startswith(f"{self.redirect_uri}?"):
                return line.strip()
            print_to_user(f"That does not begin with {self.redirect_uri}? - please paste the whole address:")


async def _read_on_thread(read: Callable[[], str]) -> str:
    """Read a line on a daemon thread, which does not delay the exit of this process."""
    loop = asyncio.get_running_loop()
    line: Future[str] = loop.create_future()
    Thread(target=_read_and_deliver, args=(read, loop, line), name="trunkline-login", daemon=True).start()
    return await line


def _read_and_deliver(read: Callable[[], str], loop: AbstractEventLoop, line: "Future[str]") -> None:
    text, error = "", None
    try:
        text = read()
    except Exception as raised:  # noqa: BLE001 - raised in the waiting coroutine
        error = raised
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_deliver, line, text, error)


def _deliver(line: "Future[str]", text: str, error: Exception | None) -> None:
    if line.done():
        return
    if error is None:
        line.set_result(text)
    else:
        line.set_exception(error)


def _read_terminal() -> str:
    """Read a line from the terminal itself: standard input may be the connection to a peer."""
    name = "CONIN$" if sys.platform == "win32" else "/dev/tty"
    try:
        with os.fdopen(os.open(name, os.O_RDONLY), encoding="utf-8", errors="replace") as terminal:
            return terminal.readline()
    except OSError as error:
        why = f"there is no terminal ({error.strerror}); log in with a browser, or pass interaction=Redirected(…)"
        raise AuthorizationFailed(why, hop="authorization") from error
