"""A model for tests and examples, without a network."""

import asyncio
from collections.abc import Sequence

from trunkline.errors import SamplingTimeout, TrunklineError, again
from trunkline.errors.options import POSITIVE, OptionKind, check_options
from trunkline.protocol.meta import USAGE
from trunkline.protocol.types import (
    CreateMessageParams,
    CreateMessageResult,
    SamplingBlock,
    TextContent,
    ToolUseContent,
)
from trunkline.sampling.provider import ProgressReporter

__all__ = ["MockModel", "MockReply"]

_Message = str | SamplingBlock | Sequence[SamplingBlock] | CreateMessageResult
MockReply = _Message | Exception
"""What a mock model says: a text, in which `{text}` stands for the last message, content, a result, or an error."""

_DELAY = OptionKind("a number of 0 or more", lambda value: isinstance(value, int | float) and value >= 0)


class MockModel:
    """A provider that replies as it is told; without replies, with the text of the last message.

    `requests` has the requests so far, for assertions.
    """

    supports_tools: bool = True

    def __init__(
        self, *replies: MockReply, model: str = "mock", delay: float = 0.0, timeout: float | None = None
    ) -> None:
        """The model gives the replies in order, and repeats the last one. It waits `delay` seconds before each; a delay
        above `timeout` raises `SamplingTimeout` after that time."""
        check_options("MockModel", {"delay": delay, "timeout": timeout}, {"delay": _DELAY, "timeout": POSITIVE})
        self.requests: list[CreateMessageParams] = []
        self._replies = replies or ("{text}",)
        self._model = model
        self._delay = delay
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<MockModel {self._model!r}: {len(self.requests)} requests>"

    async def __call__(
        self, params: CreateMessageParams, context: ProgressReporter | None = None
    ) -> CreateMessageResult:
        """Return the next reply, or raise it if it is an error."""
        reply = self._replies[min(len(self.requests), len(self._replies) - 1)]
        self.requests.append(params)
        if self._timeout is not None and self._delay > self._timeout:
            await asyncio.sleep(self._timeout)
            raise SamplingTimeout(f"MockModel did not answer within {self._timeout:g} s")
        if self._delay:
            await asyncio.sleep(self._delay)
        if isinstance(reply, Exception):
            raise again(reply) if isinstance(reply, TrunklineError) else reply
        result = self._make_result(reply, params)
        if context is not None and result.text:
            context.progress(len(result.text), None, result.text)
        return result

    def _make_result(self, reply: _Message, params: CreateMessageParams) -> CreateMessageResult:
        if isinstance(reply, CreateMessageResult):
            return reply
        asked = params.messages[-1].text if params.messages else ""
        if isinstance(reply, str):
            reply = TextContent(reply.replace("{text}", asked))
        blocks = list(reply) if isinstance(reply, Sequence) else [reply]
        used = any(isinstance(block, ToolUseContent) for block in blocks)
        said = "".join(block.text for block in blocks if isinstance(block, TextContent))
        usage = {"inputTokens": len(asked.split()), "outputTokens": len(said.split())}
        content = blocks[0] if len(blocks) == 1 else blocks
        return CreateMessageResult(
            "assistant", content, self._model, "toolUse" if used else "endTurn", meta={USAGE: usage}
        )

    async def close(self) -> None:
        """Do nothing: there are no connections."""
