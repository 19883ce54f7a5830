"""What a process has told the others and not all have confirmed; and what the others have told it.

Everything told has a number, and goes to somebody again if it may not have arrived. Whoever is told the same again does
nothing but confirm it. How it is written: a number, the oldest number that is not confirmed by all, a text.

What processes tell each other and have confirmed: it goes again to who may not have heard it, and is heard once.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from struct import Struct as Layout
from typing import Final

from trunkline.clock import Clock
from trunkline.server.cluster.membership import Place, Roster
from trunkline.server.cluster.messages import CONFIRMED, MISSED, TOLD, Audience

__all__ = ["Heard", "Talk", "Telling", "Tellings"]

_NUMBERS: Final = Layout(">QQ")


class Telling:
    """One thing that was told."""

    __slots__ = ("at", "done", "number", "text", "waiting")

    def __init__(self, number: int, text: bytes, at: float, done: "asyncio.Future[None]") -> None:
        self.number = number
        self.text = text
        self.at = at
        self.done = done
        self.waiting: set[str] = set()  # those who have not confirmed it


class Tellings:
    """What this process has told. What was told first is done first: who learns that something is confirmed knows it of
    all that was told before."""

    def __init__(self) -> None:
        self._last = 0
        self._open: deque[Telling] = deque()

    def tell(self, text: bytes, to: Iterable[str], now: float) -> Telling:
        """Something more, for those who are there now."""
        self._last += 1
        done = asyncio.get_running_loop().create_future()
        telling = Telling(self._last, text, now, done)
        telling.waiting.update(to)
        self._open.append(telling)
        return telling

    def written(self, telling: Telling) -> bytes:
        """How it is sent."""
        return _NUMBERS.pack(telling.number, self._open[0].number) + telling.text

    def confirmed(self, name: str, number: int) -> None:
        """Somebody has confirmed something."""
        first = self._open[0].number if self._open else number + 1
        if 0 <= number - first < len(self._open):  # numbers follow each other
            self._open[number - first].waiting.discard(name)
            self._settle()

    def gone(self, name: str) -> None:
        """Nobody waits for that process any more."""
        for telling in self._open:
            telling.waiting.discard(name)
        self._settle()

    def give_up(self, before: float) -> set[str]:
        """Waits no longer for what was told before that time; gives those who have not confirmed it."""
        missed = set[str]()
        for telling in self._open:
            if telling.at < before:
                missed |= telling.waiting
                telling.waiting.clear()
        self._settle()
        return missed

    def anew(self, names: Iterable[str]) -> list[Telling]:
        """Nobody knows the name any more under which all of it was told; gives what has to be told to others now."""
        for telling in self._open:
            telling.waiting = set(names)
        self._settle()
        return list(self._open)

    def _settle(self) -> None:
        while self._open and not self._open[0].waiting:
            done = self._open.popleft().done
            if not done.done():  # somebody may have stopped waiting
                done.set_result(None)

    def awaited(self) -> set[str]:
        """Those who have not confirmed everything."""
        return set[str]().union(*(telling.waiting for telling in self._open))

    def awaited_of(self, name: str, before: float) -> list[Telling]:
        """What one has not confirmed, of what was told until that time."""
        return [telling for telling in self._open if name in telling.waiting and telling.at <= before]


class Heard:
    """What one other process has told."""

    def __init__(self) -> None:
        self._done: dict[int, bool] = {}  # by number: whether it is to be confirmed if it comes again

    def take(self, message: bytes) -> tuple[int, bytes | None]:
        """The number and the text of what was told; no text if it is known."""
        number, oldest = _NUMBERS.unpack_from(message)
        while self._done and (first := next(iter(self._done))) < oldest:
            del self._done[first]
        if number in self._done:
            return number, None
        self._done[number] = False
        return number, message[_NUMBERS.size :]

    def done(self, number: int) -> None:
        """It is confirmed from now on."""
        if number in self._done:
            self._done[number] = True

    def is_done(self, number: int) -> bool:
        """Whether it is to be confirmed again."""
        return self._done.get(number, False)


_PATIENCE: Final = 6  # leases, after which nobody waits any longer for one who lives and does not confirm
_NUMBER: Final = 8  # bytes


class Talk:
    """What this process has told the others, and they have told it."""

    def __init__(self, place: Place, roster: Roster, audience: Audience, seconds: float, clock: Clock) -> None:
        self._place = place
        self._roster = roster
        self._audience = audience
        self._seconds = seconds
        self._clock = clock
        self._tellings = Tellings()
        self._heard: dict[str, Heard] = {}

    # --- telling -----------------------------------------------------------------------------------

    def tell(self, text: bytes) -> "asyncio.Future[None]":
        """Tells all others something; gives what is done when each has confirmed it, and all told before, or is
        gone."""
        to = self._roster.names if self._place.taken else (self._place.name,)  # who has no name asks who is there later
        telling = self._tellings.tell(text, to, self._clock.now())
        self._publish(telling)
        return telling.done

    def _publish(self, telling: Telling) -> None:
        self._place.broadcast(TOLD, self._tellings.written(telling))

    def awaited(self) -> set[str]:
        """Those who have not confirmed everything."""
        return self._tellings.awaited()

    def tell_again(self, name: str, before: float = float("inf")) -> None:
        """Tells one again what it has not confirmed, of what was told until that time."""
        for telling in self._tellings.awaited_of(name, before):
            self._place.send(name, TOLD, self._tellings.written(telling))

    def tell_all_again(self) -> None:
        """Tells everybody again what was told under another name."""
        for telling in self._tellings.anew(self._roster.names):
            self._publish(telling)

    def press(self) -> None:
        """Tells those again who have not confirmed something for a while, and waits no longer for those who have not
        for long."""
        now = self._clock.now()
        for name in self._tellings.give_up(now - _PATIENCE * self._seconds):
            self._place.send(name, MISSED)
            self._audience.unconfirmed()
        for name in self.awaited():
            self.tell_again(name, now - self._seconds)

    def confirmed(self, sender: str, body: bytes) -> None:
        """Somebody has confirmed something."""
        self._tellings.confirmed(sender, int.from_bytes(body, "big"))

    # --- being told --------------------------------------------------------------------------------

    def told(self, sender: str, body: bytes) -> None:
        """Somebody tells something, or tells it again."""
        known = self._heard.setdefault(sender, Heard())
        number, text = known.take(body)
        waiting = None if text is None else self._audience.hear(sender, text)
        if waiting is not None:
            waiting.add_done_callback(lambda _: self._confirm(sender, known, number))
        elif text is not None or known.is_done(number):
            self._confirm(sender, known, number)

    def _confirm(self, sender: str, known: Heard, number: int) -> None:
        known.done(number)
        self._place.send(sender, CONFIRMED, number.to_bytes(_NUMBER, "big"))

    # --- those who go ------------------------------------------------------------------------------

    def gone(self, name: str) -> None:
        """Nobody waits for that process any more, and it tells nothing more."""
        self._heard.pop(name, None)
        self._tellings.gone(name)

    def forget(self) -> None:
        """Forgets what others have told: this process has no name, and they will tell it to another."""
        self._heard.clear()

    def end(self) -> None:
        """Waits for nobody any more."""
        self._tellings.anew(())
