"""Limits of the requests to an issuer about unknown tokens."""

import asyncio
from typing import Any

import pytest

from trunkline.auth import BadToken, IssuerLimits, Principal, Verified
from trunkline.auth.server import issuer_requests
from trunkline.auth.server.issuer_requests import IssuerRequests, TooManyRejected
from trunkline.auth.server.verifiers import Unavailable
from trunkline.errors import ConfigError

US = frozenset({"https://notes.example.com/mcp"})
GOOD = Verified(Principal("ada"))


class CountingIssuer:
    """An issuer that knows some tokens, and counts its requests. With `held` the responses wait."""

    def __init__(self, *good: str, held: asyncio.Event | None = None, down: bool = False) -> None:
        self.good = good
        self.held = held
        self.down = down
        self.tokens: list[str] = []
        self.under_way = self.most_under_way = 0

    async def __call__(self, token: str) -> Verified:
        self.tokens.append(token)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        if self.held is not None:
            await self.held.wait()
        self.under_way -= 1
        if self.down:
            raise Unavailable("down")
        if token in self.good:
            return GOOD
        raise BadToken("the token is not active")


async def verify(
    requests: IssuerRequests, issuer: CountingIssuer, token: str, now: float = 0.0, *, address: str | None = "192.0.2.1"
) -> Verified:
    return await requests.verify(token, US, lambda: issuer(token), address=address, now=now)


async def outcome(*asked: Any, **options: Any) -> str:
    try:
        await verify(*asked, **options)
    except (BadToken, Unavailable, TooManyRejected) as error:
        return type(error).__name__
    return "Verified"


async def test_concurrent_callers_with_one_token_share_one_request() -> None:
    issuer, requests = CountingIssuer("known", held=asyncio.Event()), IssuerRequests(IssuerLimits())
    callers = [asyncio.create_task(outcome(requests, issuer, token)) for token in ["known", "made-up"] * 50]
    await asyncio.sleep(0)
    callers[0].cancel()  # which concerns no other caller
    assert issuer.held is not None
    issuer.held.set()
    results = await asyncio.gather(*callers[1:])
    assert sorted(set(results)) == ["BadToken", "Verified"]
    assert sorted(issuer.tokens) == ["known", "made-up"]


async def test_running_and_queued_requests_are_bounded() -> None:
    limits = IssuerLimits(max_requests=3, max_waiting=4, rejected_per_minute=None)
    issuer, requests = CountingIssuer(held=asyncio.Event()), IssuerRequests(limits)
    callers = [asyncio.create_task(outcome(requests, issuer, f"made-up {number}")) for number in range(10)]
    done, _ = await asyncio.wait(callers, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result() for task in done} == {"Unavailable"}
    assert issuer.held is not None
    issuer.held.set()
    results = await asyncio.gather(*callers)
    assert (results.count("BadToken"), results.count("Unavailable")) == (7, 3)
    assert issuer.most_under_way == 3


async def test_rejected_token_is_cached_briefly() -> None:
    issuer, requests = CountingIssuer(), IssuerRequests(IssuerLimits(rejected_ttl=10))
    for now in (0, 1, 9.9):
        assert await outcome(requests, issuer, "made-up", now) == "BadToken"
    assert len(issuer.tokens) == 1
    issuer.good = ("made-up",)
    assert await outcome(requests, issuer, "made-up", 10) == "Verified"


async def test_rejection_cache_can_be_disabled() -> None:
    issuer, requests = CountingIssuer(), IssuerRequests(IssuerLimits(rejected_ttl=0))
    assert [await outcome(requests, issuer, "made-up") for _ in range(2)] == ["BadToken"] * 2
    assert len(issuer.tokens) == 2


async def test_rejection_cache_evicts_least_recently_used() -> None:
    issuer, requests = CountingIssuer(), IssuerRequests(IssuerLimits(max_rejected=2))
    for token in ("a", "b", "a", "c", "a", "b"):
        assert await outcome(requests, issuer, token) == "BadToken"
    assert issuer.tokens == ["a", "b", "c", "b"]


async def test_address_with_rejected_tokens_is_limited() -> None:
    issuer, requests = CountingIssuer("known"), IssuerRequests(IssuerLimits(rejected_per_minute=60))
    results = [await outcome(requests, issuer, f"made-up {number}") for number in range(300)]
    assert results == ["BadToken"] * 60 + ["TooManyRejected"] * 240
    assert len(issuer.tokens) == 60
    assert await outcome(requests, issuer, "made-up 0") == "BadToken"  # cached, which costs nothing
    assert await outcome(requests, issuer, "known", address="192.0.2.2") == "Verified"
    with pytest.raises(TooManyRejected, match="try again in 1 s") as refused:
        await verify(requests, issuer, "known")
    assert await outcome(requests, issuer, "known", refused.value.wait) == "Verified"
    assert await outcome(requests, issuer, "other", -3600.0) == "TooManyRejected"  # the clock was set back
    assert await outcome(requests, issuer, "other", -3599.0) == "BadToken"


async def test_budget_counts_rejected_tokens_only() -> None:
    good = [f"known {number}" for number in range(200)]
    issuer, requests = CountingIssuer(*good), IssuerRequests(IssuerLimits(rejected_per_minute=1))
    assert {await outcome(requests, issuer, token) for token in good} == {"Verified"}
    issuer.down = True
    assert {await outcome(requests, issuer, f"made-up {number}") for number in range(5)} == {"Unavailable"}
    issuer.down = False
    assert await outcome(requests, issuer, "made-up") == "BadToken"
    assert await outcome(requests, issuer, "made-up 2") == "TooManyRejected"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::2", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("testclient", "testclient", True),
        (None, None, False),  # no address, no budget
    ],
)
async def test_budget_covers_one_ipv6_network(one: str | None, other: str | None, same: bool) -> None:
    issuer, requests = CountingIssuer(), IssuerRequests(IssuerLimits(rejected_per_minute=1))
    assert await outcome(requests, issuer, "a", address=one) == "BadToken"
    assert await outcome(requests, issuer, "b", address=other) == ("TooManyRejected" if same else "BadToken")


async def test_number_of_budgets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_requests, "_MAX_ADDRESSES", 2)
    issuer, requests = CountingIssuer("good"), IssuerRequests(IssuerLimits(rejected_per_minute=1))
    for number in range(3):
        assert await outcome(requests, issuer, f"{number}", address=f"192.0.2.{number}") == "BadToken"
    assert await outcome(requests, issuer, "x", address="192.0.2.2") == "TooManyRejected"
    assert await outcome(requests, issuer, "y", address="192.0.2.0") == "BadToken"


def test_requests_of_closed_loop_are_dropped() -> None:
    requests = IssuerRequests(IssuerLimits(max_requests=1, max_waiting=0))

    async def left_alone() -> None:
        asyncio.create_task(verify(requests, CountingIssuer("known", held=asyncio.Event()), "known"))  # noqa: RUF006
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(left_alone())
    assert asyncio.run(outcome(requests, CountingIssuer("known"), "known")) == "Verified"


@pytest.mark.parametrize(
    "limits",
    [{"max_requests": 0}, {"max_rejected": 0}, {"rejected_per_minute": 0}, {"max_waiting": -1}, {"rejected_ttl": -1}],
    ids=str,
)
def test_invalid_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"IssuerLimits: {next(iter(limits))} must"):
        IssuerLimits(**limits)
