"""Requests of a server outside of the specification, answered by handlers of the host application."""

from collections.abc import Callable
from functools import partial
from typing import Any

from trunkline.client.connection import ClientConnection
from trunkline.client.host_callbacks import CallbackContext
from trunkline.errors import MisuseError
from trunkline.protocol.custom_methods import find_name_fault
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import progress_token
from trunkline.registry.handlers import read_handler
from trunkline.registry.methods import MethodEntry, decode_params, make_method, read_meta
from trunkline.rpc.dispatch import CustomMethod
from trunkline.rpc.run_handler import Work

__all__ = ["RequestHandlers"]


class RequestHandlers:
    """The handlers of a client, by method."""

    def __init__(self) -> None:
        self._methods: dict[str, CustomMethod] = {}

    def add(self, name: str, function: Callable[..., Any]) -> None:
        """Answer requests of this method with a function. Raises `MisuseError` for an invalid or a used name, and
        `RegistrationError` for an unusable function."""
        if (fault := find_name_fault(name)) is not None:
            raise MisuseError(fault)
        if name in self._methods:
            raise MisuseError(f"this client has a handler of {name!r} already")
        entry = make_method(name, read_handler(function, CallbackContext, thread=None), request=True)
        self._methods[name] = CustomMethod(entry.row, decode_params, partial(_handle, entry))

    def find(self, name: str) -> CustomMethod | None:
        """Return the method of a name, if it has a handler."""
        return self._methods.get(name)


def _handle(entry: MethodEntry, connection: ClientConnection, call: IncomingRequest, params: dict[str, Any]) -> Work:
    call.token = progress_token(read_meta(params))
    context = CallbackContext(connection, call) if entry.handler.wants_context else None
    return entry.run(entry.arguments(params), context, None)
