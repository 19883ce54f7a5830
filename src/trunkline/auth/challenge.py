"""Parse and format `WWW-Authenticate` challenges (RFC 9110, section 11.6.1)."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

__all__ = ["Challenge", "find_challenge", "format_challenge", "parse_challenges"]

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TOKEN68: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*(?=[ \t]*(?:,|$))")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_UNQUOTED_VALUE: Final = re.compile(r"[^\s,\"]+")  # wider than a token: servers often send URLs without quotes
_SEPARATORS: Final = re.compile(r"[ \t,]*")
_BLANK: Final = re.compile(r"[ \t]*")
_QUOTED_PAIR: Final = re.compile(r"\\(.)", re.DOTALL)
_NOT_PRINTABLE_ASCII: Final = re.compile(r"[^\x20-\x7e]")
_MAX_HEADER_CHARS: Final = 16 * 1024  # characters, of all challenges of one response


class Challenge(Struct, frozen=True):
    """One authentication challenge: its scheme and its parameters, both with names in lower case."""

    scheme: str
    params: Mapping[str, str]
    token: str = ""  # token68, which some schemes use instead of parameters

    @property
    def scopes(self) -> tuple[str, ...] | None:
        """Required scopes, or None if the challenge has no `scope` parameter."""
        scope = self.params.get("scope")
        return None if scope is None else tuple(scope.split())


def parse_challenges(header: str) -> list[Challenge]:
    """Parse every challenge of a header, or of several headers joined by commas. Parsing stops at the first
    unreadable part."""
    found: list[Challenge] = []
    params: dict[str, str] = {}
    text, at = header[:_MAX_HEADER_CHARS], 0
    while (name := _TOKEN.match(text, at := _skip(_SEPARATORS, text, at))) is not None:
        equals = _skip(_BLANK, text, name.end())
        if text[equals : equals + 1] == "=" and found:
            value, at = _parse_value(text, _skip(_BLANK, text, equals + 1))
            params.setdefault(name[0].lower(), value)
            continue
        start = _skip(_BLANK, text, name.end())
        token = _TOKEN68.match(text, start) if start > name.end() else None
        params, at = {}, token.end() if token else name.end()
        found.append(Challenge(name[0].lower(), params, token[0] if token else ""))
    return found


def find_challenge(challenges: Sequence[Challenge], *schemes: str) -> Challenge | None:
    """Return the first challenge of the first of these schemes that is present."""
    return next((one for scheme in schemes for one in challenges if one.scheme == scheme), None)


def format_challenge(scheme: str, params: Mapping[str, str | None]) -> str:
    """Format a challenge as a header value; parameters that are None are omitted."""
    formatted = ", ".join(f'{name}="{_escape_quoted(value)}"' for name, value in params.items() if value is not None)
    return f"{scheme} {formatted}" if formatted else scheme


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _parse_value(text: str, at: int) -> tuple[str, int]:
    if quoted := _QUOTED.match(text, at):
        return _QUOTED_PAIR.sub(r"\1", quoted[1]), quoted.end()
    if text[at : at + 1] == '"':  # the closing quote is missing
        return text[at + 1 :], len(text)
    bare = _UNQUOTED_VALUE.match(text, at)
    return (bare[0], bare.end()) if bare else ("", at)


def _escape_quoted(value: str) -> str:
    """Escape a value for a quoted string; a character that no header may contain becomes a question mark."""
    return _NOT_PRINTABLE_ASCII.sub("?", value).replace("\\", "\\\\").replace('"', '\\"')
