"""The replay cache of DPoP proofs: bounded, and fair to every key."""

import random

import pytest

from trunkline.auth.server.dpop_replay import Replayed, ReplayMemory, TooManyProofs

NOW = 1_000_000.0
WINDOW = 300


def cache(one: int = 100, everything: int = 1000) -> ReplayMemory:
    return ReplayMemory(WINDOW, max_per_key=one, max_total=everything)


def test_proof_is_accepted_once_per_key() -> None:
    known = cache()
    known.use("a", "1", NOW, NOW)
    with pytest.raises(Replayed, match="used before"):
        known.use("a", "1", NOW, NOW)
    known.use("b", "1", NOW, NOW)
    known.use("a", "2", NOW, NOW)


def test_proof_is_remembered_while_acceptable() -> None:
    known = cache()
    known.use("a", "1", NOW + 0.9, NOW)
    with pytest.raises(Replayed):
        known.use("a", "1", NOW + 0.9, NOW + 0.89 + WINDOW)
    known.use("b", "1", NOW + WINDOW + 2, NOW + WINDOW + 2)
    assert len(known) == 1


def test_key_above_limit_is_refused_alone() -> None:
    known = cache(one=100)
    for number in range(100):
        known.use("greedy", str(number), NOW + number % 10, NOW)
    with pytest.raises(TooManyProofs, match="has used 100 proofs") as refused:
        known.use("greedy", "more", NOW, NOW)
    known.use("other", "1", NOW, NOW)
    known.use("greedy", "more", NOW + refused.value.wait, NOW + refused.value.wait)


def test_full_memory_evicts_largest_key_without_replay() -> None:
    known = cache(one=900, everything=1000)
    proofs = [(f"{number}", NOW - 200 + number // 10) for number in range(900)]
    for ident, made in proofs:
        known.use("large", ident, made, NOW)
    for number in range(500):
        known.use(f"small {number % 50}", f"{number}", NOW, NOW)
        assert len(known) <= 1000
    for ident, made in proofs:
        with pytest.raises(Replayed):
            known.use("large", ident, made, NOW)
    for number in range(500):
        with pytest.raises(Replayed):
            known.use(f"small {number % 50}", f"{number}", NOW, NOW)
    known.use("large", "new", NOW, NOW)


def test_key_is_accepted_again_in_the_next_second() -> None:
    known = cache(one=100, everything=50)
    for number in range(51):
        known.use("a", str(number), NOW, NOW)
    with pytest.raises(Replayed, match="may have been used before; make another one"):
        known.use("a", "new", NOW, NOW)
    known.use("a", "new", NOW + 1, NOW + 1)
    known.use("a", "newer", NOW + WINDOW + 2, NOW + WINDOW + 2)
    known.use("b", "1", NOW + 3 * WINDOW, NOW + 3 * WINDOW)
    assert len(known) == 1


def test_random_uses_keep_invariants() -> None:
    choose, known = random.Random(7), cache(one=40, everything=100)
    now, accepted = NOW, set[tuple[str, str, float]]()
    for _ in range(4_000):
        now += choose.choice((0, 0, 0, 0.1, 1, 40))
        made = int(now) + choose.choice((0, 0, -1, -100, -299, 29))
        key, ident = f"{choose.randrange(12)}", f"{choose.randrange(30)}"
        if not now - WINDOW < made:
            continue
        try:
            known.use(key, ident, made, now)
        except (Replayed, TooManyProofs):
            continue
        assert (key, ident, made) not in accepted
        accepted.add((key, ident, made))
        assert len(known) <= 100
    assert len(accepted) > 1000
