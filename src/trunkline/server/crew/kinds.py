"""What processes say to each other of themselves: the first byte of a message. Those up to 15 are the crew's own."""

from typing import Final

__all__ = ["ALIVE", "CALL", "CONFIRMED", "DEAD", "HERE", "LEAVING", "LOOK", "MISSED", "TOLD"]

ALIVE: Final = b"\x00"  # a process has renewed its lease
TOLD: Final = b"\x01"
CONFIRMED: Final = b"\x02"
MISSED: Final = b"\x03"  # who is told this has not confirmed something, and nobody waits for it any longer
LEAVING: Final = b"\x04"
DEAD: Final = b"\x05"  # somebody was declared dead: the name
LOOK: Final = b"\x06"  # who is told this was declared dead
CALL: Final = b"\x07"  # who is told this says that it is there
HERE: Final = b"\x08"  # says no more than that
