"""URI templates (RFC 6570) that can be read in both directions.

The RFC defines only how values become a URI. A server needs the way back as well, and the way
back exists only if no two sets of values become the same URI. So a template is accepted only when
it obeys three rules, each of which makes one kind of guess unnecessary:

1. *After an expression.* What follows an expression begins with a character that the expression
   can never hold un-encoded, or nothing follows. Hence `{a}/{b}` and `{a}{?b}`, but not `{a}{b}`.
   A literal that the expression could hold itself may stand between the two, as its suffix. Hence
   `{a}.json`, `{a}.json/{b}` and `{+a}/edit`, but not `{a}-{b}`, where "1-2-3" could be split in two
   ways, nor `{a}.json{.b}`. `{+a}` and `{#a}`, which may hold anything, are the last expression.
2. *Between the items of an expression.* The separator is encoded inside an item. Hence `{a,b}`,
   `{/a*}` and `{?a,b}`, but not `{.a,b}` or `{+a*}`, where dots and commas stay as they are.
3. *Within an expression.* One variable at most is exploded (`*`), and where the URI does not name
   it, it is the last one. Prefixes (`{a:3}`) lose text and are refused, as is a name used twice.

By rule 1 each expression, together with its suffix, is one unbroken run of characters that ends where
the next part begins. The whole template is therefore a regular expression of literals and runs
`([...]*+)`, or `(?>([...]*)suffix)`. Every run is possessive, and one with a suffix steps back to the
last occurrence of that and then no more, so the time to match is linear in the URI; so is the time to
split the runs into items and to decode them.

*The domain* holds the values for which `match(expand(values)) == values` is promised; `covers` tells it.
A plain variable holds a string; an exploded one holds a list or a dict, not empty, of strings.

- `{+a}`, `{#a}`: a string in which no `%` begins a triplet. The RFC copies triplets, so "%41"
  would come back as "A".
- `{a,b}`, `{+a}`: the first variable is there, as its absence would look like an empty string. In
  these and in `{/a,b}`, none is missing before one that is there.
- `{;a*}`, `{?a*}`, `{&a*}`: a key of a dict is no variable of the expression, and holds no reserved
  character and no triplet, since the RFC copies these in keys as it does in literals.

*Matching accepts more than expansion makes*, since people write URIs by hand: a variable may hold
un-encoded any character of a URI but `/`, `?`, `#` (in a query: but `#`) and those that end it.
Where the path ends, as nothing or only a query or a fragment follows, `{a}` may span `/` too; with a
suffix it does not. Pairs may come in any order and may be missing; one that is unknown or repeated is
no match, unless an exploded variable takes it. Literals are compared as they are, in their encoded form.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from trunkline.errors import TemplateError

__all__ = ["Matched", "UriTemplate", "Value", "escapes", "expand"]

Value: TypeAlias = str | Sequence[str] | Mapping[str, str]
Matched: TypeAlias = dict[str, str | list[str] | dict[str, str]]

_UNRESERVED: Final = "-._~abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_ENCODED: Final = _UNRESERVED + "%"  # all characters of a value with its reserved characters encoded
_URI: Final = _ENCODED + ":/?#[]@!$&'()*+,;="

_PART: Final = re.compile(r"\{([^{}]*+)\}|[^{}]++|[{}]")
_VARIABLE: Final = re.compile(r"((?:\w|%[\dA-Fa-f]{2})(?:\.?(?:\w|%[\dA-Fa-f]{2}))*+)(\*|:\d++)?", re.ASCII)
_TRIPLET: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_STRAY_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NOT_LITERAL: Final = re.compile(rf"{_STRAY_PERCENT.pattern}|[^{re.escape(_URI)}]+")
_ESCAPE: Final = re.compile(r"\x00|(?:\A|[/\\])\.\.(?:[/\\]|\Z)|\A(?:[/\\]|[A-Za-z]:)")


class UriTemplate:
    """An RFC 6570 template that can be expanded and matched back."""

    __slots__ = (
        "_expressions",
        "_fullmatch",
        "_parts",
        "_whole",
        "holds_texts",
        "keeps_reserved",
        "template",
        "variables",
    )

    def __init__(self, template: str, *, errors: str = "strict") -> None:
        """Compile `template`, or raise a `TemplateError` that says what is wrong and how to mend it.

        `errors` says, as for `bytes.decode`, what becomes of bytes that are not UTF-8: by default they match nothing.
        """
        self.template = template
        self._parts = _parse(template, _STRICT if errors == "strict" else _Codec(errors))
        self._expressions = [part for part in self._parts if isinstance(part, _Expression)]
        self.variables = tuple(name for expression in self._expressions for name in expression.names)
        for name in self.variables:
            if self.variables.count(name) > 1:
                raise TemplateError(template, f"the variable {name!r} stands in it twice; give each its own name")
        self._fullmatch = _compile(template, self._parts).fullmatch
        self._whole = all(part.whole for part in self._expressions)
        self.holds_texts = not any(part.exploded for part in self._expressions)  # no variable is a list or a dict
        self.keeps_reserved = any(part.operator.reserved for part in self._expressions)  # it has a `{+a}` or `{#a}`

    def __repr__(self) -> str:
        return f"UriTemplate({self.template!r})"

    def expand(self, values: Mapping[str, Value]) -> str:
        """Return the URI that RFC 6570 defines for `values`; a variable without a value is omitted."""
        return _fill(self.template, self._parts, values)

    def match(self, uri: str) -> Matched | None:
        """Return the decoded values in `uri`; None if it does not match this template.

        Characters that no URI may contain, broken triplets, and bytes that are not UTF-8 match nothing. A match is
        still untrusted: see `escapes`.
        """
        found = self._fullmatch(uri)
        if found is None:
            return None
        if self._whole and "%" not in uri:
            return found.groupdict()
        values: Matched = {}
        try:
            for expression, text in zip(self._expressions, found.groups(), strict=True):
                expression.read(text, values)
        except ValueError:
            return None
        return values

    def covers(self, values: Mapping[str, Value]) -> bool:
        """Return whether `values` are in the template's domain: `match` returns what `expand` was passed."""
        return values.keys() <= set(self.variables) and all(part.covers(values) for part in self._expressions)


