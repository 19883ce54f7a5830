"""What an exception says, without what may be a secret.

Nobody can tell every secret from other words. What is left is what programs say by themselves: whatever a message
quotes, from the first quotation mark to the last, goes, and so does what stands in the environment, what follows the
name of a secret, what an address has beside its place, keys in their armour, and every long word with digits in it.
Too much is blotted out rather than too little.
"""

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["redacted"]

_HIDDEN: Final = "…"
_SHORTEST: Final = 6  # characters of a value of the environment that could be a secret; shorter ones are everywhere
_LONGEST: Final = 2000  # characters that are looked at
_LONG: Final = re.compile(r"[\w+/.=-]{16,}")  # words, or numbers, or both
_SPACE: Final = re.compile(r"[^\S\n]+")
_PASSWORD: Final = re.compile(r"://[^\s/@]*:([^\s/@]+)@")  # in an address

_MARKS: Final = "'\"`\u2018\u2019\u201c\u201d\u00ab\u00bb"
_SAID: Final = r"pass(?:word|wd|phrase|code)?|pwd|secret|token|jwt|otp|pin|api[\s_-]?key"
_NAMED: Final = rf"{_SAID}|key|credential|cookie|session|authorization|signature|\bsig\b|\bauth\b|\bcode\b"
_RULES: Final = (
    (re.compile(r"-----BEGIN .*?(?:-----END [^-]*-----|\Z)", re.DOTALL), ""),
    (re.compile(rf"(?:(?<!\w)|(?<=\b[bBrRuUfF]))[{_MARKS}].*[{_MARKS}]", re.DOTALL), ""),  # from the first to the last
    (re.compile(rf"(?<!\w)[{_MARKS}].*", re.DOTALL), ""),  # one that is not closed
    (re.compile(r"(://)\S{0,400}@"), r"\1"),
    (re.compile(r"(://[^\s?#]*[?#])\S+"), r"\1"),
    (re.compile(rf"(?i)((?:{_NAMED})[\w-]{{0,40}}\s?[=:]\s?)\S.*"), r"\1"),  # to the end of the line
    (re.compile(r"(?i)(\b(?:bearer|basic|dpop|digest)\s)\S+"), r"\1"),
    (re.compile(rf"(?i)(\b(?:{_SAID})\s(?:(?:is|was|of|for)\s)?)[^\s…]+"), r"\1"),
    (re.compile(rf"({_HIDDEN}\s?[=:]\s?)[^\s,;}}\]]+"), r"\1"),  # what is said of something quoted
    (re.compile(r"\d{6,}"), ""),
)


def redacted(text: str, environment: Iterable[str] = ()) -> str:
    """A text without what may be a secret."""
    if len(text) > _LONGEST:
        text = text[:_LONGEST].rpartition(" ")[0]  # not a part of something that would be found if it were whole
    for value in sorted(_hidden_in(environment), key=len, reverse=True):
        text = text.replace(value, _HIDDEN)
    text = _SPACE.sub(" ", text)
    for rule, kept in _RULES:
        text = rule.sub(kept + _HIDDEN, text)
    return _LONG.sub(lambda word: _HIDDEN if any(map(str.isdigit, word[0])) else word[0], text)


def _hidden_in(environment: Iterable[str]) -> set[str]:
    """What must not be told of the environment: its values, and passwords in them."""
    values = {value for value in environment if len(value) >= _SHORTEST}
    return values | {password for value in values for password in _PASSWORD.findall(value)}
