"""What an exception says, without what may be a secret.

Nobody can tell every secret from other words. What is left is what programs say by themselves: whatever a message
quotes, from the first quotation mark to the last, goes, and so does what stands in the environment, what follows the
name of a secret, what an address has beside its place, keys in their armour, and every long word with digits in it.
Too much is blotted out rather than too little.

Crash dumps: what is known of a server at the moment it fails, as a JSON file for whoever has to find out why.

A dump may be sent to somebody, so it is made of what cannot hold secrets: places in the code and not the lines that
stand there, ids of requests and not what was asked. The one text from elsewhere is what an exception says, which may
quote anything; it is told without what may be a secret, see `redaction.py`. The log has the whole of it.
"""

import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from trunkline.config import environment_values
from trunkline.version import __version__
from trunkline.wire import codec

__all__ = ["redact", "write_dump"]

_REDACTED: Final = "…"
_MIN_SECRET_LENGTH: Final = (
    6  # characters of a value of the environment that could be a secret; shorter ones are everywhere
)
_MAX_TEXT_LENGTH: Final = 2000  # characters that are looked at
_LONG_WORD: Final = re.compile(r"[\w+/.=-]{16,}")  # words, or numbers, or both
_WHITESPACE: Final = re.compile(r"[^\S\n]+")
_URL_PASSWORD: Final = re.compile(r"://[^\s/@]*:([^\s/@]+)@")  # in an address

_QUOTES: Final = "'\"`\u2018\u2019\u201c\u201d\u00ab\u00bb"
_SECRET_WORDS: Final = r"pass(?:word|wd|phrase|code)?|pwd|secret|token|jwt|otp|pin|api[\s_-]?key"  # noqa: S105
_SECRET_NAMES: Final = (
    rf"{_SECRET_WORDS}|key|credential|cookie|session|authorization|signature|\bsig\b|\bauth\b|\bcode\b"
)
_REDACTION_RULES: Final = (
    (re.compile(r"-----BEGIN .*?(?:-----END [^-]*-----|\Z)", re.DOTALL), ""),
    (
        re.compile(rf"(?:(?<!\w)|(?<=\b[bBrRuUfF]))[{_QUOTES}].*[{_QUOTES}]", re.DOTALL),
        "",
    ),  # from the first to the last
    (re.compile(rf"(?<!\w)[{_QUOTES}].*", re.DOTALL), ""),  # one that is not closed
    (re.compile(r"(://)\S{0,400}@"), r"\1"),
    (re.compile(r"(://[^\s?#]*[?#])\S+"), r"\1"),
    (re.compile(rf"(?i)((?:{_SECRET_NAMES})[\w-]{{0,40}}\s?[=:]\s?)\S.*"), r"\1"),  # to the end of the line
    (re.compile(r"(?i)(\b(?:bearer|basic|dpop|digest)\s)\S+"), r"\1"),
    (re.compile(rf"(?i)(\b(?:{_SECRET_WORDS})\s(?:(?:is|was|of|for)\s)?)[^\s…]+"), r"\1"),
    (re.compile(rf"({_REDACTED}\s?[=:]\s?)[^\s,;}}\]]+"), r"\1"),  # what is said of something quoted
    (re.compile(r"\d{6,}"), ""),
)


def redact(text: str, environment: Iterable[str] = ()) -> str:
    """A text without what may be a secret."""
    if len(text) > _MAX_TEXT_LENGTH:
        text = text[:_MAX_TEXT_LENGTH].rpartition(" ")[
            0
        ]  # not a part of something that would be found if it were whole
    for value in sorted(_find_environment_secrets(environment), key=len, reverse=True):
        text = text.replace(value, _REDACTED)
    text = _WHITESPACE.sub(" ", text)
    for rule, kept in _REDACTION_RULES:
        text = rule.sub(kept + _REDACTED, text)
    return _LONG_WORD.sub(lambda word: _REDACTED if any(map(str.isdigit, word[0])) else word[0], text)


def _find_environment_secrets(environment: Iterable[str]) -> set[str]:
    """What must not be told of the environment: its values, and passwords in them."""
    values = {value for value in environment if len(value) >= _MIN_SECRET_LENGTH}
    return values | {password for value in values for password in _URL_PASSWORD.findall(value)}


_MAX_ERRORS: Final = 50  # errors that one came from, or is made of
_MAX_FRAMES: Final = 100  # places in the code for each


def write_dump(folder: str, max_dumps: int, error: BaseException, state: Mapping[str, Any]) -> str:
    """Writes a dump into a folder, which is made if there is none, and removes the oldest if there are too many."""
    place = Path(folder)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"crash-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 10**9:09d}-{os.getpid()}.json"
    told = codec.to_json(_build_dump(error, state))
    handle, unfinished = tempfile.mkstemp(prefix=".crash-", dir=place)  # 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(told)
        os.replace(unfinished, place / name)
    except BaseException:
        os.unlink(unfinished)
        raise
    for old in sorted(place.glob("crash-*.json"))[:-max_dumps]:
        old.unlink(missing_ok=True)
    return str(place / name)


def _build_dump(error: BaseException, state: Mapping[str, Any]) -> dict[str, Any]:
    environment = environment_values()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "trunkline": __version__,
        "python": sys.version.split()[0],
        "pid": os.getpid(),
        "reason": _describe_error(error, environment),
        "traceback": [_describe_traceback(each, environment) for each in reversed(list(_walk_causes(error)))],
        **state,
    }


def _describe_error(error: BaseException, environment: Iterable[str]) -> str:
    try:
        said = redact(str(error), environment)
    except Exception:  # noqa: BLE001 - somebody's `__str__`
        said = "it cannot be told"
    return f"{type(error).__name__}: {said}"


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    """An error, what it is made of, and what it came from: each once, and not too many."""
    waiting, seen = [error], {id(error)}
    while waiting and len(seen) <= _MAX_ERRORS:
        current = waiting.pop(0)
        yield current
        parts = cast("BaseExceptionGroup[Any]", current).exceptions if isinstance(current, BaseExceptionGroup) else ()
        cause = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        for origin in (*parts, cause):
            if origin is not None and id(origin) not in seen:
                seen.add(id(origin))
                waiting.append(origin)


def _describe_traceback(error: BaseException, environment: Iterable[str]) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
    return {
        "error": _describe_error(error, environment),
        "frames": [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames],
    }
