"""A terminal here, and a browser somewhere else."""

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
    "http://127.0.0.1:33420/callback"  # nobody need be there: the browser shows the address it was sent to
)
_PROMPT: Final = """To log in, open this page in any browser:

    {url}

At the end the browser is sent to an address that begins with {back}
and that it may not be able to open. Paste that whole address here:"""


class Headless:
    """Prints the page's URL and reads the URL that the person was sent back to, from the terminal or by `read`."""

    def __init__(
        self,
        *,
        redirect_uri: str = _DEFAULT_REDIRECT_URI,
        read: Callable[[], str] | None = None,
        settings: Settings | None = None,
    ) -> None:
        """`read` gives one line, and nothing at the end of them; it runs on a thread of its own."""
        self.redirect_uri = redirect_uri
        self._read = read or _read_terminal
        self._timeout = (settings or Settings()).person_timeout

    @asynccontextmanager
    async def waiting(self, prefer: str | None = None) -> AsyncGenerator[Waiting]:  # noqa: ARG002 - the seam's
        """There is one redirect URI, whatever it was last time."""
        yield self

    async def visit(self, url: str) -> str:
        """Shows where to go, and asks where that led, until the answer can be true."""
        print_to_user(_PROMPT.format(url=check_login_url(url), back=self.redirect_uri))
        return await wait_for_user(self._read_callback_url(), self._timeout)

    async def _read_callback_url(self) -> str:
        while True:
            line = await _read_on_thread(self._read)
            if not line:
                raise AuthorizationFailed("nobody said where the login page led to", hop="authorization")
            if line.strip().startswith(f"{self.redirect_uri}?"):
                return line.strip()
            print_to_user(f"That does not begin with {self.redirect_uri}? - please paste the whole address:")


async def _read_on_thread(read: Callable[[], str]) -> str:
    """A line, read on a thread that keeps nobody from leaving."""
    loop = asyncio.get_running_loop()
    line: Future[str] = loop.create_future()
    Thread(target=_read_and_deliver, args=(read, loop, line), name="trunkline-login", daemon=True).start()
    return await line


def _read_and_deliver(read: Callable[[], str], loop: AbstractEventLoop, line: "Future[str]") -> None:
    text, error = "", None
    try:
        text = read()
    except Exception as raised:  # noqa: BLE001 - raised where somebody waits for it
        error = raised
    with suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(_deliver, line, text, error)


def _deliver(line: "Future[str]", text: str, error: Exception | None) -> None:
    if line.done():
        return
    if error is None:
        line.set_result(text)
    else:
        line.set_exception(error)


def _read_terminal() -> str:
    """A line from the terminal itself: standard input may be the line to a peer."""
    name = "CONIN$" if sys.platform == "win32" else "/dev/tty"
    try:
        with os.fdopen(os.open(name, os.O_RDONLY), encoding="utf-8", errors="replace") as terminal:
            return terminal.readline()
    except OSError as error:
        why = f"there is no terminal to ask at ({error.strerror}); a login needs a browser, or Redirected"
        raise AuthorizationFailed(why, hop="authorization") from error
