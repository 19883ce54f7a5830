"""Compatibility profiles for peers that follow the founding documents.

A profile is an option of a server or of a client, or a client requests it in `initialize`. It holds for one session of
the handshake era, from `initialize` to the end. Code asks a profile by field and never by name; `METHODS` has the
methods that a profile adds, `error_kinds` the codes, and `founding_shapes` the messages.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from trunkline.config import Settings
from trunkline.errors import ConfigError
from trunkline.protocol.capabilities import Capabilities, is_declared
from trunkline.protocol.task_dialects import Dialect

__all__ = ["PROFILES", "Profile", "ProfileName", "find_profile", "requested_profile"]

ProfileName = Literal["erlmcp"]


class Profile(Struct, frozen=True, kw_only=True):
    """The deviations of a profile from the default, one field each."""

    name: ProfileName
    capability: str  # the experimental capability by which a client requests it

    # the handshake
    literal_capabilities: bool  # a server feature is on only if the client declares it, too
    features: frozenset[str]  # capabilities of servers in every revision; clients declare them as well
    client_features: frozenset[str]  # capabilities of clients that servers declare as well
    waits_for_initialized: bool  # requests before `initialized` are refused
    request_timeout: float  # seconds, unless the settings say otherwise
    initialize_timeout: float  # the same for `initialize`

    # messages
    bare_notifications: frozenset[str]  # notifications that are sent without `notifications/`
    founding_shapes: bool  # results and params have the shapes of the founding documents
    system_role: bool  # messages of prompts may have the role `system`
    batches: bool  # batches are accepted in every revision
    server_cancels: bool  # a server may cancel the requests of its client

    # errors
    founding_codes: bool  # errors have the founding number of their kind
    tool_errors: bool  # a failed tool call is an error instead of a failed result

    # tasks
    tasks: Dialect  # the dialect of task messages
    task_timeout: float  # default time limit of a task in seconds

    def limit_times(self, settings: Settings) -> Settings:
        """Return settings with the time limits of the profile, in place of those that have their default."""
        return _limit_times(settings, self.request_timeout, self.initialize_timeout)


@cache
def _limit_times(settings: Settings, request: float, initialize: float) -> Settings:
    usual = Settings()
    return replace(
        settings,
        work_timeout=request if settings.work_timeout == usual.work_timeout else settings.work_timeout,
        quick_timeout=request if settings.quick_timeout == usual.quick_timeout else settings.quick_timeout,
        initialize_timeout=initialize
        if settings.initialize_timeout == usual.initialize_timeout
        else settings.initialize_timeout,
    )


PROFILES: Final[Mapping[str, Profile]] = {
    "erlmcp": Profile(
        name="erlmcp",
        capability="trunkline/erlmcp",
        literal_capabilities=True,
        features=frozenset({"resources", "tools", "prompts", "logging", "completions", "tasks"}),
        client_features=frozenset({"sampling", "roots"}),
        waits_for_initialized=True,
        request_timeout=5.0,
        initialize_timeout=10.0,
        bare_notifications=frozenset(
            {
                "notifications/resources/updated",
                "notifications/resources/list_changed",
                "notifications/tools/list_changed",
                "notifications/prompts/list_changed",
                "notifications/roots/list_changed",
            }
        ),
        founding_shapes=True,
        system_role=True,
        batches=True,
        server_cancels=True,
        founding_codes=True,
        tool_errors=True,
        tasks=Dialect.FOUNDING,
        task_timeout=300.0,
    ),
}


def find_profile(name: str) -> Profile:
    """Return the profile of a name. Raise `ConfigError` for an unknown name."""
    if name not in PROFILES:
        raise ConfigError(f"compat is one of {', '.join(PROFILES)}, not {name!r}")
    return PROFILES[name]


def requested_profile(capabilities: Capabilities) -> Profile | None:
    """Return the profile that a client requests in its capabilities, if any."""
    return next(
        (profile for profile in PROFILES.values() if is_declared(capabilities, f"experimental.{profile.capability}")),
        None,
    )