def expand(template: str, values: Mapping[str, Value]) -> str:
    """Expand any well-formed template without prefixes, also one that could not be matched back."""
    return _fill(template, _parse(template, _STRICT), values)


def escapes(values: Matched) -> bool:
    """Return whether a matched value, used as a path, could leave the folder that it is joined to.

    It could by a segment `..` between slashes or backslashes, by being absolute or starting with a drive letter, and by
    a NUL, where some libraries stop reading. A list is checked item by item and joined by slashes; a dict by its keys
    and values. Values have been decoded once: a value `%2e%2e` was `%252e%252e` in the URI, and is an odd name but no
    way out.
    """
    for value in values.values():
        if isinstance(value, str):
            if not value.isalnum() and _ESCAPE.search(value):
                return True
        elif any(map(_ESCAPE.search, [*value, "/".join(value)] if isinstance(value, list) else chain(*value.items()))):
            return True
    return False


class _Operator(NamedTuple):
    """A row of the table in RFC 6570, appendix A, with an additional column for matching."""

    first: str
    separator: str
    named: bool
    if_empty: str
    reserved: bool  # values keep reserved characters and triplets
    stops: str  # characters that end the expression in a URI, whatever follows in the template


_SIMPLE: Final = _Operator("", ",", False, "", False, "/?#")
_OPERATORS: Final[Mapping[str, _Operator]] = {
    "+": _Operator("", ",", False, "", True, ""),
    "#": _Operator("#", ",", False, "", True, ""),
    ".": _Operator(".", ".", False, "", False, "/?#"),
    "/": _Operator("/", "/", False, "", False, "?#"),
    ";": _Operator(";", ";", True, "", False, "/?#"),
    "?": _Operator("?", "&", True, "=", False, "#"),
    "&": _Operator("&", "&", True, "=", False, "#"),
}
_FUTURE_OPERATORS: Final = frozenset("=,!@|")  # RFC 6570, 2.2: reserved for extensions


