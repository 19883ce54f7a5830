"""Log handler that sends records logged during a call to the client of that call.

The handler finds the call through context variables, so records of tasks and threads reach the right client. It never
sends Trunkline's own records, nor records logged while it sends one.
"""

import logging
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.types import LOGGING_LEVELS, LoggingLevel, LoggingMessageParams
from trunkline.rpc.current_call import CURRENT_CALL
from trunkline.server.catalog import ServerCatalog
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.call_peer import CallPeer

__all__ = ["ClientLogHandler", "to_mcp_level"]

_LEVELS: Final[tuple[tuple[int, LoggingLevel], ...]] = (
    (70, "emergency"),
    (60, "alert"),
    (logging.CRITICAL, "critical"),
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (25, "notice"),
    (logging.INFO, "info"),
)  # lowest number of each level; `logging` has five of the eight
_OWN_LOGGER: Final = "trunkline"
_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_sending: ContextVar[bool] = ContextVar("trunkline_sending_a_record", default=False)


def to_mcp_level(number: int) -> LoggingLevel:
    """Return the specification's level for a level number of `logging`."""
    for least, level in _LEVELS:
        if number >= least:
            return level
    return "debug"


class ClientLogHandler(logging.Handler):
    """Sends the records of a call to its client. Created by `Server.forward_logs`."""

    def __init__(self, catalog: ServerCatalog, level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        self._catalog = catalog  # identifies the server: each has handlers of its own

    def filter(self, record: logging.LogRecord) -> Any:
        """Accept records that belong to a call of this server and do not result from sending one."""
        current = _current_call()
        if current is None or current[0].catalog is not self._catalog or _sending.get():
            return False
        if record.name == _OWN_LOGGER or record.name.startswith(_OWN_LOGGER + "."):
            return False
        return super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, if the client wants its level."""
        current = _current_call()
        level = to_mcp_level(record.levelno)
        if current is None or LOGGING_LEVELS.index(level) < current[0].log_level_of(current[1]):
            return
        sending = _sending.set(True)
        try:
            params = LoggingMessageParams(level=level, data=self._data(record), logger=record.name)
            current[0].post(partial(_send, *current, params))
        except Exception:  # noqa: BLE001 - a log handler must not break the program
            self.handleError(record)
        finally:
            _sending.reset(sending)

    def _data(self, record: logging.LogRecord) -> msgspec.Raw:
        """Encode the message, the `extra` values and the type of the exception; the traceback stays on the server."""
        data: dict[str, Any] = {"message": _escape_undecodable(self._message(record))}
        if record.exc_info and record.exc_info[0] is not None:
            data["error"] = record.exc_info[0].__name__
        data |= {name: _to_json(value) for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
        return codec.to_raw(data)

    def _message(self, record: logging.LogRecord) -> str:
        if self.formatter is None:
            return record.getMessage()
        bare = copy(record)
        bare.exc_info = bare.exc_text = bare.stack_info = None  # a formatter would include them
        return self.format(bare)


def _current_call() -> "tuple[CallPeer, IncomingRequest] | None":
    current = CURRENT_CALL.get()
    return None if current is None else current.get()


def _send(connection: "CallPeer", call: IncomingRequest, params: LoggingMessageParams) -> None:
    """Send the message unless the call has ended; runs on the loop, where that is known."""
    if not call.done:
        connection.notify("notifications/message", params, about=call)


def _to_json(value: Any) -> Any:
    try:
        return codec.to_raw(value)
    except (TypeError, ValueError, RecursionError):
        return _escape_undecodable(str(value))


def _escape_undecodable(text: str) -> str:
    """Escape characters that JSON cannot encode, such as undecodable bytes in file names."""
    return text.encode(errors="backslashreplace").decode()
