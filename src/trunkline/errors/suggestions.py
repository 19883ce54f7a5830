"""Suggestions for unknown names: the most similar known name."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

__all__ = ["closest_match", "did_you_mean", "with_suggestion"]

_LONGEST: Final = 64  # characters; longer names get no suggestion
_MOST: Final = 200  # known names to compare: each comparison takes time, and a peer may repeat its request
_SIMILARITY: Final = 0.7  # as difflib measures it, from 0 to 1


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`; None if none is similar enough."""
    if len(name) > _LONGEST:
        return None
    from difflib import get_close_matches  # imported on use: slow, and rarely needed

    by_key = {_key(candidate): candidate for candidate in islice(known, _MOST) if candidate != name}
    found = get_close_matches(_key(name), by_key, n=1, cutoff=_SIMILARITY)
    return by_key[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean "x"?` for the most similar known name, or an empty string."""
    found = closest_match(name, known)
    return "" if found is None else f' Did you mean "{found}"?'


def with_suggestion(message: str, name: str, known: Iterable[str]) -> str:
    """Append the suggestion for an unknown name, if there is one, to a message."""
    hint = did_you_mean(name, known)
    return f"{message}.{hint}" if hint else message


def _key(name: str) -> str:
    """Return the form in which names are compared: without case and with one kind of separator."""
    return name.casefold().replace("-", "_").replace(" ", "_")