class _Expression:
    """One `{...}` of a template: expansion, and matching."""

    __slots__ = ("charset", "codec", "divided", "exploded", "names", "operator", "source", "whole")

    def __init__(
        self, source: str, operator: _Operator, names: Sequence[str], exploded: AbstractSet[str], codec: "_Codec"
    ) -> None:
        self.source = source
        self.codec = codec
        self.operator = operator
        self.names = names
        self.exploded = exploded
        many = len(names) > 1 or bool(exploded)
        # A lone `{a}` or `{.a}` is parted from nothing: its separator is plain text. A lone `{/a}`
        # is one segment all the same, and a lone `{?a}` one pair.
        self.divided = many or operator.named or operator.separator == "/"
        # Its text is the value, but for what is encoded; and the name will do for a group of a pattern.
        self.whole = not self.divided and not operator.first and names[0].isidentifier()
        # Every character that its expansion may hold un-encoded.
        self.charset = _URI if operator.reserved else _ENCODED + operator.first
        if many:
            self.charset += operator.separator
        if operator.named or exploded:
            self.charset += "="

    def check(self, template: str) -> None:
        """Raise `TemplateError` if the expression violates rule 2 or 3."""
        separator = self.operator.separator
        if self.divided and separator in (_URI if self.operator.reserved else _ENCODED):
            why = f"as each may hold {separator!r} itself; use one variable without '*', or the operator '/'"
        elif len(self.exploded) > 1 or not (self.operator.named or self.exploded <= {self.names[-1]}):
            why = "as nothing shows where those of '*' end; let it stand at one variable only, and put that last"
        else:
            return
        raise TemplateError(template, f"the items of {self.source!r} cannot be told apart, {why}")

    def expand(self, values: Mapping[str, Value]) -> str:
        items = [item for name in self.names for item in self._items(name, values.get(name))]
        return self.operator.first + self.operator.separator.join(items) if items else ""

    def _items(self, name: str, value: Value | None) -> list[str]:
        """Return the items of one variable (RFC 6570, 3.2.1): none if undefined, many if exploded."""
        encode = self.codec.encode_literal if self.operator.reserved else self.codec.encode
        exploded = name in self.exploded
        if value is None:
            return []
        if isinstance(value, str):
            texts = [encode(value)]
        elif not isinstance(value, Mapping):
            texts = [encode(text) for text in value]
        elif not exploded:
            texts = [encode(text) for pair in value.items() for text in pair]
        elif self.operator.named:  # only here are keys encoded like literals
            return [self._item(self.codec.encode_literal(key), encode(text)) for key, text in value.items()]
        else:
            texts = [f"{encode(key)}={encode(text)}" for key, text in value.items()]
        if texts and not exploded:
            texts = [",".join(texts)]
        return [self._item(name, text) for text in texts]

    def _item(self, name: str, text: str) -> str:
        if not self.operator.named:
            return text
        return f"{name}={text}" if text else name + self.operator.if_empty

    def read(self, text: str, values: Matched) -> None:
        """Add the values in `text` to `values`; raise ValueError if it is not an expansion of this expression."""
        operator = self.operator
        if operator.first:
            if not text:
                return  # every variable is undefined
            if text[0] != operator.first:
                raise ValueError(text)
            text = text[1:]
        if not self.divided:
            values[self.names[0]] = self.codec.decode(text)
        elif operator.named:
            self._read_pairs(text.split(operator.separator), values)
        else:
            self._read_items(text.split(operator.separator), values)

    def _read_items(self, items: Sequence[str], values: Matched) -> None:
        if len(items) > len(self.names) and not self.exploded:
            raise ValueError(items)
        for index, (name, item) in enumerate(zip(self.names, items, strict=False)):
            values[name] = (
                self.codec.decode_members(items[index:]) if name in self.exploded else self.codec.decode(item)
            )

    def _read_pairs(self, items: Iterable[str], values: Matched) -> None:
        texts_by_key: dict[str, list[str]] = {}
        for item in items:
            key, _, text = item.partition("=")
            texts_by_key.setdefault(key, []).append(text)
        for name in self.names:
            if name in texts_by_key:
                texts = [self.codec.decode(text) for text in texts_by_key.pop(name)]
                if name in self.exploded:
                    values[name] = texts
                else:
                    (values[name],) = texts  # a repeated name is a ValueError
        if texts_by_key:
            (name,) = self.exploded  # an unknown name is a ValueError if no variable takes the rest
            if name in values:
                raise ValueError(name)  # a list and a dict at once
            values[name] = self.codec.decode_pairs([(key, *texts) for key, texts in texts_by_key.items()])

    def covers(self, values: Mapping[str, Value]) -> bool:
        present = [name in values for name in self.names]
        if not self.operator.named:
            if present != sorted(present, reverse=True):
                return False  # a later value would be read as the missing one
            if not self.operator.first and not present[0]:
                return False
        return all(self._covers(name, values[name]) for name in self.names if name in values)

    def _covers(self, name: str, value: Value) -> bool:
        if isinstance(value, str):
            return name not in self.exploded and not (self.operator.reserved and _TRIPLET.search(value))
        if not value or name not in self.exploded:
            return False
        if isinstance(value, dict) and self.operator.named:
            return all(
                key not in self.names and self.codec.encode_literal(key) == self.codec.encode(key) for key in value
            )
        return isinstance(value, list | dict)


