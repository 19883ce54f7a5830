"""Entries of a mounted server as they appear in its parent.

The parent's registries contain these entries, built when something changes, so that a call costs about the same as a
direct one. An entry has the name or URI of the parent. Its handler and its middleware see those of the mounted server,
with that server's lifespan and circuit breakers. Middleware runs inside of the parent's, before the arguments are
decoded.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast, get_origin

from msgspec import UNSET, Struct
from msgspec.structs import replace

from trunkline.errors import MisuseError
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.types import (
    CallToolParams,
    CallToolResult,
    CompleteParams,
    CompleteResult,
    CompletionArgument,
    CompletionContext,
    EmbeddedResource,
    GetPromptParams,
    GetPromptResult,
    ReadResourceParams,
    ReadResourceResult,
    Reference,
    Resource,
    ResourceLink,
)
from trunkline.registry.access import Access
from trunkline.registry.completions import CompletionEntry
from trunkline.registry.handlers import Forward, Run, convert_result
from trunkline.registry.prefixes import Prefix
from trunkline.registry.prompts import PromptEntry
from trunkline.registry.resources import ResourceEntry, TemplateEntry
from trunkline.registry.templates import Matched, UriTemplate
from trunkline.registry.tools import ToolEntry
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import Connection
from trunkline.server.context import Context, with_peer
from trunkline.server.features.tools import decode_arguments
from trunkline.server.middleware import Call, Middleware, run_within_middleware

if TYPE_CHECKING:
    from trunkline.rpc.run_handler import Work
    from trunkline.server.call_peer import CallPeer
    from trunkline.server.resilience.circuit_breaker import CircuitBreakers
    from trunkline.server.runtime import ServerRuntime

__all__ = ["MountedEntries", "MountedPeer"]


class MountedPeer:
    """`CallPeer` of a call of a mounted server: the client is the parent's, the rest is the server's own."""

    __slots__ = ("_peer", "_runtime", "catalog")

    def __init__(self, peer: "CallPeer", catalog: ServerCatalog, runtime: "ServerRuntime") -> None:
        self._peer = peer
        self._runtime = runtime
        self.catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)

    @property
    def lifespan(self) -> Any:
        """Value of the mounted server's lifespan."""
        return self._runtime.lifespan_value

    @property
    def breakers(self) -> "CircuitBreakers":
        """Circuit breakers of the mounted server."""
        return self._runtime.breakers


