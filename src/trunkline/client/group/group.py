"""`ClientGroup`: many servers as one, each with a client of its own, and one catalog with prefixed names."""

import asyncio
import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from msgspec import structs

from trunkline.client.client import Client
from trunkline.client.group.concerns import find_concerns
from trunkline.client.group.member import Member
from trunkline.client.group.names import alter_name, is_altered, join_name, join_uri, split_name, split_uri
from trunkline.client.group.states import MemberEvent, MemberState
from trunkline.client.results import UNSPECIFIED, T, ToolResult
from trunkline.client.retry import OnProgress
from trunkline.client.server_config import (
    ServerConfig,
    ServerEntry,
    read_servers,
)
from trunkline.config import Settings
from trunkline.errors import ConfigError, MisuseError, NotRegistered, StoreError, ToolBlocked, TrunklineError
from trunkline.findings import Finding
from trunkline.protocol.types import (
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    Prompt,
    Resource,
    ResourceContents,
    ResourceTemplate,
    Tool,
)
from trunkline.supervision.child_table import ChildState
from trunkline.supervision.supervisor import ChildStatus
from trunkline.trust.pin_store import PinStore

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = ["ClientGroup"]

E = TypeVar("E")
_OWN_OPTIONS: Final = frozenset({"self", "target", "on_failed", "on_phase"})  # that the group sets itself
_CLIENT_OPTIONS: Final = frozenset(inspect.signature(Client.__init__).parameters) - _OWN_OPTIONS


