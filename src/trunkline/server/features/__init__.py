"""Request handlers, one module per page of the specification.

A minimal server needs neither tasks nor `subscriptions/listen`: the modules of these features, and all that they use,
are imported with their first request.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, Final

from trunkline.protocol.inflight import IncomingRequest
from trunkline.rpc.dispatch import Feature, MethodHandler
from trunkline.rpc.run_handler import Work
from trunkline.server.features import completion, discovery, lifecycle, logging, prompts, resources, roots, tools

__all__ = ["FEATURES"]

_TASKS: Final = ("tasks/create", "tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update")
_SUBSCRIPTIONS: Final = ("subscriptions/listen",)


@cache
def _load(name: str) -> Feature:
    """Import the feature of a module in this package."""
    feature: Feature = import_module(f"{__name__}.{name}").FEATURE
    return feature


def _imported_on_first_use(name: str, methods: Iterable[str]) -> Feature:
    """Return a feature whose module is imported when one of its methods is first called."""

    def handler_of(method: str) -> MethodHandler:
        def handle(connection: Any, call: IncomingRequest, params: Any) -> Work:
            return _load(name).handlers[method](connection, call, params)

        return handle

    return Feature(name, {method: handler_of(method) for method in methods})


FEATURES = (
    lifecycle.FEATURE,
    discovery.FEATURE,
    _imported_on_first_use("subscriptions", _SUBSCRIPTIONS),
    tools.FEATURE,
    _imported_on_first_use("tasks", _TASKS),
    resources.FEATURE,
    prompts.FEATURE,
    completion.FEATURE,
    logging.FEATURE,
    roots.FEATURE,
)
"""All features. A server with fewer features does not have the methods of the others."""
