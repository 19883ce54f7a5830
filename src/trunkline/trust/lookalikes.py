"""Names that look alike, such as `send_mail` and `send_rnail`, or `list` and `Iist`. Pure.

Names are compared by a skeleton, as in Unicode Technical Standard 39, with a table of the letters that are common in
names: Latin, Greek and Cyrillic. It does not have all scripts.
"""

import unicodedata
from collections.abc import Iterable
from typing import Final

__all__ = ["find_lookalikes", "skeleton"]

_LETTERS: Final = str.maketrans(
    {
        **dict(zip("аеорсухіјѕԁһԛԝѵмткнв", "aeopcyxijsdhqwvmtkhb", strict=True)),
        **dict(zip("αορνικτυχγ", "aopviktuxy", strict=True)),
        **dict(zip("ɑɡ0", "ago", strict=True)),  # noqa: RUF001
        **dict.fromkeys("1i|ı", "l"),  # noqa: RUF001
        **dict.fromkeys("-.‐‑–", "_"),  # noqa: RUF001
    }
)


def skeleton(name: str) -> str:
    """Return a text that names which look alike have in common. It is not for display."""
    plain = unicodedata.normalize("NFKD", name)
    visible = "".join(char for char in plain if not unicodedata.combining(char) and char.isprintable())
    letters = visible.casefold().translate(_LETTERS).translate(_LETTERS)  # twice: a Cyrillic i is i, which is l
    return letters.replace("rn", "m").replace("vv", "w")


def find_lookalikes(names: Iterable[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Return groups of different names that look alike, each name with its owner. Equal names of different owners are
    not among them: their prefixes differ."""
    groups: dict[str, dict[str, tuple[str, str]]] = {}
    for owner, name in names:
        groups.setdefault(skeleton(name), {}).setdefault(name, (owner, name))
    return [[*spellings.values()] for spellings in groups.values() if len(spellings) > 1]
