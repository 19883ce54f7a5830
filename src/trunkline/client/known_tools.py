"""What a server is known to offer: its tools, and what follows from how it describes them.

The catalogue is read when the first tool is called, beside the call and not before it; read again when the server says
that it has changed, and when the line has been made again.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

from trunkline.client.rebuild import rebuilder
from trunkline.errors import RegistrationError
from trunkline.protocol.headers import InvalidAnnotation, MirroredArgument, find_mirrored_arguments
from trunkline.protocol.types import Tool
from trunkline.registry.validators import Fault, PeerValidator

__all__ = ["KnownTool", "KnownTools"]

_log: Final = logging.getLogger("trunkline")


class KnownTool:
    """A tool, as its server describes it."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    @property
    def repeatable(self) -> bool:
        """Whether calling it twice does no more than calling it once, by its own account."""
        said = self.tool.annotations
        return said is not None and bool(said.read_only_hint or said.idempotent_hint)

    @cached_property
    def _rebuild(self) -> Callable[[Any], Any]:
        return rebuilder(self.tool.output_schema or {})

    def rebuild(self, structured: Any) -> Any:
        """The value that its structured content stands for; the content itself if that cannot be told."""
        try:
            return self._rebuild(structured)
        except Exception:  # noqa: BLE001 - the tool has run: its result is not lost to a fault of ours
            _log.exception("the result of tool %r cannot be rebuilt, and is returned as it came", self.tool.name)
            return structured

    @cached_property
    def mirrors(self) -> Sequence[MirroredArgument]:
        """The arguments that are said a second time, where calls have an outside."""
        try:
            return find_mirrored_arguments(self.tool.input_schema)
        except InvalidAnnotation:
            return ()  # which matters only where such tools are left out

    @cached_property
    def _validator(self) -> PeerValidator | None:
        if self.tool.output_schema is None:
            return None
        try:
            return PeerValidator(self.tool.output_schema, f"tool {self.tool.name!r}")
        except (RegistrationError, RecursionError) as error:  # which cannot be held against a result
            _log.warning("results of tool %r are not checked: %s", self.tool.name, error)
            return None

    def faults(self, structured: Any) -> list[Fault]:
        """What is wrong with its structured content, by its own schema; nothing where checking that could take long."""
        validator = self._validator
        try:
            return [] if validator is None or not validator.can_check(structured) else validator.faults(structured)
        except RecursionError:  # nested too deep to be checked
            return []


class KnownTools:
    """The tools of one server."""

    def __init__(self) -> None:
        self.requested = False  # whether anybody has ever asked for it
        self.changes = 0
        self._changes_when_read = -1  # how many changes it takes account of
        self._tools: dict[str, KnownTool] = {}
        self._warned: set[tuple[str, str]] = set()  # tools that were warned of, and why

    @property
    def fresh(self) -> bool:
        """Whether it has been read, and nothing has changed since."""
        return self._changes_when_read == self.changes

    def fill(self, tools: Iterable[Tool] | None, changes: int) -> None:
        """Takes what the server has listed, None if it would not; and how many changes there had been before that."""
        if tools is not None:
            self._tools = {tool.name: self._reuse_or_create(tool) for tool in tools}
        self._changes_when_read = changes

    def _reuse_or_create(self, tool: Tool) -> KnownTool:
        """What is known of a tool; the same as before if it is described as before, since its schemas are compiled and
        the log has been told what is wrong with them."""
        before = self._tools.get(tool.name)
        return KnownTool(tool) if before is None or before.tool != tool else before

    def mark_stale(self) -> None:
        """What is known may have changed."""
        self.changes += 1

    def get(self, name: str) -> KnownTool | None:
        """A tool by its name, as far as it is known."""
        return self._tools.get(name)

    def mirrors(self, name: str) -> Sequence[MirroredArgument]:
        """The arguments of a tool that are said a second time, as far as they are known."""
        known = self._tools.get(name)
        return () if known is None else known.mirrors

    def filter_callable(self, tools: Iterable[Tool]) -> list[Tool]:
        """Those tools that can be called where arguments are said a second time: it must be clear which. Of the others
        the log tells, once."""
        return [tool for tool in tools if self._is_callable(tool)]

    def _is_callable(self, tool: Tool) -> bool:
        try:
            find_mirrored_arguments(tool.input_schema)
        except InvalidAnnotation as error:
            if (told := (tool.name, str(error))) not in self._warned:
                self._warned.add(told)
                _log.warning("the tool %r is left out: %s", *told)
            return False
        return True

    def repeatable(self, name: str) -> bool:
        """Whether a tool is known to be one that may be called twice."""
        known = self._tools.get(name)
        return known is not None and known.repeatable
