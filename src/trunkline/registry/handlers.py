"""Handlers: user functions, their arguments, and the way to call them.

A signature is inspected once, at registration. Its parameters become a struct that JSON is decoded into, which is the
validation; one parameter may take the context of the call. A function that can never be called is rejected here, with
the reason.
"""

import inspect
import warnings
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum, auto
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from trunkline.errors import RegistrationError
from trunkline.registry import docstrings
from trunkline.registry import type_adapters as kinds
from trunkline.registry.dependencies import (
    Dependency,
    DependencyOverrides,
    DependencyPlan,
    dependency_of,
    make_plan,
)
from trunkline.registry.parameters import Parameter, arguments_type, input_schema, read_parameter
from trunkline.registry.signatures import (
    hints_of,
    is_context_annotation,
    name_of,
    signature_of,
    underlying_function,
    unwrap_partial,
)
from trunkline.registry.stack_level import level_outside
from trunkline.wire import codec

__all__ = [
    "Forward",
    "Handler",
    "Parameter",
    "PlannedCall",
    "Run",
    "StartMode",
    "ThreadCall",
    "context_hint",
    "convert_result",
    "exit_error",
    "make_runner",
    "read_handler",
    "text_converter",
    "warn_untyped_context",
]

_CONTEXT: Final = "ctx"

Run = Callable[[Any, Any, Any], Any]
"""(decoded arguments, context, subject) -> the result, a coroutine that returns it, `ThreadCall` or `PlannedCall`. The
subject is what the result is about if that varies between calls, such as the URI that a template was read with."""


Forward = Callable[[Any, Any, Any, Any], Any]
"""(connection, call, params, subject) -> the work of a call that another server answers. It is used in place of `Run`.
The subject is that of the request: arguments, or a URI."""


class StartMode(Enum):
    """How a handler is started; decided at registration."""

    ASYNC = auto()  # an async function: driven on the event loop
    INLINE = auto()  # a synchronous function that does not block
    THREAD = auto()  # a synchronous function that may block: on a thread


class Handler(Struct, frozen=True):
    """A function, and everything that is known about it before a call."""

    function: Callable[..., Any]
    start: StartMode
    parameters: tuple[Parameter, ...]
    arguments: type[Struct]  # the struct that JSON is decoded into
    decode: Callable[[Any], Any]  # decodes and validates JSON arguments
    convert: Callable[[Mapping[str, Any]], Any]  # converts string arguments
    bind: Callable[[Any, Any], Any]  # (decoded arguments, context; with a plan, all injected values) -> the call
    wants_context: bool
    accepts_extra: bool  # accepts extra arguments (`**kwargs`)
    returns: Any  # its return annotation, or UNSET
    name: str
    description: str
    plan: DependencyPlan | None = None  # the dependencies to run before it
    injected: tuple[str, ...] = ()  # the parameters that the server fills

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        return input_schema(self.parameters, closed=not self.accepts_extra)


def read_handler(
    function: Callable[..., Any],
    context: type,
    *,
    thread: bool | None = None,
    overrides: DependencyOverrides | None = None,
) -> Handler:
    """Inspect a function. A parameter annotated with `context` gets the context of the call.

    `thread` says whether a synchronous function runs on a thread; None means that it does. `overrides` may replace its
    dependencies later.
    """
    if not callable(function):
        raise RegistrationError(f"{function!r} is not callable")
    name = name_of(function)
    hints = hints_of(function, name)
    docstring = docstrings.parse(inspect.getdoc(unwrap_partial(function)))  # not of the partial itself
    parameters: list[Parameter] = []
    order: list[tuple[str, bool]] = []  # every parameter: its name, and whether it is keyword-only
    contexts: list[str] = []
    marked: dict[str, Dependency] = {}
    takes_more = False
    for parameter in signature_of(function, name).parameters.values():
        annotation = hints.get(parameter.name, Any)
        match parameter.kind:
            case inspect.Parameter.VAR_KEYWORD:
                takes_more = True
            case inspect.Parameter.VAR_POSITIONAL:
                raise RegistrationError(
                    f"{name}: *{parameter.name} can never be passed, since arguments have names; name each parameter"
                )
            case _:
                order.append((parameter.name, parameter.kind is inspect.Parameter.KEYWORD_ONLY))
                if (dependency := dependency_of(parameter, annotation)) is not None:
                    marked[parameter.name] = dependency
                elif is_context_annotation(annotation, context):
                    contexts.append(parameter.name)
                else:
                    parameters.append(read_parameter(parameter, annotation, docstring, name))
    if len(contexts) > 1:
        raise RegistrationError(f"{name}: {' and '.join(contexts)} both take the context; keep one of them")
    arguments = arguments_type(name, parameters, open_ended=takes_more)
    start = _start_mode(function, thread=thread)
    needed = make_plan(name, marked, contexts, context, on_thread=start is StartMode.THREAD, overrides=overrides)
    ours = [*contexts, *marked]  # never arguments of the peer
    hooked = any(kinds.needs_hooks(p.annotation) for p in parameters)
    return Handler(
        function=function,
        start=start,
        parameters=tuple(parameters),
        arguments=arguments,
        decode=_json_decoder(arguments, ours, takes_more=takes_more, hooked=hooked),
        convert=_text_decoder(arguments, ours, takes_more=takes_more),
        bind=(
            _binder(function, order, contexts, takes_more=takes_more)
            if needed is None
            else _general_binder(function, order, None, takes_more=takes_more)
        ),
        wants_context=bool(contexts) or (needed is not None and needed.wants_context),
        accepts_extra=takes_more,
        returns=hints.get("return", UNSET),
        name=name,
        description=docstring.description,
        plan=needed,
        injected=tuple(ours),
    )


