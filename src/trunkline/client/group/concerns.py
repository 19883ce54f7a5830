"""Concerns about the tools of several servers: blocked ones, hidden characters, and names that look alike. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from trunkline.findings import Finding
from trunkline.protocol.types import Tool
from trunkline.trust.hidden_text import find_hidden_in
from trunkline.trust.lookalikes import find_lookalikes
from trunkline.trust.pins import BlockedTool

__all__ = ["ExaminedServer", "find_concerns"]

_APPROVE: Final = "compare with `trunkline pins diff`; if you trust it, approve it with `trunkline pins approve`"


class ExaminedServer(Protocol):
    """A server whose tools were compared with their pins."""

    @property
    def name(self) -> str: ...
    @property
    def tools(self) -> Mapping[str, Tool]: ...
    @property
    def blocked(self) -> Mapping[str, BlockedTool]: ...
    @property
    def vanished(self) -> tuple[str, ...]: ...


def find_concerns(members: Sequence[ExaminedServer]) -> list[Finding]:
    """Return the concerns about the tools of these servers as they were last listed."""
    return [
        *(finding for member in members for finding in _find_own(member)),
        *_find_lookalikes(members),
    ]


def _find_own(member: ExaminedServer) -> Iterator[Finding]:
    for name, blocked in member.blocked.items():
        seen = "; ".join((f"blocked: {blocked.reason}", *(line.strip() for line in blocked.changes)))
        yield Finding(_where(member.name, name), "failed", seen, mend=_APPROVE)
    for name in member.vanished:
        yield Finding(_where(member.name, name), "warning", "the server no longer has this pinned tool")
    for tool in member.tools.values():
        for part, value in _texts(tool).items():
            if (hidden := find_hidden_in(value)) is not None:
                seen = f"its {part} has characters that people do not see: {hidden}"
                yield Finding(
                    _where(member.name, tool.name), "warning", seen, mend="do not use the tool before you know why"
                )


def _texts(tool: Tool) -> dict[str, object]:
    return {
        "name": tool.name,
        "title": [tool.title, None if tool.annotations is None else tool.annotations.title],
        "description": tool.description,
        "input schema": tool.input_schema,
        "output schema": tool.output_schema,
    }


def _find_lookalikes(members: Sequence[ExaminedServer]) -> Iterator[Finding]:
    names = [(member.name, tool.name) for member in members for tool in member.tools.values()]
    for (owner, name), *others in find_lookalikes(names):
        seen = f"its name looks like that of {', '.join(_where(*other) for other in others)}"
        yield Finding(_where(owner, name), "warning", seen, mend="make sure that models can tell them apart")
    for (owner, _), *others in find_lookalikes((member.name, member.name) for member in members):
        seen = f"its name looks like that of {', '.join(repr(other) for other, _ in others)}"
        yield Finding(f"member {owner!r}", "warning", seen, mend="rename one of them")


def _where(member: str, tool: str) -> str:
    return f"tool {tool!r} of {member!r}"