def _parse(template: str, codec: "_Codec") -> list[str | _Expression]:
    """Return the encoded literals and the expressions of a template, in order."""
    try:
        template.encode()
    except UnicodeEncodeError:
        raise TemplateError(template, "it holds a lone surrogate, which no URI can carry; remove it") from None
    parts: list[str | _Expression] = []
    for found in _PART.finditer(template):
        text = found[0]
        if found[1] is not None:
            parts.append(_parse_expression(template, text, found[1], codec))
        elif text in "{}":
            raise TemplateError(
                template, f"the {text!r} at {found.start()} has no partner; balance it, or write %7B or %7D for a brace"
            )
        else:
            parts.append(codec.encode_literal(text))
    return parts


def _parse_expression(template: str, source: str, body: str, codec: "_Codec") -> _Expression:
    if body[:1] in _FUTURE_OPERATORS:
        why = f"RFC 6570 keeps the operator {body[0]!r} of {source!r} for the future; use none, or one of + # . / ; ? &"
        raise TemplateError(template, why)
    operator = _OPERATORS.get(body[:1])
    names: list[str] = []
    exploded: set[str] = set()
    for specification in (body[1:] if operator else body).split(","):
        found = _VARIABLE.fullmatch(specification)
        if found is None:
            why = f"{specification!r} in {source!r} is no variable name; use letters, digits, '_' and inner dots"
            raise TemplateError(template, why)
        name, modifier = found.groups()
        if modifier == "*":
            exploded.add(name)
        elif modifier:
            why = f"{specification!r} keeps only the beginning of a value, so the rest is lost; write {name!r} instead"
            raise TemplateError(template, why)
        names.append(name)
    return _Expression(source, operator or _SIMPLE, names, exploded, codec)


