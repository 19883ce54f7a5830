"""Access rules of registry entries: the scopes that a principal needs, and predicates that it must satisfy.

The entries that scopes alone hide depend only on the scopes, so they are computed once per set of scopes.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from trunkline.registry.access import Access
from trunkline.registry.handlers import exit_error
from trunkline.registry.registry import Registry

__all__ = ["ANONYMOUS_VIEWER", "AccessControlled", "AccessRules", "Viewer", "evaluate_predicate", "scopes_of"]

_EMPTY: Final[frozenset[str]] = frozenset()
_MAX_CACHED_SCOPE_SETS: Final = 256  # typically one per role


class AccessControlled(Protocol):
    """A registry entry that may restrict access."""

    @property
    def key(self) -> str: ...
    @property
    def access(self) -> Access | None: ...


R = TypeVar("R", bound=AccessControlled)


class Viewer(Struct, frozen=True):
    """The caller for whom a list is computed."""

    scopes: frozenset[str] | None = _EMPTY  # None: all scopes
    principal_name: str = ""  # empty for an anonymous caller
    predicate_results: Mapping[Any, bool] = {}  # by predicate; a missing one denies access


ANONYMOUS_VIEWER: Final = Viewer()


def scopes_of(principal: Any, *, local: bool) -> frozenset[str] | None:
    """Return the scopes of a principal; None for all scopes. On a local connection an anonymous caller has all of them:
    the user who started the process is its only client."""
    if principal is None:
        return None if local else _EMPTY
    scopes = getattr(principal, "scopes", ())  # a `Principal`, or any value that `identify` returned
    return frozenset(scopes.split() if isinstance(scopes, str) else scopes)


async def evaluate_predicate(predicate: Callable[[], bool | Awaitable[bool]]) -> bool:
    """Return the result of a predicate, sync or async. `sys.exit` inside it becomes an ordinary error."""
    try:
        answer = predicate()
        return bool(await answer if isawaitable(answer) else answer)
    except SystemExit as error:
        raise exit_error(error) from error


class _RulesSnapshot(Struct, Generic[R], frozen=True):
    """The rules at one version of the registry."""

    version: int
    entries: list[tuple[R, Access]]
    with_predicate: list[tuple[R, Access]]
    scopes: frozenset[str]  # required by any entry
    hidden_by_scopes: dict[frozenset[str], frozenset[str]]  # by the caller's relevant scopes: keys of hidden entries


class AccessRules(Generic[R]):
    """The enabled entries of a registry with restricted access; recomputed after the registry has changed."""

    def __init__(self, registry: Registry[R]) -> None:
        self._registry = registry
        self._snapshot: _RulesSnapshot[R] = _RulesSnapshot(-1, [], [], _EMPTY, {})

    def __bool__(self) -> bool:
        """Return whether any enabled entry has restricted access."""
        snapshot = self._snapshot
        return bool((snapshot if snapshot.version == self._registry.version else self._current_snapshot()).entries)

    def predicates(self, scopes: frozenset[str] | None) -> Sequence[Callable[[Any], Any]]:
        """Return the predicates to evaluate for a caller with these scopes, each once."""
        candidates = [access for _, access in self._current_snapshot().with_predicate if access.is_covered_by(scopes)]
        return list(dict.fromkeys(access.allow for access in candidates if access.allow is not None))

    def hidden_keys(self, viewer: Viewer) -> frozenset[str]:
        """Return the keys of the entries that a viewer may not access."""
        snapshot = self._current_snapshot()
        hidden = _EMPTY if viewer.scopes is None else _hidden_by_scopes(snapshot, viewer.scopes)
        if not snapshot.with_predicate:
            return hidden
        return hidden.union(
            entry.key for entry, access in snapshot.with_predicate if not viewer.predicate_results.get(access.allow)
        )

    def _current_snapshot(self) -> _RulesSnapshot[R]:
        version = self._registry.version  # read first: a thread may change the registry meanwhile
        if self._snapshot.version != version:
            entries = [(entry, entry.access) for entry in self._registry if entry.access is not None]
            entries = [(entry, access) for entry, access in entries if not access.unrestricted]
            with_predicate = [(entry, access) for entry, access in entries if access.allow is not None]
            scopes = _EMPTY.union(*(access.scopes for _, access in entries))
            self._snapshot = _RulesSnapshot(version, entries, with_predicate, scopes, {})
        return self._snapshot


def _hidden_by_scopes(snapshot: _RulesSnapshot[Any], scopes: frozenset[str]) -> frozenset[str]:
    """Return the keys of the entries that need scopes besides these."""
    scopes = scopes & snapshot.scopes  # no entry needs the others
    hidden = snapshot.hidden_by_scopes.get(scopes)
    if hidden is None:
        hidden = frozenset(entry.key for entry, access in snapshot.entries if not access.is_covered_by(scopes))
        if len(snapshot.hidden_by_scopes) >= _MAX_CACHED_SCOPE_SETS:
            snapshot.hidden_by_scopes.clear()
        snapshot.hidden_by_scopes[scopes] = hidden
    return hidden
