"""The first subscriber starts watching a resource, the last one ends it."""

import asyncio
import sys

import pytest

from trunkline.server.notifications.subscription_hooks import SubscriptionHooks

URI = "r://1"


class Log:
    """Records the starts and ends of watchers; both wait for the test."""

    def __init__(self) -> None:
        self.subscription_hooks: SubscriptionHooks[str] = SubscriptionHooks()
        self.said: list[str] = []
        self.go = asyncio.Event()
        self.subscription_hooks.on_first.append(self._first)
        self.subscription_hooks.on_last.append(self._last)

    async def _first(self, uri: str) -> None:
        self.said.append("starting")
        await self.go.wait()
        self.said.append("started")

    async def _last(self, uri: str) -> None:
        self.said.append("ending")
        await self.go.wait()
        self.said.append("ended")


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.row("F20")
async def test_second_subscriber_waits_for_first_hook() -> None:
    log = Log()
    first = asyncio.ensure_future(log.subscription_hooks.subscribe(URI, "a"))
    second = asyncio.ensure_future(log.subscription_hooks.subscribe(URI, "b"))
    await turns()
    assert log.said == ["starting"]
    assert not second.done()
    log.go.set()
    await asyncio.gather(first, second)
    assert log.said == ["starting", "started"]
    assert log.subscription_hooks.subscriptions.subscribers(URI) == ["a", "b"]


@pytest.mark.row("F20")
async def test_second_subscriber_reruns_failed_first_hook() -> None:
    watchers: SubscriptionHooks[str] = SubscriptionHooks()
    fails = [True, False]

    async def watch(uri: str) -> None:
        await asyncio.sleep(0)
        if fails.pop(0):
            raise OSError("no")

    watchers.on_first.append(watch)
    outcomes = await asyncio.gather(watchers.subscribe(URI, "a"), watchers.subscribe(URI, "b"), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OSError, bool]
    assert watchers.subscriptions.subscribers(URI) == ["b"]


async def test_subscriber_during_last_hook_reruns_first_hook() -> None:
    log = Log()
    log.go.set()
    await log.subscription_hooks.subscribe(URI, "a")
    log.go.clear()
    leaving = asyncio.ensure_future(log.subscription_hooks.unsubscribe(URI, "a"))
    await turns()
    coming = asyncio.ensure_future(log.subscription_hooks.subscribe(URI, "b"))
    await turns()
    assert log.said == ["starting", "started", "ending"]
    log.go.set()
    await asyncio.gather(leaving, coming)
    assert log.said[2:] == ["ending", "ended", "starting", "started"]


async def test_last_hook_is_skipped_if_resubscribed() -> None:
    log = Log()
    log.go.set()
    await log.subscription_hooks.subscribe(URI, "a")
    orphaned = log.subscription_hooks.subscriptions.drop("a")
    await log.subscription_hooks.subscribe(URI, "b")
    await log.subscription_hooks.release_unused(orphaned)
    assert "ending" not in log.said


async def test_hooks_of_different_resources_run_concurrently() -> None:
    log = Log()
    waiting = [asyncio.ensure_future(log.subscription_hooks.subscribe(uri, "a")) for uri in ("r://1", "r://2")]
    await turns()
    assert log.said == ["starting", "starting"]
    log.go.set()
    await asyncio.gather(*waiting)


async def test_hook_that_calls_sys_exit_fails_alone() -> None:
    watchers: SubscriptionHooks[str] = SubscriptionHooks()
    watchers.on_first.append(lambda uri: sys.exit(3))
    with pytest.raises(RuntimeError, match=r"sys.exit\(3\)"):
        await watchers.subscribe(URI, "a")
    assert watchers.subscriptions.subscribers(URI) == []


async def test_unsubscribe_without_subscription_runs_no_hook() -> None:
    log = Log()
    await log.subscription_hooks.unsubscribe(URI, "a")
    assert log.said == []


@pytest.mark.parametrize("plain", [True, False])
async def test_several_sync_hooks_are_supported(*, plain: bool) -> None:
    watchers: SubscriptionHooks[str] = SubscriptionHooks()
    seen: list[str] = []

    async def note(uri: str) -> None:
        seen.append(uri)

    for _ in range(2):
        watchers.on_first.append(seen.append if plain else note)
    await watchers.subscribe(URI, "a")
    assert seen == [URI, URI]
    assert len(watchers._locks) == 0  # no entry is left for an idle resource


@pytest.mark.parametrize("cancelled", [False, True])
async def test_failing_first_hook_undoes_earlier_hooks(cancelled: bool) -> None:
    watchers: SubscriptionHooks[str] = SubscriptionHooks()
    said: list[str] = []

    async def fail(uri: str) -> None:
        if cancelled:
            await asyncio.Event().wait()
        raise OSError("no")

    watchers.on_first += [lambda uri: said.append(f"begun {uri}"), fail]
    watchers.on_last.append(lambda uri: said.append(f"ended {uri}"))
    starting = asyncio.ensure_future(watchers.subscribe(URI, "a"))
    await turns()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else OSError):
        await starting
    assert said == [f"begun {URI}", f"ended {URI}"]
    assert watchers.subscriptions.subscribers(URI) == []


async def test_failing_last_hook_does_not_stop_the_others() -> None:
    watchers: SubscriptionHooks[str] = SubscriptionHooks()
    said: list[str] = []

    def fail(uri: str) -> None:
        raise OSError(uri)

    watchers.on_last += [fail, said.append]
    for uri in (URI, "r://2"):
        await watchers.subscribe(uri, "a")
    with pytest.raises(OSError, match=URI):
        await watchers.release_unused(watchers.subscriptions.drop("a"))
    assert said == [URI, "r://2"]
