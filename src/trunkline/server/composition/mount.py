"""Mounts: the entries of one server in the catalog of another.

A mount follows the mounted server. When an entry is added, removed, enabled or disabled there, the mount computes what
the parent offers and gives it to the parent's registries, on the thread of the change. So a call of the parent finds
the entry as it finds its own. A change that the parent cannot take, because of a clash of names, is refused before it
happens. Mounts form a graph without cycles, and a change moves upwards in it.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from trunkline.errors import MisuseError, RegistrationError
from trunkline.registry.completions import CompletionEntry, completable_arguments
from trunkline.registry.prefixes import Prefix
from trunkline.registry.prompts import PromptEntry
from trunkline.registry.registry import Offered
from trunkline.registry.resources import ResourceEntry, TemplateEntry
from trunkline.registry.tools import ToolEntry, check_tool_name
from trunkline.server.catalog import ServerCatalog
from trunkline.server.composition.entries import MountedEntries
from trunkline.server.composition.updates import MountedUpdates

if TYPE_CHECKING:
    from trunkline.server.middleware import Middleware
    from trunkline.server.runtime import MountedServer, ServerRuntime

__all__ = ["Mount", "MountOptions", "check_mountable"]

_KINDS: Final = ("tool", "resource", "resource_template", "prompt", "completion")  # completions follow their targets

AnyEntry = ToolEntry | ResourceEntry | TemplateEntry | PromptEntry | CompletionEntry


class MountOptions(Struct, frozen=True):
    """How the entries of a mounted server appear in its parent."""

    prefix: Prefix = Prefix()
    where: Callable[[Any], bool] | None = None  # leaves out the entries for which it returns False
    transform: Callable[[ToolEntry], ToolEntry] | None = None  # changes tools


class Mount:
    """One server in another. Threads may change the entries of both."""

    def __init__(
        self,
        options: MountOptions,
        *,
        parent: ServerCatalog,
        catalog: ServerCatalog,
        siblings: "list[Mount]",
        runtimes: "tuple[ServerRuntime, ServerRuntime]",
        mounted: "MountedServer",
        get_middlewares: "Callable[[], Sequence[Middleware]]",
    ) -> None:
        """`catalog` is that of the mounted server, `siblings` are the mounts of the parent, `runtimes` are those of the
        parent and of the mounted server."""
        self.options = options
        self.catalog = catalog
        self.mounted = mounted
        self._parent = parent
        self._siblings = siblings
        self._runtimes = runtimes
        self._get_middlewares = get_middlewares
        self._lock = threading.RLock()  # a refresh reads the entries and passes them on in one step
        self._entries = self._make_entries()
        self._made: dict[str, dict[str, tuple[Any, Any]]] = {
            kind: {} for kind in (*_KINDS, "version")
        }  # by key: source, entry
        self._updates = MountedUpdates(options.prefix, *runtimes, self._parent_uri, self._enter)

    def __str__(self) -> str:
        prefix = self.options.prefix
        return f"server {self.catalog.info.name!r}, mounted {f'as {prefix.text!r}' if prefix else 'without a prefix'}"

    def attach(self) -> None:
        """Offer the entries to the parent from now on. Raises `RegistrationError`, such as `NameClash`, and changes
        nothing, if the parent cannot take them."""
        for kind in _KINDS:
            made = [self._derive(each.entry) for each in self.catalog.registry_of(kind).offers()]
            self._parent.registry_of(kind).check_offer(self, [entry for entry in made if entry is not None])
        if not self._is_mounted_again:
            self._runtimes[0].mount(self.mounted)
        self._siblings.append(self)
        self.catalog.followers.append(self)
        self._updates.connect()
        self.refresh_all()

    def detach(self) -> None:
        """Withdraw the entries."""
        self._siblings.remove(self)
        self.catalog.followers.remove(self)
        self._updates.disconnect()
        if not self._is_mounted_again:
            self._runtimes[0].unmount(self.mounted)
        for kind in _KINDS:
            self._parent.registry_of(kind).offer(self, [])

    @property
    def _is_mounted_again(self) -> bool:
        """Whether another mount has the same server in the same parent."""
        return any(other.catalog is self.catalog for other in self._siblings)

    # --- following changes -------------------------------------------------------------------------

    def check(self, kind: str, entry: Any) -> None:
        """Raise if the parent cannot take a new entry of the mounted server."""
        made = self._derive(entry) if kind in _KINDS else None
        if made is not None:
            self._parent.registry_of(kind).check_offer(self, [made])

    def refresh(self, kind: str) -> None:
        """Follow a change of the entries of a kind."""
        if kind not in _KINDS:
            return
        with self._lock:
            self._parent.registry_of(kind).offer(self, self._offered(kind))
            if kind != "completion":
                self._parent.registry_of("completion").offer(self, self._offered("completion"))

    def reconfigure(self, options: MountOptions) -> None:
        """Build all entries again with other options and the same prefix."""
        self.options = options
        self.refresh_all()

    def refresh_all(self) -> None:
        """Build all entries again, because the middleware of the mounted server has changed."""
        with self._lock:
            self._entries = self._make_entries()
            for made in self._made.values():
                made.clear()
            for kind in _KINDS:
                self.refresh(kind)

    def _enter(self, context: Any) -> Any:
        return self._entries.enter(context)

    def _make_entries(self) -> MountedEntries:
        return MountedEntries(self.options.prefix, self.catalog, self._runtimes[1], tuple(self._get_middlewares()))

    def _offered(self, kind: str) -> list[Offered[Any]]:
        made = {
            each.entry.key: (each, self._made_from(kind, each.entry))
            for each in self.catalog.registry_of(kind).offers()
        }
        self._made[kind] = {key: (each.entry, entry) for key, (each, entry) in made.items()}
        return [
            Offered(entry, each.enabled, self._versions(each, entry))
            for each, entry in made.values()
            if entry is not None
        ]

    def _versions(self, offered: Offered[Any], entry: Any) -> dict[str, Any]:
        """Return the versions of an entry of the parent that have the same name there."""
        made = {
            version: entry if each is offered.entry else self._made_version(each)
            for version, each in offered.versions.items()
        }
        return {version: each for version, each in made.items() if each is not None and each.key == entry.key}

    def _made_version(self, source: ToolEntry) -> Any:
        """Return a version of a tool that is not the highest, the same as long as its source is the same."""
        known = self._made["version"].get(f"{source.key} {source.version}")
        made = known[1] if known is not None and known[0] is source else self._derive(source)
        self._made["version"][f"{source.key} {source.version}"] = (source, made)
        return made

    def _made_from(self, kind: str, source: Any) -> Any:
        """Return the entry of the parent for one of the mounted server, the same as long as that is the same."""
        known = self._made[kind].get(source.key)
        if known is not None and known[0] is source and kind != "completion":
            return known[1]
        return self._derive(source)

    # --- entries -----------------------------------------------------------------------------------

    def _derive(self, source: AnyEntry) -> AnyEntry | None:
        """Return the entry of the parent for one of the mounted server; None to leave it out."""
        where, entries = self.options.where, self._entries
        if isinstance(source, CompletionEntry):
            return self._derive_completion(source)
        if where is not None and not where(source):
            return None
        match source:
            case ToolEntry():
                return self._derive_tool(source)
            case PromptEntry():
                return entries.prompt(source)
            case ResourceEntry():
                return entries.resource(source)
            case TemplateEntry():
                return entries.template(source)
            case _:
                assert_never(source)

    def _derive_tool(self, source: ToolEntry) -> ToolEntry:
        entry, transform = self._entries.tool(source), self.options.transform
        if transform is not None:
            entry = transform(entry)
        name = check_tool_name(self.options.prefix.add_to_name(entry.name))
        return replace(entry, name=name, limiter=None if entry.limiter is None else entry.limiter.named(name))

    def _derive_completion(self, source: CompletionEntry) -> CompletionEntry | None:
        """Return the completer for the entry that its target has become, if the parent has that argument."""
        target = self.catalog.find_completion_target(source.kind, source.name)
        argument, prefix = source.argument, self.options.prefix
        if target is None:  # registered before its target
            add = prefix.add_to_uri if source.kind == "resource" else prefix.add_to_name
            return self._entries.completion(source, add(source.name), argument)
        kind = source.kind if source.kind != "resource" else "resource_template"
        made = self._made_from(kind, target)
        if made is None or isinstance(target, ResourceEntry):
            return None
        if isinstance(made, ToolEntry):
            argument = made.renamed_arguments.get(argument, argument)
        if argument not in completable_arguments(made):
            return None
        return self._entries.completion(source, made.key, argument)

    def _parent_uri(self, uri: str) -> str | None:
        """Return the URI in the parent of a resource of the mounted server; None if the parent does not offer it."""
        entry = self.catalog.resolve_uri(uri)
        if entry is not None:
            kind = "resource_template" if isinstance(entry, TemplateEntry) else "resource"
            made = self._made_from(kind, entry)
            if made is None or not self._parent.registry_of(kind).enabled(made.key):
                return None
        try:
            return self.options.prefix.add_to_uri(uri)
        except RegistrationError:  # not a URI
            return None


def check_mountable(parent: "ServerRuntime", child: "ServerRuntime") -> None:
    """Raise `MisuseError` if a server would contain itself."""
    path = _find_path(child, parent)
    if path is not None:
        names = " -> ".join(map(repr, (parent.name, *path)))
        raise MisuseError(f"server {child.name!r} cannot be mounted in {parent.name!r}: {names} is a cycle")


def _find_path(runtime: "ServerRuntime", target: "ServerRuntime") -> list[str] | None:
    """Return the names of the servers on a path of mounts from one server to another; None if there is none."""
    if runtime is target:
        return [runtime.name]
    for mounted in runtime.mounts:
        if (path := _find_path(mounted.runtime, target)) is not None:
            return [runtime.name, *path]
    return None
