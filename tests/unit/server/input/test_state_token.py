"""State tokens (`requestState`): valid for their own request, for a while, and for nothing else."""

import base64
import hashlib
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis.strategies import DataObject as Drawn
from hypothesis.strategies import binary, data, floats, integers, none, one_of, text, tuples
from tests.limits import PATIENCE

from trunkline.errors import ConfigError, InvalidParams, MisuseError
from trunkline.server.input.state_token import (
    EncryptingSealer,
    InMemorySealer,
    InvalidRequestState,
    StateSealer,
    request_binding,
)

OLD, NEW = b"o" * 32, b"n" * 40
BOUND = request_binding("alice", "tools/call", b"digest")
SEALS = pytest.mark.parametrize("make", [InMemorySealer, EncryptingSealer], ids=["handles", "sealed"])


def refuses(seal: StateSealer, state: str, bound: bytes = BOUND, now: float = 0.0) -> bool:
    try:
        seal.open(state, bound, now)
    except InvalidRequestState:
        return True
    return False


# --- both kinds ---------------------------------------------------------------------------------


@SEALS
@given(state=binary(), bound=binary(), expires=floats(1, 1e12), early=floats(0, 1, exclude_max=True))
def test_token_opens_for_its_binding_until_it_expires(
    make: Callable[[], StateSealer], state: bytes, bound: bytes, expires: float, early: float
) -> None:
    seal = make()
    sealed = seal.seal(state, bound, expires)
    assert seal.open(sealed, bound, expires * early) == state
    assert seal.open(sealed, bound, expires * early) == state
    assert refuses(seal, sealed, bound, expires)
    assert refuses(seal, sealed, bound, expires + 1)


@SEALS
@given(bound=binary(), other=binary())
def test_token_with_other_binding_is_rejected(make: Callable[[], StateSealer], bound: bytes, other: bytes) -> None:
    seal = make()
    sealed = seal.seal(b"state", bound, 10.0)
    assert refuses(seal, sealed, other) is (bound != other)


@SEALS
@given(drawn=data())
def test_token_with_any_bit_flipped_is_rejected(make: Callable[[], StateSealer], drawn: Drawn) -> None:
    seal = make()
    sealed = bytearray(seal.seal(b"some state", BOUND, 10.0).encode())
    sealed[drawn.draw(integers(0, len(sealed) - 1))] ^= 1 << drawn.draw(integers(0, 7))
    assert refuses(seal, sealed.decode("latin-1"))


@given(drawn=data(), state=binary())
def test_ciphertext_with_any_bit_flipped_is_rejected(drawn: Drawn, state: bytes) -> None:
    seal = EncryptingSealer()
    letters = seal.seal(state, BOUND, 10.0)
    sealed = bytearray(base64.urlsafe_b64decode(letters + "=" * (-len(letters) % 4)))
    sealed[drawn.draw(integers(0, len(sealed) - 1))] ^= 1 << drawn.draw(integers(0, 7))
    assert refuses(seal, base64.urlsafe_b64encode(sealed).decode().rstrip("="))


@SEALS
@given(drawn=data(), more=text(min_size=1))
def test_truncated_or_extended_token_is_rejected(make: Callable[[], StateSealer], drawn: Drawn, more: str) -> None:
    seal = make()
    sealed = seal.seal(b"some state", BOUND, 10.0)
    assert refuses(seal, sealed[: drawn.draw(integers(0, len(sealed) - 1))])
    assert refuses(seal, sealed + more)
    assert refuses(seal, more + sealed)


@SEALS
@given(made_up=one_of(text(), binary(max_size=100).map(lambda raw: base64.urlsafe_b64encode(raw).decode())))
def test_forged_token_is_rejected(make: Callable[[], StateSealer], made_up: str) -> None:
    assert refuses(make(), made_up)


@SEALS
def test_process_without_the_key_opens_nothing(make: Callable[[], StateSealer]) -> None:
    assert refuses(make(), make().seal(b"state", BOUND, 10.0))


@SEALS
def test_tokens_of_one_state_differ(make: Callable[[], StateSealer]) -> None:
    seal = make()
    assert seal.seal(b"state", BOUND, 10.0) != seal.seal(b"state", BOUND, 10.0)


def test_error_message_does_not_reveal_the_reason() -> None:
    seal = EncryptingSealer([OLD])
    sealed = seal.seal(b"state", BOUND, 10.0)
    said = set()
    for state, bound, now in [("", BOUND, 0), (sealed, b"", 0), (sealed, BOUND, 10), (sealed + "A", BOUND, 0)]:
        with pytest.raises(InvalidRequestState) as raised:
            seal.open(state, bound, now)
        said.add((raised.value.message, raised.value.code, raised.value.data["kind"]))
    assert {(code, kind) for _, code, kind in said} == {(InvalidParams.code, "invalid_request_state")}
    assert len(said) == 1


# --- bindings of a state ------------------------------------------------------------------------

ASKINGS = tuples(one_of(none(), text(max_size=4)), text(max_size=4), binary(max_size=4))


