"""What a program logs while it answers a call, sent to the client of that call.

The records of `logging` know nothing of calls; the call is found by context variables, so that records of tasks and
threads reach the right client. Trunkline's own records are never sent, nor what is logged while one is being sent.
"""

import logging
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import Any, Final

import msgspec

from trunkline.protocol.types import LOGGING_LEVELS, LoggingLevel, LoggingMessageParams
from trunkline.server.catalog import ServerCatalog
from trunkline.server.current_call import CURRENT_CALL, CurrentCall
from trunkline.wire import codec

__all__ = ["ClientLogHandler", "to_mcp_level"]

_LEVELS: Final[tuple[tuple[int, LoggingLevel], ...]] = (
    (70, "emergency"),
    (60, "alert"),
    (logging.CRITICAL, "critical"),
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (25, "notice"),
    (logging.INFO, "info"),
)  # from which number on; the standard library has five of the eight
_OWN_LOGGER: Final = "trunkline"
_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_sending: ContextVar[bool] = ContextVar("trunkline_sending_a_record", default=False)


def to_mcp_level(number: int) -> LoggingLevel:
    """The specification's level for one of `logging`."""
    for least, level in _LEVELS:
        if number >= least:
            return level
    return "debug"


class ClientLogHandler(logging.Handler):
    """Sends what is logged during a call to the client of that call. Made by `Server.forward_logs`."""

    def __init__(self, catalog: ServerCatalog, level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        self._catalog = (
            catalog  # of the server whose clients are told; others in the process have handlers of their own
        )

    def filter(self, record: logging.LogRecord) -> Any:
        """Whether a record is sent: it belongs to a call of ours, and is not about the sending itself."""
        current = CURRENT_CALL.get()
        if current is None or current.connection.catalog is not self._catalog or _sending.get():
            return False
        if record.name == _OWN_LOGGER or record.name.startswith(_OWN_LOGGER + "."):
            return False
        return super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a record, if the client wants to hear of its level."""
        current = CURRENT_CALL.get()
        level = to_mcp_level(record.levelno)
        if current is None or LOGGING_LEVELS.index(level) < current.connection.log_level_of(current.call):
            return
        sending = _sending.set(True)
        try:
            params = LoggingMessageParams(level=level, data=self._data(record), logger=record.name)
            current.connection.post(partial(_send, current, params))
        except Exception:  # noqa: BLE001 - as handlers do: logging never breaks the program
            self.handleError(record)
        finally:
            _sending.reset(sending)

    def _data(self, record: logging.LogRecord) -> msgspec.Raw:
        """The message, what was given as `extra`, and the kind of the exception; its traceback stays at home."""
        said: dict[str, Any] = {"message": _escape_undecodable(self._message(record))}
        if record.exc_info and record.exc_info[0] is not None:
            said["error"] = record.exc_info[0].__name__
        said |= {name: _to_json(value) for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
        return codec.to_raw(said)

    def _message(self, record: logging.LogRecord) -> str:
        if self.formatter is None:
            return record.getMessage()
        bare = copy(record)
        bare.exc_info = bare.exc_text = bare.stack_info = None  # a formatter would write them out
        return self.format(bare)


def _send(current: CurrentCall, params: LoggingMessageParams) -> None:
    """On the loop, where it is known whether the call is over."""
    if not current.call.done:
        current.connection.notify("notifications/message", params, about=current.call)


def _to_json(value: Any) -> Any:
    try:
        return codec.to_raw(value)
    except (TypeError, ValueError, RecursionError):
        return _escape_undecodable(str(value))


def _escape_undecodable(text: str) -> str:
    """Text that has JSON: names of files, for one, may have bytes in them that are no characters."""
    return text.encode(errors="backslashreplace").decode()
