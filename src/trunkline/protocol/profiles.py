"""Profiles: what is otherwise for peers who speak as the founding documents do.

A profile is an option of a server, and holds in the handshake era only. So far there is one, and it is about tasks;
`METHODS` has the methods that a profile adds.
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from trunkline.errors import ConfigError
from trunkline.protocol.task_dialects import Dialect

__all__ = ["PROFILES", "Profile", "ProfileName", "profile_of"]

ProfileName = Literal["erlmcp"]


class Profile(Struct, frozen=True):
    """What a profile changes."""

    name: ProfileName
    tasks: Dialect  # the words in which tasks are spoken of
    task_timeout: float  # seconds that a task may take whose client does not say


PROFILES: Final[Mapping[str, Profile]] = {
    "erlmcp": Profile("erlmcp", tasks=Dialect.FOUNDING, task_timeout=300.0),
}


def profile_of(name: str | None) -> Profile | None:
    """The profile of that name; None for none. Raises `ConfigError` for one that there is not."""
    if name is None:
        return None
    if name not in PROFILES:
        raise ConfigError(f"compat is one of {', '.join(PROFILES)}, not {name!r}")
    return PROFILES[name]
