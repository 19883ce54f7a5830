"""Logging: log messages of a server to a client."""

from typing import Any, Final, Literal, get_args

from trunkline.protocol.types.base import Params

__all__ = ["LOGGING_LEVELS", "LoggingLevel", "LoggingMessageParams", "SetLevelParams"]

LoggingLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
"""The severity of a log message (RFC 5424)."""

LOGGING_LEVELS: Final[tuple[LoggingLevel, ...]] = get_args(LoggingLevel)
"""The levels, the least severe first."""


class SetLevelParams(Params):
    """Params of `logging/setLevel`: the minimum severity."""

    level: LoggingLevel


class LoggingMessageParams(Params):
    """A log message."""

    level: LoggingLevel
    data: Any
    logger: str | None = None