def _compile(template: str, parts: Sequence[str | _Expression]) -> re.Pattern[str]:
    """Return a pattern with one group per expression; raise `TemplateError` if one of the three rules is violated."""
    pattern = literal = ""  # `literal` comes next, and then `pattern`
    beyond: dict[str, str] = {}  # the characters that may come after `literal`, each with the part it begins
    for part in reversed(parts):
        if isinstance(part, str):
            literal = part
            continue
        part.check(template)
        suffix = literal[: _count_held(literal, part.charset)]
        rest = literal[len(suffix) :]
        ends = {rest[0]: literal} if rest else beyond
        for character, other in ends.items():
            if character in part.charset:
                raise TemplateError(template, _confusion(part, suffix, other, character))
        stops = {*part.operator.stops, *ends}
        if part.operator is _SIMPLE and not suffix and ends.keys() <= {"?", "#"}:
            stops.discard("/")
        run = re.escape("".join(character for character in _URI if character not in stops))
        name = f"?P<{part.names[0]}>" if part.whole else ""
        group = f"(?>({name}[{run}]*){re.escape(suffix)})" if suffix else f"({name}[{run}]*+)"
        pattern = group + re.escape(rest) + pattern
        follows = {literal[0]: literal} if literal else beyond  # as the expression may be empty
        beyond = follows | dict.fromkeys(part.operator.first or part.charset, part.source)
        literal = ""
    return re.compile(re.escape(literal) + pattern)


def _count_held(literal: str, holds: str) -> int:
    """Count the characters at the start of a literal that the preceding expression may contain too."""
    return next((index for index, character in enumerate(literal) if character not in holds), len(literal))


def _confusion(part: _Expression, suffix: str, other: str, character: str) -> str:
    mark = next((mark for mark in "/:" if mark not in part.charset), None)
    if suffix:
        why = f"{part.source!r} and {suffix!r} cannot be told apart, as the first may hold {suffix[0]!r} itself"
        mend = f"put a character such as {mark!r} after {suffix!r}" if mark else _only_last(part)
        return f"{why} and {other!r} follows; {mend}"
    mend = f"put a character such as {mark!r} between them" if mark else _only_last(part)
    if mark and other.startswith("{"):
        mend += ", or join them in one expression"
    return f"{part.source!r} and {other!r} cannot be told apart, as the first may hold {character!r} itself; {mend}"


def _only_last(part: _Expression) -> str:
    return f"put {part.source!r} last, or only a literal after it"


def _fill(template: str, parts: Iterable[str | _Expression], values: Mapping[str, Value]) -> str:
    try:
        return "".join(part if isinstance(part, str) else part.expand(values) for part in parts)
    except (TypeError, UnicodeEncodeError) as fault:
        why = f"it cannot be expanded ({fault}); give strings that UTF-8 can encode, or lists or dicts of such"
        raise TemplateError(template, why, kind="template_render_failed") from fault


class _Codec:
    """Percent-encoding and decoding."""

    __slots__ = ("_errors",)

    def __init__(self, errors: str) -> None:
        self._errors = errors

    def encode(self, text: str) -> str:
        from urllib.parse import quote  # imported on use: slow

        return quote(text, safe="", errors=self._errors)

    def encode_literal(self, text: str) -> str:
        """Encode only characters that are illegal in a URI; keep triplets."""
        return _NOT_LITERAL.sub(lambda found: self.encode(found[0]), text)

    def decode(self, text: str) -> str:
        if "%" not in text:
            return text
        if _STRAY_PERCENT.search(text):
            raise ValueError(text)
        from urllib.parse import unquote

        return unquote(text, errors=self._errors)

    def decode_members(self, items: Sequence[str]) -> list[str] | dict[str, str]:
        """Decode the items of an exploded variable: a dict if they are pairs, as `=` is encoded in a list."""
        if any("=" in item for item in items):
            return self.decode_pairs([item.split("=", 1) for item in items])
        return [self.decode(item) for item in items]

    def decode_pairs(self, pairs: Collection[Sequence[str]]) -> dict[str, str]:
        """Decode pairs; raise ValueError for an item that is not a pair, and for a repeated key."""
        decoded = {self.decode(key): self.decode(text) for key, text in pairs}
        if len(decoded) < len(pairs):
            raise ValueError(pairs)
        return decoded


_STRICT: Final = _Codec("strict")
