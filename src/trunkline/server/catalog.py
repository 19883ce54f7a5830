"""What a server offers to all of its connections: who it is, its registries, and lists of them ready to be sent."""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, Final, Generic

from msgspec import Raw, Struct

from trunkline.config import Settings
from trunkline.errors import ConfigError
from trunkline.errors.options import NUMBER
from trunkline.errors.suggestions import suggesting
from trunkline.protocol.extensions import checked as extensions_of
from trunkline.protocol.modern import CacheHint, Stateless
from trunkline.protocol.profiles import Profile
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Era, Revision
from trunkline.protocol.types import (
    Implementation,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
)
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION
from trunkline.registry.access import Access
from trunkline.registry.completions import Completed, CompletionEntry
from trunkline.registry.cursors import Cursors
from trunkline.registry.prompts import PromptEntry
from trunkline.registry.registry import E, Page, Registry
from trunkline.registry.resources import ResourceEntry, TemplateEntry
from trunkline.registry.tools import ToolEntry
from trunkline.server.access.rules import NOBODY, Rules, Viewer
from trunkline.wire import codec

__all__ = ["Offer", "Selected", "Switches"]

CACHED: Final = ("discover", "tools", "resources", "resource_templates", "prompts")
"""What a client may be told to keep for a while; of the contents of resources, each one says it."""