class MountedEntries:
    """Builds the entries of a parent from those of a mounted server."""

    def __init__(
        self, prefix: Prefix, catalog: ServerCatalog, runtime: "ServerRuntime", middlewares: Sequence[Middleware]
    ) -> None:
        """`catalog`, `runtime` and `middlewares` are those of the mounted server."""
        self._prefix = prefix
        self._catalog = catalog
        self._runtime = runtime
        self._middlewares = middlewares
        self._predicates: dict[Callable[[Any], Any], Callable[[Any], Any]] = {}  # each once: lists evaluate it once

    def enter(self, context: Any) -> Any:
        """Return the context of a call as the mounted server sees it."""
        return None if context is None else with_peer(context, self._enter_peer)

    def _enter_peer(self, peer: "CallPeer") -> "CallPeer":
        return cast("CallPeer", MountedPeer(peer, self._catalog, self._runtime))

    # --- tools, prompts and resources --------------------------------------------------------------

    def tool(self, entry: ToolEntry) -> ToolEntry:
        """Return a tool, still under its own name: it may be transformed first."""
        access = self._access(entry.access)
        if entry.forward is not None:
            forward = self._forward_within_middleware("tools/call", entry.forward, CallToolResult, name=entry.name)
            run = (
                self._run_within_middleware(entry) if self._middlewares else self._inside(entry.run, wants_context=True)
            )
            return replace(entry, forward=forward, run=run, access=access)
        if not self._middlewares:
            run = self._inside(entry.run, wants_context=entry.handler.wants_context)
            if _may_link(entry):
                run = self._linked(run, self._link_tool_result)
            return replace(entry, run=run, access=access)
        return replace(
            entry,
            handler=replace(entry.handler, wants_context=True),
            access=access,
            custom_schema=entry.definition.input_schema,
            decode=_pass_on,  # decoded by the innermost step
            run=self._linked(self._run_within_middleware(entry), self._link_tool_result),
        )

    def _run_within_middleware(self, entry: ToolEntry) -> Run:
        """Return a run of a tool within the middleware. Arguments are decoded by its innermost step; those of a
        forwarded tool need not be."""

        def run(arguments: Any, context: Context, subject: Any) -> Any:
            def start(call: Call) -> "Work":
                _check_unchanged(call.params.name, entry.name)
                given = call.params.arguments if entry.forward is not None else decode_arguments(entry, call.params)
                return entry.run(given, call.context, subject)

            params = CallToolParams(name=entry.name, arguments=arguments)
            call = Call("tools/call", entry.name, params, self.enter(context))
            return run_within_middleware(call, start, self._middlewares, CallToolResult)

        return run

    def prompt(self, entry: PromptEntry) -> PromptEntry:
        """Return a prompt under its name in the parent."""
        definition = replace(entry.definition, name=self._prefix.add_to_name(entry.key))
        named = replace(entry, definition=definition, access=self._access(entry.access))
        if entry.forward is not None:
            forward = self._forward_within_middleware("prompts/get", entry.forward, GetPromptResult, name=entry.key)
            return replace(named, forward=forward)
        if not self._middlewares:
            run = self._inside(entry.run, wants_context=entry.wants_context)
            return replace(named, run=self._linked(run, self._link_prompt_result))

        def run_call(arguments: Mapping[str, str], context: Context, rendering: Any) -> Any:
            def start(call: Call) -> "Work":
                _check_unchanged(call.params.name, entry.key)
                return entry.run(named.arguments(call.params.arguments or {}), call.context, rendering)

            params = GetPromptParams(name=entry.key, arguments=dict(arguments))
            call = Call("prompts/get", entry.key, params, self.enter(context))
            return run_within_middleware(call, start, self._middlewares, GetPromptResult)

        run = self._linked(run_call, self._link_prompt_result)
        return replace(named, decode=_pass_on, run=run, validator=None, wants_context=True)

    def resource(self, entry: ResourceEntry) -> ResourceEntry:
        """Return a resource with its URI in the parent."""
        changed: dict[str, Any] = {
            "definition": replace(entry.definition, uri=self._prefix.add_to_uri(entry.key)),
            "run": self._reader(entry),
            "wants_context": entry.wants_context or bool(self._middlewares),
            "access": self._access(entry.access),
            "forward": self._forward_read(entry.forward),
        }
        return ResourceEntry(**_fields_of(entry, ResourceEntry) | changed)

    def template(self, entry: TemplateEntry) -> TemplateEntry:
        """Return a resource template with its pattern in the parent."""
        template = _PrefixedTemplate(self._prefix, entry.template)
        changed: dict[str, Any] = {
            "definition": replace(entry.definition, uri_template=template.template),
            "template": template,
            "run": self._reader(entry),
            "wants_context": entry.wants_context or bool(self._middlewares),
            "access": self._access(entry.access),
            "forward": self._forward_read(entry.forward),
        }
        return MountedTemplate(**_fields_of(entry, TemplateEntry) | changed, source=entry, mounted=self)

    def completion(self, entry: CompletionEntry, name: str, argument: str) -> CompletionEntry:
        """Return a completer for an argument of an entry of the parent."""
        handler = replace(entry.handler, wants_context=True) if self._middlewares else entry.handler
        return MountedCompletion(entry.kind, name, argument, handler, entry.forward, source=entry, mounted=self)

    # --- calls -------------------------------------------------------------------------------------

    def _inside(self, run: Run, *, wants_context: bool) -> Run:
        """Return a run whose context is that of the mounted server."""
        if not wants_context:
            return run
        return lambda arguments, context, subject: run(arguments, self.enter(context), subject)

    def _reader(self, entry: ResourceEntry | TemplateEntry) -> Run:
        """Return the run that reads a resource by its URI in the parent."""
        run, prefix = self._inside(entry.run, wants_context=entry.wants_context), self._prefix
        if self._middlewares:
            run = self._reader_within_middleware(entry.run)

        def read(arguments: Any, context: Any, uri: str) -> Any:
            own = cast("str", prefix.strip_uri(uri))
            return convert_result(run(arguments, context, own), lambda result: self._link_contents(result, own))

        return read if prefix else run

    def _forward_read(self, forward: Forward | None) -> Forward | None:
        """Return the function that forwards reads of a mounted proxy, by their URI in the parent."""
        if forward is None:
            return None

        def read(connection: Connection, call: IncomingRequest, params: ReadResourceParams, uri: str) -> Any:
            own = cast("str", self._prefix.strip_uri(uri)) if self._prefix else uri
            within = self._forward_within_middleware("resources/read", forward, ReadResourceResult, uri=own)
            return within(connection, call, params, own)

        return read

    def _forward_within_middleware(self, method: str, forward: Forward, expected: Any, **named: str) -> Forward:
        """Return the function that forwards requests of a mounted proxy, within its middleware. `named` are the name or
        the URI of the entry there."""
        if not self._middlewares:
            return forward

        def run(connection: Connection, running: IncomingRequest, params: Any, subject: Any) -> Any:
            [(member, own)] = named.items()
            given = {member: own} if "uri" in named else {member: own, "arguments": subject}

            def start(call: Call) -> "Work":
                _check_unchanged(getattr(call.params, member), own)
                return forward(connection, running, params, getattr(call.params, "arguments", own))

            call = Call(method, own, replace(params, **given), self.enter(Context(connection, running)))
            return run_within_middleware(call, start, self._middlewares, expected)

        return run

    def _reader_within_middleware(self, run: Run) -> Run:
        def read(arguments: Any, context: Context, uri: str) -> Any:
            def start(call: Call) -> "Work":
                _check_unchanged(call.params.uri, uri)
                return run(arguments, call.context, uri)

            call = Call("resources/read", uri, ReadResourceParams(uri=uri), self.enter(context))
            return run_within_middleware(call, start, self._middlewares, ReadResourceResult)

        return read

    def complete_within_middleware(
        self, entry: CompletionEntry, arguments: Any, context: Context, labelled: Any
    ) -> Any:
        """Run a completer within the middleware; its arguments are a text and the values of other arguments."""
        value, filled = arguments

        def start(call: Call) -> "Work":
            given: CompleteParams = call.params
            known = None if given.context is None else given.context.arguments
            return entry.run(entry.arguments(given.argument.value, known or {}), call.context, labelled)

        named = {"uri": entry.name} if entry.kind == "resource" else {"name": entry.name}
        params = CompleteParams(
            Reference(f"ref/{entry.kind}", **named),
            CompletionArgument(entry.argument, value),
            CompletionContext(dict(filled)),
        )
        call = Call("completion/complete", entry.name, params, self.enter(context))
        return run_within_middleware(call, start, self._middlewares, CompleteResult)

    @property
    def has_middleware(self) -> bool:
        """Whether the mounted server has middleware."""
        return bool(self._middlewares)

    def _access(self, access: Access | None) -> Access | None:
        """Return an access rule whose predicate gets the context of the mounted server."""
        if access is None or access.allow is None:
            return access
        allow = access.allow
        if allow not in self._predicates:
            self._predicates[allow] = lambda context: allow(self.enter(context))
        return replace(access, allow=self._predicates[allow])

    # --- URIs in results ---------------------------------------------------------------------------

    def _linked(self, run: Run, link: Callable[[Any], Any]) -> Run:
        """Return a run whose results refer to resources by their URIs in the parent."""
        if not self._prefix:
            return run
        return lambda arguments, context, subject: convert_result(run(arguments, context, subject), link)

    def link_uri(self, uri: str) -> str:
        """Return the URI in the parent of a resource of the mounted server; any other URI unchanged."""
        return uri if self._catalog.resolve_uri(uri) is None else self._prefix.add_to_uri(uri)

    def _link_block(self, block: Any) -> Any:
        if isinstance(block, ResourceLink):
            return replace(block, uri=self.link_uri(block.uri))
        if isinstance(block, EmbeddedResource):
            return replace(block, resource=replace(block.resource, uri=self.link_uri(block.resource.uri)))
        return block

    def _link_tool_result(self, result: Any) -> Any:
        if isinstance(result, CallToolResult) and any(map(_has_uri, result.content)):
            return replace(result, content=[self._link_block(block) for block in result.content])
        return result

    def _link_prompt_result(self, result: Any) -> Any:
        if isinstance(result, GetPromptResult) and any(_has_uri(message.content) for message in result.messages):
            messages = [replace(message, content=self._link_block(message.content)) for message in result.messages]
            return replace(result, messages=messages)
        return result

    def _link_contents(self, result: Any, own: str) -> Any:
        """Return a result with the URIs of the parent; `own` is the URI that the mounted server has read."""
        if not isinstance(result, ReadResourceResult):
            return result
        contents = [
            replace(each, uri=self._prefix.add_to_uri(own) if each.uri == own else self.link_uri(each.uri))
            for each in result.contents
        ]
        return replace(result, contents=contents)

    def link_listed(self, resources: Sequence[Resource]) -> list[Resource]:
        """Return the resources that a template lists, with their URIs in the parent."""
        return [replace(each, uri=self._prefix.add_to_uri(each.uri)) for each in resources]

    def strip_uri(self, uri: str) -> str | None:
        """Return the URI in the mounted server; None if the URI has not the prefix."""
        return self._prefix.strip_uri(uri)


