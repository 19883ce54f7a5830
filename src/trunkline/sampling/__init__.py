"""Sampling providers: language models that answer `sampling/createMessage`, for clients and servers."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trunkline.protocol.types import CreateMessageParams, CreateMessageResult, ToolUseContent
    from trunkline.sampling.mock import MockModel
    from trunkline.sampling.model_choice import Model
    from trunkline.sampling.provider import ProgressReporter, SamplingProvider
    from trunkline.sampling.providers import Anthropic, LMStudio, Ollama, OpenAI

__all__ = [
    "Anthropic",
    "CreateMessageParams",
    "CreateMessageResult",
    "LMStudio",
    "MockModel",
    "Model",
    "Ollama",
    "OpenAI",
    "ProgressReporter",
    "SamplingProvider",
    "ToolUseContent",
]

_HOMES: Final = {
    "protocol.types": ("CreateMessageParams", "CreateMessageResult", "ToolUseContent"),
    "sampling.mock": ("MockModel",),
    "sampling.model_choice": ("Model",),
    "sampling.provider": ("ProgressReporter", "SamplingProvider"),
    "sampling.providers": ("Anthropic", "LMStudio", "Ollama", "OpenAI"),
}
_HOME: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that the interface does not load the providers."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"trunkline.{_HOME[name]}"), name)
    return value
