"""Open a page in the user's browser. The URL contains text of a server, so it is always a single argument of a
program and no shell parses it."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from os import pathsep
from threading import Thread
from typing import Final

from trunkline.auth.ssrf import EgressDenied, parse_target
from trunkline.config import browser_commands, system_program
from trunkline.errors import AuthorizationFailed

__all__ = ["check_login_url", "open_page"]

_URL_CLAUSE: Final = 'security best practices, "OAuth Authorization URL Validation"'
_SHELL_NEUTRAL: Final = re.compile(r"[\w. /\\:+=,@%-]+")  # a command without characters that a shell would interpret
_START_TIMEOUT: Final = 3.0  # seconds: a program that is still running then has opened the page
_MAX_URL_CHARS: Final = 8192  # some systems limit one argument to this length


def check_login_url(url: str) -> str:
    """Return the URL if a user may be sent there: https, or this machine. Raises `AuthorizationFailed`."""
    try:
        target = parse_target(url)
    except EgressDenied as refused:
        raise _failure(f"the URL of the login page is invalid: {refused}") from None
    if target.scheme != "https" and not target.is_local:
        raise _failure(f"the login page {target.display_url} must use https")
    if len(url) > _MAX_URL_CHARS:
        raise _failure(
            f"the address of the login page {target.display_url} has {len(url)} characters, which is too long"
        )
    return url


def _failure(why: str) -> AuthorizationFailed:
    return AuthorizationFailed(why, hop="authorization", clause=_URL_CLAUSE)


async def open_page(url: str) -> str | None:
    """Open a page; return the reason if that fails. Raises `AuthorizationFailed` for a forbidden URL.

    The browser may outlive this process, so nothing waits for it to exit.
    """
    check_login_url(url)
    command = browser_command(url)
    if command is None:
        return "no browser was found; the variable BROWSER can name one"
    return await _start(command)


def browser_command(url: str, named: str | None = None, platform: str = sys.platform) -> list[str] | None:
    """Return the command that opens a page: the one that the environment names, or the system's."""
    for command in (browser_commands() if named is None else named).split(pathsep):
        words = command.split()
        if words and _SHELL_NEUTRAL.fullmatch(command) and (program := shutil.which(words[0])):
            return [program, *_insert_url(words[1:], url)]
    if platform == "win32":
        return [system_program("rundll32.exe"), "url.dll,FileProtocolHandler", url]
    program = "/usr/bin/open" if platform == "darwin" else shutil.which("xdg-open")
    return [program, url] if program else None


def _insert_url(arguments: Sequence[str], url: str) -> list[str]:
    """Insert the URL in place of `%s`, or append it."""
    return [url if word == "%s" else word for word in arguments] if "%s" in arguments else [*arguments, url]


async def _start(command: Sequence[str]) -> str | None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    try:
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - starts and returns; asyncio's would be killed with the loop
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl+C in the terminal must not close the browser
        )
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror or error}"
    Thread(target=_reap, args=(process, loop, ended), name="trunkline-browser", daemon=True).start()
    done, _ = await asyncio.wait([ended], timeout=_START_TIMEOUT)
    if done and (status := ended.result()) != 0:
        return f"{command[0]} ended with status {status}"
    return None


def _reap(process: "subprocess.Popen[bytes]", loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[int]") -> None:
    """Wait for the process on a daemon thread, which does not delay the exit of this process."""
    status = process.wait()
    try:
        loop.call_soon_threadsafe(_set_status, ended, status)
    except RuntimeError:  # the loop has ended before the browser
        return


def _set_status(ended: "asyncio.Future[int]", status: int) -> None:
    if not ended.done():
        ended.set_result(status)
