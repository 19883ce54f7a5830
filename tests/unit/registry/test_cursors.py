"""Cursors: only the server that issued one can read it."""

import base64

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trunkline.errors import CursorExpired, InvalidCursor
from trunkline.registry.cursors import Cursors

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/="
KEY = b"k" * 32


@given(position=st.integers(0, 2**64 - 1), kind=st.sampled_from(["tool", "resource", "resource_template"]))
def test_cursor_round_trips(position: int, kind: str) -> None:
    cursors = Cursors()

    assert cursors.open(kind, cursors.seal(kind, position)) == position


@pytest.mark.row("Y02")
@given(position=st.integers(0, 1000), index=st.integers(0, 21), character=st.sampled_from(ALPHABET))
def test_altered_cursor_is_refused(position: int, index: int, character: str) -> None:
    cursors = Cursors()
    cursor = cursors.seal("tool", position)
    changed = cursor[:index] + character + cursor[index + 1 :]
    assume(changed != cursor)

    with pytest.raises(InvalidCursor):
        cursors.open("tool", changed)


@pytest.mark.row("Y02")
@pytest.mark.parametrize("junk", ["", "a", "2", "MTAw", "not base64!", "é", "=" * 4, "A" * 22, "A" * 23, "A" * 400])
def test_forged_cursor_is_refused(junk: str) -> None:
    with pytest.raises(InvalidCursor, match="this server did not issue the cursor"):
        Cursors().open("tool", junk)


@pytest.mark.row("Y02")
def test_cursor_hides_position() -> None:
    cursors = Cursors(KEY)
    opened = [base64.urlsafe_b64decode(cursors.seal("tool", position) + "==") for position in (1, 2)]

    assert len(opened[0]) == 16
    for index in range(0, 16, 8):
        assert opened[0][index : index + 8] != opened[1][index : index + 8]
        assert int.from_bytes(opened[0][index : index + 8], "big") != 1


def test_shared_key_reads_cursors_of_other_servers() -> None:
    one, other = Cursors(), Cursors(b"k" * 32)
    one.use_key(b"k" * 32)
    assert one.open("tool", other.seal("tool", 3)) == other.open("tool", one.seal("tool", 3)) == 3


def test_cursor_is_bound_to_list_kind() -> None:
    cursors = Cursors(KEY)

    with pytest.raises(InvalidCursor):
        cursors.open("resource", cursors.seal("tool", 1))


def test_different_key_refuses_cursor() -> None:
    cursor = Cursors(KEY).seal("tool", 7)

    assert Cursors(KEY).open("tool", cursor) == 7
    with pytest.raises(InvalidCursor):
        Cursors().open("tool", cursor)


@pytest.mark.row("Y03")
@given(position=st.integers(0, 2**64 - 1), given_at=st.floats(0, 1e9), waited=st.floats(0, 60))
def test_cursor_is_valid_for_lifetime(position: int, given_at: float, waited: float) -> None:
    cursors = Cursors(lifetime=60)

    assert (
        cursors.open("tool", cursors.seal("tool", position, given_at), int(given_at * 1000) / 1000 + waited) == position
    )


@pytest.mark.row("Y03")
@given(given_at=st.floats(0, 1e9), late=st.floats(0.01, 1e6))
def test_old_cursor_has_expired(given_at: float, late: float) -> None:
    cursors = Cursors(lifetime=60)

    with pytest.raises(CursorExpired, match="expired after 60 s"):
        cursors.open("tool", cursors.seal("tool", 1, given_at), given_at + 60 + late)


@pytest.mark.row("Y02")
@given(index=st.integers(0, 31), character=st.sampled_from(ALPHABET))
def test_cursor_time_cannot_be_altered(index: int, character: str) -> None:
    cursors = Cursors(KEY, lifetime=60)
    cursor = cursors.seal("tool", 1, 1000.0)
    assume(cursor[index] != character)

    with pytest.raises(InvalidCursor):
        cursors.open("tool", cursor[:index] + character + cursor[index + 1 :], 1000.0)


@pytest.mark.row("Y03")
def test_expiring_and_permanent_cursors_differ() -> None:
    lasting, expiring = Cursors(KEY), Cursors(KEY, lifetime=60)

    with pytest.raises(InvalidCursor):
        lasting.open("tool", expiring.seal("tool", 1))
    with pytest.raises(InvalidCursor):
        expiring.open("tool", lasting.seal("tool", 1))