class ClientGroup:
    """Many servers as one: `async with ClientGroup("mcp.json") as group`.

    `servers` is the path of a configuration file (`mcpServers` of Claude Desktop, Cursor and others, `servers` of
    VS Code), the content of one, or a mapping of names to targets of `Client`. A member that fails, hangs or crashes
    does not affect the others. Names of tools and prompts have the prefix of their member, `weather__forecast`, and so
    have URIs, `weather+file:///today`. `group["weather"]` is the client of a member.
    """

    kind = "group"

    def __init__(
        self,
        servers: "str | PathLike[str] | Mapping[str, Any]",
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        inputs: Mapping[str, str] | None = None,
        lazy: bool | Collection[str] = False,
        start_timeout: float | None = 10.0,
        pins: PinStore | None = None,
        on_event: Callable[[MemberEvent], object] | None = None,
        **common: Any,
    ) -> None:
        """`options` are options of `Client` for single members, by their names: `{"weather": {"auth": "…"}}`. Other
        keywords are options of `Client` for all members. `inputs` are values for the `inputs` of the configuration.
        `lazy` members, all or those named, connect when they are first used. `open` and lists wait for the first
        connection of a member for at most `start_timeout` seconds. `pins` blocks tools that have changed. `on_event` is
        called when a member enters another state, and has to be quick."""
        config, targets = read_servers(servers)
        own_options = dict(options or {})
        for name in {*own_options, *(() if isinstance(lazy, bool) else lazy)} - {*config.servers, *targets}:
            raise NotRegistered("member", name, targets)
        if isinstance(common.get("auth"), str) and len(targets) > 1:
            raise MisuseError('a token is for one server: pass options={"name of the member": {"auth": token}}')
        self._members: dict[str, Member] = {}
        self._by_prefix: dict[str, Member] = {}  # by the prefix in lower case, since URIs have it so
        self._pins = pins
        self._lazy = frozenset(targets if lazy is True else lazy or ())
        for name, target in targets.items():
            merged = {**common, **own_options.get(name, {})}
            _check_options(merged)
            make_client = partial(_make_client, target, config, dict(inputs or {}), merged)
            member = Member(
                name,
                make_client,
                settings=merged.get("settings") or Settings(),
                clock=merged.get("clock"),
                start_timeout=start_timeout,
                on_event=on_event,
            )
            other = self._by_prefix.setdefault(member.prefix.lower(), member)
            if other is not member:
                raise ConfigError(f"the members {other.name!r} and {name!r} have the same prefix; rename one of them")
            self._members[name] = member

    def __repr__(self) -> str:
        ready = sum(member.state is MemberState.READY for member in self._members.values())
        return f"<ClientGroup of {len(self._members)} members: {ready} ready>"

    # --- opening and closing -------------------------------------------------------------------

    async def open(self) -> Self:
        """Start all members that are not lazy, and wait until each has connected or failed, for at most
        `start_timeout`. A failure of a member raises nothing: see `states`."""
        for member in self._members.values():
            member.open()
        await _wait_started(member for name, member in self._members.items() if name not in self._lazy)
        return self

    async def close(self) -> None:
        """Close all members, and wait until all background work has ended. A closed group can be opened again."""
        closing = [member.close() for member in self._members.values()]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    # --- supervision ---------------------------------------------------------------------------

    async def run(self, started: Callable[[], None], /) -> None:
        """Run as a child of a supervision tree, `server.supervise("clients", group)`: open until it is stopped."""
        async with self:
            started()
            await asyncio.get_running_loop().create_future()

    def describe(self) -> ChildStatus:
        """Return the states of the group and its members in the words of the supervision tree."""
        live = any(member.is_open for member in self._members.values())
        state = ChildState.RUNNING if live else ChildState.STOPPED
        return ChildStatus(self.kind, self.kind, state, children=self.describe_children(self.kind))

    def describe_children(self, path: str, /) -> tuple[ChildStatus, ...]:
        """Return the states of the members; `path` is that of the group."""
        return tuple(member.describe(path) for member in self._members.values())

    # --- members -------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Client:
        """Return the client of a member. It knows nothing of prefixes and pins; a lazy member may not be open yet."""
        return self._find_member(name).client

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def states(self) -> Mapping[str, MemberState]:
        """The states of all members, by their names."""
        return {name: member.state for name, member in self._members.items()}

    @property
    def errors(self) -> Mapping[str, TrunklineError]:
        """The reasons why members are not ready, or why their last list is missing, by their names."""
        found = {name: member.error or member.list_error for name, member in self._members.items()}
        return {name: error for name, error in found.items() if error is not None}

    async def restart(self, name: str) -> None:
        """Connect a member that has failed now, instead of waiting for the next attempt. Raises the reason if that
        fails."""
        member = self._find_member(name)
        member.start()
        await member.connected_client()

    def findings(self) -> list[Finding]:
        """Return concerns about the tools as they were last listed: blocked tools with their changes, hidden
        characters, and names that look alike."""
        return find_concerns([*self._members.values()])

    def _find_member(self, name: str) -> Member:
        if name not in self._members:
            raise NotRegistered("member", name, self._members)
        return self._members[name]

    # --- tools ---------------------------------------------------------------------------------

    async def list_tools(self) -> ListToolsResult:
        """Return the tools of all members that are connected, without blocked ones. Starts lazy members; `errors` says
        what is missing."""
        listed = await self._list(self._list_tools)
        return ListToolsResult([structs.replace(tool, name=name) for name, tool in listed])

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | Any | None = None,
        *,
        returns: "TypeForm[T]" = UNSPECIFIED,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        meta: dict[str, Any] | None = None,
        raise_on_error: bool = True,
        idempotency_key: str | None = None,
    ) -> ToolResult[T]:
        """Call a tool by its name in the group, like `Client.call_tool`. Raises `NotRegistered` for an unknown name,
        `ConnectionClosed` if the member is not connected, and `ToolBlocked` if the tool is blocked."""
        member, rest = self._route("tool", name)
        client = await member.connected_client()
        if self._pins is not None or is_altered(rest):
            rest = await self._find_tool(member, name, rest)
        return await client.call_tool(
            rest,
            arguments,
            returns=returns,
            timeout=timeout,
            on_progress=on_progress,
            meta=meta,
            raise_on_error=raise_on_error,
            idempotency_key=idempotency_key,
        )

    async def _list_tools(self, member: Member) -> list[tuple[str, Tool]]:
        """List the tools of a member, and compare them with their pins."""
        async with member.listing:
            changes = member.changes
            tools = (await member.client.list_tools()).tools if "tools" in member.client.capabilities else []
            if self._pins is not None:
                result = await asyncio.to_thread(self._pins.examine, member.name, tools)
                member.blocked, member.vanished = result.blocked, result.vanished
                member.checked = changes
            member.set_tools(tools)
        allowed = (tool for tool in member.tools.values() if tool.name not in member.blocked)
        return [(join_name(member.prefix, tool.name), tool) for tool in allowed]

    async def _find_tool(self, member: Member, name: str, rest: str) -> str:
        """Return the original name of a tool. List the tools first if they may have changed since the last list, or if
        the tool was not among them or was blocked."""
        known = member.tools.get(rest)
        stale = self._pins is not None and member.checked != member.changes
        if known is None or stale or known.name in member.blocked:
            await self._list_tools(member)
            known = member.tools.get(rest)
        if known is None:
            raise NotRegistered("tool", name, (join_name(member.prefix, one.name) for one in member.tools.values()))
        if (blocked := member.blocked.get(known.name)) is not None:
            raise ToolBlocked(member.name, known.name, blocked.reason, blocked.changes)
        return known.name

    # --- resources and prompts -----------------------------------------------------------------

    async def list_resources(self) -> ListResourcesResult:
        """Return the resources of all members that are connected, with prefixed URIs."""

        async def list_member(member: Member) -> list[Resource]:
            found = (
                (await member.client.list_resources()).resources if "resources" in member.client.capabilities else []
            )
            return [structs.replace(one, uri=join_uri(member.prefix, one.uri)) for one in found]

        return ListResourcesResult(await self._list(list_member))

    async def list_resource_templates(self) -> ListResourceTemplatesResult:
        """Return the resource templates of all members that are connected, with prefixed URIs."""

        async def list_member(member: Member) -> list[ResourceTemplate]:
            if "resources" not in member.client.capabilities:
                return []
            found = (await member.client.list_resource_templates()).resource_templates
            return [structs.replace(one, uri_template=join_uri(member.prefix, one.uri_template)) for one in found]

        return ListResourceTemplatesResult(await self._list(list_member))

    async def read_resource(self, uri: str, *, timeout: float | None = None) -> list[ResourceContents]:
        """Return the contents of a resource by its URI in the group. URIs inside of the contents have no prefix."""
        prefix, rest = split_uri(uri)
        member = self._by_prefix.get(prefix)
        if member is None:
            raise NotRegistered("resource", uri, ())
        client = await member.connected_client()
        return await client.read_resource(rest, timeout=timeout)

    async def list_prompts(self) -> ListPromptsResult:
        """Return the prompts of all members that are connected, with prefixed names."""
        return ListPromptsResult(await self._list(self._list_prompts))

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> GetPromptResult:
        """Return a prompt by its name in the group, rendered with arguments."""
        member, rest = self._route("prompt", name)
        client = await member.connected_client()
        if is_altered(rest):
            if rest not in member.prompts:
                await self._list_prompts(member)
            if rest not in member.prompts:
                raise NotRegistered("prompt", name, ())
            rest = member.prompts[rest]
        return await client.get_prompt(rest, arguments, timeout=timeout)

    async def _list_prompts(self, member: Member) -> list[Prompt]:
        found = (await member.client.list_prompts()).prompts if "prompts" in member.client.capabilities else []
        member.prompts = {alter_name(one.name, member.name_limit): one.name for one in reversed(found)}
        return [structs.replace(one, name=join_name(member.prefix, one.name)) for one in found]

    # --- routing -------------------------------------------------------------------------------

    def _route(self, what: str, name: str) -> tuple[Member, str]:
        prefix, rest = split_name(name)
        member = self._by_prefix.get(prefix.lower())
        if member is None or member.prefix != prefix:
            known = (join_name(one.prefix, tool.name) for one in self._members.values() for tool in one.tools.values())
            raise NotRegistered(what, name, known)
        return member, rest

    async def _list(self, list_member: Callable[[Member], Coroutine[Any, Any, list[E]]]) -> list[E]:
        """Return the entries of all members that are connected. A list that fails is left out."""
        await _wait_started(self._members.values())
        ready = [member for member in self._members.values() if member.state is MemberState.READY]
        found: list[E] = []
        for member, outcome in zip(
            ready, await asyncio.gather(*map(list_member, ready), return_exceptions=True), strict=True
        ):
            member.list_error = None
            if isinstance(outcome, list):
                found += outcome
            elif isinstance(outcome, TrunklineError) and not isinstance(outcome, StoreError):
                member.list_error = outcome
            else:
                raise outcome
        return found


async def _wait_started(members: Iterable[Member]) -> None:
    started = [*members]
    for member in started:
        if member.state is MemberState.NOT_STARTED:
            member.start()
    await asyncio.gather(*(member.wait_settled() for member in started))


def _check_options(options: Mapping[str, Any]) -> None:
    for name in options.keys() - _CLIENT_OPTIONS:
        hint = "; use on_event" if name in _OWN_OPTIONS else ""
        raise MisuseError(f"a member of a group has no option {name!r}{hint}")


def _make_client(
    target: Any, config: ServerConfig, inputs: Mapping[str, str], options: Mapping[str, Any], **hooks: Any
) -> Client:
    """Return the client of a member. Raises `MisuseError` for a target that cannot be used."""
    if not isinstance(target, ServerEntry):
        return Client(target, **options, **hooks)
    rest = {name: value for name, value in options.items() if name != "auth"}
    connector = target.connector(
        options.get("settings") or Settings(),
        auth=options.get("auth"),
        ask_input=lambda ident: config.input_value(ident, inputs),
    )
    return Client(connector, **rest, **hooks)
