"""Crash dumps: the state of a failing server as a JSON file, with secrets redacted.

Operators may pass a dump on, so it consists of data without secrets: code locations instead of source lines, request
ids instead of params. The only foreign text is the exception's message, which may quote anything; the dump has a
redacted version, the log the full one.

Redaction cannot recognise every secret, so it removes more rather than less: quoted text from the first to the last
quotation mark, values of environment variables, the text after the name of a secret, credentials and query of a URL,
PEM blocks, and long words with digits.
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
_MIN_SECRET_LENGTH: Final = 6  # characters of an environment value; shorter values occur in ordinary words
_MAX_TEXT_LENGTH: Final = 2000  # characters of a message
_LONG_WORD: Final = re.compile(r"[\w+/.=-]{16,}")  # letters, digits or both
_WHITESPACE: Final = re.compile(r"[^\S\n]+")
_URL_PASSWORD: Final = re.compile(r"://[^\s/@]*:([^\s/@]+)@")  # in a URL

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
    ),  # first to last quotation mark
    (re.compile(rf"(?<!\w)[{_QUOTES}].*", re.DOTALL), ""),  # an unclosed quotation
    (re.compile(r"(://)\S{0,400}@"), r"\1"),
    (re.compile(r"(://[^\s?#]*[?#])\S+"), r"\1"),
    (re.compile(rf"(?i)((?:{_SECRET_NAMES})[\w-]{{0,40}}\s?[=:]\s?)\S.*"), r"\1"),  # to the end of the line
    (re.compile(r"(?i)(\b(?:bearer|basic|dpop|digest)\s)\S+"), r"\1"),
    (re.compile(rf"(?i)(\b(?:{_SECRET_WORDS})\s(?:(?:is|was|of|for)\s)?)[^\s…]+"), r"\1"),
    (re.compile(rf"({_REDACTED}\s?[=:]\s?)[^\s,;}}\]]+"), r"\1"),  # the value after a redacted key
    (re.compile(r"\d{6,}"), ""),
)


def redact(text: str, environment: Iterable[str] = ()) -> str:
    """Return a text with possible secrets removed."""
    if len(text) > _MAX_TEXT_LENGTH:
        text = text[:_MAX_TEXT_LENGTH].rpartition(" ")[0]  # a truncated secret would not match
    for value in sorted(_find_environment_secrets(environment), key=len, reverse=True):
        text = text.replace(value, _REDACTED)
    text = _WHITESPACE.sub(" ", text)
    for rule, kept in _REDACTION_RULES:
        text = rule.sub(kept + _REDACTED, text)
    return _LONG_WORD.sub(lambda word: _REDACTED if any(map(str.isdigit, word[0])) else word[0], text)


def _find_environment_secrets(environment: Iterable[str]) -> set[str]:
    """Return the values of the environment that may be secrets, and the passwords inside them."""
    values = {value for value in environment if len(value) >= _MIN_SECRET_LENGTH}
    return values | {password for value in values for password in _URL_PASSWORD.findall(value)}


_MAX_ERRORS: Final = 50  # causes and group members
_MAX_FRAMES: Final = 100  # per error


def write_dump(folder: str, max_dumps: int, error: BaseException, state: Mapping[str, Any]) -> str:
    """Write a dump into a folder, created if necessary, and delete the oldest beyond `max_dumps`; return its path."""
    place = Path(folder)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)  # one reading, so that names sort by time
    name = f"crash-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}-{nanoseconds:09d}-{os.getpid()}.json"
    contents = codec.to_json(_build_dump(error, state))
    handle, unfinished = tempfile.mkstemp(prefix=".crash-", dir=place)  # 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(contents)
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
        text = redact(str(error), environment)
    except Exception:  # noqa: BLE001 - a foreign `__str__`
        text = "(message unavailable)"
    return f"{type(error).__name__}: {text}"


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, the members of its group and its causes: each once, at most `_MAX_ERRORS`."""
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
