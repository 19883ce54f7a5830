"""The catalog of a proxy: entries for everything that the server behind offers, kept up to date.

The proxy reads the lists when it starts, when the server announces a change, and after each reconnection. So it lists
from memory, as every server does, and its entries can be mounted, hidden and restricted like others. An entry forwards
its requests; it validates nothing.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar, cast

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from trunkline.client.pagination import fetch_all_pages
from trunkline.client.retry import always_repeatable
from trunkline.errors import InternalError, MisuseError, TemplateError, TrunklineError
from trunkline.protocol.capabilities import Capabilities, is_declared
from trunkline.protocol.meta import TAGS, TASK_SUPPORT
from trunkline.protocol.types import (
    PaginatedParams,
    Prompt,
    Resource,
    ResourceTemplate,
    ResourceUpdatedParams,
    SubscribeParams,
    Tool,
    UnsubscribeParams,
)
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION
from trunkline.proxies.backend import Backend
from trunkline.proxies.backends import Backends
from trunkline.proxies.errors import to_front_error
from trunkline.proxies.forward import Forwarder
from trunkline.proxies.tasks import TaskForwarder
from trunkline.registry.completions import CompletionEntry
from trunkline.registry.handlers import Handler, read_handler
from trunkline.registry.prompts import PromptEntry
from trunkline.registry.registry import Entry, Registry
from trunkline.registry.resources import ResourceEntry, TemplateEntry
from trunkline.registry.results import Output
from trunkline.registry.tasks import TaskPolicy
from trunkline.registry.templates import UriTemplate
from trunkline.registry.tools import ToolEntry
from trunkline.server.context import Context
from trunkline.server.server import Server
from trunkline.wire import codec

__all__ = ["ExamineTools", "Manifest", "MirroredCatalog"]

E = TypeVar("E", bound=Entry)
T = TypeVar("T")

_log: Final = logging.getLogger("trunkline")
_VARIABLE: Final = re.compile(r"\{[+#./;?&]?([^{}]*)\}")
_LISTS: Final = {
    "tools/list": ("tools", "notifications/tools/list_changed"),
    "prompts/list": ("prompts", "notifications/prompts/list_changed"),
    "resources/list": ("resources", "notifications/resources/list_changed"),
    "resources/templates/list": ("resources", "notifications/resources/list_changed"),
}  # the capability of each list, and the notification of its changes
_TASKS: Final[Capabilities] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}  # of 2025-11-25
_TOOL_TASKS: Final = "tasks.requests.tools.call"


class _Page(Struct, rename="camel"):
    """A page of any list; its items are decoded one by one, since one may be invalid."""

    tools: list[Raw] = field(default_factory=list[Raw])
    prompts: list[Raw] = field(default_factory=list[Raw])
    resources: list[Raw] = field(default_factory=list[Raw])
    resource_templates: list[Raw] = field(default_factory=list[Raw])
    next_cursor: str | None = None


_decode_page: Final = codec.json_decoder(_Page)


class Manifest(Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that a server has declared and listed."""

    capabilities: dict[str, Any] = {}
    instructions: str | None = None
    tools: list[Tool] = []
    prompts: list[Prompt] = []
    resources: list[Resource] = []
    resource_templates: list[ResourceTemplate] = []


ExamineTools = Callable[[list[Tool]], Awaitable[Mapping[str, str]]]
"""Returns the tools to block, by their names, with the reasons."""


class _GivenOutput(Output, frozen=True):
    """The output schema of a forwarded tool."""

    given: dict[str, Any] | None = None

    def schema(self) -> dict[str, Any] | None:
        return None if self.given is None else dict(self.given)


class _OpaqueTemplate:
    """A URI template that cannot be matched unambiguously. The proxy lists it, and forwards the URIs that no other
    entry has."""

    holds_texts = True

    def __init__(self, template: str) -> None:
        self.template = template
        names = (name for found in _VARIABLE.findall(template) for name in found.split(","))
        self.variables = tuple(name.partition(":")[0].removesuffix("*") for name in names)

    def match(self, _uri: str) -> None:
        return None


async def _forwarded() -> None:
    """Stand for the function that a forwarded entry does not have."""


_HANDLER: Final[Handler] = read_handler(_forwarded, Context)
_TASK_HANDLER: Final[Handler] = replace(_HANDLER, wants_context=True)


def _never_run(*_given: Any) -> Any:
    raise MisuseError("a forwarded entry has no function of its own")


def _keep(value: Any, *_: Any) -> Any:
    return value


OnRead = Callable[[], object]


