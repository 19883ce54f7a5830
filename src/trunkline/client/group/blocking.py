"""A blocking group for scripts and notebooks: what `BlockingClient` is to `Client`."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from trunkline.client.blocking import BlockingClient, ClientOnThread, same_parameters_as
from trunkline.client.group.group import ClientGroup
from trunkline.client.group.model_tools import ToolStyle, run_tool_call, tools_for
from trunkline.client.group.states import MemberState
from trunkline.client.loop_thread import LoopThread
from trunkline.client.results import UNSPECIFIED, T, ToolResult
from trunkline.client.retry import OnProgress
from trunkline.errors import TrunklineError
from trunkline.findings import Finding
from trunkline.protocol.types import (
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    ResourceContents,
)

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = ["BlockingClientGroup"]


class BlockingClientGroup:
    """Many servers as one, for scripts: `with BlockingClientGroup("mcp.json") as group`. Takes the arguments of
    `ClientGroup`. `on_event` and other callbacks run on the thread of the group."""

    @same_parameters_as(ClientGroup.__init__)
    def __init__(self, servers: Any, **options: Any) -> None:
        self._group = ClientGroup(servers, **options)
        self._thread = LoopThread("group")

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._group).removeprefix('<')}"

    # --- opening and closing -------------------------------------------------------------------

    def open(self) -> Self:
        """Start the members and wait until each has connected or failed, like `ClientGroup.open`."""
        self._thread.start()
        try:
            self._thread.wait(self._group.open)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close all members, and wait until all background work has ended."""
        self._thread.stop(self._group.close)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *raised: object) -> None:
        self.close()

    # --- members -------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> BlockingClient:
        """Return the client of a member, for as long as the group is open."""
        return BlockingClient(ClientOnThread(self._group[name], self._thread))

    def __iter__(self) -> Iterator[str]:
        return iter(self._group)

    def __len__(self) -> int:
        return len(self._group)

    @property
    def states(self) -> Mapping[str, MemberState]:
        """The states of all members, by their names."""
        return self._group.states

    @property
    def errors(self) -> Mapping[str, TrunklineError]:
        """The reasons why members are not ready, or why their last list is missing, by their names."""
        return self._group.errors

    def restart(self, name: str) -> None:
        """Connect a member that has failed now, like `ClientGroup.restart`."""
        self._thread.wait(partial(self._group.restart, name))

    def findings(self) -> list[Finding]:
        """Return concerns about the tools as they were last listed, like `ClientGroup.findings`."""
        return self._group.findings()

    # --- requests ------------------------------------------------------------------------------

    def list_tools(self) -> ListToolsResult:
        """Return the tools of all members that are connected, without blocked ones."""
        return self._thread.wait(self._group.list_tools)

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | Any | None = None,
        *,
        returns: "TypeForm[T]" = UNSPECIFIED,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        raise_on_error: bool = True,
        idempotency_key: str | None = None,
    ) -> ToolResult[T]:
        """Call a tool by its name in the group, like `ClientGroup.call_tool`."""
        return self._thread.wait(
            partial(
                self._group.call_tool,
                name,
                arguments,
                returns=returns,
                timeout=timeout,
                on_progress=on_progress,
                raise_on_error=raise_on_error,
                idempotency_key=idempotency_key,
            )
        )

    def list_resources(self) -> ListResourcesResult:
        """Return the resources of all members that are connected, with prefixed URIs."""
        return self._thread.wait(self._group.list_resources)

    def list_resource_templates(self) -> ListResourceTemplatesResult:
        """Return the resource templates of all members that are connected, with prefixed URIs."""
        return self._thread.wait(self._group.list_resource_templates)

    def read_resource(self, uri: str, *, timeout: float | None = None) -> list[ResourceContents]:
        """Return the contents of a resource by its URI in the group."""
        return self._thread.wait(partial(self._group.read_resource, uri, timeout=timeout))

    def list_prompts(self) -> ListPromptsResult:
        """Return the prompts of all members that are connected, with prefixed names."""
        return self._thread.wait(self._group.list_prompts)

    def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> GetPromptResult:
        """Return a prompt by its name in the group, rendered with arguments."""
        return self._thread.wait(partial(self._group.get_prompt, name, arguments, timeout=timeout))

    # --- for models ----------------------------------------------------------------------------

    def tools_for(self, style: ToolStyle) -> list[dict[str, Any]]:
        """Return the tools as definitions for a provider, like the function `tools_for`."""
        return self._thread.wait(partial(tools_for, self._group, style))

    def run_tool_call(self, call: Any, *, timeout: float | None = None) -> dict[str, Any]:
        """Run the tool call of a model, like the function `run_tool_call`."""
        return self._thread.wait(partial(run_tool_call, self._group, call, timeout=timeout))
