"""Compatibility profiles for peers that follow the founding documents.

A profile is an option of a server, and applies to the handshake era only. There is one profile, for tasks; `METHODS`
has the methods that a profile adds.
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from trunkline.errors import ConfigError
from trunkline.protocol.task_dialects import Dialect

__all__ = ["PROFILES", "Profile", "ProfileName", "find_profile"]

ProfileName = Literal["erlmcp"]


class Profile(Struct, frozen=True):
    """The settings of a profile."""

    name: ProfileName
    tasks: Dialect  # the dialect of task messages
    task_timeout: float  # default time limit of a task in seconds


PROFILES: Final[Mapping[str, Profile]] = {
    "erlmcp": Profile("erlmcp", tasks=Dialect.FOUNDING, task_timeout=300.0),
}


def find_profile(name: str) -> Profile:
    """Return the profile of a name. Raise `ConfigError` for an unknown name."""
    if name not in PROFILES:
        raise ConfigError(f"compat is one of {', '.join(PROFILES)}, not {name!r}")
    return PROFILES[name]
