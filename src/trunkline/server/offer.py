"""What a server offers to all of its connections: who it is, its registries, and lists of them ready to be sent."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final, Generic

from msgspec import Raw, Struct

from trunkline.config import Settings
from trunkline.errors import ConfigError
from trunkline.protocol.extensions import checked as extensions_of
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Era, Revision
from trunkline.protocol.stateless import CacheHint, Stateless
from trunkline.protocol.types import (
    Implementation,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
)
from trunkline.registry.completions import CompletionEntry
from trunkline.registry.cursors import Cursors
from trunkline.registry.prompts import PromptEntry
from trunkline.registry.registry import E, Registry
from trunkline.registry.resources import ResourceEntry, TemplateEntry
from trunkline.registry.tools import ToolEntry
from trunkline.wire import codec

__all__ = ["Offer", "Selected", "Switches"]

CACHED: Final = ("discover", "tools", "resources", "resource_templates", "prompts")
"""What a client may be told to keep for a while; of the contents of resources, each one says it."""

_KEPT_PAGES: Final = 256  # encoded pages; a peer that asks for ever other limits gains nothing


class Switches(Struct, frozen=True):
    """Which features a server declares. None: those that it has something for."""

    tools: bool | None = None
    resources: bool | None = None
    prompts: bool | None = None
    completions: bool | None = None
    logging: bool = True
    subscribe: bool = True
    list_changed: bool = True


class Offer:
    """Everything that connections share."""

    def __init__(
        self,
        info: Implementation,
        *,
        instructions: str | None = None,
        settings: Settings | None = None,
        switches: Switches | None = None,
        experimental: Mapping[str, Any] | None = None,
        extensions: Mapping[str, Any] | None = None,
        cache: Mapping[str, float] | None = None,
        cursor_key: bytes | None = None,
        on_change: Callable[[str], None] = lambda _kind: None,
    ) -> None:
        self.info = info
        self.instructions = instructions
        self.settings = settings or Settings()
        self.switches = switches or Switches()
        self.experimental = dict(experimental or {})
        self.extensions = extensions_of(extensions)
        self.cache = _checked(cache or {})  # seconds that lists may be kept, by what they list
        self.stateless = Stateless(info, self.capabilities)
        self._declared: tuple[Any, dict[str, Any]] = (None, {})
        self.marks_calls = False  # whether the call at hand can be found without its context
        self.cursors = Cursors(cursor_key, self.settings.cursor_lifetime)
        shared: dict[str, Any] = {
            "cursors": self.cursors,
            "page_size": self.settings.page_size,
            "max_page_size": self.settings.max_page_size,
            "on_duplicate": self.settings.on_duplicate,
            "on_change": on_change,
        }
        self.tools: Registry[ToolEntry] = Registry("tool", **shared)
        self.resources: Registry[ResourceEntry] = Registry("resource", **shared)
        self.templates: Registry[TemplateEntry] = Registry("resource_template", **shared)
        self.prompts: Registry[PromptEntry] = Registry("prompt", **shared)
        self.completions: Registry[CompletionEntry] = Registry("completion", **shared)
        self.listing_templates = Selected(self.templates, lambda entry: entry.lister is not None)
        self.guarded_tools = Selected(self.tools, lambda entry: entry.guard is not None and bool(entry.guard.allow))
        self._pages: dict[tuple[Any, ...], tuple[int, Raw]] = {}

    def capabilities(self) -> Mapping[str, Any]:
        """What is declared: each feature that there is something for, or that was asked for."""
        on = self.switches
        there = (
            _declares(on.tools, len(self.tools)),
            _declares(on.resources, len(self.resources) + len(self.templates)),
            _declares(on.prompts, len(self.prompts)),
            _declares(on.completions, len(self.completions)),
        )
        if self._declared[0] != there:  # it rarely is, and modern requests look at every call
            self._declared = (there, self._declare(*there))
        return self._declared[1]

    def _declare(self, tools: bool, resources: bool, prompts: bool, completions: bool) -> dict[str, Any]:
        on = self.switches
        changes = {"listChanged": True} if on.list_changed else {}
        found: dict[str, Any] = {}
        if tools:
            found["tools"] = dict(changes)
        if resources:
            found["resources"] = {**({"subscribe": True} if on.subscribe else {}), **changes}
        if prompts:
            found["prompts"] = dict(changes)
        if completions:
            found["completions"] = {}
        if on.logging:
            found["logging"] = {}
        if self.experimental:
            found["experimental"] = self.experimental
        if self.extensions:
            found["extensions"] = self.extensions
        return found

    def hint(self, what: str, *, shared: bool) -> CacheHint:
        """How long something may be kept; for everybody only if it is the same for everybody."""
        return CacheHint(self.cache.get(what, 0.0), "public" if shared else "private")

    # --- lists, as bytes that are kept until something changes -----------------------------------

    def list_tools(
        self,
        revision: Revision,
        cursor: str | None,
        limit: object,
        now: float = 0.0,
        *,
        hidden: frozenset[str] = frozenset(),
        whose: str = "",
    ) -> Raw:
        """A page of tools, without the hidden ones; `whose` it is, where not everybody is shown the same."""
        return self._page(self.tools, ListToolsResult, revision, cursor, limit, now=now, hidden=hidden, whose=whose)

    def list_resources(self, revision: Revision, cursor: str | None, limit: object, now: float = 0.0) -> Raw:
        """A page of resources."""
        return self._page(self.resources, ListResourcesResult, revision, cursor, limit, now=now)

    def list_templates(self, revision: Revision, cursor: str | None, limit: object, now: float = 0.0) -> Raw:
        """A page of resource templates."""
        return self._page(self.templates, ListResourceTemplatesResult, revision, cursor, limit, now=now)

    def list_prompts(self, revision: Revision, cursor: str | None, limit: object, now: float = 0.0) -> Raw:
        """A page of prompts."""
        return self._page(self.prompts, ListPromptsResult, revision, cursor, limit, now=now)

    def _page(
        self,
        registry: Registry[Any],
        result: type[Any],
        revision: Revision,
        cursor: str | None,
        limit: object,
        *,
        now: float,
        hidden: frozenset[str] = frozenset(),
        whose: str = "",
    ) -> Raw:
        key = (registry.kind, revision, cursor, repr(limit), hidden, whose)  # True is not 1, though it is equal to it
        version = registry.version  # before the page is made: a thread may change the registry meanwhile
        kept_at, kept = self._pages.get(key, (-1, _NOTHING))
        if kept_at == version:
            return kept
        page = registry.page(cursor, limit, now=now, without=hidden, whose=whose)
        if revision.era is Era.MODERN:
            natural = "modern_definition" if registry is self.tools else "definition"
            listed = result([getattr(entry, natural) for entry in page.entries], next_cursor=page.next_cursor)
            shared = registry is not self.tools or not self.guarded_tools()
            made = self.stateless.dressed(listed, hint=self.hint(f"{registry.kind}s", shared=shared))
        else:
            listed = result([entry.definition for entry in page.entries], next_cursor=page.next_cursor)
            made = codec.to_raw(project(listed, revision))
        if self.cursors.lifetime is None or cursor is page.next_cursor is None:  # what has a cursor in it does not last
            if len(self._pages) >= _KEPT_PAGES:
                self._pages.clear()
            self._pages[key] = (version, made)
        return made


class Selected(Generic[E]):
    """Those enabled entries of a registry that something is true of, looked for anew when the registry has changed."""

    def __init__(self, registry: Registry[E], wanted: Callable[[E], bool]) -> None:
        self._registry = registry
        self._wanted = wanted
        self._found: tuple[int, list[E]] = (-1, [])  # the version that it was made at, and what it is

    def __call__(self) -> list[E]:
        version, found = self._found
        if version != self._registry.version:
            version = self._registry.version
            found = [entry for entry in self._registry if self._wanted(entry)]
            self._found = (version, found)
        return found


_NOTHING: Final = Raw(b"")


def _checked(cache: Mapping[str, float]) -> dict[str, float]:
    if strange := [name for name in cache if name not in CACHED]:
        raise ConfigError(f"cache= knows {', '.join(CACHED)}, not {strange[0]!r}")
    if negative := [name for name, seconds in cache.items() if not 0 <= seconds < inf]:
        raise ConfigError(f"cache= of {negative[0]!r} must be 0 seconds or more, not {cache[negative[0]]!r}")
    return dict(cache)


def _declares(asked: bool | None, entries: int) -> bool:
    return asked if asked is not None else entries > 0
