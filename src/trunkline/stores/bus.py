"""The seam of buses: the way from one process to the others that share a store.

A store keeps what is true, and says who holds what. A bus is for what cannot wait until somebody looks: a request that
another process has to answer, a change that others tell their clients. It keeps nothing. What one process sends to
another arrives in the order in which it was sent, at most once; and where something may have got lost, on whichever
side, both are told (`Ears.lost`), so that whoever waits for an answer does not wait for ever. Whoever needs to know
that something has arrived asks for an answer.

A bus connects the processes of one store, told from all others by the identity of that store. Its frames are signed
(`frames.py`): one that fails verification is dropped and reported (`Ears.rejected`), and has no other effect.
"""

from typing import Final, Protocol

from trunkline.stores.identity import StoreIdentity

__all__ = ["MAX_MESSAGE_BYTES", "MAX_NAME_CHARACTERS", "Bus", "BusListener"]

MAX_NAME_CHARACTERS: Final = 16  # a name is part of the path of a socket, which is short
MAX_MESSAGE_BYTES: Final = 24 << 20


class BusListener(Protocol):
    """Who is told what comes over a bus. Called on the loop, never from within `send` or `publish`."""

    def heard(self, sender: str, message: bytes) -> None:
        """A message from another process."""
        ...

    def met(self, name: str) -> None:
        """Another process is there, from now on or since before. It may be told of the same one twice, and is told
        before anything is heard from it."""
        ...

    def lost(self, name: str | None) -> None:
        """What that process has sent, or was sent, may not have arrived; of None: of whichever process. It says nothing
        about whether the process is gone, and may be told twice of one loss. What is heard afterwards was sent after
        whatever is missing."""
        ...

    def rejected(self, why: str) -> None:
        """A frame failed verification and was dropped: another program has written to the bus."""
        ...


class Bus(Protocol):
    """Carries messages between processes. Every bus behaves as it says here; `tests/contract/test_buses.py` holds them
    to it. A bus belongs to one event loop of one process, and all of its methods are called there.

    Names are letters, digits and dashes, at most 16, and nobody else has or has ever had the same one. A message has at
    most 24 MiB, and many large ones need `sent` in between: who is given much more than it reads is given up for a
    while, and told so.
    """

    async def open(self, name: str, ears: BusListener, identity: StoreIdentity) -> None:
        """From when this returns on, others can reach this process under a name, and it has met those that are there:
        all that have opened a bus with the same identity. Raises `StoreUnavailable` if that cannot be, for now, or
        `StoreUnusable`."""
        ...

    def send(self, to: str, message: bytes) -> bool:
        """Sends a message to one process. False if it is certain that nobody is there, and never will be under that
        name: nothing was sent, then. True says nothing about whether it arrives."""
        ...

    def publish(self, message: bytes) -> None:
        """Sends a message to every other process that is there."""
        ...

    async def sent(self) -> None:
        """Waits while much of what was sent has not left yet: so nobody's memory is filled by who reads slowly."""
        ...

    async def close(self) -> None:
        """Sends what is left, if that can be done at once, and is of no use then: nothing is heard any more, nor sent.
        Closing twice is closing once."""
        ...
