"""Handlers: a function as its author wrote it, what it can be called with, and how it is to be started.

A signature is read once, at registration. Its parameters become a type that JSON is decoded into, which is the
validation; one parameter may ask for the context of the call instead. What can never be called is refused here,
with a sentence that says why.
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from copy import copy
from enum import Enum, auto
from functools import partial
from typing import Annotated, Any, Final, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from trunkline.errors import RegistrationError
from trunkline.registry import docstrings, schema
from trunkline.wire import codec

__all__ = ["Handler", "OnThread", "Parameter", "Run", "Start", "read", "runner"]

Run = Callable[[Any, Any, Any], Any]
"""(decoded arguments, context, subject) -> the answer, a coroutine that gives it, or `OnThread`. The subject is what
the answer is about where that is not known beforehand, such as the URI that a template was read with."""

_MUTABLE: Final = (list, dict, set, bytearray)


class Start(Enum):
    """How a handler is started; decided at registration, never per call."""

    ASYNC = auto()  # an async function: driven where it stands
    INLINE = auto()  # a plain function that promises not to block
    THREAD = auto()  # a plain function that may block: on a thread


class Parameter(Struct, frozen=True):
    """A parameter that a peer can give a value for."""

    name: str
    annotation: Any
    default: Any = UNSET
    description: str | None = None

    @property
    def required(self) -> bool:
        """Whether a call without it is refused."""
        return self.default is UNSET


class Handler(Struct, frozen=True):
    """A function, and everything about it that can be known before it is called."""

    function: Callable[..., Any]
    start: Start
    parameters: tuple[Parameter, ...]
    arguments: type[Struct]  # what JSON is decoded into
    decode: Callable[[Any], Any]  # arguments from JSON, which is the validation
    convert: Callable[[Mapping[str, Any]], Any]  # arguments from texts
    bind: Callable[[Any, Any], Any]  # (decoded arguments, context) -> the call itself
    wants_context: bool
    open: bool  # takes arguments that it does not name (`**kwargs`)
    returns: Any  # its annotation, or UNSET
    name: str
    description: str

    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        made = schema.of_type(self.arguments)
        made.pop("title", None)
        properties = made.setdefault("properties", {})
        for parameter in self.parameters:
            described = properties[parameter.name]
            if parameter.description is not None:
                described.setdefault("description", parameter.description)
            default: Any = parameter.default
            if isinstance(default, _MUTABLE) and _has_json(default):
                described["default"] = msgspec.to_builtins(default)
        if self.open:
            made.pop("additionalProperties", None)
        if not properties:
            del made["properties"]
        if not made.get("required"):
            made.pop("required", None)
        return made


def read(function: Callable[..., Any], context: type, *, thread: bool | None = None) -> Handler:
    """Reads a function's signature. A parameter annotated with `context` gets the context of the call.

    `thread` says whether a plain function goes to a thread; None means that it does.
    """
    if not callable(function):
        raise RegistrationError(f"{function!r} is not callable")
    name = _name(function)
    hints = _hints(function, name)
    said = docstrings.parse(inspect.getdoc(_innermost(function)))  # that of a partial describes `partial` itself
    parameters: list[Parameter] = []
    order: list[tuple[str, bool]] = []  # every parameter of the function: its name, and whether by keyword
    contexts: list[str] = []
    takes_more = False
    for parameter in _signature(function, name).parameters.values():
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
                if _is_context(annotation, context):
                    contexts.append(parameter.name)
                else:
                    parameters.append(_parameter(parameter, annotation, said))
    if len(contexts) > 1:
        raise RegistrationError(f"{name}: {' and '.join(contexts)} both ask for the context; one is enough")
    arguments = _arguments_type(name, parameters, open_ended=takes_more)
    return Handler(
        function=function,
        start=_start(function, thread=thread),
        parameters=tuple(parameters),
        arguments=arguments,
        decode=_json_decoder(arguments, contexts, takes_more=takes_more),
        convert=_text_decoder(arguments, contexts, takes_more=takes_more),
        bind=_binder(function, order, contexts, takes_more=takes_more),
        wants_context=bool(contexts),
        open=takes_more,
        returns=hints.get("return", UNSET),
        name=name,
        description=said.description,
    )


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function


def _name(function: Callable[..., Any]) -> str:
    inner = _innermost(function)
    return getattr(inner, "__name__", type(inner).__name__)


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise RegistrationError(f"{name}: its signature cannot be read: {error}") from None


def _hints(function: Callable[..., Any], name: str) -> Mapping[str, Any]:
    """Annotations with names resolved and `Annotated` kept."""
    inner = _innermost(function)
    routine = isinstance(inner, types.FunctionType | types.MethodType)
    source = inspect.unwrap(inner) if routine else type(inner).__call__
    try:
        return typing.get_type_hints(source, include_extras=True)
    except NameError as error:
        raise RegistrationError(f"{name}: an annotation names something that is not defined: {error}") from None
    except (TypeError, AttributeError, SyntaxError) as error:
        raise RegistrationError(f"{name}: an annotation cannot be read: {error}") from None


def _is_context(annotation: Any, context: type) -> bool:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    options = get_args(annotation) if get_origin(annotation) in {typing.Union, types.UnionType} else (annotation,)
    return any(isinstance(option, type) and issubclass(option, context) for option in options)


def _parameter(parameter: inspect.Parameter, annotation: Any, said: docstrings.Docstring) -> Parameter:
    default = UNSET if parameter.default is inspect.Parameter.empty else parameter.default
    description = _description(annotation) or said.arguments.get(parameter.name)
    return Parameter(parameter.name, annotation, default, description)


def _description(annotation: Any) -> str | None:
    """The bare string that `Annotated` may hold, on its own or as an option."""
    notes = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    for note in notes:
        if isinstance(note, str):
            return note
    options = get_args(annotation) if get_origin(annotation) in {typing.Union, types.UnionType} else ()
    return next(filter(None, map(_description, options)), None)


def _arguments_type(name: str, parameters: list[Parameter], *, open_ended: bool) -> type[Struct]:
    fields: list[Any] = [
        (p.name, p.annotation) if p.required else (p.name, p.annotation, _field_default(p.default)) for p in parameters
    ]
    try:
        for parameter in parameters:
            schema.check_type(parameter.annotation)
        made = msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=not open_ended, kw_only=True)
        msgspec.json.Decoder(made)  # fails here and now for a type that cannot be decoded
    except (TypeError, RuntimeError) as error:
        why = f"{name}: its arguments cannot be described: {error}"
        raise RegistrationError(why, kind="tool_schema_invalid") from None
    return made


def _field_default(default: Any) -> Any:
    if isinstance(default, _MUTABLE):
        return msgspec.field(default_factory=partial(copy, cast("Any", default)))
    if not _has_json(default):
        return msgspec.field(default_factory=lambda: default)  # which the schema does not tell
    return msgspec.field(default=default)


def _has_json(value: Any) -> bool:
    try:
        codec.to_json(value)
    except TypeError:
        return False
    return True


def _start(function: Callable[..., Any], *, thread: bool | None) -> Start:
    target = _innermost(function)
    routine = isinstance(target, types.FunctionType | types.MethodType)
    if inspect.iscoroutinefunction(target if routine else type(target).__call__):
        return Start.ASYNC
    return Start.INLINE if thread is False else Start.THREAD


# --- from decoded arguments to the call ----------------------------------------------------------


class OnThread:
    """A plain function to be run on a thread, and what to make of its value."""

    __slots__ = ("finish", "function")

    def __init__(self, function: Callable[[], Any], finish: Callable[[Any], Any]) -> None:
        self.function = function
        self.finish = finish


def runner(handler: Handler, finish: Callable[[Any, Any], Any]) -> Run:
    """How calls of a handler are run, decided once. `finish` makes the answer of a value and the subject."""
    bind = handler.bind

    async def run(arguments: Any, context: Any, subject: Any) -> Any:
        try:
            return finish(await bind(arguments, context), subject)
        except SystemExit as error:
            raise _exited(error) from error

    async def wait(value: Any, subject: Any) -> Any:
        try:
            return finish(await value, subject)
        except SystemExit as error:
            raise _exited(error) from error

    def run_inline(arguments: Any, context: Any, subject: Any) -> Any:
        try:
            value = bind(arguments, context)
        except SystemExit as error:
            raise _exited(error) from error
        return wait(value, subject) if inspect.isawaitable(value) else finish(value, subject)

    def run_on_thread(arguments: Any, context: Any, subject: Any) -> OnThread:
        return OnThread(partial(bind, arguments, context), lambda value: finish(value, subject))

    return {Start.ASYNC: run, Start.INLINE: run_inline, Start.THREAD: run_on_thread}[handler.start]


def _exited(error: SystemExit) -> RuntimeError:
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
    function: Callable[..., Any], order: list[tuple[str, bool]], contexts: list[str], *, takes_more: bool
) -> Callable[[Any, Any], Any]:
    positional = [name for name, by_keyword in order if not by_keyword]
    keyword = [name for name, by_keyword in order if by_keyword]

    def bind(arguments: Any, context: Any) -> Any:
        named: Any = arguments[0] if takes_more else arguments
        more: dict[str, Any] = arguments[1] if takes_more else {}

        def value(name: str) -> Any:
            return context if name in contexts else getattr(named, name)

        return function(*map(value, positional), **{name: value(name) for name in keyword}, **more)

    return bind


def _json_decoder(arguments: type[Struct], contexts: list[str], *, takes_more: bool) -> Callable[[Any], Any]:
    """Reads JSON into the arguments of a call; raises `codec.DecodeError` for what does not fit."""
    if not takes_more:
        return codec.decoder(arguments)
    as_object = codec.decoder(dict[str, Any])
    return lambda raw: _split(arguments, contexts, as_object(raw), strict=True)


def _text_decoder(
    arguments: type[Struct], contexts: list[str], *, takes_more: bool
) -> Callable[[Mapping[str, Any]], Any]:
    """The same for values that are all text, such as the variables of a URI: `5` may be a number then."""
    if not takes_more:
        return lambda values: msgspec.convert(values, arguments, strict=False)
    return lambda values: _split(arguments, contexts, values, strict=False)


def _split(
    arguments: type[Struct], contexts: list[str], values: Mapping[str, Any], *, strict: bool
) -> tuple[Struct, dict[str, Any]]:
    """What has a name of its own, and the rest. The context is not for peers to give."""
    names = arguments.__struct_fields__
    more = {name: value for name, value in values.items() if name not in names}
    if taken := [name for name in contexts if name in more]:
        raise msgspec.ValidationError(f"Object contains unknown field `{taken[0]}`")
    return msgspec.convert(values, arguments, strict=strict), more
