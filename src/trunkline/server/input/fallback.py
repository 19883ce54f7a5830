"""Fallback for sampling: a provider of the server answers for clients that cannot sample."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from trunkline.errors import SamplingTimeout
from trunkline.protocol.capabilities import is_declared
from trunkline.protocol.types import CreateMessageParams, CreateMessageResult, ProgressParams
from trunkline.sampling.provider import ProgressReporter, SamplingProvider
from trunkline.server.input.ask import Asker, OnProgress

__all__ = ["FallbackAsker"]

_SAMPLE: Final = "sampling/createMessage"
_CAPABILITY: Final = "sampling"


class FallbackAsker:
    """An asker that passes on all requests except those for messages, if the client cannot produce them.

    A handler may run again, with the answers of its client or after a crash. So a message is an effect of the call, and
    is not sampled twice.
    """

    def __init__(
        self,
        asker: Asker,
        provider: SamplingProvider,
        capabilities: Mapping[str, Any],
        once: Callable[[str, Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        """`capabilities` are those of the client. `once` runs an effect unless it has a result already."""
        self._asker = asker
        self._provider = provider
        self._capabilities = capabilities
        self._once = once
        self._counts: dict[str | None, int] = {}  # messages of this run by the key of their question

    async def ask(
        self,
        name: str,
        params: Any,
        *,
        needs: str | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        key: str | None = None,
        task: bool = False,
    ) -> Any:
        """Return the answer of the client or of the provider."""
        if name != _SAMPLE or self._is_left_to_client(params, needs):
            return await self._asker.ask(
                name, params, needs=needs, timeout=timeout, on_progress=on_progress, key=key, task=task
            )
        number = self._counts[key] = self._counts.get(key, 0) + 1
        effect = f"{_SAMPLE} {number}" if key is None else f"{_SAMPLE} {number} {key}"
        sampled = await self._once(effect, partial(self._sample, params, timeout, on_progress))
        return msgspec.convert(sampled, CreateMessageResult)

    def _is_left_to_client(self, params: CreateMessageParams, needs: str | None) -> bool:
        capable = all(is_declared(self._capabilities, path) for path in (_CAPABILITY, needs) if path is not None)
        return capable or (params.tools is not None and not self._provider.supports_tools)

    async def _sample(
        self, params: CreateMessageParams, timeout: float | None, on_progress: OnProgress | None
    ) -> CreateMessageResult:
        reporter = None if on_progress is None else _Reporter(on_progress)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self._provider(params, reporter)
        except TimeoutError:
            if not limit.expired():  # an error of the provider
                raise
        raise SamplingTimeout(f"{_SAMPLE} was not done after {timeout:g} s")


class _Reporter(ProgressReporter):
    """Passes progress to the function of a handler."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self._on_progress(ProgressParams(_SAMPLE, progress, total, message))