def context_hint(parameter: str) -> str:
    """Return a hint for errors about an unannotated parameter with the usual name of the context."""
    return f"; write `{_CONTEXT}: Context` for the context of the call" if parameter == _CONTEXT else ""


def warn_untyped_context(what: str, name: str, handler: Handler) -> None:
    """Warn about an unannotated parameter with the usual name of the context: clients would have to pass it."""
    if any(parameter.name == _CONTEXT and parameter.annotation is Any for parameter in handler.parameters):
        warnings.warn(
            f"{what} {name!r}: its parameter {_CONTEXT!r} has no annotation, so clients must pass it as an argument; "
            f"write `{_CONTEXT}: Context` to get the context of the call",
            stacklevel=level_outside(),
        )


def _start_mode(function: Callable[..., Any], *, thread: bool | None) -> StartMode:
    if inspect.iscoroutinefunction(underlying_function(function)):
        return StartMode.ASYNC
    return StartMode.INLINE if thread is False else StartMode.THREAD


# --- from decoded arguments to the call ----------------------------------------------------------


class ThreadCall:
    """A synchronous function to run on a thread, and the conversion of its value."""

    __slots__ = ("finish", "function")

    def __init__(self, function: Callable[[], Any], finish: Callable[[Any], Any]) -> None:
        self.function = function
        self.finish = finish


class PlannedCall:
    """A call of a handler with dependencies, and the conversion of its value."""

    __slots__ = ("arguments", "context", "finish", "handler")

    def __init__(self, handler: Handler, arguments: Any, context: Any, finish: Callable[[Any], Any]) -> None:
        self.handler = handler
        self.arguments = arguments
        self.context = context
        self.finish = finish


def make_runner(handler: Handler, finish: Callable[[Any, Any], Any]) -> Run:
    """Return the function that runs a handler. `finish` converts a value and the subject to a result."""
    bind = handler.bind

    async def run(arguments: Any, context: Any, subject: Any) -> Any:
        try:
            return finish(await bind(arguments, context), subject)
        except SystemExit as error:
            raise exit_error(error) from error

    async def wait(value: Any, subject: Any) -> Any:
        try:
            return finish(await value, subject)
        except SystemExit as error:
            raise exit_error(error) from error

    def run_inline(arguments: Any, context: Any, subject: Any) -> Any:
        try:
            value = bind(arguments, context)
        except SystemExit as error:
            raise exit_error(error) from error
        return wait(value, subject) if inspect.isawaitable(value) else finish(value, subject)

    def run_on_thread(arguments: Any, context: Any, subject: Any) -> ThreadCall:
        return ThreadCall(partial(bind, arguments, context), lambda value: finish(value, subject))

    def run_by_plan(arguments: Any, context: Any, subject: Any) -> PlannedCall:
        return PlannedCall(handler, arguments, context, lambda value: finish(value, subject))

    if handler.plan is not None:
        return run_by_plan
    if isinstance(bind, _PositionalBinder) and handler.start is StartMode.ASYNC:
        return _positional_runner(bind.function, finish)
    return {StartMode.ASYNC: run, StartMode.INLINE: run_inline, StartMode.THREAD: run_on_thread}[handler.start]


def _positional_runner(function: Callable[..., Any], finish: Callable[[Any, Any], Any]) -> Run:
    """Return the same as `make_runner` for an async function that takes its arguments by position: it needs one call
    less, which is 1 % of a request over stdio."""

    async def run(arguments: Any, _context: Any, subject: Any) -> Any:
        try:
            return finish(await function(*astuple(arguments)), subject)
        except SystemExit as error:
            raise exit_error(error) from error

    return run


