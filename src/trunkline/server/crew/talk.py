"""What processes tell each other and have confirmed: it goes again to who may not have heard it, and is heard once."""

import asyncio
from typing import Final

from trunkline.clock import Clock
from trunkline.server.cluster.broadcast import Heard, Telling, Tellings
from trunkline.server.cluster.messages import Audience
from trunkline.server.crew.kinds import CONFIRMED, MISSED, TOLD
from trunkline.server.crew.place import Place
from trunkline.server.crew.roster import Roster

__all__ = ["Talk"]

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
