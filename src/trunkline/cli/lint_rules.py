"""Rules for what a server offers: names, descriptions, sizes, and schemas that language model providers reject.

A table of rules, each a pure function of one server. Providers reject a whole request for one tool that they cannot
read, so a single schema can disable all tools of a host. The limits are those of the providers' function calling APIs
in 2026; rules for modes that a host has to switch on (`openai-strict`, `gemini`) are not among the defaults.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from trunkline.cli.description import ServerDescription
from trunkline.cli.schemas import Node, Schema, as_mapping, as_sequence, required_names, resolve, type_names, walk
from trunkline.errors import RegistrationError
from trunkline.findings import Finding, Verdict
from trunkline.protocol.types import Tool
from trunkline.trust.hidden_text import find_hidden, find_hidden_in
from trunkline.wire import codec

__all__ = ["RULES", "Problem", "Rule", "Subject", "as_finding", "estimate_tokens", "find_problems", "select_rules"]

_BYTES_PER_TOKEN: Final = 4  # a rule of thumb for English text and JSON; tokenizers differ
_MAX_NAME: Final = 64
_MAX_DESCRIPTION: Final = 1024
_MAX_TOOLS: Final = 128
_MAX_TOOL_TOKENS: Final = 2_000
_MAX_DEPTH: Final = 10
_MAX_NODES: Final = 100_000  # schemas that are looked at, of all tools and of one
_MAX_TOOL_NODES: Final = 20_000
_MAX_PLACES: Final = 3  # that a finding names
_SPEC_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_AT_ROOT: Final = ("oneOf", "anyOf", "allOf", "enum", "not")
_CONDITIONS: Final = ("if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies")
_STRICT: Final = (
    *("allOf", "oneOf", "not", *_CONDITIONS, "patternProperties", "propertyNames", "prefixItems", "contains"),
    *("uniqueItems", "minProperties", "maxProperties", "unevaluatedProperties", "unevaluatedItems", "default"),
)
_GEMINI: Final = (
    *("$ref", "const", "oneOf", "allOf", "not", *_CONDITIONS, "patternProperties", "propertyNames", "prefixItems"),
    *("additionalProperties", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems", "contains"),
    *("unevaluatedProperties", "unevaluatedItems"),
)


class Problem(NamedTuple):
    """A violation of a rule: the entry, and what was found there."""

    where: str
    seen: str


class Subject:
    """A server with what several rules need, computed once."""

    def __init__(self, description: ServerDescription) -> None:
        self.description = description
        self.nodes: list[tuple[str, Tool, list[Node]]] = []
        left = _MAX_NODES
        for tool in description.tools:
            nodes = list(walk(tool.input_schema, min(left, _MAX_TOOL_NODES)))
            left -= len(nodes)
            self.nodes.append((f"tool {_short(tool.name)!r}", tool, nodes))
        self.tokens = [estimate_tokens(tool) for tool in description.tools]

    def named(self) -> Iterator[tuple[str, str, str | None]]:
        """Yield the kind, the name and the description of every entry that has a name for models."""
        for tool in self.description.tools:
            yield "tool", tool.name, tool.description
        for prompt in self.description.prompts:
            yield "prompt", prompt.name, prompt.description


Check = Callable[[Subject], Iterable[Problem]]


class Rule(NamedTuple):
    """A rule: its id, which begins with its group, the verdict of a violation, the reason, and what to do."""

    id: str
    verdict: Verdict
    reason: str
    fix: str
    check: Check
    default: bool = True


def estimate_tokens(tool: Tool) -> int:
    """Return the estimated number of tokens that the definition of a tool takes: one for every four bytes of its name,
    description and input schema as JSON."""
    parts = {"name": tool.name, "description": tool.description or "", "input_schema": tool.input_schema}
    return -(-len(codec.to_json(parts)) // _BYTES_PER_TOKEN)


def select_rules(selected: Collection[str], ignored: Collection[str] = ()) -> list[Rule]:
    """Return the rules of these ids and groups, without the ignored ones. `all` is every rule, and no selection are the
    defaults. Raises `LookupError` with a name that is neither."""
    for name in (*selected, *ignored):
        if name not in {"all", "default"} and not any(_matches(rule, name) for rule in RULES):
            raise LookupError(name)
    chosen = selected or ("default",)
    return [
        rule
        for rule in RULES
        if any(_matches(rule, name) for name in chosen) and not any(_matches(rule, name) for name in ignored)
    ]


def _matches(rule: Rule, name: str) -> bool:
    if name == "default":
        return rule.default
    return name in {"all", rule.id} or rule.id.startswith(f"{name}-")


def find_problems(description: ServerDescription, rules: Iterable[Rule]) -> list[tuple[Rule, Problem]]:
    """Return the violations of the rules, in the order of the rules."""
    subject = Subject(description)
    return [(rule, problem) for rule in rules for problem in rule.check(subject)]


def as_finding(rule: Rule, problem: Problem) -> Finding:
    """Return a violation as a finding of a diagnosis."""
    return Finding(problem.where, rule.verdict, problem.seen, f"{rule.id}: {rule.reason}", rule.fix)


# --- names and texts -----------------------------------------------------------------------------


def _check_name_pattern(subject: Subject) -> Iterator[Problem]:
    for kind, name, _ in subject.named():
        if kind == "tool" and not _SPEC_NAME.fullmatch(name):
            yield Problem(f"tool {_short(name)!r}", "the name is empty, too long or has other characters")


def _check_name_dots(subject: Subject) -> Iterator[Problem]:
    for kind, name, _ in subject.named():
        if kind == "tool" and "." in name and _SPEC_NAME.fullmatch(name):
            yield Problem(f"tool {name!r}", "the name has a dot")


def _check_name_length(subject: Subject) -> Iterator[Problem]:
    for kind, name, _ in subject.named():
        if len(name) > _MAX_NAME:
            yield Problem(f"{kind} {_short(name)!r}", f"the name has {len(name)} characters")


def _check_name_duplicates(subject: Subject) -> Iterator[Problem]:
    description = subject.description
    keys: list[tuple[str, str]] = [(kind, name) for kind, name, _ in subject.named()]
    keys += [("resource", one.uri) for one in description.resources]
    keys += [("resource template", one.uri_template) for one in description.resource_templates]
    for (kind, name), count in Counter(keys).items():
        if count > 1:
            yield Problem(f"{kind} {_short(name)!r}", f"it is listed {count} times")


def _check_name_case(subject: Subject) -> Iterator[Problem]:
    spellings: dict[tuple[str, str], dict[str, None]] = {}
    for kind, name, _ in subject.named():
        spellings.setdefault((kind, name.casefold().replace("-", "_")), {})[name] = None
    for (kind, _), names in spellings.items():
        if len(names) > 1:
            first, *others = map(_short, names)
            yield Problem(f"{kind} {first!r}", f"there is also {', '.join(map(repr, others))}")


def _check_tool_descriptions(subject: Subject) -> Iterator[Problem]:
    for kind, name, text in subject.named():
        if kind == "tool" and not (text or "").strip():
            yield Problem(f"tool {_short(name)!r}", "there is no description")


def _check_other_descriptions(subject: Subject) -> Iterator[Problem]:
    description = subject.description
    entries = [("prompt", one.name, one.description) for one in description.prompts]
    entries += [("resource", one.uri, one.description) for one in description.resources]
    entries += [("resource template", one.uri_template, one.description) for one in description.resource_templates]
    for kind, name, text in entries:
        if not (text or "").strip():
            yield Problem(f"{kind} {_short(name)!r}", "there is no description")


def _check_argument_descriptions(subject: Subject) -> Iterator[Problem]:
    for where, tool, _ in subject.nodes:
        properties = as_mapping(tool.input_schema.get("properties"))
        silent = [name for name in properties if not _description(properties[name], tool.input_schema)]
        if silent:
            yield Problem(where, f"no description of {_places(silent)}")
    for prompt in subject.description.prompts:
        silent = [one.name for one in prompt.arguments or () if not (one.description or "").strip()]
        if silent:
            yield Problem(f"prompt {_short(prompt.name)!r}", f"no description of {_places(silent)}")


def _description(schema: Any, root: Schema) -> bool:
    own, target = as_mapping(schema), resolve(schema, root)
    return any(isinstance(one.get("description"), str) and one["description"].strip() for one in (own, target))


def _check_description_length(subject: Subject) -> Iterator[Problem]:
    for kind, name, text in subject.named():
        if text is not None and len(text) > _MAX_DESCRIPTION:
            yield Problem(f"{kind} {_short(name)!r}", f"the description has {len(text)} characters")


def _check_hidden_text(subject: Subject) -> Iterator[Problem]:
    for kind, name, text in subject.named():
        if find_hidden(name) or find_hidden(text or ""):
            yield Problem(f"{kind} {_short(name)!r}", "its name or description has invisible or control characters")
    for where, tool, _ in subject.nodes:
        if find_hidden_in(tool.input_schema):
            yield Problem(where, "its schema has invisible or control characters")
    if find_hidden(subject.description.instructions or ""):
        yield Problem("instructions", "they have invisible or control characters")


# --- schemas -------------------------------------------------------------------------------------


def _check_schema_valid(subject: Subject) -> Iterator[Problem]:
    from trunkline.registry.validators import PeerValidator

    for where, tool, _ in subject.nodes:
        for what, schema in (("input", tool.input_schema), ("output", tool.output_schema)):
            if schema is None:
                continue
            try:
                PeerValidator(schema, what)
            except (RegistrationError, RecursionError) as error:
                yield Problem(where, str(error))


def _check_schema_object(subject: Subject) -> Iterator[Problem]:
    for where, tool, _ in subject.nodes:
        kind: Any = tool.input_schema.get("type")
        if kind != "object" and "$ref" not in tool.input_schema:
            yield Problem(where, f"the type of the input schema is {_short(repr(kind))}")


def _check_schema_root_ref(subject: Subject) -> Iterator[Problem]:
    for where, tool, _ in subject.nodes:
        if "$ref" in tool.input_schema:
            yield Problem(where, f"the input schema is a reference to {_short(str(tool.input_schema['$ref']))}")


def _check_schema_root_union(subject: Subject) -> Iterator[Problem]:
    for where, tool, _ in subject.nodes:
        found = [keyword for keyword in _AT_ROOT if keyword in tool.input_schema]
        if found:
            yield Problem(where, f"the input schema has {_code(found)} at the top level")


def _check_references(subject: Subject) -> Iterator[Problem]:
    for where, tool, nodes in subject.nodes:
        for node in nodes:
            reference = node.schema.get("$ref")
            if isinstance(reference, str) and not resolve({"$ref": reference}, tool.input_schema):
                yield Problem(where, f"the reference {_short(reference)!r} leads nowhere")
                break


def _check_recursion(subject: Subject) -> Iterator[Problem]:
    for where, tool, nodes in subject.nodes:
        if any("$ref" in node.schema for node in nodes) and (name := _find_cycle(tool.input_schema, nodes)):
            yield Problem(where, f"{_short(name)!r} refers to itself")


def _find_cycle(root: Schema, nodes: Sequence[Node]) -> str | None:
    """Return a reference that leads back to itself, or None."""
    targets: dict[str, list[str]] = {}

    def references(schema: Schema) -> list[str]:
        return [node.schema["$ref"] for node in walk(schema) if isinstance(node.schema.get("$ref"), str)]

    waiting = [node.schema["$ref"] for node in nodes if isinstance(node.schema.get("$ref"), str)]
    while waiting and len(targets) < _MAX_TARGETS:
        name = waiting.pop()
        if name not in targets:
            targets[name] = references(resolve({"$ref": name}, root)) if name != "#" else [name]
            waiting += targets[name]
    for start, found in targets.items():
        reached, waiting = set[str](), [*found]
        while waiting:
            name = waiting.pop()
            if name == start:
                return start
            if name not in reached:
                reached.add(name)
                waiting += targets.get(name, ())
    return None


_MAX_TARGETS: Final = 200  # references of one schema that are followed


def _check_array_items(subject: Subject) -> Iterator[Problem]:
    yield from _check_nodes(
        subject,
        lambda schema: "array" in type_names(schema) and "items" not in schema and "prefixItems" not in schema,
        "array without `items`",
    )


def _check_tuples(subject: Subject) -> Iterator[Problem]:
    yield from _check_nodes(
        subject,
        lambda schema: "prefixItems" in schema or isinstance(schema.get("items"), list),
        "array with a schema for each position",
    )


def _check_not(subject: Subject) -> Iterator[Problem]:
    yield from _check_nodes(subject, lambda schema: "not" in schema, "`not`", skip_root=True)


def _check_pattern_properties(subject: Subject) -> Iterator[Problem]:
    yield from _check_nodes(subject, lambda schema: "patternProperties" in schema, "`patternProperties`")


def _check_conditions(subject: Subject) -> Iterator[Problem]:
    yield from _check_keywords(subject, _CONDITIONS)


def _check_untyped(subject: Subject) -> Iterator[Problem]:
    for where, tool, _ in subject.nodes:
        properties = as_mapping(tool.input_schema.get("properties"))
        untyped = [name for name in properties if not _has_type(resolve(properties[name], tool.input_schema))]
        if untyped:
            yield Problem(where, f"any value is accepted for {_places(untyped)}")


def _has_type(schema: Schema) -> bool:
    return any(keyword in schema for keyword in ("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"))


def _check_property_names(subject: Subject) -> Iterator[Problem]:
    for where, _, nodes in subject.nodes:
        names = [name for node in nodes for name in as_mapping(node.schema.get("properties"))]
        wrong = [name for name in names if not _KEY.fullmatch(name)]
        if wrong:
            yield Problem(where, f"argument names with other characters or more than 64: {_places(wrong)}")


def _check_depth(subject: Subject) -> Iterator[Problem]:
    for where, _, nodes in subject.nodes:
        deepest = max((sum(step in {"properties", "items"} for step in node.path) for node in nodes), default=0)
        if deepest > _MAX_DEPTH:
            yield Problem(where, f"objects and arrays are nested {deepest} levels deep")


def _check_nodes(
    subject: Subject, is_wrong: Callable[[Schema], bool], what: str, *, skip_root: bool = False
) -> Iterator[Problem]:
    for where, _, nodes in subject.nodes:
        places = [
            node.place or "the top level" for node in nodes if (node.path or not skip_root) and is_wrong(node.schema)
        ]
        if places:
            yield Problem(where, f"{what} at {_places(places)}")


def _check_keywords(subject: Subject, keywords: Iterable[str]) -> Iterator[Problem]:
    for where, _, nodes in subject.nodes:
        found: dict[str, list[str]] = {}
        for node in nodes:
            for keyword in keywords:
                if keyword in node.schema:
                    found.setdefault(keyword, []).append(node.place or "the top level")
        if found:
            yield Problem(where, "; ".join(f"`{keyword}` at {_places(places)}" for keyword, places in found.items()))


# --- modes of providers --------------------------------------------------------------------------


def _check_strict_objects(subject: Subject) -> Iterator[Problem]:
    yield from _check_nodes(
        subject,
        lambda schema: "object" in type_names(schema) and schema.get("additionalProperties") is not False,
        "object without `additionalProperties: false`",
    )


def _check_strict_required(subject: Subject) -> Iterator[Problem]:
    yield from _check_nodes(
        subject,
        lambda schema: bool(as_mapping(schema.get("properties")).keys() - required_names(schema)),
        "object with optional members",
    )


def _check_strict_keywords(subject: Subject) -> Iterator[Problem]:
    yield from _check_keywords(subject, _STRICT)


def _check_gemini_keywords(subject: Subject) -> Iterator[Problem]:
    yield from _check_keywords(subject, _GEMINI)


def _check_gemini_types(subject: Subject) -> Iterator[Problem]:
    yield from _check_nodes(subject, lambda schema: isinstance(schema.get("type"), list), "list of types")


def _check_gemini_enums(subject: Subject) -> Iterator[Problem]:
    yield from _check_nodes(
        subject,
        lambda schema: any(not isinstance(one, str) for one in as_sequence(schema.get("enum"))),
        "`enum` with values that are no strings",
    )


def _check_gemini_formats(subject: Subject) -> Iterator[Problem]:
    yield from _check_nodes(
        subject,
        lambda schema: "string" in type_names(schema) and schema.get("format", "enum") not in ("enum", "date-time"),
        "unknown `format`",
    )


# --- sizes ---------------------------------------------------------------------------------------


def _check_tool_count(subject: Subject) -> Iterator[Problem]:
    count = len(subject.description.tools)
    if count > _MAX_TOOLS:
        yield Problem("server", f"there are {count} tools")


def _check_tool_size(subject: Subject) -> Iterator[Problem]:
    for (where, _, _), tokens in zip(subject.nodes, subject.tokens, strict=True):
        if tokens > _MAX_TOOL_TOKENS:
            yield Problem(where, f"its definition takes about {tokens} tokens")


# --- words ---------------------------------------------------------------------------------------


def _places(places: Sequence[str]) -> str:
    more = len(places) - _MAX_PLACES
    shown = ", ".join(map(_short, places[:_MAX_PLACES]))
    return f"{shown} and {more} more" if more > 0 else shown


def _code(keywords: Iterable[str]) -> str:
    return ", ".join(f"`{keyword}`" for keyword in keywords)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"  # noqa: PLR2004 - characters of a line


RULES: Final[Sequence[Rule]] = (
    Rule(
        "name-pattern",
        "failed",
        "the specification allows 1 to 128 letters, digits, `_`, `-` and `.` in the name of a tool",
        "rename the tool",
        _check_name_pattern,
    ),
    Rule(
        "name-dots",
        "warning",
        "OpenAI and Anthropic reject names with a dot, so hosts rename or drop the tool",
        "use `_` instead of `.`",
        _check_name_dots,
    ),
    Rule(
        "name-length",
        "failed",
        "OpenAI and Gemini reject names of more than 64 characters, and hosts add a prefix",
        "shorten the name",
        _check_name_length,
    ),
    Rule(
        "name-duplicate", "failed", "a client can use only one of them", "remove or rename one", _check_name_duplicates
    ),
    Rule(
        "name-case",
        "warning",
        "names that differ only in case, or in `-` and `_`, are confused by models and by hosts that rewrite names",
        "rename one",
        _check_name_case,
    ),
    Rule(
        "description-tool",
        "warning",
        "a model decides by the description whether to call a tool",
        "say what the tool does, when to use it and what it returns",
        _check_tool_descriptions,
    ),
    Rule(
        "description-argument",
        "warning",
        "a model fills arguments by their descriptions",
        "describe each argument, with its unit and an example where that helps",
        _check_argument_descriptions,
    ),
    Rule(
        "description-other",
        "warning",
        "users and models choose resources and prompts by their descriptions",
        "add a description",
        _check_other_descriptions,
    ),
    Rule(
        "description-length",
        "warning",
        "OpenAI rejects descriptions of more than 1024 characters in some of its APIs",
        "shorten the description; move details to the descriptions of arguments or to a resource",
        _check_description_length,
    ),
    Rule(
        "text-hidden",
        "failed",
        "a model reads characters that a person does not see: a way to smuggle instructions",
        "remove control characters, zero-width characters and bidirectional overrides",
        _check_hidden_text,
    ),
    Rule(
        "schema-valid",
        "failed",
        "clients and providers reject an invalid schema, and one that is too costly to check",
        "validate the schema against JSON Schema 2020-12, and simplify it",
        _check_schema_valid,
    ),
    Rule(
        "schema-object",
        "failed",
        "the specification and all providers require an input schema of the type object",
        'add "type": "object"',
        _check_schema_object,
    ),
    Rule(
        "schema-root-ref",
        "failed",
        "providers do not resolve a reference at the top level and see no arguments",
        "replace the reference by its target",
        _check_schema_root_ref,
    ),
    Rule(
        "schema-root-union",
        "failed",
        "OpenAI and Anthropic reject every tool of a request if one has a union at the top level",
        "move the union into an argument, or check the combination in the tool",
        _check_schema_root_union,
    ),
    Rule(
        "schema-reference",
        "failed",
        "a reference to nothing, to another document or in a circle cannot be resolved",
        "add the target to `$defs`",
        _check_references,
    ),
    Rule(
        "schema-recursion",
        "warning",
        "Gemini rejects recursive schemas, as do the strict modes of Anthropic",
        "limit the depth: write the nested levels out, or accept JSON text",
        _check_recursion,
    ),
    Rule(
        "schema-items",
        "warning",
        "OpenAI and Gemini reject an array without a schema for its items",
        "add `items`",
        _check_array_items,
    ),
    Rule(
        "schema-tuple",
        "warning",
        "OpenAI and Gemini reject arrays with a schema for each position",
        "use an object with a name for each value",
        _check_tuples,
    ),
    Rule("schema-not", "warning", "providers reject or ignore `not`", "describe the exception in words", _check_not),
    Rule(
        "schema-pattern-properties",
        "warning",
        "providers reject or ignore `patternProperties`",
        "use an array of objects with a name and a value",
        _check_pattern_properties,
    ),
    Rule(
        "schema-condition",
        "warning",
        "providers reject or ignore conditions between arguments",
        "check the condition in the tool, and describe it in words",
        _check_conditions,
    ),
    Rule(
        "schema-untyped",
        "warning",
        "a model does not know which values fit, and Gemini rejects an argument without a type",
        "add a type",
        _check_untyped,
    ),
    Rule(
        "schema-property-name",
        "failed",
        "Anthropic rejects argument names other than 1 to 64 letters, digits, `_`, `-` and `.`",
        "rename the argument",
        _check_property_names,
    ),
    Rule(
        "schema-depth",
        "warning",
        "OpenAI rejects more than 10 levels in its strict mode, and models make mistakes far earlier",
        "flatten the arguments",
        _check_depth,
    ),
    Rule("size-count", "warning", "OpenAI accepts 128 tools in a request", "split the server", _check_tool_count),
    Rule(
        "size-tool",
        "warning",
        "every request to a model carries the definitions of all tools",
        "shorten descriptions and enumerations, or split the tool",
        _check_tool_size,
    ),
    Rule(
        "openai-strict-objects",
        "warning",
        "the strict mode of OpenAI requires `additionalProperties: false` in every object",
        "add it; in Python, use a dataclass or a TypedDict instead of a dict",
        _check_strict_objects,
        default=False,
    ),
    Rule(
        "openai-strict-required",
        "warning",
        "the strict mode of OpenAI requires every member to be listed in `required`",
        "require it, and accept null for a value that is not given",
        _check_strict_required,
        default=False,
    ),
    Rule(
        "openai-strict-keywords",
        "warning",
        "the strict mode of OpenAI rejects these keywords",
        "remove them, and describe the limit in words",
        _check_strict_keywords,
        default=False,
    ),
    Rule(
        "gemini-keywords",
        "warning",
        "the `parameters` of Gemini's function declarations have no such fields; one rejects the whole request",
        "remove them, or let the host use `parametersJsonSchema`",
        _check_gemini_keywords,
        default=False,
    ),
    Rule(
        "gemini-types",
        "warning",
        "Gemini accepts a single type",
        "use `anyOf` with one type each",
        _check_gemini_types,
        default=False,
    ),
    Rule("gemini-enums", "warning", "Gemini accepts strings only", "use strings", _check_gemini_enums, default=False),
    Rule(
        "gemini-formats",
        "warning",
        "Gemini accepts the formats `enum` and `date-time` of strings",
        "name the format in the description",
        _check_gemini_formats,
        default=False,
    ),
)
