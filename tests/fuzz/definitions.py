"""Random JSON Schemas and URI templates of server authors. Each is rejected or works, and never hangs."""

import json
import random
import time
from typing import Any

from trunkline import Server
from trunkline.errors import InvalidParams, RegistrationError, TemplateError
from trunkline.registry.templates import UriTemplate, escapes
from trunkline.wire import codec

Random = random.Random
MOST_CPU = 10.0  # seconds for one template or schema; hundreds of times the slowest


class DefinitionFault(AssertionError):
    """A definition that was neither rejected nor worked."""


class CpuLimit:
    """Fail when a block uses too much CPU time; other work on the machine does not count."""

    def __init__(self, what: object) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._start = time.thread_time()

    def __exit__(self, kind: object, *_: object) -> None:
        spent = time.thread_time() - self._start
        if kind is None and spent > MOST_CPU:
            raise DefinitionFault(f"{self._what!r} took {spent:.1f} s")


# --- schemas ------------------------------------------------------------------------------------

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null", "nothing", ["string", "null"], 5)
REFERENCES = ("#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/nowhere", "#a", "other.json", "http://[", "", 7)
PATTERNS = ("^a+$", "^(a+)+$", "(a|a)*b", r"(\w+)\1", "(?=a)a", "[", "a{1,100000}", "(?P<x>a)", r"\p{L}", "", "\ud800")
NUMBERS = (0, 1, -1, 0.1, 1e-300, 1e308, 10**30, -(10**400), float("inf"), float("nan"), "1", None, True)
NAMES = ("a", "b", "c d", "$ref", "", "é", "\ud800", 3)
ANYTHING = (None, True, 0, "a", "a" * 40 + "!", [], {}, [1, "a"], {"a": {"a": {}}}, 10**30, 1.5, float("nan"))


def schema(rng: Random, depth: int = 0) -> Any:
    """Some JSON Schema, good or bad."""
    if depth > 4 or rng.random() < 0.08:
        return rng.choice((True, False, {}, {"type": "string"}, None, 3, []))
    return {key: value for _ in range(rng.randint(0, 4)) for key, value in [_keyword(rng, depth + 1)]}


def _keyword(rng: Random, depth: int) -> tuple[Any, Any]:
    one = rng.choice(("type", "$ref", "pattern", "number", "enum", "within", "several", "named", "odd"))
    match one:
        case "type":
            return "type", rng.choice(TYPES)
        case "$ref":
            return rng.choice(("$ref", "$dynamicRef")), rng.choice(REFERENCES)
        case "pattern":
            return rng.choice(("pattern", "format", "contentEncoding", "$id", "$anchor")), rng.choice(PATTERNS)
        case "number":
            limits = ("minimum", "maximum", "multipleOf", "minLength", "maxItems", "minProperties", "exclusiveMaximum")
            return rng.choice(limits), rng.choice(NUMBERS)
        case "enum":
            return rng.choice(
                (
                    ("enum", rng.choices(ANYTHING, k=rng.randint(0, 3))),
                    ("const", rng.choice(ANYTHING)),
                    ("default", rng.choice(ANYTHING)),
                    ("required", rng.choices(NAMES, k=rng.randint(0, 2))),
                )
            )
        case "within":
            keys = ("items", "not", "additionalProperties", "contains", "if", "then", "else", "propertyNames")
            return rng.choice((*keys, "unevaluatedProperties", "unevaluatedItems")), schema(rng, depth)
        case "several":
            keys = ("allOf", "anyOf", "oneOf", "prefixItems")
            return rng.choice(keys), [schema(rng, depth) for _ in range(rng.randint(0, 3))]
        case "named":
            keys = ("properties", "$defs", "dependentSchemas")
            return rng.choice(keys), {rng.choice(NAMES): schema(rng, depth) for _ in range(rng.randint(0, 3))}
        case _:
            odd = (
                ("patternProperties", {rng.choice(PATTERNS): schema(rng, depth)}),
                ("$schema", rng.choice(REFERENCES)),
            )
            return rng.choice((*odd, ("uniqueItems", rng.choice(ANYTHING)), (rng.choice(NAMES), rng.choice(ANYTHING))))


async def anything(a: Any = None, b: Any = None) -> str:
    return f"{a} {b}"


def fuzz_schema(rng: Random) -> bool:
    """Register a tool with a handwritten schema, which is rejected or validates arguments; return whether it was
    accepted.
    """
    given = schema(rng)
    if not isinstance(given, dict):  # values that are no schema at all are a matter for type checkers
        given = {"properties": {"a": given}}
    if rng.random() < 0.95:
        given = {**given, "type": "object"}
    server = Server("fuzz", observers=[])
    with CpuLimit(given):
        try:
            server.add_tool(anything, name="tool", input_schema=given)
        except RegistrationError:
            return False
        tool = server.tools.get("tool")
        for _ in range(4):
            raw = json.dumps({rng.choice(("a", "b", "x")): rng.choice(ANYTHING) for _ in range(2)}).encode()
            try:
                tool.decode(raw)
            except codec.DecodeError as error:
                if not isinstance(refusal := tool.arguments_error(raw, error), InvalidParams):
                    raise DefinitionFault(f"{given!r} refuses {raw!r} with {refusal!r}") from error
                codec.to_json(refusal.data)
        codec.to_json(tool.definition)
    return True


# --- templates ----------------------------------------------------------------------------------

PARTS = (
    "{a}", "{b}", "{+c}", "{#d}", "{.e}", "{/f}", "{/g*}", "{;h}", "{?i,j}", "{?k*}", "{&l}", "{m,n}", "{o*}", "{p:3}", "{", "}",
    "{}", "{!q}", "{a.b}", "{%41}", "/", "//", "a", "aa", ".", "?", "&", "=", "#", ",", ";", "%", "%41", "é", "\x00", "\ud800", " ",
)  # fmt: skip
PIECES = (
    "a",
    "a",
    "/",
    "//",
    "..",
    "?",
    "&",
    "=",
    "i=1",
    "k=",
    "#",
    ",",
    ";h=",
    "%",
    "%41",
    "%2F",
    "%ff",
    "é",
    "\ud800",
    "\x00",
)


def template(rng: Random) -> str:
    """Some URI template, good or bad."""
    return "".join(("x:", *rng.choices(PARTS, k=rng.choice((1, 2, 3, 4, 6, 30)))))


def uri(rng: Random) -> str:
    """A random URI, often repetitive: the worst case of a backtracking matcher."""
    middle = rng.choices(PIECES, k=rng.randint(1, 4))
    return "".join(("x:", *middle * rng.choice((1, 1, 2, 50, 3000)), rng.choice(("", "!", "\n", "/"))))


def fuzz_template(rng: Random) -> bool:
    """Register a template, which is rejected or matches any URI or none; return whether it was accepted."""
    text = template(rng)
    with CpuLimit(text):
        try:
            compiled = UriTemplate(text)
        except TemplateError:
            return False
        for address in (uri(rng) for _ in range(4)):
            values = compiled.match(address)
            if values is not None:
                escapes(values)
                again = compiled.match(compiled.expand(values)) if compiled.covers(values) else values
                if again != values:
                    raise DefinitionFault(
                        f"{text!r} reads {values!r} from {address!r}, and then {again!r} from what they make"
                    )
    return True
