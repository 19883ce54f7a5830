"""Digests of JSON values, independent of how a peer has written them.

A digest is SHA-256 over the canonical form of RFC 8785: no spaces, members sorted by name, strings with the fewest
escapes, and floats as ECMAScript prints them, so `1.0` and `1` are the same. The form differs from the RFC in two
points. Names are sorted by code points, not by UTF-16 code units. Integers keep all their digits, where the RFC rounds
those beyond 2**53.

A text that has no such form, because it is not JSON, is nested too deeply, or has a number beyond the range of floats,
is digested as it is. Its digest begins with `sha256-bytes:` instead of `sha256:`.
"""

import math
from hashlib import sha256
from typing import Final

from msgspec import Raw

from trunkline.wire.codec import to_canonical, untyped_decoder

__all__ = ["canonical_json", "digest_json"]

_EXACT: Final = 16  # digits up to which `repr` writes a float without an exponent
_LAST_DECIMAL: Final = 21  # digits before the point up to which ECMAScript uses no exponent
_SMALLEST_DECIMAL: Final = -6  # exponent down to which ECMAScript uses no exponent


def _format_float(text: str) -> Raw:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond the range of floats")
    return Raw(_ecmascript(value).encode())


def _ecmascript(value: float) -> str:
    """Return a float as ECMAScript prints it: the digits of `repr` in another layout."""
    written = repr(value)
    if "e" not in written:
        whole, _, fraction = written.partition(".")
        if fraction != "0":
            return written
        return "0" if whole == "-0" else whole
    mantissa, _, exponent = written.partition("e")
    power = int(exponent)
    if power >= _LAST_DECIMAL or power < _SMALLEST_DECIMAL:
        return f"{mantissa}e{power:+d}"
    sign, digits = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    digits = digits.replace(".", "")
    if power >= _EXACT:
        return f"{sign}{digits:0<{power + 1}}"
    return f"{sign}0.{'0' * (-power - 1)}{digits}"


_decode: Final = untyped_decoder(_format_float)


def canonical_json(text: bytes | Raw) -> bytes:
    """Return the canonical form of a JSON text. Raises `ValueError` or `RecursionError` if it has none."""
    return to_canonical(_decode(text))


def digest_json(text: bytes | Raw) -> str:
    """Return the digest of a JSON text."""
    try:
        return f"sha256:{sha256(canonical_json(text)).hexdigest()}"
    except (ValueError, RecursionError):
        return f"sha256-bytes:{sha256(text).hexdigest()}"