@given(ASKINGS, ASKINGS)
def test_bindings_are_equal_only_for_equal_requests(
    one: tuple[str | None, str, bytes], other: tuple[str | None, str, bytes]
) -> None:
    assert (request_binding(*one) == request_binding(*other)) is (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((None, "a", b""), ("", "a", b"")),
        (("ab", "c", b""), ("a", "bc", b"")),
        (("a", "bc", b"d"), ("a", "b", b"cd")),
        (("=", "a", b""), ("", "=a", b"")),
    ],
)
def test_binding_separates_its_parts(one: tuple[str | None, str, bytes], other: tuple[str | None, str, bytes]) -> None:
    assert request_binding(*one) != request_binding(*other)


# --- handles ------------------------------------------------------------------------------------


def test_oldest_handles_are_dropped_above_max_states() -> None:
    handles = InMemorySealer(max_states=3)
    given = [handles.seal(b"%d" % number, BOUND, 10.0) for number in range(5)]
    assert len(handles) == 3
    assert [refuses(handles, handle) for handle in given] == [True, True, False, False, False]


def test_oldest_handles_are_dropped_above_max_bytes() -> None:
    handles = InMemorySealer(max_bytes=10)
    given = [handles.seal(b"1234", BOUND, 10.0) for _ in range(3)]
    assert [refuses(handles, handle) for handle in given] == [True, False, False]
    handles.seal(b"1234567890", BOUND, 10.0)
    assert len(handles) == 1
    handles.seal(b"", BOUND, 10.0)
    assert len(handles) == 2


def test_expired_handles_are_dropped() -> None:
    handles = InMemorySealer(max_bytes=8)
    for expires in (1.0, 2.0, 9.0):
        handles.seal(b"12", BOUND, expires)
    assert refuses(handles, "unknown", now=2.0)
    assert len(handles) == 1
    for _ in range(3):
        handles.seal(b"12", BOUND, 9.0)
    assert len(handles) == 4


def test_handle_expiring_before_an_older_one_is_rejected() -> None:
    handles = InMemorySealer()
    longer, shorter = handles.seal(b"a", BOUND, 10.0), handles.seal(b"b", BOUND, 5.0)
    assert refuses(handles, shorter, now=5.0)
    assert handles.open(longer, BOUND, 5.0) == b"a"


# --- encrypted states ---------------------------------------------------------------------------


def test_keys_rotate_without_invalid_tokens() -> None:
    before, during, after = EncryptingSealer([OLD]), EncryptingSealer([NEW, OLD]), EncryptingSealer([NEW])
    old, new = before.seal(b"old", BOUND, 10.0), during.seal(b"new", BOUND, 10.0)
    assert (during.open(old, BOUND, 0.0), during.open(new, BOUND, 0.0)) == (b"old", b"new")
    assert after.open(new, BOUND, 0.0) == b"new"
    assert refuses(after, old)
    assert refuses(before, new)


def test_processes_with_a_shared_key_open_each_others_tokens() -> None:
    assert EncryptingSealer([OLD]).open(EncryptingSealer([OLD]).seal(b"state", BOUND, 10.0), BOUND, 0.0) == b"state"


@pytest.mark.parametrize("size", [0, 31])
def test_short_key_is_rejected_without_disclosure(size: int) -> None:
    with pytest.raises(ConfigError, match=f"^key 1 has {size} bytes; it needs at least 32$"):
        EncryptingSealer([OLD, NEW[:size]])


@given(state=binary(min_size=8))
def test_token_hides_the_state_and_is_url_safe(state: bytes) -> None:
    sealed = EncryptingSealer([OLD]).seal(state, BOUND, 10.0)
    assert state not in base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
    assert all(c.isascii() and (c.isalnum() or c in "-_") for c in sealed)


def test_derived_key_is_not_the_secret_or_its_hash() -> None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    letters = EncryptingSealer([OLD]).seal(b"state", BOUND, 10.0)
    raw = base64.urlsafe_b64decode(letters + "=" * (-len(letters) % 4))
    for key in (OLD, hashlib.sha256(OLD).digest()):
        with pytest.raises(InvalidTag):
            AESGCM(key).decrypt(raw[9:21], raw[21:], raw[:9] + BOUND)


@pytest.mark.parametrize("size", range(95, 101))
def test_states_up_to_the_limit_round_trip(size: int) -> None:
    seal = EncryptingSealer(limit=100)
    assert seal.open(seal.seal(bytes(size), BOUND, 10.0), BOUND, 0.0) == bytes(size)


@pytest.mark.parametrize(
    "seal", [EncryptingSealer(limit=100), InMemorySealer(max_bytes=100)], ids=["sealed", "handles"]
)
def test_oversized_state_is_misuse(seal: StateSealer) -> None:
    with pytest.raises(MisuseError, match="the state of a request has 101 bytes; the maximum is 100"):
        seal.seal(bytes(101), BOUND, 10.0)


def test_overlong_token_is_rejected_undecoded() -> None:
    large = EncryptingSealer([OLD], limit=1000).seal(bytes(500), BOUND, 10.0)
    assert refuses(EncryptingSealer([OLD], limit=100), large)


def test_missing_cryptography_package_is_named() -> None:
    """In a child process that cannot import the package."""
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from trunkline.server.input.state_token import EncryptingSealer, InMemorySealer\n"
        "assert InMemorySealer().seal(b'', b'', 1.0)\n"
        "try: EncryptingSealer()\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "encrypting request state needs the package cryptography: pip install 'trunkline[http]'\n"
