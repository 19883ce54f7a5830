"""What TCP and Unix sockets have in common: getting through to a server, and waiting for clients."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from trunkline.errors import TransportError
from trunkline.transports.channel import Accept, Channel
from trunkline.transports.listener_limits import Guard
from trunkline.transports.sockets import Lines, SocketLine

__all__ = ["dial", "guarded", "why_not"]

Open = Callable[[Callable[[], SocketLine]], Awaitable[tuple[Any, SocketLine]]]


async def dial(name: str, lines: Lines, accept: Accept, open_: Open) -> Channel:
    """Opens a line. Raises `TransportError` with a sentence if nobody answers."""
    failures: list[Exception] = []

    def admit(line: SocketLine) -> Any:
        try:
            return accept(line.channel)
        except Exception as error:  # noqa: BLE001 - raised below, where somebody waits for it
            failures.append(error)
            return None

    limit = lines.settings.connect_timeout
    try:
        async with asyncio.timeout(limit):
            _, line = await open_(lambda: lines.line(admit))
    except TransportError:
        raise
    except TimeoutError as error:
        raise TransportError(f"cannot reach {name}: no answer within {limit:g} s") from error
    except OSError as error:
        raise TransportError(f"cannot reach {name}: {why_not(error)}") from error
    if failures:
        await line.gone()
        raise failures[0]
    return line.channel


def why_not(error: OSError) -> str:
    """Why nobody was reached, in words that somebody can act on."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not to be trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"it does not speak TLS as we do: {error.reason or error}"
        case ConnectionRefusedError() | FileNotFoundError():
            return "nobody listens there; is the server running?"
        case _:
            return str(error.strerror or error)


def guarded(lines: Lines, guard: Guard) -> Callable[[], SocketLine]:
    """Makes the lines of a listener: each is asked for its channel's receiver, or turned away."""

    def admit(line: SocketLine) -> Any:
        return None if guard.full else guard.admit(line.channel, line.channel.lost)

    return lambda: lines.line(admit)
