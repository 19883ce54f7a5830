"""The valid types of the options of `Client`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trunkline.config import Settings
from trunkline.errors import MisuseError
from trunkline.errors.options import FLAG, FUNCTION, MAPPING, TEXT, OptionKind, describe_value, each_value, instance_of
from trunkline.errors.suggestions import with_suggestion
from trunkline.protocol.types import LOGGING_LEVELS, Root

__all__ = ["OPTION_KINDS", "check_level"]

_LEVELS: Final = f"one of {', '.join(LOGGING_LEVELS)}"


def _is_clock(value: Any) -> bool:
    return hasattr(value, "call_at")


OPTION_KINDS: Final[Mapping[str, OptionKind]] = {
    **dict.fromkeys(("version", "title"), TEXT),
    **dict.fromkeys(("sampling", "elicitation", "open_url", "on_log", "on_failed", "on_phase"), FUNCTION),
    **dict.fromkeys(("experimental", "extensions"), MAPPING),
    "sampling_tools": FLAG,
    "settings": instance_of("a Settings, such as Settings(connect_timeout=5.0)", Settings),
    "roots": each_value(lambda root: isinstance(root, str | Path | Root), "a list of file: URIs, paths or roots"),
    "log_level": OptionKind(_LEVELS, LOGGING_LEVELS.__contains__),
    "observers": each_value(lambda one: hasattr(one, "on") and not isinstance(one, type), "a list of observers"),
    "clock": OptionKind("a clock, such as ManualClock()", _is_clock),
}


def check_level(level: Any) -> None:
    """Raise `MisuseError` for an invalid log level."""
    if level not in LOGGING_LEVELS:
        why = f"the log level must be {_LEVELS}, not {describe_value(level)}"
        raise MisuseError(with_suggestion(why, level, LOGGING_LEVELS) if isinstance(level, str) else why)
