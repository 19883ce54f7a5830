"""Crash dumps: what is known of a server at the moment it fails, as a JSON file for whoever has to find out why.

A dump may be sent to somebody, so it is made of what cannot hold secrets: places in the code and not the lines that
stand there, ids of requests and not what was asked. The one text from elsewhere is what an exception says, which may
quote anything. In it everything is blotted out that stands in quotes or in our environment, that follows the name of a
secret, or that looks like a token; the log has the whole of it.
"""

import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from trunkline.config import environment_values
from trunkline.version import __version__
from trunkline.wire import codec

__all__ = ["redacted", "write_dump"]

_HIDDEN: Final = "…"
_SHORTEST: Final = 6  # characters of a value of the environment that could be a secret; shorter ones are everywhere
_SECRETS: Final = (
    re.compile(r"(?i)(authorization\b\W+)(?:\w+\s+)?[^\s,;]+"),
    re.compile(r"(?i)(\b(?:bearer|basic|dpop|digest)\s+)[^\s,;]+"),
    re.compile(r"(?i)([\w-]*(?:key|token|secret|password|passwd|credential|cookie|session)[\w-]*\s*[=:]\s*)[^\s,;&]+"),
)
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL)
_RANDOM: Final = re.compile(r"(?=[\w+/.=-]*\d)[\w+/.=-]{16,}|\d{6,}")  # long words with digits in them


def redacted(text: str, environment: Iterable[str] = ()) -> str:
    """A text without what may be a secret."""
    for value in sorted({value for value in environment if len(value) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(value, _HIDDEN)
    text = _QUOTED.sub(_HIDDEN, text)
    for pattern in _SECRETS:
        text = pattern.sub(rf"\1{_HIDDEN}", text)
    return _RANDOM.sub(_HIDDEN, text)


def write_dump(folder: str, most: int, error: BaseException, situation: Mapping[str, Any]) -> str:
    """Writes a dump into a folder, which is made if there is none, and removes the oldest if there are too many."""
    place = Path(folder)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"crash-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 10**9:09d}-{os.getpid()}.json"
    handle, unfinished = tempfile.mkstemp(prefix=".crash-", dir=place)  # 0600
    with os.fdopen(handle, "wb") as file:
        file.write(codec.to_json(_told(error, situation)))
    path = place / name
    os.replace(unfinished, path)
    for old in sorted(place.glob("crash-*.json"))[:-most]:
        old.unlink(missing_ok=True)
    return str(path)


def _told(error: BaseException, situation: Mapping[str, Any]) -> dict[str, Any]:
    environment = environment_values()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "trunkline": __version__,
        "python": sys.version.split()[0],
        "pid": os.getpid(),
        "reason": _reason(error, environment),
        "traceback": [_chapter(each, environment) for each in _chain(error)],
        **situation,
    }


def _reason(error: BaseException, environment: Iterable[str]) -> str:
    return f"{type(error).__name__}: {redacted(str(error), environment)}"


def _chain(error: BaseException) -> list[BaseException]:
    """An error and what it came from, the first cause first."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return found[::-1]


def _chapter(error: BaseException, environment: Iterable[str]) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "error": _reason(error, environment),
        "frames": [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames],
    }
