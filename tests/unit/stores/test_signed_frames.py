"""Signed frames: what a receiver accepts, and what it drops for which reason."""

import hmac

import pytest

from trunkline.stores import signed_frames
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.signed_frames import ALL, OVERHEAD, Frame, FrameSigner, Rejection

HERE = StoreIdentity("0123456789abcdef", bytes(range(32)), 0.0)


@pytest.fixture
def one() -> FrameSigner:
    return FrameSigner(HERE, "one")


@pytest.fixture
def two() -> FrameSigner:
    return FrameSigner(HERE, "two")


def test_receiver_accepts_signed_frame(one: FrameSigner, two: FrameSigner) -> None:
    frame = one.sign("two", b"a", b"", b"\0bc")
    assert len(frame) == OVERHEAD + 4
    assert two.verify(frame) == Frame("one", b"a\0bc", for_all=False, fresh=True)
    assert two.verify(one.sign("two")) == Frame("one", b"", for_all=False, fresh=True)


def test_signature_covers_everything_before_it(one: FrameSigner) -> None:
    frame = one.sign(ALL, bytes(range(256)))
    assert frame[-32:] == hmac.digest(HERE.key("bus frames"), frame[:-32], "sha256")


def test_longest_name_fits() -> None:
    name = "n" * 16
    assert FrameSigner(HERE, name).verify(FrameSigner(HERE, "m" * 16).sign(name, b"x")) == Frame(
        "m" * 16, b"x", for_all=False, fresh=True
    )


def test_changed_byte_is_detected(one: FrameSigner, two: FrameSigner) -> None:
    frame = one.sign("two", b"payload")
    for at in range(len(frame)):
        changed = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        assert two.verify(changed) is (Rejection.FORGED if at else Rejection.VERSION)
    assert isinstance(two.verify(frame), Frame)


def test_truncated_or_extended_frame_is_dropped(one: FrameSigner, two: FrameSigner) -> None:
    frame = one.sign("two", b"payload")
    for end in range(len(frame)):
        expected = Rejection.MALFORMED if end < OVERHEAD else Rejection.FORGED
        assert two.verify(frame[:end]) is expected
    assert two.verify(frame + b"\0") is Rejection.FORGED
    assert two.verify(frame[1:]) is Rejection.VERSION


@pytest.mark.parametrize(
    "other",
    [StoreIdentity(HERE.id, bytes(32), 0.0), StoreIdentity("fedcba9876543210", HERE.secret, 0.0)],
    ids=["another secret", "another id"],
)
def test_frame_of_another_store_is_dropped(two: FrameSigner, other: StoreIdentity) -> None:
    assert two.verify(FrameSigner(other, "one").sign("two", b"x")) is Rejection.FORGED


def test_frame_for_another_process_is_dropped(one: FrameSigner, two: FrameSigner) -> None:
    assert two.verify(one.sign("three", b"x")) is Rejection.MISDIRECTED
    assert two.verify(one.sign("tw", b"x")) is Rejection.MISDIRECTED


def test_frame_of_another_version_is_dropped(
    one: FrameSigner, two: FrameSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed_frames, "VERSION", 2)
    assert two.verify(one.sign("two", b"x")) is Rejection.VERSION


def test_replayed_and_reordered_frames_are_dropped(one: FrameSigner, two: FrameSigner) -> None:
    first, second, third = one.sign("two", b"1"), one.sign(ALL, b"2"), one.sign("two", b"3")
    assert isinstance(two.verify(first), Frame)
    assert two.verify(first) is Rejection.REPLAYED
    assert isinstance(two.verify(third), Frame)
    assert [two.verify(frame) for frame in (first, second, third)] == 3 * [Rejection.REPLAYED]


def test_broadcast_is_fresh_only_after_direct_frame(one: FrameSigner, two: FrameSigner) -> None:
    early = one.sign(ALL, b"x")
    assert two.verify(early) == two.verify(early) == Frame("one", b"x", for_all=True, fresh=False)
    assert isinstance(two.verify(one.sign("two")), Frame)
    assert two.verify(early) is Rejection.REPLAYED
    assert two.verify(one.sign(ALL, b"y")) == Frame("one", b"y", for_all=True, fresh=True)


def test_numbers_grow_when_clock_goes_back(one: FrameSigner, two: FrameSigner, monkeypatch: pytest.MonkeyPatch) -> None:
    for now in (10**18, 10**18, 5, 10**18 + 7):
        monkeypatch.setattr(signed_frames.time, "time_ns", lambda now=now: now)
        assert isinstance(two.verify(one.sign("two")), Frame)


def test_dropped_sender_cannot_be_replayed(two: FrameSigner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_frames, "MAX_SENDERS", 3)
    senders = [FrameSigner(HERE, f"s{number}") for number in range(10)]
    said = [sender.sign("two", b"x") for sender in senders]
    assert all(isinstance(two.verify(frame), Frame) for frame in said)
    assert len(two._last_numbers) == 3
    assert [two.verify(frame) for frame in said] == 10 * [Rejection.REPLAYED]
    assert isinstance(two.verify(senders[0].sign("two", b"y")), Frame)  # it is there after all