def _pass_on(arguments: Any) -> Any:
    return arguments


def _may_link(entry: ToolEntry) -> bool:
    """Return whether results of a tool may refer to resources: those of a tool with a declared type are values."""
    return entry.output.returns is UNSET or get_origin(entry.handler.returns) is Annotated


def _has_uri(block: Any) -> bool:
    return isinstance(block, ResourceLink | EmbeddedResource)


def _check_unchanged(name: str, expected: str) -> None:
    if name != expected:
        raise MisuseError(
            f"middleware of a mounted server has replaced {expected!r} by {name!r}: it may change the arguments only"
        )


class _PrefixedTemplate(UriTemplate):
    """A URI template with a prefix. It matches as the template of the mounted server does."""

    __slots__ = ("_prefix", "_source")

    def __init__(self, prefix: Prefix, source: UriTemplate) -> None:
        super().__init__(prefix.add_to_uri(source.template))
        self._prefix = prefix
        self._source = source

    def match(self, uri: str) -> Matched | None:
        """Return the decoded values in `uri`; None if it does not match this template."""
        own = self._prefix.strip_uri(uri)
        return None if own is None else self._source.match(own)


def _fields_of(entry: Struct, kind: type[Struct]) -> dict[str, Any]:
    """Return the fields of an entry that its base type has; an entry for files has more."""
    return {name: getattr(entry, name) for name in kind.__struct_fields__}


