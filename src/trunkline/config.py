"""Settings, frozen and with defaults; and the only reader of environment variables and files.

A setting is a field. `Settings.load` takes it from keyword arguments, from environment variables
(`TRUNKLINE_` and the field's name in capitals), and from a TOML file, in this order of precedence.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from trunkline.errors import ConfigError

__all__ = ["OnDuplicate", "Settings"]

OnDuplicate = Literal["error", "replace", "warn"]

KIB: Final = 1024
MIB: Final = 1024 * KIB
_SMALLEST_MESSAGE: Final = 1 * KIB
_LARGEST_MESSAGE: Final = 100 * MIB
_PREFIX: Final = "TRUNKLINE_"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set. Times are seconds, sizes are bytes, None means off."""

    # How large a message may be, by transport; the boundary itself is still accepted.
    stdio_message_size_limit: int = 16 * MIB
    tcp_message_size_limit: int = 16 * MIB
    http_body_size_limit: int = 16 * MIB
    ws_message_size_limit: int = 16 * MIB
    sse_event_size_limit: int = 16 * MIB

    # How long things may take.
    work_timeout: float | None = 60.0  # where user code runs: tools, prompts, resources, sampling
    quick_timeout: float | None = 5.0  # ping and lists
    person_timeout: float | None = 3600.0  # while a person is being asked
    longest_call: float | None = 3600.0  # however much progress is reported
    initialize_timeout: float | None = 30.0
    drain_timeout: float | None = 5.0  # for what is in flight when a server ends; less than hosts wait before a kill

    # How much one connection may occupy.
    max_calls: int = 256  # running at once; more wait their turn
    max_waiting: int = 1024  # waiting their turn; at this many, reading stops
    unsent_high: int = 4 * MIB  # unsent bytes at which reading stops
    unsent_limit: int = 64 * MIB  # unsent bytes at which a peer that does not read is cut off

    # What a server offers.
    page_size: int = 1000  # some hosts read the first page only
    max_page_size: int = 1000
    list_changed_interval: float = 0.1  # at most one notification per kind in this time
    file_poll_interval: float = 0.5  # between two looks at the files that somebody is subscribed to
    max_tool_description: int = 10_000  # characters
    max_uri: int = 2048  # characters
    max_text: int | None = None  # characters of one text block
    max_binary: int | None = None  # bytes of one decoded binary block
    max_threads: int = 32  # for plain functions
    on_duplicate: OnDuplicate = "error"

    def __post_init__(self) -> None:
        """Refuses what cannot work, saying what can."""
        for field in fields(self):
            self._check(field.name, getattr(self, field.name))
        if self.page_size > self.max_page_size:
            raise ConfigError(f"page_size {self.page_size} is above max_page_size {self.max_page_size}")
        if self.unsent_high > self.unsent_limit:
            raise ConfigError(f"unsent_high {self.unsent_high} is above unsent_limit {self.unsent_limit}")

    def _check(self, name: str, value: Any) -> None:
        if name.endswith("_size_limit") and not _SMALLEST_MESSAGE <= value <= _LARGEST_MESSAGE:
            raise ConfigError(f"{name} must be from {_SMALLEST_MESSAGE} (1 KiB) to {_LARGEST_MESSAGE} (100 MiB)")
        if name == "on_duplicate":
            if value not in get_args(OnDuplicate):
                raise ConfigError(f"on_duplicate must be one of {', '.join(get_args(OnDuplicate))}, not {value!r}")
        elif value is not None and value <= 0:
            raise ConfigError(f"{name} must be above 0, not {value!r}")

    @classmethod
    def load(
        cls, path: str | Path | None = None, *, environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> "Settings":
        """Settings from a file, the environment and keyword arguments; the last named wins."""
        found = dict(_from_file(path)) if path is not None else {}
        found.update(_from_environment(os.environ if environ is None else environ))
        found.update(overrides)
        known = {field.name for field in fields(cls)}
        if unknown := sorted(found.keys() - known):
            raise ConfigError(f"unknown setting {unknown[0]!r}; the settings are {', '.join(sorted(known))}")
        return cls(**found)


def _from_file(path: str | Path) -> dict[str, Any]:
    import tomllib  # costs more to import than all of this module

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read settings from {path}: {error}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    names = {f"{_PREFIX}{field.name.upper()}": field for field in fields(Settings)}
    return {
        field.name: _parsed(variable, environ[variable], field.default)
        for variable, field in names.items()
        if variable in environ
    }


def _parsed(variable: str, text: str, default: Any) -> Any:
    """A variable's text in the type of the setting's default."""
    if isinstance(default, str):
        return text
    if text.lower() in {"", "none", "off"}:
        return None
    try:
        return int(text) if isinstance(default, int) else float(text)
    except ValueError:
        raise ConfigError(f"{variable} must be a number, not {text!r}") from None
