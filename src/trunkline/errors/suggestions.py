"""Suggestions for names that do not exist: the known name that is most like the one that was given."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

__all__ = ["closest_match", "did_you_mean", "with_suggestion"]

_LONGEST: Final = 64  # characters of a name that is compared
_MOST: Final = 200  # known names: a peer may ask for unknown ones as often as it likes, and each comparison takes time
_SIMILARITY: Final = 0.7  # as difflib measures it, from 0 to 1


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, or None if none is like it."""
    if len(name) > _LONGEST:
        return None
    from difflib import get_close_matches  # rarely needed: not worth its time at every start

    by_key = {_key(candidate): candidate for candidate in islice(known, _MOST) if candidate != name}
    found = get_close_matches(_key(name), by_key, n=1, cutoff=_SIMILARITY)
    return by_key[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean "x"?` for the known name most like `name`, or an empty string if none is like it."""
    found = closest_match(name, known)
    return "" if found is None else f' Did you mean "{found}"?'


def with_suggestion(message: str, name: str, known: Iterable[str]) -> str:
    """Return a message about an unknown name, followed by the suggestion if there is one."""
    hint = did_you_mean(name, known)
    return f"{message}.{hint}" if hint else message


def _key(name: str) -> str:
    """The form in which names are compared: case does not matter, nor how words are separated."""
    return name.casefold().replace("-", "_").replace(" ", "_")
