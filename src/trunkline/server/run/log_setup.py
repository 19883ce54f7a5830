"""Logging of a server process: one handler on standard error, and the access log."""

import logging
import sys
import time
from typing import TYPE_CHECKING, Final

from trunkline.config import read_log_variable
from trunkline.errors.text import printable
from trunkline.observers.access_log import ACCESS_LOGGER, AccessLog
from trunkline.wire.codec import to_json

if TYPE_CHECKING:
    from trunkline.server.run.runnable import RunnableServer

__all__ = ["configure_logging"]

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


def configure_logging(server: "RunnableServer") -> None:
    """Log to standard error as the settings say; do nothing if they name no level. At level info and below, the access
    log is on."""
    settings = server.settings
    chosen = read_log_variable() if settings.log_level is None else {}
    level = chosen.get("log_level", settings.log_level)
    if level is None:
        return
    as_json = chosen.get("log_format", settings.log_format) == "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name("trunkline")
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    logger = logging.getLogger("trunkline")
    for former in [one for one in logger.handlers if one.get_name() == "trunkline"]:
        logger.removeHandler(former)
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[level])
    logger.propagate = False  # a handler of the program would repeat every line
    if _LEVELS[level] <= logging.INFO and not any(isinstance(one, AccessLog) for one in server.observers):
        access = AccessLog(
            format="json" if as_json else "text", principals=settings.log_principals, probes=settings.log_probes
        )
        server.observers.add(access)


class _TextFormatter(logging.Formatter):
    """One line per record, after its time and level; a traceback follows."""

    converter = time.gmtime

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", _TIME_FORMAT)


class _JsonFormatter(logging.Formatter):
    """One JSON object per record."""

    converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON. A line of the access log is JSON already."""
        if record.name == ACCESS_LOGGER:
            return record.getMessage()
        members = {
            "time": self.formatTime(record, _TIME_FORMAT),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage(), multiline=True),
        }
        if record.exc_info:
            members["traceback"] = printable(self.formatException(record.exc_info), multiline=True)
        return to_json(members).decode()
