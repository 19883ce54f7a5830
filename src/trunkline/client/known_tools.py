"""The tools of a server as the client knows them: schemas, annotations, mirrored arguments.

The client reads the list with the first tool call, concurrently with the call. It reads the list again after a
`list_changed` notification and after a reconnect.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

from msgspec import UNSET, UnsetType

from trunkline.client.connection import ClientConnection
from trunkline.client.rebuild import rebuilder
from trunkline.errors import RegistrationError
from trunkline.protocol.headers import InvalidAnnotation, MirroredArgument, find_mirrored_arguments
from trunkline.protocol.meta import IDEMPOTENCY_KEY
from trunkline.protocol.types import CallToolParams, Tool
from trunkline.registry.validators import Fault, PeerValidator

__all__ = ["KnownTool", "KnownTools"]

_log: Final = logging.getLogger("trunkline")


class KnownTool:
    """A tool as its server describes it, with compiled schemas."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self._rebuild: Callable[[Any], Any] | None = None  # compiled on first use, as is the validator
        self._validator: PeerValidator | UnsetType | None = UNSET  # None: results are not checked

    @property
    def repeatable(self) -> bool:
        """Whether the tool declares that a second call has no further effect."""
        hints = self.tool.annotations
        return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)

    def rebuild(self, structured: Any) -> Any:
        """Return the Python value of structured content; the content itself if the schema does not describe it."""
        rebuild = self._rebuild
        try:
            if rebuild is None:
                rebuild = self._rebuild = rebuilder(self.tool.output_schema or {})
            return rebuild(structured)
        except Exception:  # noqa: BLE001 - the tool has run: do not lose its result to a bug of ours
            _log.exception("the result of tool %r cannot be rebuilt, and is returned as it came", self.tool.name)
            return structured

    @cached_property
    def mirrors(self) -> Sequence[MirroredArgument]:
        """The arguments that are repeated in headers, where the transport has them."""
        try:
            return find_mirrored_arguments(self.tool.input_schema)
        except InvalidAnnotation:
            return ()  # `filter_callable` leaves such tools out where it matters

    def _compile_validator(self) -> PeerValidator | None:
        if self.tool.output_schema is None:
            return None
        try:
            return PeerValidator(self.tool.output_schema, f"tool {self.tool.name!r}")
        except (RegistrationError, RecursionError) as error:  # results cannot be validated
            _log.warning("results of tool %r are not checked: %s", self.tool.name, error)
            return None

    def faults(self, structured: Any, json_size: int | None) -> list[Fault]:
        """Return the violations of the tool's output schema; none where validation could take too long. `json_size` is
        a number of bytes that contain the value, if that is known."""
        validator = self._validator
        if validator is UNSET:
            validator = self._validator = self._compile_validator()
        if validator is None:
            return []
        try:
            if json_size is not None and json_size <= validator.max_size and validator.is_valid(structured):
                return []
            return validator.faults(structured) if validator.can_check(structured) else []
        except (RecursionError, ValueError):  # nested too deeply
            return []


class KnownTools:
    """The tools of one server."""

    def __init__(self) -> None:
        self.requested = False  # whether a caller has needed the list
        self.changes = 0
        self.fresh = False  # the list was read after the last change
        self.by_name: dict[str, KnownTool] = {}
        self._warned: set[tuple[str, str]] = set()  # name and reason of each logged tool

    def fill(self, tools: Iterable[Tool] | None, changes: int) -> None:
        """Store a list of tools, None if the server refused it. `changes` is the count from before the request."""
        if tools is not None:
            self.by_name = {tool.name: self._reuse_or_create(tool) for tool in tools}
        self.fresh = changes == self.changes

    def _reuse_or_create(self, tool: Tool) -> KnownTool:
        """Return the entry of an unchanged tool, which has compiled schemas and logged its warnings; else a new one."""
        before = self.by_name.get(tool.name)
        return KnownTool(tool) if before is None or before.tool != tool else before

    def mark_stale(self) -> None:
        """Note that the list may have changed."""
        self.changes += 1
        self.fresh = False

    def mirrors(self, name: str) -> Sequence[MirroredArgument]:
        """Return the mirrored arguments of a tool, as far as they are known."""
        known = self.by_name.get(name)
        return () if known is None else known.mirrors

    def filter_callable(self, tools: Iterable[Tool]) -> list[Tool]:
        """Return the tools with valid mirror annotations. Log each other tool once; the client cannot call it."""
        return [tool for tool in tools if self._is_callable(tool)]

    def _is_callable(self, tool: Tool) -> bool:
        try:
            find_mirrored_arguments(tool.input_schema)
        except InvalidAnnotation as error:
            if (warning := (tool.name, str(error))) not in self._warned:
                self._warned.add(warning)
                _log.warning("the tool %r is left out: %s", *warning)
            return False
        return True

    def may_repeat(self, connection: ClientConnection, params: CallToolParams) -> bool:
        """Return whether a call that was lost on a connection may be sent again: its tool declares that, or the server
        runs a call with an idempotency key once."""
        known = self.by_name.get(params.name)
        if known is not None and known.repeatable:
            return True
        return IDEMPOTENCY_KEY in (params.meta or {}) and connection.supports_idempotency_keys
