"""What a campaign must not have done, found in what was written down of it. Pure: it reads, and names each fault.

What is *lost*, and what may be missing:

- **An answer** that somebody got is never taken back: what it says was done is in the file of effects, and who asks
  again, by the same key or the same task, gets the same.
- **A call that must not be done twice** is in the file once at most, whatever became of its answer. Its outcome may be
  unknown only to who was in the middle of it while the server was dead. One that does no harm is always answered.
- **A task** whose name somebody knows ends, with its result; or with an error that says that nobody knows, if its tool
  has chosen that and the server died meanwhile. A checkpoint that was kept is never gone behind.
- **An event** on a stream has the number after that of the one before, over as many connections as it takes. Those at
  the end may be missing only if the call that said them was not answered with a result either.
- **An update** that was acknowledged to who made it is heard of by everybody who is subscribed, whoever made it, in
  whichever process.
- **A session** that was acknowledged is never refused, and nobody gets what is another's.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tests.chaos.history import Effect, History, Saw
from tests.chaos.plan import TASKS

__all__ = ["faults"]

NOBODY_KNOWS: Final = "may or may not have been done"


def faults(history: History) -> list[str]:
    """Everything that is wrong."""
    rules: Sequence[Callable[[History], Iterator[str]]] = (
        _own_answers,
        _answered_is_done,
        _done_once,
        _known_outcomes,
        _asked_again,
        _events,
        _updates,
        _tasks,
        _the_rest,
    )
    return [fault for rule in rules for fault in rule(history)]


def _by_deed(history: History, *kinds: str) -> Mapping[str, list[Effect]]:
    found: dict[str, list[Effect]] = defaultdict(list)
    for effect in history.effects:
        if effect.what in kinds:
            found[effect.deed].append(effect)
    return found


def _own_answers(history: History) -> Iterator[str]:
    """Nobody gets another's answer: each has the name of its deed in it."""
    for saw in history.saw:
        if saw.outcome == "answered" and saw.kind != "post" and not saw.again and saw.said.split()[0] != saw.deed:
            yield f"{saw.deed} ({saw.kind}) was answered with {saw.said!r}, which is another's"


def _answered_is_done(history: History) -> Iterator[str]:
    """What was answered is in the file, as the answer says."""
    done = _by_deed(history, "pay", "ask")
    lasting = {(effect.what, effect.deed) for effect in history.effects}
    posted = {f"{effect.deed} {effect.number}" for effect in history.effects if effect.what == "post"}
    for saw in history.saw:
        if saw.outcome != "answered" or saw.again:
            continue
        if saw.kind in {"pay", "pay_once", "ask"}:
            if saw.said.split()[-1] not in {effect.run for effect in done[saw.deed]}:
                yield f"{saw.deed} ({saw.kind}) was answered with {saw.said!r}, and was not done"
        elif saw.kind == "keep" and ("keep", saw.deed) not in lasting:
            yield f"{saw.deed} (keep) was answered, and was not done"
        elif saw.kind == "post" and saw.said not in posted:
            yield f"{saw.deed} (post) was answered with {saw.said!r}, and was not done"


def _done_once(history: History) -> Iterator[str]:
    for deed, done in _by_deed(history, "pay", "count", "ask").items():
        numbers = [effect.number for effect in done]
        if len(set(numbers)) < len(numbers):
            yield f"{deed} ({done[0].what}) was done twice: {[effect.run for effect in done]}"
    posts = [(effect.deed, effect.number) for effect in history.effects if effect.what == "post"]
    if len(set(posts)) < len(posts):
        yield "a number was written on a board twice"


def _known_outcomes(history: History) -> Iterator[str]:
    """Nobody fails, and whose outcome is unknown was cut off by a death; but for what may be asked again."""
    for saw in history.saw:
        if saw.outcome == "answered" or saw.again:
            continue
        died = any(began <= saw.ended and saw.began <= back for began, back in history.deaths)
        given_up = saw.kind == "given_up" and NOBODY_KNOWS in saw.said
        if saw.outcome == "failed" and not given_up:
            yield f"{saw.deed} ({saw.kind}) failed: {saw.said}"
        elif saw.harmless:
            yield f"{saw.deed} ({saw.kind}) may be repeated, and was given up: {saw.said}"
        elif not died:
            yield f"{saw.deed} ({saw.kind}) has no outcome, though the server lived: {saw.said}"


def _asked_again(history: History) -> Iterator[str]:
    for saw in history.saw:
        if saw.again and saw.outcome != "answered":
            yield f"{saw.deed} ({saw.kind}) was answered, and is not any more: {saw.said}"


def _events(history: History) -> Iterator[str]:
    """Numbers without a gap, from the first on; all of them if the call was answered."""
    for told in history.told:
        if told.numbers != tuple(range(1, len(told.numbers) + 1)):
            yield f"{told.deed}: events are missing, twice or in disorder: {told.numbers}"
        elif told.outcome == "answered" and len(told.numbers) != told.wanted:
            yield f"{told.deed}: {len(told.numbers)} events of {told.wanted}, though it was answered"
    for gap in history.gaps:
        yield f"a stream has a gap: {gap}"


def _updates(history: History) -> Iterator[str]:
    """Who writes waits until everybody has heard, so each update is heard of by itself."""
    heard = {(one.who, one.board, one.number) for one in history.heard}
    for saw in history.saw:
        if saw.kind == "post" and saw.outcome == "answered":
            board, _, number = saw.said.partition(" ")
            for who in history.listeners.get(board, ()):
                if (who, board, int(number)) not in heard:
                    yield f"{who} was not told of update {number} of {board}, which was acknowledged"


def _tasks(history: History) -> Iterator[str]:
    kinds = {saw.deed: saw for saw in history.saw if saw.kind in TASKS and not saw.again}
    for deed, done in _by_deed(history, "step", "kept").items():
        saw = kinds.get(deed)
        if saw is not None:
            yield from _task(saw, done)


def _task(saw: Saw, done: Sequence[Effect]) -> Iterator[str]:
    steps = [effect.number for effect in done if effect.what == "step"]
    if saw.outcome == "answered" and set(steps) != set(range(1, int(saw.said.split()[-1]) + 1)):
        yield f"{saw.deed} ({saw.kind}) has ended with {saw.said!r} after steps {steps}"
    if saw.kind == "given_up" and len(set(steps)) < len(steps):
        yield f"{saw.deed} (given_up) was begun again: {steps}"
    kept = 0
    for effect in done:
        if effect.what == "kept":
            kept = effect.number
        elif saw.kind == "resumed" and effect.number <= kept:
            yield f"{saw.deed} (resumed) has done step {effect.number} again after checkpoint {kept}"


def _the_rest(history: History) -> Iterator[str]:
    for refusal in history.refusals:
        yield f"{refusal.who} was refused {refusal.asked}: HTTP {refusal.status} {refusal.said}"
    for complaint in history.complaints:
        yield f"the server said: {complaint}"
    for one in history.unfinished:
        yield f"did not come to an end: {one}"
