"""What a server is told to offer: tools, resources, prompts and completers, by decorator or by call.

Decorators come with or without parentheses and leave a function a function.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, overload

from trunkline.config import Settings
from trunkline.errors import RegistrationError
from trunkline.protocol.types import Annotations, Icon, ToolAnnotations
from trunkline.registry import handlers
from trunkline.registry.completions import CompletionEntry, make_completion, matching
from trunkline.registry.handlers import Handler
from trunkline.registry.prompts import PromptEntry, make_prompt, make_text_prompt
from trunkline.registry.registry import Registry
from trunkline.registry.resources import ResourceEntry, TemplateEntry, make_resource, make_template
from trunkline.registry.tools import ToolEntry, make_tool
from trunkline.server.context import Context
from trunkline.server.limits import Allow, Health, guard_of
from trunkline.server.offer import Offer

__all__ = ["Registrar"]

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Health)


class Registrar:
    """Takes functions and values and makes an offer of them."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._health: dict[str, Health] = {}

    # --- facts ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name."""
        return self._offer.info.name

    @property
    def settings(self) -> Settings:
        """Its settings."""
        return self._offer.settings

    @property
    def tools(self) -> Registry[ToolEntry]:
        """The tools, to be looked at, enabled, disabled and removed."""
        return self._offer.tools

    @property
    def resources(self) -> Registry[ResourceEntry]:
        """The resources."""
        return self._offer.resources

    @property
    def templates(self) -> Registry[TemplateEntry]:
        """The resource templates."""
        return self._offer.templates

    @property
    def prompts(self) -> Registry[PromptEntry]:
        """The prompts."""
        return self._offer.prompts

    @property
    def completions(self) -> Registry[CompletionEntry]:
        """The completers."""
        return self._offer.completions

    # --- registering ---------------------------------------------------------------------------

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        annotations: ToolAnnotations | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        thread: bool | None = None,
        structured: bool = True,
        enabled: bool = True,
        max_concurrency: int | None = None,
        max_queue: int | None = None,
        max_result_bytes: int | None = None,
        allow: Allow | None = None,
        requires: Sequence[str | Health] = (),
    ) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Offers a function as a tool. With or without parentheses; the options are those of `add_tool`."""
        return _decorate(function, self.add_tool, options)

    def add_tool(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        annotations: ToolAnnotations | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        thread: bool | None = None,
        structured: bool = True,
        enabled: bool = True,
        max_concurrency: int | None = None,
        max_queue: int | None = None,
        max_result_bytes: int | None = None,
        allow: Allow | None = None,
        requires: Sequence[str | Health] = (),
    ) -> None:
        """Offers a function as a tool.

        Its parameters become the input schema and its return type the output schema (`structured=False`: none);
        `input_schema` replaces the former by one written by hand. A plain function runs on a thread, with
        `thread=False` on the loop. `timeout` is in seconds. With `enabled=False` it waits for `server.tools.enable`.

        At most `max_concurrency` calls run at once and `max_queue` more wait. A result of more than
        `max_result_bytes` is not sent. `allow(ctx)` says whether a call may go on; `requires` are predicates, or
        names given to `health`, that must hold. All of these answer with a failed result.
        """
        handler = self._read(function, thread)
        guard = guard_of(
            name or handler.name,
            self._health,
            max_concurrency=max_concurrency,
            max_queue=max_queue,
            max_result_bytes=max_result_bytes,
            allow=allow,
            requires=requires,
        )
        self.tools.add(
            make_tool(
                handler,
                self.settings,
                name=name,
                title=title,
                description=description,
                input_schema=input_schema,
                annotations=annotations,
                icons=list(icons) if icons else None,
                meta=dict(meta) if meta else None,
                timeout=timeout,
                structured=structured,
                guard=guard,
            ),
            enabled=enabled,
        )

    def health(self, name: str) -> Callable[[H], H]:
        """Names a predicate of no arguments, plain or async, that tools can require: `requires=["database"]`."""

        def register(predicate: H) -> H:
            self._health[name] = predicate
            return predicate

        return register

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: Annotations | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        thread: bool | None = None,
        guard: bool = True,
        list: Callable[..., Any] | None = None,  # noqa: A002 - what it does
    ) -> Callable[[F], F]:
        """Offers what a function returns as a resource; with `{places}` in the URI, as a template of many."""
        options = {
            "name": name,
            "title": title,
            "description": description,
            "mime_type": mime_type,
            "size": size,
            "annotations": annotations,
            "icons": icons,
            "meta": meta,
            "thread": thread,
            "guard": guard,
            "list": list,
        }
        if callable(uri):
            raise RegistrationError("@server.resource needs a URI: @server.resource('notes://today')")
        return _decorate(None, partial(self._add_resource_function, uri), options)

    def _add_resource_function(self, uri: str, function: Callable[..., Any], **options: Any) -> None:
        self.add_resource(uri, function, **options)

    def add_resource(
        self,
        uri: str,
        source: Any,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: Annotations | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        thread: bool | None = None,
        guard: bool = True,
        list: Callable[..., Any] | None = None,  # noqa: A002 - what it does
    ) -> None:
        """Offers a resource: a value, or a function that makes it whenever it is read.

        Text goes out as text, bytes as base64, anything else as JSON. With `{places}` in the URI (RFC 6570) it is a
        template, and the function gets what stands there. `guard=False` lets those values climb with `..`.
        `list` is a function that gives the resources of a template, or their URIs, whenever clients list resources.
        """
        handler = self._read(source, thread) if callable(source) else None
        shared: dict[str, Any] = {
            "name": name,
            "title": title,
            "description": description,
            "mime_type": mime_type,
            "annotations": annotations,
            "icons": [*icons] if icons else None,
            "meta": dict(meta) if meta else None,
        }
        if "{" in uri or "}" in uri:
            if handler is None:
                raise RegistrationError(f"resource template {uri!r} needs a function to read it with")
            lister = None if list is None else self._read(list, thread)
            self.templates.add(make_template(uri, handler, self.settings, guard=guard, lister=lister, **shared))
        elif list is not None:
            raise RegistrationError(f"resource {uri!r} is one of a kind; list= is for templates")
        else:
            self.resources.add(make_resource(uri, handler or source, self.settings, size=size, **shared))

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        thread: bool | None = None,
    ) -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Offers what a function returns as a prompt. With or without parentheses; options as of `add_prompt`."""
        return _decorate(function, self.add_prompt, options)

    def add_prompt(
        self,
        source: Callable[..., Any] | str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        defaults: Mapping[str, str] | None = None,
        input_schema: Mapping[str, Any] | None = None,
        icons: Sequence[Icon] | None = None,
        meta: Mapping[str, Any] | None = None,
        thread: bool | None = None,
    ) -> None:
        """Offers a prompt: a function, or a text with `{places}`, each of which is an argument.

        A function returns text, a message, or a list of messages.
        """
        shared: dict[str, Any] = {
            "title": title,
            "description": description,
            "input_schema": input_schema,
            "icons": list(icons) if icons else None,
            "meta": dict(meta) if meta else None,
        }
        if isinstance(source, str):
            self.prompts.add(make_text_prompt(name or "", source, self.settings, defaults=defaults, **shared))
        else:
            self.prompts.add(make_prompt(self._read(source, thread), self.settings, name=name, **shared))

    def completion(
        self,
        *,
        argument: str,
        prompt: str | None = None,
        resource: str | None = None,
        tool: str | None = None,
        thread: bool | None = None,
    ) -> Callable[[F], F]:
        """Proposes values for an argument of a prompt, a resource template or a tool.

        The function gets the text so far and, if it has a second parameter, the arguments already filled in.
        """
        named = {"prompt": prompt, "resource": resource, "tool": tool}
        given = [(kind, target) for kind, target in named.items() if target is not None]
        if len(given) != 1:
            raise RegistrationError("completion needs one of prompt=, resource= or tool=")
        kind, target = given[0]

        def register(function: F) -> F:
            self.completions.add(make_completion(kind, target, argument, self._read(function, thread)))
            return function

        return register

    def add_completion(
        self,
        values: Callable[..., Any] | Iterable[str],
        *,
        argument: str,
        prompt: str | None = None,
        resource: str | None = None,
        tool: str | None = None,
        thread: bool | None = None,
    ) -> None:
        """Proposes values for an argument: those of a fixed list that match the text so far, or a function's."""
        target: dict[str, Any] = {"argument": argument, "prompt": prompt, "resource": resource, "tool": tool}
        if callable(values):
            self.completion(**target, thread=thread)(values)
            return
        if isinstance(values, str):
            raise RegistrationError(f"what {argument!r} is completed with is a list of texts, not one text")
        known = tuple(values)

        def complete(value: str) -> list[str]:
            return matching(value, known)

        self.completion(**target, thread=False)(complete)

    def remove_tool(self, name: str) -> None:
        """Takes a tool away."""
        self.tools.remove(name)

    def remove_resource(self, uri: str) -> None:
        """Takes a resource or a template away."""
        (self.templates if uri in self.templates else self.resources).remove(uri)

    def remove_prompt(self, name: str) -> None:
        """Takes a prompt away."""
        self.prompts.remove(name)

    def _read(self, function: Callable[..., Any], thread: bool | None) -> Handler:
        return handlers.read(function, Context, thread=thread)


def _decorate(function: Any, add: Callable[..., None], options: dict[str, Any]) -> Any:
    """A decorator with or without parentheses, that leaves the function as it is."""
    if function is not None:
        add(function, **options)
        return function

    def register(function: F) -> F:
        add(function, **options)
        return function

    return register