def convert_result(work: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the work of a `Run` whose result is converted by one more function."""
    if inspect.iscoroutine(work):
        return _await_and_convert(work, convert)
    if isinstance(work, ThreadCall):
        finish = work.finish
        return ThreadCall(work.function, lambda value: convert(finish(value)))
    if isinstance(work, PlannedCall):
        finish = work.finish
        return PlannedCall(work.handler, work.arguments, work.context, lambda value: convert(finish(value)))
    return convert(work)


async def _await_and_convert(work: Coroutine[Any, Any, Any], convert: Callable[[Any], Any]) -> Any:
    return convert(await work)


def text_converter(handler: Handler) -> Callable[[Mapping[str, str]], Any]:
    """Return `convert` for arguments that are all strings; trivial for a handler with string parameters only."""
    arguments, convert = handler.arguments, handler.convert
    if handler.accepts_extra or any(parameter.annotation is not str for parameter in handler.parameters):
        return convert

    def decode(values: Mapping[str, str]) -> Any:
        try:
            return arguments(**values)
        except TypeError:  # one is missing or unknown: `convert` raises with its name
            return convert(values)

    return decode


def exit_error(error: SystemExit) -> RuntimeError:
    """Return the error for a handler that called `sys.exit()`, which must not end the server."""
    return RuntimeError(f"a handler called sys.exit({error.code!r})")


class _PositionalBinder:
    """Calls a handler with its decoded arguments by position."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, arguments: Any, _context: Any) -> Any:
        return self.function(*astuple(arguments))


def _binder(
    function: Callable[..., Any], order: list[tuple[str, bool]], contexts: list[str], *, takes_more: bool
) -> Callable[[Any, Any], Any]:
    """Return the function that calls a handler with decoded arguments and a context. The common signatures have fast
    paths."""
    if takes_more or any(by_keyword for _, by_keyword in order):
        return _general_binder(function, order, contexts, takes_more=takes_more)
    names = [name for name, _ in order]
    if not names:
        return lambda _arguments, _context: function()
    if not contexts:
        return _PositionalBinder(function)
    if contexts == names[-1:]:
        return lambda arguments, context: function(*astuple(arguments), context)
    if contexts == names[:1]:
        return lambda arguments, context: function(context, *astuple(arguments))
    return _general_binder(function, order, contexts, takes_more=False)


def _general_binder(
    function: Callable[..., Any], order: list[tuple[str, bool]], contexts: list[str] | None, *, takes_more: bool
) -> Callable[[Any, Any], Any]:
    """Return the function for any signature. Without `contexts`, the call gets all injected values by name."""
    positional = [name for name, by_keyword in order if not by_keyword]
    keyword = [name for name, by_keyword in order if by_keyword]

    def bind(arguments: Any, context: Any) -> Any:
        injected: Mapping[str, Any] = context if contexts is None else dict.fromkeys(contexts, context)
        named: Any = arguments[0] if takes_more else arguments
        more: dict[str, Any] = arguments[1] if takes_more else {}

        def value(name: str) -> Any:
            return injected[name] if name in injected else getattr(named, name)

        return function(*map(value, positional), **{name: value(name) for name in keyword}, **more)

    return bind


def _json_decoder(arguments: type[Struct], ours: list[str], *, takes_more: bool, hooked: bool) -> Callable[[Any], Any]:
    """Return a function that decodes JSON to arguments; it raises `codec.DecodeError` for invalid JSON."""
    if not takes_more:
        return codec.json_decoder(arguments, kinds.decode_hook if hooked else None)
    as_object = codec.decoder(dict[str, Any])
    return lambda raw: _split(arguments, ours, as_object(raw), strict=True)


def _text_decoder(arguments: type[Struct], ours: list[str], *, takes_more: bool) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that converts string values, such as URI variables, to arguments: `5` may be a number."""
    if not takes_more:
        return lambda values: msgspec.convert(values, arguments, strict=False, dec_hook=kinds.text_hook)
    return lambda values: _split(arguments, ours, values, strict=False)


def _split(
    arguments: type[Struct], ours: list[str], values: Mapping[str, Any], *, strict: bool
) -> tuple[Struct, dict[str, Any]]:
    """Split values into named arguments and the rest; reject values for `ours`, the injected parameters."""
    names = arguments.__struct_fields__
    more = {name: value for name, value in values.items() if name not in names}
    if taken := [name for name in ours if name in more]:
        raise msgspec.ValidationError(f"Object contains unknown field `{taken[0]}`")
    hook = kinds.decode_hook if strict else kinds.text_hook
    return msgspec.convert(values, arguments, strict=strict, dec_hook=hook), more
