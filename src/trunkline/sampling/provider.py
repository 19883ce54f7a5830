"""Interface of sampling providers."""

from typing import Protocol, runtime_checkable

from trunkline.protocol.types import CreateMessageParams, CreateMessageResult

__all__ = ["ProgressReporter", "SamplingProvider"]


class ProgressReporter(Protocol):
    """Receives the progress of a message while the model writes it."""

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> object:
        """Report progress, which grows. `message` is the text that the model has added since the last report."""
        ...


@runtime_checkable
class SamplingProvider(Protocol):
    """A language model, or a choice of several. Calls may run concurrently, on any event loop."""

    @property
    def supports_tools(self) -> bool:
        """Whether requests may offer tools to the model."""
        ...

    async def __call__(
        self, params: CreateMessageParams, context: ProgressReporter | None = None
    ) -> CreateMessageResult:
        """Return the next message of the conversation. Raise `SamplingFailed`, or `InvalidParams` for a request that
        the provider cannot express. Cancellation aborts the request."""
        ...

    async def close(self) -> None:
        """Close connections that no call uses. The provider can be used again afterwards."""
        ...