_RESULTS: Final[Mapping[str, type[Any]]] = {
    "tool": ListToolsResult,
    "resource": ListResourcesResult,
    "resource_template": ListResourceTemplatesResult,
    "prompt": ListPromptsResult,
}
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
        profile: Profile | None = None,
        on_change: Callable[[str], None] = lambda _kind: None,
    ) -> None:
        self.info = info
        self.instructions = instructions
        self.profile = profile
        self.settings = settings or Settings()
        self.switches = switches or Switches()
        self.experimental = dict(experimental or {})
        self.extensions = extensions_of(extensions)
        self.cache = _checked(cache or {})  # seconds that lists may be kept, by what they list
        self.stateless = Stateless(info, self.capabilities)
        self._declared: tuple[Any, dict[str, Any]] = (None, {})
        self.marks_calls = False  # whether the call at hand can be found without its context
        self.cursors = Cursors(lifetime=self.settings.cursor_lifetime)
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
        self.task_tools = Selected(self.tools, lambda entry: entry.task is not None)
        self.listing_templates = Selected(self.templates, lambda entry: entry.lister is not None)
        self._ruled: tuple[Registry[Any], ...] = (self.tools, self.resources, self.templates, self.prompts)
        self.rules: dict[str, Rules[Any]] = {registry.kind: Rules(registry) for registry in self._ruled}
        self._pages: dict[tuple[str | None, Any], tuple[int, Raw]] = {}  # by whose they are; None: everybody's

    def capabilities(self) -> Mapping[str, Any]:
        """What is declared: each feature that there is something for, or that was asked for."""
        on = self.switches
        there = (
            _declares(on.tools, len(self.tools)),
            _declares(on.resources, len(self.resources) + len(self.templates)),
            _declares(on.prompts, len(self.prompts)),
            _declares(on.completions, len(self.completions)),
            bool(self.task_tools()),
        )
        if self._declared[0] != there:  # it rarely is, and modern requests look at every call
            self._declared = (there, self._declare(*there))
        return self._declared[1]

    def _declare(self, tools: bool, resources: bool, prompts: bool, completions: bool, tasks: bool) -> dict[str, Any]:
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
        extensions: dict[str, Any] = {TASKS_EXTENSION: {}, **self.extensions} if tasks else self.extensions
        if extensions:
            found["extensions"] = extensions
        if tasks:  # of 2025-11-25
            found["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        return found

    def hint(self, what: str, *, shared: bool) -> CacheHint:
        """How long something may be kept; for everybody only if it is the same for everybody."""
        return CacheHint(self.cache.get(what, 0.0), "public" if shared else "private")

    # --- who may have what ------------------------------------------------------------------------

    def reader(self, uri: str) -> ResourceEntry | TemplateEntry | None:
        """Who reads a URI: a resource, or the first template whose pattern it follows."""
        entry = self.resources.live.get(uri)
        if entry is not None or len(uri) > self.settings.max_uri:
            return entry
        return next((template for template in self.templates if template.template.match(uri) is not None), None)

    def completed(self, kind: str, name: str) -> Completed | None:
        """The prompt, tool, resource or template whose argument is completed; None if there is no such thing."""
        if kind == "prompt":
            return self.prompts.get(name)
        if kind == "tool":
            return self.tools.get(name)
        return self.templates.get(name) or self.resources.get(name)

    def completion_fault(self, entry: CompletionEntry) -> str | None:
        """Why a completer will never be asked, as things are; None if it will."""
        registries: dict[str, Registry[Any]] = {"prompt": self.prompts, "tool": self.tools, "resource": self.templates}
        known = (other.key for other in registries[entry.kind].all())
        return entry.fault(self.completed(entry.kind, entry.name), known)

    def rule_of(self, uri: str) -> Access | None:
        """What is asked of those who want to read a URI; None where everybody may."""
        if not (self.rules["resource"] or self.rules["resource_template"]):
            return None
        entry = self.reader(uri)
        return None if entry is None or entry.access is None or entry.access.open else entry.access

    def scoped(self) -> list[str]:
        """The names of what needs scopes."""
        return [name for name, access in self._accesses() if access is not None and access.scopes]

    def undeclared(self) -> list[str]:
        """The names of what neither scopes nor a predicate were given for. To give no scopes is to say that none are
        needed."""
        return [name for name, access in self._accesses() if access is None]

    def _accesses(self) -> Iterator[tuple[str, Access | None]]:
        for registry in self._ruled:
            kind = registry.kind.replace("_", " ")
            yield from ((f"{kind} {entry.key!r}", entry.access) for entry in registry.all())

    # --- lists, as bytes that are kept until something changes -----------------------------------

    def share_cursors(self, key: bytes) -> None:
        """From now on cursors are those of all who have a key."""
        self.cursors.share(key)
        self._pages.clear()

    def shown(self, registry: Registry[E], cursor: str | None, limit: object, *, now: float, viewer: Viewer) -> Page[E]:
        """A page of what somebody may have."""
        while True:
            version = registry.version
            hidden = self.rules[registry.kind].hidden(viewer)
            page = registry.page(cursor, limit, now=now, without=hidden, whose=viewer.whose)
            if registry.version == version:  # or else a thread has changed it meanwhile, and perhaps who may have what
                return page

    def listed(
        self,
        registry: Registry[Any],
        revision: Revision,
        cursor: str | None,
        limit: object,
        *,
        now: float = 0.0,
        viewer: Viewer = NOBODY,
    ) -> Raw:
        """A page of what somebody may have, as the result of a request. What everybody may have anybody may."""
        rules = self.rules[registry.kind]
        version = registry.version  # before the page is made: a thread may change the registry meanwhile
        ruled = bool(rules)
        key = (registry.kind, revision, cursor, repr(limit), rules.hidden(viewer) if ruled else None)
        owner = viewer.whose if ruled else None
        kept = self._kept((None, key), version) or self._kept((owner, key), version)  # True is not 1, as repr tells
        if kept is not None:
            return kept
        page = self.shown(registry, cursor, limit, now=now, viewer=viewer if ruled else NOBODY)
        made = self._made(registry, revision, page, shared=not ruled)
        alone = cursor is page.next_cursor is None  # nothing in it is bound to whoever it was made for
        if self.cursors.lifetime is None or alone:  # what has a cursor in it does not last
            if len(self._pages) >= _KEPT_PAGES:
                self._pages.clear()
            self._pages[None if alone else owner, key] = (version, made)
        return made

    def _kept(self, key: tuple[str | None, Any], version: int) -> Raw | None:
        kept_at, kept = self._pages.get(key, (-1, None))
        return kept if kept_at == version else None

    def _made(self, registry: Registry[Any], revision: Revision, page: Page[Any], *, shared: bool) -> Raw:
        result = _RESULTS[registry.kind]
        if revision.era is Era.MODERN:
            natural = "modern_definition" if registry is self.tools else "definition"
            listed = result([getattr(entry, natural) for entry in page.entries], next_cursor=page.next_cursor)
            return self.stateless.dressed(listed, hint=self.hint(f"{registry.kind}s", shared=shared))
        listed = result([entry.definition for entry in page.entries], next_cursor=page.next_cursor)
        return codec.to_raw(project(listed, revision))


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


def _checked(cache: Mapping[str, float]) -> dict[str, float]:
    if strange := [name for name in cache if name not in CACHED]:
        raise ConfigError(suggesting(f"cache= knows {', '.join(CACHED)}, not {strange[0]!r}", strange[0], CACHED))
    if negative := [name for name, seconds in cache.items() if not (NUMBER.fits(seconds) and 0 <= seconds < inf)]:
        raise ConfigError(f"cache= of {negative[0]!r} must be 0 seconds or more, not {cache[negative[0]]!r}")
    return dict(cache)


def _declares(asked: bool | None, entries: int) -> bool:
    return asked if asked is not None else entries > 0
