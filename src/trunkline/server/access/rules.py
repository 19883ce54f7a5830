"""Who may see and have what: by the scopes that a principal holds, and by what predicates say of it.

What is hidden by scopes alone depends on nothing but the scopes, so that it is found once for all who hold the same.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from trunkline.auth.principal import Principal
from trunkline.registry.access import Access
from trunkline.registry.handlers import exited
from trunkline.registry.registry import Registry

__all__ = ["NOBODY", "Ruled", "Rules", "Viewer", "held_by", "holds"]

_NOTHING: Final[frozenset[str]] = frozenset()
_KEPT_SETS: Final = 256  # of scopes that principals were seen with; there are as many as there are roles


class Ruled(Protocol):
    """An entry that may not be for everybody."""

    @property
    def key(self) -> str: ...
    @property
    def access(self) -> Access | None: ...


R = TypeVar("R", bound=Ruled)


class Viewer(Struct, frozen=True):
    """Whom a list is made for."""

    held: frozenset[str] | None = _NOTHING  # the scopes; None stands for all that there are
    whose: str = ""  # who it is, in letters
    answers: Mapping[Any, bool] = {}  # what predicates said; one that was not asked has not said yes


NOBODY: Final = Viewer()


def held_by(principal: Any, *, local: bool) -> frozenset[str] | None:
    """The scopes of a principal; None for all there are. On a local line nobody has to show any: whoever started the
    process is the one who it works for."""
    if principal is None:
        return None if local else _NOTHING
    if isinstance(principal, Principal):
        return principal.scopes
    scopes = getattr(principal, "scopes", ())
    return frozenset(scopes.split() if isinstance(scopes, str) else scopes)


async def holds(predicate: Callable[[], bool | Awaitable[bool]]) -> bool:
    """What a predicate says, plain or async."""
    try:
        answer = predicate()
        return bool(await answer if isawaitable(answer) else answer)
    except SystemExit as error:
        raise exited(error) from error


class _Found(Struct, Generic[R], frozen=True):
    """The rules as of a version of their registry."""

    version: int
    entries: list[tuple[R, Access]]
    asking: list[tuple[R, Access]]  # those with a predicate
    scopes: frozenset[str]  # that any of them needs
    lacking: dict[frozenset[str], frozenset[str]]  # by the scopes that somebody has of these, what those do not cover


class Rules(Generic[R]):
    """Those enabled entries of a registry that not everybody may have, looked for anew when it has changed."""

    def __init__(self, registry: Registry[R]) -> None:
        self._registry = registry
        self._found: _Found[R] = _Found(-1, [], [], _NOTHING, {})

    def __bool__(self) -> bool:
        """Whether there are any."""
        found = self._found
        return bool((found if found.version == self._registry.version else self._now()).entries)

    def predicates(self, held: frozenset[str] | None) -> Sequence[Callable[[Any], Any]]:
        """Who has to be asked about somebody with these scopes, each once."""
        asking = [access for _, access in self._now().asking if access.covered(held)]
        return list(dict.fromkeys(access.allow for access in asking if access.allow is not None))

    def hidden(self, viewer: Viewer) -> frozenset[str]:
        """The keys of what somebody may not have."""
        found = self._now()
        lacking = _NOTHING if viewer.held is None else _lacking(found, viewer.held)
        if not found.asking:
            return lacking
        return lacking.union(entry.key for entry, access in found.asking if not viewer.answers.get(access.allow))

    def _now(self) -> _Found[R]:
        version = self._registry.version  # first: a thread may change the registry meanwhile
        if self._found.version != version:
            entries = [(entry, entry.access) for entry in self._registry if entry.access is not None]
            entries = [(entry, access) for entry, access in entries if not access.open]
            asking = [(entry, access) for entry, access in entries if access.allow is not None]
            scopes = _NOTHING.union(*(access.scopes for _, access in entries))
            self._found = _Found(version, entries, asking, scopes, {})
        return self._found


def _lacking(found: _Found[Any], held: frozenset[str]) -> frozenset[str]:
    """What is not covered by these scopes."""
    held = held & found.scopes  # others make no difference
    lacking = found.lacking.get(held)
    if lacking is None:
        lacking = frozenset(entry.key for entry, access in found.entries if not access.covered(held))
        if len(found.lacking) >= _KEPT_SETS:
            found.lacking.clear()
        found.lacking[held] = lacking
    return lacking
