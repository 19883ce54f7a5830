"""Request handlers, one module per page of the specification.

Every connection begins with the lifecycle. The module of another feature, and all that it uses, is imported with the
first request for one of its methods.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

from trunkline.rpc.dispatch import Feature, MethodHandler
from trunkline.server.features import lifecycle

__all__ = ["FEATURES"]


class _ImportedHandlers(Mapping[str, MethodHandler]):
    """Handlers of a feature in a module of this package, which is imported when a handler is first looked up."""

    def __init__(self, module: str, *methods: str) -> None:
        self._module = module
        self._methods = methods

    def __getitem__(self, method: str) -> MethodHandler:
        feature: Feature = import_module(f"{__name__}.{self._module}").FEATURE
        return feature.handlers[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)


def _imported(name: str, *methods: str) -> Feature:
    """Return a feature whose module has its name."""
    return Feature(name, _ImportedHandlers(name, *methods))


FEATURES: Final = (
    lifecycle.FEATURE,
    _imported("discovery", "server/discover"),
    _imported("subscriptions", "subscriptions/listen"),
    _imported("tools", "tools/list", "tools/call"),
    _imported("tasks", "tasks/create", "tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update"),
    _imported(
        "resources",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
    ),
    _imported("prompts", "prompts/list", "prompts/get"),
    _imported("completion", "completion/complete"),
    _imported("logging", "logging/setLevel"),
    _imported("roots", "notifications/roots/list_changed"),
)
"""All features. A server with fewer features does not have the methods of the others."""
