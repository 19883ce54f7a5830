"""Validators: JSON Schemas that are compiled to check values and to explain errors.

Decoding validates the values of typed parameters. Validators are for custom schemas of tools and prompts, for schemas
from peers, and for the explanation of a refusal. References to other documents are never followed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, Final, Protocol

from msgspec import Struct

from trunkline.errors import RegistrationError
from trunkline.registry.complexity import Complexity, complexity, depth_of, size_of
from trunkline.wire import codec

__all__ = [
    "CompileSchema",
    "Fault",
    "PeerValidator",
    "ReplacedValidator",
    "SchemaValidator",
    "Validator",
    "form_validator",
    "make_validator",
]

CompileSchema = Callable[[Mapping[str, Any]], Callable[[Any], Iterable[tuple[str, str, str]]]]
"""Compiles a JSON Schema to a function that yields the faults of a value, none if it is valid: the path of each, the
violated rule and a message. May raise any exception for a schema that is not valid."""

_MAX_CHECK_STEPS: Final = 5_000_000  # steps of 20 to 100 ns: half a second at most
_MAX_EXPLAIN_STEPS: Final = 10_000  # steps, each of which may be an error of 20 to 40 µs
_DEEP: Final = 14  # levels: the number of errors doubles with each
_PATTERN_SIZE: Final = 256 * 1024  # bytes of a compiled pattern
_BACKTRACKED: Final = 10_000  # steps of one match: half a millisecond
_UNKNOWN: Final = Complexity(100, 100, 2)  # for our own schemas without a bound
_MAX_FAULTS: Final = 20  # a reader fixes the first few and retries


class Fault(Struct, frozen=True):
    """One validation error: its path, the violated rule and a message."""

    path: str
    rule: str
    message: str


class SchemaValidator(Protocol):
    """The compiled input schema of a tool or a prompt."""

    def accepts(self, value: Any) -> bool:
        """Return whether a value is valid."""
        ...

    def can_explain(self, value: Any) -> bool:
        """Return whether explaining the errors of a value is cheap."""
        ...

    def faults(self, value: Any) -> list[Fault]:
        """Return the first errors of a value; none if it is valid."""
        ...


class Validator:
    """A compiled JSON Schema."""

    def __init__(self, schema: Mapping[str, Any], what: str, **options: Any) -> None:
        import jsonschema_rs  # imported on use: for custom schemas, and to explain a refusal

        self._schema = schema
        try:
            self._compiled = jsonschema_rs.validator_for(dict(schema), retriever=_refuse_to_fetch, **options)
        except (jsonschema_rs.ValidationError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise RegistrationError(f"the schema of {what} is not valid: {first}", kind="tool_schema_invalid") from None
        self.is_valid: Callable[[Any], bool] = self._compiled.is_valid
        """Return whether a value is valid. Raise `ValueError` for one that is nested too deep."""

    @cached_property
    def _complexity(self) -> Complexity:
        return complexity(self._schema) or _UNKNOWN

    def accepts(self, value: Any) -> bool:
        """Return whether a value is valid. Raise `RecursionError` for one that is nested too deep."""
        try:
            return self.is_valid(value)
        except ValueError as error:
            raise _nested_too_deep(error) from None

    def can_explain(self, value: Any) -> bool:
        """Return whether explaining the errors of a value is cheap. All errors are computed before the first is
        returned, and a peer that chose the value must not choose the cost."""
        known = self._complexity
        most = _MAX_EXPLAIN_STEPS // known.steps
        if size_of(value, most) > most:
            return False
        return known.loops <= 1 or known.loops ** depth_of(value, _DEEP) * known.steps <= _MAX_EXPLAIN_STEPS

    def faults(self, value: Any) -> list[Fault]:
        """Return the first errors of a value. Raise `RecursionError` for a value that is nested too deep."""
        try:
            if self.is_valid(value):
                return []
        except ValueError as error:
            raise _nested_too_deep(error) from None
        if not self.can_explain(value):
            return [Fault("$", "schema", "the value does not fit the schema, and is too large to list the reasons")]
        try:
            return list(islice(_faults(self._compiled.iter_errors(value)), _MAX_FAULTS))
        except ValueError:
            return [
                Fault("$", "schema", "the value does not fit the schema, and is nested too deep to list the reasons")
            ]


class ReplacedValidator:
    """A JSON Schema compiled by a function of the application, in place of `Validator`."""

    def __init__(self, compile_schema: CompileSchema, schema: Mapping[str, Any], what: str) -> None:
        try:
            self._find_faults = compile_schema(schema)
        except Exception as error:
            why = f"the schema of {what} is not valid: {error}"
            raise RegistrationError(why, kind="tool_schema_invalid") from error

    def accepts(self, value: Any) -> bool:
        """Return whether a value is valid."""
        return not any(True for _ in self._find_faults(value))

    def can_explain(self, value: Any) -> bool:  # noqa: ARG002 - part of SchemaValidator
        """Return True: the application has chosen the function, and with it the cost."""
        return True

    def faults(self, value: Any) -> list[Fault]:
        """Return the first errors of a value; none if it is valid."""
        return [Fault(*fault) for fault in islice(self._find_faults(value), _MAX_FAULTS)]


def make_validator(schema: Mapping[str, Any], what: str, compile_schema: CompileSchema | None) -> SchemaValidator:
    """Compile an input schema, with the function of the application if it has one. Raise `RegistrationError` for an
    invalid schema."""
    return Validator(schema, what) if compile_schema is None else ReplacedValidator(compile_schema, schema, what)


class PeerValidator(Validator):
    """A compiled JSON Schema from a peer, with bounded cost.

    Patterns are matched in linear time, so those with backreferences or lookaround are invalid here. `format` is an
    annotation and is not validated, the default of JSON Schema.
    """

    def __init__(self, schema: Mapping[str, Any], what: str) -> None:
        """Compile a schema; raise `RegistrationError` for one that is invalid or too expensive."""
        import jsonschema_rs

        known = complexity(schema)
        if known is None or known.steps > _MAX_CHECK_STEPS:
            raise RegistrationError(f"the schema of {what} is too complex to be used", kind="tool_schema_invalid")
        patterns = jsonschema_rs.RegexOptions(size_limit=_PATTERN_SIZE)
        super().__init__(schema, what, pattern_options=patterns, validate_formats=False)
        self._complexity = known
        self.max_size = _MAX_CHECK_STEPS // known.steps
        """The size of the largest value whose validation is certainly cheap. No value is larger than its JSON."""

    def can_check(self, value: Any) -> bool:
        """Return whether validating a value is certainly cheap."""
        return size_of(value, self.max_size) <= self.max_size


def form_validator(schema: Mapping[str, Any]) -> Validator:
    """Return the validator of a form from a peer. Patterns may use lookaround, as those for passwords do; a match with
    too many steps fails. Raise `RegistrationError` for a form that is invalid or too large."""
    import jsonschema_rs

    if complexity(schema) is None:
        raise RegistrationError("the form is too large", kind="tool_schema_invalid")
    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKED, size_limit=_PATTERN_SIZE)
    return Validator(schema, "the form", pattern_options=patterns)


def _nested_too_deep(error: ValueError) -> RecursionError:
    return RecursionError(f"the value is nested too deep: {error}")


def _faults(errors: Iterable[Any]) -> Iterator[Fault]:
    for error in errors:
        options: list[list[Any]] = getattr(error.kind, "context", None) or []
        likely = _likely(options, error)
        if len(likely) == 1:
            yield from _faults(likely[0])
        else:
            about, message = _describe_error(error, likely)
            path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in about.instance_path)
            yield Fault("$" + path, str(about.schema_path[-1]) if about.schema_path else "", message)


def _describe_error(error: Any, options: list[list[Any]]) -> tuple[Any, str]:
    """Return the subject of an error and its message; for a union, list the types or constants of its options."""
    wanted = [_types_wanted(option, error) for option in options]
    if wanted and all(wanted):
        names = dict.fromkeys(f'"{name}"' for types in wanted for name in types)
        return error, f"{_shown(error.instance)} is not of type {' or '.join(names)}"
    others = [[e for e in option if _is_other_constant(e, error)] for option in options]
    if others and all(others) and len({str(found[0].instance_path) for found in others}) == 1:
        constants = [_shown(_constant(found[0])) for found in others]
        return others[0][0], f"{_shown(others[0][0].instance)} is not one of {' or '.join(constants)}"
    return error, error.message


def _shown(value: Any) -> str:
    return codec.to_json(value).decode()


def _likely(options: list[list[Any]], union: Any) -> list[list[Any]]:
    """Return the options of a union that a value was probably meant for: those for its JSON type, and of these the ones
    with the same constants, such as `"kind": "circle"`. If there are none, return all but `null`."""
    fitting = [option for option in options if not _types_wanted(option, union)]
    same = [option for option in fitting if not any(_is_other_constant(error, union) for error in option)]
    return same or fitting or [option for option in options if _types_wanted(option, union) != ["null"]]


def _types_wanted(option: list[Any], union: Any) -> list[str]:
    """Return the JSON types of a union's option, if the value has another type."""
    here = (error.kind for error in option if error.instance_path == union.instance_path)
    wanted: list[list[str]] = [kind.types for kind in here if kind.name == "type"]
    return wanted[0] if wanted else []


def _is_other_constant(error: Any, union: Any) -> bool:
    """Return whether an error says that a member of the value should be another constant."""
    is_constant = error.kind.name == "const" or (error.kind.name == "enum" and len(error.kind.options) == 1)
    return is_constant and error.instance_path[:-1] == union.instance_path != error.instance_path


def _constant(error: Any) -> Any:
    return error.kind.expected_value if error.kind.name == "const" else error.kind.options[0]


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"references to other documents are not followed: {uri}")
