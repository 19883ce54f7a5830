"""The canonical form of JSON, and digests of it."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.receipts.canonical import canonical_json, digest_json
from trunkline.wire.codec import to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("bits", "text"),  # the samples of RFC 8785, appendix B
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_floats_are_written_as_the_rfc_says(bits: str, text: str) -> None:
    value = struct.unpack(">d", bytes.fromhex(bits))[0]
    assert canonical_json(repr(value).encode()) == text.encode()


def test_members_are_sorted_and_strings_have_few_escapes() -> None:
    written = b'{ "b" : [1.0, 1e2, -0.0], "a" : "\\u0041\\u00e9\\/\\n\\u001F\\u007f" }'
    assert canonical_json(written) == '{"a":"Aé/\\n\\u001f\x7f","b":[1,100,0]}'.encode()


def test_large_integers_keep_their_digits() -> None:
    assert canonical_json(b"[9007199254740993, 123456789012345678901234567890]") == (
        b"[9007199254740993,123456789012345678901234567890]"
    )


@given(VALUES)
def test_canonical_form_is_stable_and_independent_of_order(value: object) -> None:
    once = canonical_json(to_json(value))
    assert canonical_json(once) == once
    assert canonical_json(to_json(_reversed(value))) == once


def _reversed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _reversed(inner) for key, inner in reversed(value.items())}
    return [_reversed(inner) for inner in value] if isinstance(value, list) else value


def test_digest_is_that_of_the_canonical_form() -> None:
    assert digest_json(b'{"b":1.0,"a":2}') == "sha256:" + hashlib.sha256(b'{"a":2,"b":1}').hexdigest()


@pytest.mark.parametrize("text", [b"{", b"[1e400]", b'"\\ud800"', b"[" * 200_000 + b"]" * 200_000, b'"\xff"'])
def test_text_without_canonical_form_is_digested_as_it_is(text: bytes) -> None:
    assert digest_json(text) == f"sha256-bytes:{hashlib.sha256(text).hexdigest()}"
