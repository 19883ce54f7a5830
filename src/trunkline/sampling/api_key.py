"""API keys of providers: given, in the environment, or from a function. No repr and no message shows them."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

from trunkline.config import Secret, secret_variable
from trunkline.errors import ConfigError

__all__ = ["ApiKey", "KeySource", "KeyUnavailable"]

KeySource = str | Callable[[], str | Awaitable[str]]
"""A key, or a function that returns it. The function is called for each request; a plain one runs on a thread."""


_UNPRINTABLE: Final = "contains a character that a header must not contain"


class KeyUnavailable(Exception):
    """The function that returns the key failed."""


class ApiKey:
    """The key of a provider; an empty key means none."""

    def __init__(self, source: KeySource | None, provider: str, variable: str | None = None) -> None:
        """`variable` is the environment variable that has the key if there is no source. Raise `ConfigError` if neither
        has one; without a variable, a key is optional."""
        if source is None and variable is not None:
            source = secret_variable(variable)
            if source is None:
                raise ConfigError(f"{provider} needs a key: set {variable}, or pass api_key=; pass '' to send none")
        if not isinstance(source, str | None) and not callable(source):
            raise ConfigError(f"{provider}: api_key= is a text or a function, not of type {type(source).__name__}")
        if isinstance(source, str) and not source.strip().isprintable():
            raise ConfigError(f"{provider}: the key {_UNPRINTABLE}")
        self._source = Secret((source or "").strip()) if isinstance(source, str | None) else source

    async def read(self) -> Secret:
        """Return the key. Raise `KeyUnavailable`; its message says nothing of what the function raised."""
        if isinstance(self._source, Secret):
            return self._source
        key, failed = await _call(self._source)
        if failed is None and not isinstance(key, str):
            failed = f"the function for the API key returned a value of type {type(key).__name__}, not a text"
        elif failed is None and not key.strip().isprintable():
            failed = f"the API key {_UNPRINTABLE}"
        if failed is not None:
            raise KeyUnavailable(failed)
        return Secret(key.strip())


async def _call(source: Callable[[], Any]) -> "tuple[Any, str | None]":
    """Return the value of a function, and a description if it raised; its error may contain a secret."""
    try:
        key: Any = source() if inspect.iscoroutinefunction(source) else await asyncio.to_thread(source)
        return (await key if inspect.isawaitable(key) else key), None
    except Exception as error:  # noqa: BLE001 - a function of the user
        return None, f"the function for the API key raised {type(error).__name__}"
