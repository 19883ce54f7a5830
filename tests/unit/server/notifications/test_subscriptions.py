"""Subscribers by resource."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.server.notifications.subscriptions import Subscriptions


@pytest.mark.row("A10", "R11")
def test_subscribing_twice_counts_once_and_keeps_order() -> None:
    subscriptions: Subscriptions[str] = Subscriptions()
    for who in ("b", "a", "b"):
        subscriptions.add("r://1", who)
    assert subscriptions.subscribers("r://1") == ["b", "a"]
    assert len(subscriptions) == 2


@pytest.mark.row("R12")
def test_removing_unknown_subscription_returns_false() -> None:
    subscriptions: Subscriptions[str] = Subscriptions()
    assert not subscriptions.remove("r://1", "a")
    subscriptions.add("r://1", "a")
    assert not subscriptions.remove("r://1", "b")
    assert not subscriptions.remove("r://2", "a")
    assert subscriptions.remove("r://1", "a")
    assert subscriptions.subscribers("r://1") == subscriptions.uris("a") == []


@pytest.mark.row("A11", "R23")
def test_drop_returns_uris_without_subscribers() -> None:
    subscriptions: Subscriptions[str] = Subscriptions()
    for uri, who in (("r://1", "a"), ("r://2", "a"), ("r://2", "b")):
        subscriptions.add(uri, who)
    assert subscriptions.uris("a") == ["r://1", "r://2"]
    assert subscriptions.drop("a") == ["r://1"]
    assert subscriptions.drop("a") == []
    assert subscriptions.subscribers("r://2") == ["b"]
    assert len(subscriptions) == 1


@pytest.mark.row("A10")
@given(st.lists(st.tuples(st.sampled_from("+-x"), st.integers(0, 3), st.sampled_from("abc"))))
def test_both_indexes_agree_and_leave_no_empty_entries(steps: list[tuple[str, int, str]]) -> None:
    subscriptions: Subscriptions[str] = Subscriptions()
    model: set[tuple[str, str]] = set()
    for step, number, who in steps:
        uri = f"r://{number}"
        if step == "+":
            subscriptions.add(uri, who)
            model.add((uri, who))
        elif step == "-":
            assert subscriptions.remove(uri, who) is ((uri, who) in model)
            model.discard((uri, who))
        else:
            subscriptions.drop(who)
            model = {pair for pair in model if pair[1] != who}
    assert {(uri, who) for uri in map("r://{}".format, range(4)) for who in subscriptions.subscribers(uri)} == model
    assert {(uri, who) for who in "abc" for uri in subscriptions.uris(who)} == model
    assert len(subscriptions) == len(model)
    assert len(subscriptions._by_uri) == len({uri for uri, _ in model})
    assert len(subscriptions._by_subscriber) == len({who for _, who in model})
