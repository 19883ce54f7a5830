"""Templates of requests: recognize a frame like an earlier one, but for its id and one member of its params.

A program that calls one method again and again writes the same bytes around these two values, whatever the order of the
members and the spaces between them. Comparing these bytes costs less than parsing them, and everything that was decided
from them, such as that no object among them has a member twice, holds again.

Invariant: `match` returns what `decode_strict` would return for the frame, or None, which leaves the question open. It
holds because `learn` has decoded a probe, the template with another id and another value in their places, and has found
exactly these two changed. So a parser that has read the bytes before a place expects a value there; after any other
whole value it is in the same state as before.
"""

import re
from typing import Final

from msgspec import Raw

from trunkline.wire.codec import LONG_THRESHOLD, decode_strict, has_unique_members, json_decoder
from trunkline.wire.messages import Request

__all__ = ["RequestTemplate"]

_ID: Final = re.compile(rb'"id"[ \t\r\n]*:[ \t\r\n]*([0-9]+)')
_ID_DIGITS: Final = 18  # fewer than an integer of 64 bits may have
_ZERO: Final = b"0"
_PROBE_ID: Final = 10**17 + 7
_PROBE: Final = b'{"probe":["trunkline"]}'
_read_members: Final = json_decoder(dict[str, Raw])


class RequestTemplate:
    """The bytes of a request around its id and around one member of its params."""

    __slots__ = ("_after", "_before", "_between", "_id_first", "_lead", "_method", "_trail")

    def __init__(
        self, method: str, pieces: tuple[bytes, bytes, bytes], lead: int, trail: int, *, id_first: bool
    ) -> None:
        """`pieces` are the bytes before, between and after the two values, `lead` and `trail` say how many bytes of the
        params there are before and after the member."""
        self._method = method
        self._before, self._between, self._after = pieces
        self._lead = lead
        self._trail = trail
        self._id_first = id_first

    @classmethod
    def learn(cls, frame: bytes, request: Request, member: str) -> "RequestTemplate | None":
        """Return the template of a frame, which `decode_strict` has decoded to `request`; None if there is none."""
        if type(request.params) is not Raw or type(request.id) is not int or _PROBE in frame:
            return None
        params = bytes(request.params)
        members = _read_members(params)
        if member not in members:
            return None
        value = bytes(members[member])
        lead = params.find(value, params.find(b'"%b"' % member.encode()) + len(member))
        start = frame.find(params)
        found = _ID.search(frame, 0, start) or _ID.search(frame, start + len(params))
        if found is None:
            return None
        first, last = start + lead, start + lead + len(value)
        id_first = found.end() <= first
        (a, b), (c, d) = sorted((found.span(1), (first, last)))
        pieces = frame[:a], frame[b:c], frame[d:]
        template = cls(request.method, pieces, lead, len(params) - lead - len(value), id_first=id_first)
        return template if template._is_right(members, member) else None

    def _is_right(self, members: dict[str, Raw], member: str) -> bool:
        """Return whether other values in the two places change the id and the member, and nothing else."""
        values = (b"%d" % _PROBE_ID, _PROBE) if self._id_first else (_PROBE, b"%d" % _PROBE_ID)
        probe = b"".join((self._before, values[0], self._between, values[1], self._after))
        decoded, matched = decode_strict(probe), self.match(probe)
        if type(decoded) is not Request or decoded != matched or type(decoded.params) is not Raw:
            return False
        return decoded.id == _PROBE_ID and _read_members(decoded.params) == {**members, member: Raw(_PROBE)}

    def match(self, frame: bytes) -> Request | None:
        """Return the request in a frame of this template; None for any other frame."""
        before, between, after = self._before, self._between, self._after
        size = len(frame)
        if size >= LONG_THRESHOLD or not frame.startswith(before) or not frame.endswith(after):
            return None
        start, end = len(before), size - len(after)
        if self._id_first:
            at = frame.find(between, start, start + _ID_DIGITS + len(between))
            digits, start = frame[start:at], at + len(between)
        else:
            at = frame.rfind(between, max(start, end - _ID_DIGITS - len(between)), end)
            digits, end = frame[at + len(between) : end], at
        if at < 0 or not digits.isdigit() or (digits.startswith(_ZERO) and digits != _ZERO):
            return None
        if not has_unique_members(frame[start:end]):
            return None
        return Request(int(digits), self._method, Raw(frame[start - self._lead : end + self._trail]))
