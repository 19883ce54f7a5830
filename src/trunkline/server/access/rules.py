"""Who may see and have what: by the scopes that a principal holds, and by what predicates say of it.

What is hidden by scopes alone depends on nothing but the scopes, so that it is found once for all who hold the same.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from trunkline.auth.principal import Principal
from trunkline.registry.access import Access
from trunkline.registry.handlers import exit_error
from trunkline.registry.registry import Registry

__all__ = ["ANONYMOUS_VIEWER", "AccessControlled", "AccessRules", "Viewer", "evaluate_predicate", "scopes_of"]

_EMPTY: Final[frozenset[str]] = frozenset()
_MAX_CACHED_SCOPE_SETS: Final = 256  # of scopes that principals were seen with; there are as many as there are roles


class AccessControlled(Protocol):
    """An entry that may not be for everybody."""

    @property
    def key(self) -> str: ...
    @property
    def access(self) -> Access | None: ...


R = TypeVar("R", bound=AccessControlled)


class Viewer(Struct, frozen=True):
    """Whom a list is made for."""

    scopes: frozenset[str] | None = _EMPTY  # the scopes; None stands for all that there are
    principal_name: str = ""  # who it is, in letters
    predicate_results: Mapping[Any, bool] = {}  # what predicates said; one that was not asked has not said yes


ANONYMOUS_VIEWER: Final = Viewer()


def scopes_of(principal: Any, *, local: bool) -> frozenset[str] | None:
    """The scopes of a principal; None for all there are. On a local line nobody has to show any: whoever started the
    process is the one who it works for."""
    if principal is None:
        return None if local else _EMPTY
    if isinstance(principal, Principal):
        return principal.scopes
    scopes = getattr(principal, "scopes", ())
    return frozenset(scopes.split() if isinstance(scopes, str) else scopes)


async def evaluate_predicate(predicate: Callable[[], bool | Awaitable[bool]]) -> bool:
    """What a predicate says, plain or async."""
    try:
        answer = predicate()
        return bool(await answer if isawaitable(answer) else answer)
    except SystemExit as error:
        raise exit_error(error) from error


class _Snapshot(Struct, Generic[R], frozen=True):
    """The rules as of a version of their registry."""

    version: int
    entries: list[tuple[R, Access]]
    with_predicate: list[tuple[R, Access]]  # those with a predicate
    scopes: frozenset[str]  # that any of them needs
    hidden_by_scopes: dict[
        frozenset[str], frozenset[str]
    ]  # by the scopes that somebody has of these, what those do not cover


class AccessRules(Generic[R]):
    """Those enabled entries of a registry that not everybody may have, looked for anew when it has changed."""

    def __init__(self, registry: Registry[R]) -> None:
        self._registry = registry
        self._snapshot: _Snapshot[R] = _Snapshot(-1, [], [], _EMPTY, {})

    def __bool__(self) -> bool:
        """Whether there are any."""
        found = self._snapshot
        return bool((found if found.version == self._registry.version else self._current_snapshot()).entries)

    def predicates(self, scopes: frozenset[str] | None) -> Sequence[Callable[[Any], Any]]:
        """Who has to be asked about somebody with these scopes, each once."""
        asking = [access for _, access in self._current_snapshot().with_predicate if access.is_covered_by(scopes)]
        return list(dict.fromkeys(access.allow for access in asking if access.allow is not None))

    def hidden_keys(self, viewer: Viewer) -> frozenset[str]:
        """The keys of what somebody may not have."""
        found = self._current_snapshot()
        lacking = _EMPTY if viewer.scopes is None else _hidden_by_scopes(found, viewer.scopes)
        if not found.with_predicate:
            return lacking
        return lacking.union(
            entry.key for entry, access in found.with_predicate if not viewer.predicate_results.get(access.allow)
        )

    def _current_snapshot(self) -> _Snapshot[R]:
        version = self._registry.version  # first: a thread may change the registry meanwhile
        if self._snapshot.version != version:
            entries = [(entry, entry.access) for entry in self._registry if entry.access is not None]
            entries = [(entry, access) for entry, access in entries if not access.unrestricted]
            asking = [(entry, access) for entry, access in entries if access.allow is not None]
            scopes = _EMPTY.union(*(access.scopes for _, access in entries))
            self._snapshot = _Snapshot(version, entries, asking, scopes, {})
        return self._snapshot


def _hidden_by_scopes(snapshot: _Snapshot[Any], scopes: frozenset[str]) -> frozenset[str]:
    """What is not covered by these scopes."""
    scopes = scopes & snapshot.scopes  # others make no difference
    lacking = snapshot.hidden_by_scopes.get(scopes)
    if lacking is None:
        lacking = frozenset(entry.key for entry, access in snapshot.entries if not access.is_covered_by(scopes))
        if len(snapshot.hidden_by_scopes) >= _MAX_CACHED_SCOPE_SETS:
            snapshot.hidden_by_scopes.clear()
        snapshot.hidden_by_scopes[scopes] = lacking
    return lacking
