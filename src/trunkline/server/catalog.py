"""Catalog of a server: identity, settings, registries, declared capabilities, and cached pages of the lists."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache as cache_value
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

from msgspec import Raw, Struct

from trunkline.config import Settings
from trunkline.errors import ConfigError
from trunkline.errors.options import NUMBER
from trunkline.errors.suggestions import with_suggestion
from trunkline.protocol import types
from trunkline.protocol.capabilities import Capabilities, freeze
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Era, Revision
from trunkline.protocol.types.lifecycle import Implementation
from trunkline.registry.access import Access
from trunkline.registry.cursors import Cursors
from trunkline.registry.registry import E, Page, Registry
from trunkline.registry.tools import TOOL_VERSIONS, ToolEntry
from trunkline.server.access.rules import ANONYMOUS_VIEWER, AccessRules, Viewer
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.protocol.methods import Method
    from trunkline.protocol.modern import CacheHint, ModernProtocol
    from trunkline.protocol.profiles import Profile
    from trunkline.registry.completions import Completable, CompletionEntry
    from trunkline.registry.methods import MethodEntry
    from trunkline.registry.prompts import PromptEntry
    from trunkline.registry.resources import ResourceEntry, TemplateEntry
    from trunkline.registry.switches import Switch, Tagged
    from trunkline.sampling.provider import SamplingProvider

__all__ = ["CachedSelection", "CapabilityFlags", "CatalogFollower", "ServerCatalog"]

CACHEABLE: Final = ("discover", "tools", "resources", "resource_templates", "prompts")
"""Results that the option `cache` can name. For resource contents, each resource has a `ttl` of its own."""

_RESULT_TYPES: Final[Mapping[str, str]] = {
    "tool": "ListToolsResult",
    "resource": "ListResourcesResult",
    "resource_template": "ListResourceTemplatesResult",
    "prompt": "ListPromptsResult",
}  # names in `protocol.types`, by the kind of the entries
_MAX_CACHED_PAGES: Final = 256  # bounds the memory that a peer can fill by varying `limit`


class CapabilityFlags(Struct, frozen=True):
    """Capabilities that a server declares: True or False, or None to declare a capability once it has an entry."""

    tools: bool | None = None
    resources: bool | None = None
    prompts: bool | None = None
    completions: bool | None = None
    logging: bool = True
    subscribe: bool = True
    list_changed: bool = True
    tasks: bool | None = None


class CatalogFollower(Protocol):
    """A catalog that contains the entries of this one. Called on the thread that changes an entry."""

    def check(self, kind: str, entry: Any) -> None:
        """Raise to refuse a new entry."""
        ...

    def refresh(self, kind: str) -> None:
        """Follow a change of the entries of a kind."""
        ...

    def refresh_all(self) -> None:
        """Follow a change that concerns all entries."""
        ...


class ServerCatalog:
    """Registries and declarations that all connections of a server share. Threads may change the registries."""

    def __init__(
        self,
        info: Implementation,
        *,
        instructions: str | None = None,
        settings: Settings | None = None,
        capability_flags: CapabilityFlags | None = None,
        experimental: Mapping[str, Any] | None = None,
        extensions: Mapping[str, Any] | None = None,
        cache: Mapping[str, float] | None = None,
        profile: "Profile | None" = None,
        sampling: "SamplingProvider | None" = None,
        on_change: Callable[[str], None] = lambda _kind: None,
    ) -> None:
        """`sampling` answers sampling requests for clients that cannot."""
        self.info = info
        self.instructions = instructions
        self.profile = profile
        self.sampling = sampling
        self.settings = settings or Settings()
        self.capability_flags = capability_flags or CapabilityFlags()
        self.experimental = dict(experimental or {})
        self.extensions = _validate_extensions(extensions) if extensions else {}
        self.cache = _validate_cache(cache or {})  # seconds, by result
        make_modern = partial(_make_modern, info, self.capabilities, self.find_custom_row)
        self.get_modern = cache_value(make_modern)  # made on first use
        self._capabilities_cache: tuple[Any, Capabilities] = (None, {})
        self._capabilities_stale = True  # a registry has changed since the cache was checked
        self._mirrored_capabilities: Capabilities | None = None  # of the server behind a proxy
        self.tracks_current_call = False  # whether connections set CURRENT_CALL
        self.cursors = Cursors(lifetime=self.settings.cursor_lifetime)
        shared: dict[str, Any] = {
            "cursors": self.cursors,
            "page_size": self.settings.page_size,
            "max_page_size": self.settings.max_page_size,
            "on_duplicate": self.settings.on_duplicate,
            "on_change": self._on_change,
            "before_add": self._before_add,
        }
        self._report_change = on_change
        self.followers: list[CatalogFollower] = []  # catalogs of which this one is a part
        self.switches: tuple[Switch, ...] = ()  # for entries that are added later
        switched: dict[str, Any] = {**shared, "starts_disabled": self._is_switched_off}
        self.tools: Registry[ToolEntry] = Registry("tool", versions=TOOL_VERSIONS, **switched)
        self.resources: Registry[ResourceEntry] = Registry("resource", **switched)
        self.templates: Registry[TemplateEntry] = Registry("resource_template", **switched)
        self.prompts: Registry[PromptEntry] = Registry("prompt", **switched)
        self.other_resources: ResourceEntry | None = None  # reads the URIs that no other entry has
        self.completions: Registry[CompletionEntry] = Registry("completion", **shared)
        self.methods: Registry[MethodEntry] = Registry("method", **shared)
        self.task_tools = CachedSelection(self.tools, lambda entry: entry.task is not None)
        self.templates_with_lister = CachedSelection(self.templates, lambda entry: entry.lister is not None)
        every: tuple[Registry[Any], ...] = (
            *(self.tools, self.resources, self.templates),
            *(self.prompts, self.completions, self.methods),
        )
        self._registries = {registry.kind: registry for registry in every}
        self._access_controlled: tuple[Registry[Any], ...] = (self.tools, self.resources, self.templates, self.prompts)
        self.access_rules: dict[str, AccessRules[Any]] = {
            registry.kind: AccessRules(registry) for registry in self._access_controlled
        }
        self._list_meta: dict[str, Any] | None = None
        self._page_cache: dict[tuple[str | None, Any], tuple[int, Raw]] = {}  # by owner; None: for all viewers

    def switch(self, switch: "Switch") -> None:
        """Enable or disable the entries that a switch applies to, now and when they are added later."""
        self.switches = (*self.switches, switch)
        for registry in self._access_controlled:
            registry.switch_where(switch.matches, on=switch.on)

    def _is_switched_off(self, entry: "Tagged") -> bool:
        if not self.switches:
            return False
        from trunkline.registry.switches import is_switched_off  # imported here: few servers have switches

        return is_switched_off(entry, self.switches)

    def replace_entries(self, other: "ServerCatalog") -> None:
        """Replace the entries of all registries, and the switches, by those of another catalog."""
        self.switches = other.switches
        for kind, registry in self._registries.items():
            registry.replace_all(other.registry_of(kind))

    def _on_change(self, kind: str) -> None:
        """Note and report that a registry has changed, on the thread that has changed it."""
        self._capabilities_stale = True
        self._report_change(kind)
        for follower in self.followers:
            follower.refresh(kind)

    def _before_add(self, kind: str, entry: Any) -> None:
        """Raise if a catalog of which this one is a part cannot take a new entry."""
        for follower in self.followers:
            follower.check(kind, entry)

    def capabilities(self) -> Capabilities:
        """Return the declared capabilities, read-only: those with entries, and those switched on explicitly."""
        if self._capabilities_stale:  # each modern request reads the capabilities
            self._capabilities_stale = False  # before the refresh: a thread may change a registry meanwhile
            self._refresh_capabilities()
        return self._capabilities_cache[1]

    def mirror_capabilities(self, capabilities: Capabilities) -> None:
        """Declare the capabilities of the server behind a proxy, in place of those that follow from the entries."""
        if capabilities != self._mirrored_capabilities:
            self._mirrored_capabilities = capabilities
            self._capabilities_cache, self._capabilities_stale = (None, freeze(capabilities)), False

    def _refresh_capabilities(self) -> None:
        """Build the capabilities again if other ones have entries now; else keep the object, by which others cache."""
        if self._mirrored_capabilities is not None:
            return
        on = self.capability_flags
        there = (
            _is_declared(on.tools, len(self.tools)),
            _is_declared(on.resources, len(self.resources) + len(self.templates)),
            _is_declared(on.prompts, len(self.prompts)),
            _is_declared(on.completions, len(self.completions)),
            _is_declared(on.tasks, len(self.task_tools())),
        )
        if self._capabilities_cache[0] != there:
            self._capabilities_cache = (there, freeze(self._build_capabilities(*there)))

    def find_custom_row(self, name: str) -> "Method | None":
        """Return a method outside of the specification that the server handles."""
        entry = self.methods.live.get(name)
        return None if entry is None else entry.row

    def declare_experimental(self, name: str) -> None:
        """Declare an experimental capability without settings, unless it is declared."""
        self.experimental.setdefault(name, {})
        self._capabilities_cache, self._capabilities_versions = (None, {}), ()

    def _build_capabilities(
        self, tools: bool, resources: bool, prompts: bool, completions: bool, tasks: bool
    ) -> dict[str, Any]:
        on = self.capability_flags
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
        extensions: dict[str, Any] = self.extensions
        if tasks:
            from trunkline.protocol.types.tasks_extension import (
                TASKS_EXTENSION,  # imported here: few servers have tasks
            )

            extensions = {TASKS_EXTENSION: {}, **extensions}
        if extensions:
            found["extensions"] = extensions
        if tasks:  # the capability of 2025-11-25
            found["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        return found

    def cache_hint(self, what: str, *, public: bool) -> "CacheHint":
        """Return how long clients may cache a result; `public` allows shared caches."""
        from trunkline.protocol.modern import CacheHint  # imported here: for the modern era only

        return CacheHint(self.cache.get(what, 0.0), "public" if public else "private")

    # --- access ----------------------------------------------------------------------------------

    def registry_of(self, kind: str) -> Registry[Any]:
        """Return the registry of a kind of entries."""
        return self._registries[kind]

    def resolve_uri(self, uri: str) -> "ResourceEntry | TemplateEntry | None":
        """Return the resource with this URI, or the first template that matches it."""
        entry = self.resources.live.get(uri)
        if entry is not None or len(uri) > self.settings.max_uri:
            return entry
        return next((template for template in self.templates if template.template.match(uri) is not None), None)

    def find_completion_target(self, kind: str, name: str) -> "Completable | None":
        """Return the prompt, tool, resource or template that a completion refers to, if it exists."""
        if kind == "prompt":
            return self.prompts.get(name)
        if kind == "tool":
            return self.tools.get(name)
        return self.templates.get(name) or self.resources.get(name)

    def completion_fault(self, entry: "CompletionEntry") -> str | None:
        """Return why clients can never use a completer in the present catalog; None if they can."""
        registries: dict[str, Registry[Any]] = {"prompt": self.prompts, "tool": self.tools, "resource": self.templates}
        known = (other.key for other in registries[entry.kind].all())
        return entry.find_fault(self.find_completion_target(entry.kind, entry.name), known)

    def access_rule_of(self, uri: str) -> Access | None:
        """Return the access rule for reading a URI; None if every client may read it."""
        if not (self.access_rules["resource"] or self.access_rules["resource_template"]):
            return None
        entry = self.resolve_uri(uri)
        return None if entry is None or entry.access is None or entry.access.unrestricted else entry.access

    def scoped(self) -> list[str]:
        """Return the names of the entries that need scopes."""
        return [name for name, access in self._accesses() if access is not None and access.scopes]

    def undeclared(self) -> list[str]:
        """Return the names of the entries without `scopes` and `allow`. Empty scopes count as declared."""
        return [name for name, access in self._accesses() if access is None]

    def _accesses(self) -> Iterator[tuple[str, Access | None]]:
        for registry in (*self._access_controlled, self.methods):
            kind = registry.kind.replace("_", " ")
            yield from ((f"{kind} {entry.key!r}", entry.access) for entry in registry.all())

    # --- pages of lists, cached as bytes until a registry changes ---------------------------------

    def use_shared_cursor_key(self, key: bytes) -> None:
        """Seal cursors with a key that other processes have, too."""
        self.cursors.use_key(key)
        self._page_cache.clear()

    @property
    def list_meta(self) -> dict[str, Any] | None:
        """The `_meta` of all lists."""
        return self._list_meta

    @list_meta.setter
    def list_meta(self, meta: dict[str, Any] | None) -> None:
        if meta != self._list_meta:
            self._list_meta = meta
            self._page_cache.clear()

    def get_visible_page(
        self, registry: Registry[E], cursor: str | None, limit: object, *, now: float, viewer: Viewer
    ) -> Page[E]:
        """Return a page of the entries that a viewer may see."""
        while True:
            version = registry.version
            hidden = self.access_rules[registry.kind].hidden_keys(viewer)
            page = registry.page(cursor, limit, now=now, without=hidden, whose=viewer.principal_name)
            if registry.version == version:  # else a thread has changed the entries or their rules
                return page

    def get_encoded_page(
        self,
        registry: Registry[Any],
        revision: Revision,
        cursor: str | None,
        limit: object,
        *,
        now: float = 0.0,
        viewer: Viewer = ANONYMOUS_VIEWER,
        profile: "Profile | None" = None,
    ) -> Raw:
        """Return a page of the entries that a viewer may see as an encoded result, from the cache if possible. Without
        access rules all viewers share one cached page."""
        rules = self.access_rules[registry.kind]
        version = registry.version  # read first: a thread may change the registry meanwhile
        ruled = bool(rules)
        key = (registry.kind, revision, cursor, repr(limit), rules.hidden_keys(viewer) if ruled else None, profile)
        owner = viewer.principal_name if ruled else None
        kept = self._cached_page((None, key), version) or self._cached_page(
            (owner, key), version
        )  # True is not 1, as repr tells
        if kept is not None:
            return kept
        page = self.get_visible_page(registry, cursor, limit, now=now, viewer=viewer if ruled else ANONYMOUS_VIEWER)
        made = self._encode_page(registry, revision, page, public=not ruled, profile=profile)
        unbound = cursor is page.next_cursor is None  # without cursors, nothing in it is bound to a viewer
        if self.cursors.lifetime is None or unbound:  # cursors with a lifetime expire
            if len(self._page_cache) >= _MAX_CACHED_PAGES:
                self._page_cache.clear()
            self._page_cache[None if unbound else owner, key] = (version, made)
        return made

    def _cached_page(self, key: tuple[str | None, Any], version: int) -> Raw | None:
        kept_at, kept = self._page_cache.get(key, (-1, None))
        return kept if kept_at == version else None

    def _encode_page(
        self, registry: Registry[Any], revision: Revision, page: Page[Any], *, public: bool, profile: "Profile | None"
    ) -> Raw:
        result = getattr(types, _RESULT_TYPES[registry.kind])
        if revision.era is Era.MODERN:
            natural = "modern_definition" if registry is self.tools else "definition"
            definitions = [getattr(entry, natural) for entry in page.entries]
            listed = result(definitions, next_cursor=page.next_cursor, meta=self._list_meta)
            return self.get_modern().encode_result(listed, hint=self.cache_hint(f"{registry.kind}s", public=public))
        definitions = [entry.definition for entry in page.entries]
        listed = result(definitions, next_cursor=page.next_cursor, meta=self._list_meta)
        if profile is not None and profile.founding_shapes:
            from trunkline.protocol.founding_shapes import shape_result  # imported here: for a profile only

            return shape_result(listed, revision)
        return codec.to_raw(project(listed, revision))


class CachedSelection(Generic[E]):
    """Enabled entries of a registry that satisfy a predicate; recomputed after the registry has changed."""

    def __init__(self, registry: Registry[E], predicate: Callable[[E], bool]) -> None:
        self._registry = registry
        self._predicate = predicate
        self._cached: tuple[int, list[E]] = (-1, [])  # registry version, entries

    def __call__(self) -> list[E]:
        version, found = self._cached
        if version != self._registry.version:
            version = self._registry.version
            found = [entry for entry in self._registry if self._predicate(entry)]
            self._cached = (version, found)
        return found


def _validate_extensions(extensions: Mapping[str, Any]) -> dict[str, Any]:
    from trunkline.protocol.extensions import validate_extensions  # imported here: few servers have extensions

    return validate_extensions(extensions)


def _make_modern(
    info: Implementation, capabilities: Callable[[], Capabilities], find_custom: "Callable[[str], Method | None]"
) -> "ModernProtocol":
    from trunkline.protocol.modern import ModernProtocol  # imported here: many clients are of the handshake era

    return ModernProtocol(info, capabilities, find_custom)


def _validate_cache(cache: Mapping[str, float]) -> dict[str, float]:
    if unknown := [name for name in cache if name not in CACHEABLE]:
        raise ConfigError(
            with_suggestion(f"cache= knows {', '.join(CACHEABLE)}, not {unknown[0]!r}", unknown[0], CACHEABLE)
        )
    if negative := [name for name, seconds in cache.items() if not (NUMBER.fits(seconds) and 0 <= seconds < inf)]:
        raise ConfigError(f"cache= of {negative[0]!r} must be 0 seconds or more, not {cache[negative[0]]!r}")
    return dict(cache)


def _is_declared(flag: bool | None, entries: int) -> bool:
    return flag if flag is not None else entries > 0
