"""Rules for tool uses and tool results in the messages of a sampling request (sampling, "Tool Use")."""

from collections.abc import Sequence

from trunkline.protocol.types import SamplingMessage, ToolResultContent, ToolUseContent

__all__ = ["find_tool_mismatch"]


def find_tool_mismatch(messages: Sequence[SamplingMessage]) -> str | None:
    """Return the first violation of the rules; None if there is none.

    An assistant message with tool uses must be followed by a user message that consists of the result of each use.
    """
    open_uses: set[str] = set()
    for number, message in enumerate(messages, 1):
        results = {block.tool_use_id for block in message.blocks if isinstance(block, ToolResultContent)}
        uses = {block.id for block in message.blocks if isinstance(block, ToolUseContent)}
        if results and (why := _find_result_error(message, number, results - open_uses)) is not None:
            return why
        if missing := open_uses - results:
            return f"message {number} must contain the result of the tool use {min(missing)!r}"
        if uses and message.role != "assistant":
            return f"message {number} has the role user and uses a tool; only the assistant may"
        open_uses = uses
    if open_uses:
        return f"the tool use {min(open_uses)!r} has no result; append a message with its result"
    return None


def _find_result_error(message: SamplingMessage, number: int, unexpected: set[str]) -> str | None:
    if message.role != "user":
        return f"message {number} has the role assistant and contains tool results; only the user may"
    if not all(isinstance(block, ToolResultContent) for block in message.blocks):
        return f"message {number} has tool results and other content; a message with results must have only those"
    if unexpected:
        return f"message {number} has a result of the tool use {min(unexpected)!r}, which is not in the message before"
    return None
