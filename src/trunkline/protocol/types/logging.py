"""Logging: what a server has to say about its work."""

from typing import Any, Final, Literal, get_args

from trunkline.protocol.types.base import Params

__all__ = ["LOGGING_LEVELS", "LoggingLevel", "LoggingMessageParams", "SetLevelParams"]

LoggingLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
"""How much a log message matters (RFC 5424)."""

LOGGING_LEVELS: Final[tuple[LoggingLevel, ...]] = get_args(LoggingLevel)
"""The levels, the least severe first."""


class SetLevelParams(Params):
    """Asks for messages of this level and above."""

    level: LoggingLevel


class LoggingMessageParams(Params):
    """A log message."""

    level: LoggingLevel
    data: Any
    logger: str | None = None