def _ignore() -> None:
    """Do nothing."""


class MirroredCatalog:
    """The entries of a proxy, read from the server behind it."""

    def __init__(
        self,
        server: Server,
        forwarder: Forwarder,
        tasks: TaskForwarder,
        *,
        examine: ExamineTools | None = None,
        on_read: OnRead = _ignore,
    ) -> None:
        """`examine` is called with the tools whenever they are read. `on_read` is called when all stale lists have been
        read."""
        self._server = server
        self._forwarder = forwarder
        self._tasks = tasks
        self._examine = examine
        self._on_read = on_read
        self._connections: Backends | None = None  # while it is open
        self._filling = asyncio.Lock()  # examining tools takes a while
        self._capabilities: dict[str, Any] = {}
        self._lists: dict[str, list[Any]] = {}  # definitions, by the method that lists them
        self._stale: set[str] = set()  # lists to read again
        self._reader: asyncio.Task[None] | None = None

    def open(self, backends: Backends) -> None:
        """Follow the changes that the server announces. An update of a resource on a connection of a principal is
        not for others, and does not count."""
        self._connections = backends
        self._filling = asyncio.Lock()
        for method, (_, notification) in _LISTS.items():
            backends.follow(notification, partial(self._on_list_changed, method), of_principals=True)
        backends.follow("notifications/resources/updated", self._on_updated, of_principals=False)

    @property
    def _backends(self) -> Backends:
        if self._connections is None:
            raise MisuseError("the proxy is not started")
        return self._connections

    @property
    def _backend(self) -> Backend:
        return self._backends.catalog

    async def load(self) -> None:
        """Connect, or wait until a lost connection is replaced, and read everything. Raises the reason if the server
        cannot be reached."""
        await self._backend.wait_connected()
        self._mirror_declarations()
        for method in _LISTS:
            await self._read(method)
        self._on_read()

    # --- manifests ---------------------------------------------------------------------------------------

    def make_manifest(self) -> Manifest:
        """Return what the server has declared and listed."""
        return Manifest(
            capabilities=self._capabilities,
            instructions=self._server.catalog.instructions,
            tools=self._lists.get("tools/list", []),
            prompts=self._lists.get("prompts/list", []),
            resources=self._lists.get("resources/list", []),
            resource_templates=self._lists.get("resources/templates/list", []),
        )

    async def restore(self, manifest: Manifest) -> None:
        """Offer what the server had when the manifest was made, until its lists are read."""
        self._declare(manifest.capabilities)
        self._server.catalog.instructions = manifest.instructions
        await self._fill("tools/list", manifest.tools)
        await self._fill("prompts/list", manifest.prompts)
        await self._fill("resources/list", manifest.resources)
        await self._fill("resources/templates/list", manifest.resource_templates)

    async def examine_again(self) -> None:
        """Examine the tools as they were last read."""
        await self._fill("tools/list", self._lists.get("tools/list", []))

    # --- reading in the background -----------------------------------------------------------------------

    def refresh_soon(self, methods: Iterable[str] = tuple(_LISTS)) -> None:
        """Read lists again, in the background. One reader at a time reads those that have changed meanwhile as well."""
        self._stale.update(methods)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._refresh())

    async def _refresh(self) -> None:
        self._mirror_declarations()
        while self._stale:
            method = self._stale.pop()
            try:
                await self._read(method)
            except TrunklineError as error:
                _log.warning("the proxy cannot read %s of the server behind it: %s", method, error)
        self._on_read()

    async def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    # --- declarations ----------------------------------------------------------------------------------

    def _mirror_declarations(self) -> None:
        """Declare the capabilities and instructions of the server behind."""
        runtime, catalog = self._backend.runtime, self._server.catalog
        self._backends.note_eras()
        self._declare(dict(runtime.server_capabilities))
        if runtime.latest is not None and runtime.latest.instructions is not None:
            catalog.instructions = runtime.latest.instructions

    def _declare(self, capabilities: dict[str, Any]) -> None:
        """Declare the capabilities of the server behind. The proxy has the tasks of all tools that may run as one, in
        the dialects of both eras."""
        self._capabilities = capabilities
        extensions: Capabilities = capabilities.get("extensions") or {}
        declared = {name: it for name, it in capabilities.items() if name not in {"tasks", "extensions"}}
        others = {name: it for name, it in extensions.items() if name != TASKS_EXTENSION}
        if self._chooses_tasks or is_declared(capabilities, _TOOL_TASKS):
            declared["tasks"] = _TASKS
            others[TASKS_EXTENSION] = {}
        if others:
            declared["extensions"] = others
        self._server.catalog.mirror_capabilities(declared)

    @property
    def _chooses_tasks(self) -> bool:
        """Whether the server behind decides which calls are tasks, as with the extension of the modern era."""
        return TASKS_EXTENSION in (self._capabilities.get("extensions") or {})

    def _task_policy(self, tool: Tool) -> TaskPolicy | None:
        """Return how the calls of a tool run as tasks. With the extension a tool does not say so, unless its server is
        one of ours; the proxy can run any of its calls as a task. A task goes on in another process, from the id of the
        task behind."""
        if self._chooses_tasks:
            support: Any = (tool.meta or {}).get(TASK_SUPPORT, "optional")
        else:
            listed = tool.execution if is_declared(self._capabilities, _TOOL_TASKS) else None
            support = None if listed is None else listed.task_support
        if support not in {"optional", "required"}:
            return None
        return TaskPolicy(support, recovery="resume", asks_first=self._chooses_tasks)

    # --- lists -------------------------------------------------------------------------------------------

    async def _read(self, method: str) -> None:
        """Read a list, and replace the entries that are in it."""
        capability, _ = _LISTS[method]
        if not is_declared(self._backend.runtime.server_capabilities, capability):
            await self._fill(method, [])
            return
        settings = self._backend.runtime.settings
        page = await fetch_all_pages(method, lambda cursor: self._read_page(method, cursor), settings)
        match method:
            case "tools/list":
                tools = _decode_items(Tool, page.tools)
                known = self._backend.runtime.known_tools
                known.fill(tools, known.changes)
                found: list[Any] = known.filter_callable(tools)
            case "prompts/list":
                found = _decode_items(Prompt, page.prompts)
            case "resources/list":
                found = _decode_items(Resource, page.resources)
            case _:
                found = _decode_items(ResourceTemplate, page.resource_templates)
        await self._fill(method, found)

    async def _fill(self, method: str, definitions: list[Any]) -> None:
        """Replace the entries of a list. Of several concurrent callers, the last one counts."""
        self._lists[method] = definitions
        async with self._filling:
            await self._fill_latest(method, self._lists[method])

    async def _fill_latest(self, method: str, definitions: list[Any]) -> None:
        server = self._server
        match method:
            case "tools/list":
                blocked: Mapping[str, str] = {} if self._examine is None else await self._examine(definitions)
                self._forwarder.blocked = blocked
                _replace(server.tools, (self._make_tool(one, blocked.get(one.name, "")) for one in definitions))
            case "prompts/list":
                _replace(server.prompts, map(self._make_prompt, definitions))
            case "resources/list":
                _replace(server.resources, map(self._make_resource, definitions))
            case _:
                _replace(server.templates, map(self._make_template, definitions))
        if is_declared(self._capabilities, "completions"):
            _replace(server.completions, self._make_completions())

    async def _read_page(self, method: str, cursor: str | None) -> _Page:
        reply = await self._backend.send(method, PaginatedParams(cursor=cursor), repeatable=always_repeatable)
        try:
            return _decode_page(reply.raw)
        except codec.DecodeError as error:
            raise InternalError(f"the result of {method} is no list: {error}") from None

    # --- entries -----------------------------------------------------------------------------------------

    def _make_tool(self, tool: Tool, blocked: str) -> ToolEntry:
        output, policy = tool.output_schema, self._task_policy(tool)
        entry = ToolEntry(
            name=tool.name,
            handler=_HANDLER if policy is None else _TASK_HANDLER,
            output=_GivenOutput(None, output is not None and output.get("type") != "object", _keep, given=output),
            decode=_keep,
            run=_never_run,
            task=policy,
            description=tool.description,
            title=tool.title,
            annotations=tool.annotations,
            icons=tool.icons,
            meta=tool.meta,
            custom_schema=tool.input_schema,
            tags=_tags_of(tool),
            disabled_because=blocked,
        )
        repeatable = entry.repeatable
        may_become_task = policy is not None and policy.asks_first
        forward = self._forwarder.tool(tool.name, repeatable=repeatable, may_become_task=may_become_task)
        run = _never_run if policy is None else self._tasks.tool(tool.name, repeatable=repeatable)
        return replace(entry, forward=forward, run=run)

    def _make_prompt(self, prompt: Prompt) -> PromptEntry:
        names = frozenset(argument.name for argument in prompt.arguments or ())
        forward = self._forwarder.prompt(prompt.name)
        return PromptEntry(prompt, names, _keep, _never_run, forward=forward, tags=_tags_of(prompt))

    def _make_resource(self, resource: Resource) -> ResourceEntry:
        return ResourceEntry(resource, _never_run, forward=self._forwarder.read, tags=_tags_of(resource))

    def make_other_resources(self) -> ResourceEntry:
        """Return the entry that reads every other URI: a server need not list what can be read."""
        return ResourceEntry(Resource(uri="", name=""), _never_run, forward=self._forwarder.read)

    def _make_template(self, template: ResourceTemplate) -> TemplateEntry:
        try:
            matcher: Any = UriTemplate(template.uri_template)
        except TemplateError:
            matcher = _OpaqueTemplate(template.uri_template)
        return TemplateEntry(
            definition=template,
            template=matcher,
            handler=_HANDLER,
            convert=_keep,
            run=_never_run,
            absolute=True,
            guard=False,  # the server behind decides
            settings=self._server.settings,
            wants_context=False,
            forward=self._forwarder.read,
            tags=_tags_of(template),
        )

    def _make_completions(self) -> Iterable[CompletionEntry]:
        """Yield a completer for every argument that can be completed."""
        complete = self._forwarder.complete
        for prompt in self._server.prompts.all():
            for argument in prompt.definition.arguments or ():
                forward = complete(argument.name, name=prompt.key)
                yield CompletionEntry("prompt", prompt.key, argument.name, _HANDLER, forward)
        for template in self._server.templates.all():
            for variable in template.template.variables:
                forward = complete(variable, uri=template.key)
                yield CompletionEntry("resource", template.key, variable, _HANDLER, forward)

    # --- subscriptions -------------------------------------------------------------------------------------

    async def subscribe(self, uri: str) -> None:
        """Subscribe to a resource of the server behind, for all clients in front; again after each reconnection."""
        runtime = self._backend.runtime
        try:
            await self._backend.open()
            if not await runtime.update_listen(uri, None, subscribe=True):
                await self._backend.send("resources/subscribe", SubscribeParams(uri), repeatable=always_repeatable)
        except TrunklineError as error:
            raise to_front_error(error) from None
        runtime.subscriptions[uri] = None

    async def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource."""
        runtime = self._backend.runtime
        runtime.subscriptions.pop(uri, None)
        if self._backend.connection is not None and not await runtime.update_listen(uri, None, subscribe=False):
            await self._backend.send("resources/unsubscribe", UnsubscribeParams(uri), repeatable=always_repeatable)

    def _on_list_changed(self, method: str, _params: Any) -> None:
        if self._backend.connection is not None:  # otherwise the next one begins with all lists
            self.refresh_soon([method])

    def _on_updated(self, params: ResourceUpdatedParams) -> None:
        self._server.notify_updated(params.uri, meta=_without_subscription(params.meta))


def _tags_of(definition: Tool | Prompt | Resource | ResourceTemplate) -> frozenset[str]:
    """Return the tags of a definition, if its server is one of ours."""
    given: Any = (definition.meta or {}).get(TAGS)
    tags = cast("list[Any]", given) if isinstance(given, list) else []
    return frozenset(tag for tag in tags if isinstance(tag, str))


def _without_subscription(meta: dict[str, Any] | None) -> dict[str, Any] | None:
    from trunkline.protocol.meta import SUBSCRIPTION_ID

    return {key: value for key, value in (meta or {}).items() if key != SUBSCRIPTION_ID} or None


def _decode_items(kind: type[T], items: Iterable[Raw]) -> list[T]:
    """Decode the items of a list; log and leave out those that are invalid."""
    decode, found = codec.decoder(kind), list[T]()
    for item in items:
        try:
            found.append(decode(item))
        except (codec.DecodeError, RecursionError) as error:
            _log.warning("the proxy leaves out an invalid %s: %s", kind.__name__, error)
    return found


def _replace(registry: Registry[E], entries: Iterable[E]) -> None:
    """Replace the entries of a registry, unless their definitions are the same."""
    made: Registry[E] = Registry(registry.kind, on_duplicate="replace")
    for entry in entries:
        made.add(entry, enabled=not (isinstance(entry, ToolEntry) and entry.disabled_because))
    if [_definition(entry) for entry in made.all()] != [_definition(entry) for entry in registry.all()]:
        registry.replace_all(made)


def _definition(entry: Any) -> Any:
    if isinstance(entry, ToolEntry):
        return entry.definition, entry.disabled_because
    return entry.key if isinstance(entry, CompletionEntry) else entry.definition
