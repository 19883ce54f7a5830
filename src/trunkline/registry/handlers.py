"""Handlers: a function as its author wrote it, what it can be called with, and how it is to be started.

A signature is read once, at registration. Its parameters become a type that JSON is decoded into, which is the
validation; one parameter may ask for the context of the call instead. What can never be called is refused here,
with a sentence that says why.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from trunkline.errors import RegistrationError
from trunkline.registry import docstrings
from trunkline.registry import type_adapters as kinds
from trunkline.registry.dependencies import Dependency, DependencyPlan, dependency_of, make_plan
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
    "Handler",
    "Parameter",
    "PlannedCall",
    "Run",
    "StartMode",
    "ThreadCall",
    "context_hint",
    "exit_error",
    "make_runner",
    "read_handler",
    "text_converter",
    "warn_untyped_context",
]

_CONTEXT: Final = "ctx"

Run = Callable[[Any, Any, Any], Any]
"""(decoded arguments, context, subject) -> the answer, a coroutine that gives it, `OnThread` or `Needing`.
The subject is what the answer is about where that is not known beforehand, such as the URI that a template was read
with."""


class StartMode(Enum):
    """How a handler is started; decided at registration, never per call."""

    ASYNC = auto()  # an async function: driven where it stands
    INLINE = auto()  # a plain function that promises not to block
    THREAD = auto()  # a plain function that may block: on a thread


class Handler(Struct, frozen=True):
    """A function, and everything about it that can be known before it is called."""

    function: Callable[..., Any]
    start: StartMode
    parameters: tuple[Parameter, ...]
    arguments: type[Struct]  # what JSON is decoded into
    decode: Callable[[Any], Any]  # arguments from JSON, which is the validation
    convert: Callable[[Mapping[str, Any]], Any]  # arguments from texts
    bind: Callable[[Any, Any], Any]  # (decoded arguments, context; by a plan, all that is given) -> the call itself
    wants_context: bool
    accepts_extra: bool  # takes arguments that it does not name (`**kwargs`)
    returns: Any  # its annotation, or UNSET
    name: str
    description: str
    plan: DependencyPlan | None = None  # what has to be run before it
    injected: tuple[str, ...] = ()  # the parameters that the server gives values for

    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        return input_schema(self.parameters, closed=not self.accepts_extra)


def read_handler(function: Callable[..., Any], context: type, *, thread: bool | None = None) -> Handler:
    """Reads a function's signature. A parameter annotated with `context` gets the context of the call.

    `thread` says whether a plain function goes to a thread; None means that it does.
    """
    if not callable(function):
        raise RegistrationError(f"{function!r} is not callable")
    name = name_of(function)
    hints = hints_of(function, name)
    said = docstrings.parse(inspect.getdoc(unwrap_partial(function)))  # that of a partial describes `partial` itself
    parameters: list[Parameter] = []
    order: list[tuple[str, bool]] = []  # every parameter of the function: its name, and whether by keyword
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
                    f"{name}: *{parameter.name} can never be given, since arguments have names; name each one"
                )
            case _:
                order.append((parameter.name, parameter.kind is inspect.Parameter.KEYWORD_ONLY))
                if (dependency := dependency_of(parameter, annotation)) is not None:
                    marked[parameter.name] = dependency
                elif is_context_annotation(annotation, context):
                    contexts.append(parameter.name)
                else:
                    parameters.append(read_parameter(parameter, annotation, said, name))
    if len(contexts) > 1:
        raise RegistrationError(f"{name}: {' and '.join(contexts)} both ask for the context; one is enough")
    arguments = arguments_type(name, parameters, open_ended=takes_more)
    start = _start_mode(function, thread=thread)
    needed = make_plan(name, marked, contexts, context, on_thread=start is StartMode.THREAD)
    ours = [*contexts, *marked]  # not for peers to give
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
        description=said.description,
        plan=needed,
        injected=tuple(ours),
    )


def context_hint(parameter: str) -> str:
    """What to add to an error about a parameter that is called as the context usually is, and has no type."""
    return f"; write `{_CONTEXT}: Context` for the context of the call" if parameter == _CONTEXT else ""


def warn_untyped_context(what: str, name: str, handler: Handler) -> None:
    """Warn of a parameter that is called as the context usually is, and has no type: it is an argument for clients."""
    if any(parameter.name == _CONTEXT and parameter.annotation is Any for parameter in handler.parameters):
        warnings.warn(
            f"{what} {name!r}: its parameter {_CONTEXT!r} has no type, so clients have to give it as an argument; "
            f"write `{_CONTEXT}: Context` to get the context of the call",
            stacklevel=level_outside(),
        )


def _start_mode(function: Callable[..., Any], *, thread: bool | None) -> StartMode:
    if inspect.iscoroutinefunction(underlying_function(function)):
        return StartMode.ASYNC
    return StartMode.INLINE if thread is False else StartMode.THREAD


# --- from decoded arguments to the call ----------------------------------------------------------


class ThreadCall:
    """A plain function to be run on a thread, and what to make of its value."""

    __slots__ = ("finish", "function")

    def __init__(self, function: Callable[[], Any], finish: Callable[[Any], Any]) -> None:
        self.function = function
        self.finish = finish


class PlannedCall:
    """A call of a handler that needs what other functions give, and what to make of its value."""

    __slots__ = ("arguments", "context", "finish", "handler")

    def __init__(self, handler: Handler, arguments: Any, context: Any, finish: Callable[[Any], Any]) -> None:
        self.handler = handler
        self.arguments = arguments
        self.context = context
        self.finish = finish


def make_runner(handler: Handler, finish: Callable[[Any, Any], Any]) -> Run:
    """How calls of a handler are run, decided once. `finish` makes the answer of a value and the subject."""
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
    return {StartMode.ASYNC: run, StartMode.INLINE: run_inline, StartMode.THREAD: run_on_thread}[handler.start]


def text_converter(handler: Handler) -> Callable[[Mapping[str, str]], Any]:
    """`convert` for values that are strings, all of them. It has nothing to do for a handler that takes just that."""
    arguments, convert = handler.arguments, handler.convert
    if handler.accepts_extra or any(parameter.annotation is not str for parameter in handler.parameters):
        return convert

    def decode(values: Mapping[str, str]) -> Any:
        try:
            return arguments(**values)
        except TypeError:  # one is missing or unknown: `convert` says which
            return convert(values)

    return decode


def exit_error(error: SystemExit) -> RuntimeError:
    """One handler's `sys.exit()` is no reason to end everybody's server."""
    return RuntimeError(f"a handler called sys.exit({error.code!r})")


def _binder(
    function: Callable[..., Any], order: list[tuple[str, bool]], contexts: list[str], *, takes_more: bool
) -> Callable[[Any, Any], Any]:
    """How decoded arguments and a context become a call. The common shapes have a short way of their own."""
    if takes_more or any(by_keyword for _, by_keyword in order):
        return _general_binder(function, order, contexts, takes_more=takes_more)
    names = [name for name, _ in order]
    if not names:
        return lambda _arguments, _context: function()
    if not contexts:
        return lambda arguments, _context: function(*astuple(arguments))
    if contexts == names[-1:]:
        return lambda arguments, context: function(*astuple(arguments), context)
    if contexts == names[:1]:
        return lambda arguments, context: function(context, *astuple(arguments))
    return _general_binder(function, order, contexts, takes_more=False)


def _general_binder(
    function: Callable[..., Any], order: list[tuple[str, bool]], contexts: list[str] | None, *, takes_more: bool
) -> Callable[[Any, Any], Any]:
    """For any shape. Without `contexts` the call gets, by their names, all values that are not for peers to give."""
    positional = [name for name, by_keyword in order if not by_keyword]
    keyword = [name for name, by_keyword in order if by_keyword]

    def bind(arguments: Any, context: Any) -> Any:
        given: Mapping[str, Any] = context if contexts is None else dict.fromkeys(contexts, context)
        named: Any = arguments[0] if takes_more else arguments
        more: dict[str, Any] = arguments[1] if takes_more else {}

        def value(name: str) -> Any:
            return given[name] if name in given else getattr(named, name)

        return function(*map(value, positional), **{name: value(name) for name in keyword}, **more)

    return bind


def _json_decoder(arguments: type[Struct], ours: list[str], *, takes_more: bool, hooked: bool) -> Callable[[Any], Any]:
    """Reads JSON into the arguments of a call; raises `codec.DecodeError` for what does not fit."""
    if not takes_more:
        return codec.json_decoder(arguments, kinds.decode_hook if hooked else None)
    as_object = codec.decoder(dict[str, Any])
    return lambda raw: _split(arguments, ours, as_object(raw), strict=True)


def _text_decoder(arguments: type[Struct], ours: list[str], *, takes_more: bool) -> Callable[[Mapping[str, Any]], Any]:
    """The same for values that are all text, such as the variables of a URI: `5` may be a number then."""
    if not takes_more:
        return lambda values: msgspec.convert(values, arguments, strict=False, dec_hook=kinds.text_hook)
    return lambda values: _split(arguments, ours, values, strict=False)


def _split(
    arguments: type[Struct], ours: list[str], values: Mapping[str, Any], *, strict: bool
) -> tuple[Struct, dict[str, Any]]:
    """What has a name of its own, and the rest; never what is `ours` to give."""
    names = arguments.__struct_fields__
    more = {name: value for name, value in values.items() if name not in names}
    if taken := [name for name in ours if name in more]:
        raise msgspec.ValidationError(f"Object contains unknown field `{taken[0]}`")
    hook = kinds.decode_hook if strict else kinds.text_hook
    return msgspec.convert(values, arguments, strict=strict, dec_hook=hook), more