class MountedTemplate(TemplateEntry, frozen=True, kw_only=True):
    """A resource template of a mounted server."""

    source: TemplateEntry
    mounted: MountedEntries

    def arguments(self, uri: str) -> Any:
        """Return the handler's arguments for a URI of the parent; UNSET if the URI does not match the pattern."""
        own = self.mounted.strip_uri(uri)
        return UNSET if own is None else self.source.arguments(own)

    @cached_property
    def run_lister(self) -> Run:
        """Run the lister, which must exist."""
        run, mounted = self.source.run_lister, self.mounted
        return lambda arguments, context, subject: convert_result(
            run(arguments, mounted.enter(context), subject), mounted.link_listed
        )


class MountedCompletion(CompletionEntry, frozen=True, kw_only=True):
    """A completer of a mounted server."""

    source: CompletionEntry
    mounted: MountedEntries

    def arguments(self, value: str, context: Mapping[str, str]) -> Any:
        """Return the text so far and the other arguments if there is middleware, else the handler's arguments."""
        return (value, context) if self.mounted.has_middleware else self.source.arguments(value, context)

    @cached_property
    def run(self) -> Run:
        """Run the completer."""
        run, mounted = self.source.run, self.mounted
        if mounted.has_middleware:
            return lambda arguments, context, labelled: mounted.complete_within_middleware(
                self.source, arguments, context, labelled
            )
        return lambda arguments, context, labelled: run(arguments, mounted.enter(context), labelled)
