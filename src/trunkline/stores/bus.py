"""Bus protocol: messages between the processes that share a store.

A store holds durable state and leases. A bus carries what cannot wait for a read of the store: a request that another
process must handle, or a change that other processes report to their clients. A bus stores nothing. It delivers the
messages from one process to another in order, at most once. If messages may have been lost, it reports that to both
sides (`BusListener.lost`), so that no process waits forever for a reply. A sender that needs to know whether a message
arrived requests a reply.

A bus connects the processes of one store, identified by the store's identity. Its frames are signed
(`signed_frames.py`). A frame that fails verification is dropped and reported (`BusListener.rejected`), and has no other
effect.
"""

import re
from typing import Final, Protocol

from trunkline.stores.identity import StoreIdentity

__all__ = ["MAX_MESSAGE_BYTES", "MAX_NAME_CHARACTERS", "Bus", "BusListener", "is_process_name"]

MAX_NAME_CHARACTERS: Final = 16  # a name is part of a socket path, whose length is limited
MAX_MESSAGE_BYTES: Final = 24 << 20
_NAME: Final = re.compile(rf"[A-Za-z0-9-]{{1,{MAX_NAME_CHARACTERS}}}")


def is_process_name(name: str) -> bool:
    """Return whether a string is a valid process name on a bus."""
    return _NAME.fullmatch(name) is not None


class BusListener(Protocol):
    """Callbacks of a bus. They run on the event loop, never from within `send` or `publish`."""

    def heard(self, sender: str, message: bytes) -> None:
        """Receive a message from another process."""
        ...

    def met(self, name: str) -> None:
        """Note that a peer is connected, newly or since before. The bus may repeat this for one peer, and calls it
        before the peer's first message."""
        ...

    def lost(self, name: str | None) -> None:
        """Note that messages from or to a peer may be lost; None means any peer. This does not imply that the peer
        has exited, and may be repeated for one loss. Messages received afterwards were sent after the missing ones."""
        ...

    def rejected(self, why: str) -> None:
        """Note that a frame failed verification and was dropped: another program has written to the bus."""
        ...


class Bus(Protocol):
    """Carries messages between processes. `tests/contract/test_buses.py` checks every implementation against this
    contract. A bus belongs to one event loop of one process; all methods are called there.

    Names consist of letters, digits and dashes, at most 16 characters, and are never reused. A message has at most 24
    MiB. Await `sent` between many large messages: a peer that reads too slowly is disconnected for a while, and
    reported as lost.
    """

    async def open(self, name: str, ears: BusListener, identity: StoreIdentity) -> None:
        """Make this process reachable under a name, and connect to all peers with the same identity before
        returning. Raises `StoreUnavailable` if that fails for now, or `StoreUnusable`."""
        ...

    def send(self, to: str, message: bytes) -> bool:
        """Send a message to one process. Return False if that process certainly does not exist and never will; then
        nothing was sent. True does not promise delivery."""
        ...

    def publish(self, message: bytes) -> None:
        """Send a message to all connected peers."""
        ...

    async def sent(self) -> None:
        """Wait while the send buffers are above their high-water mark, so that slow readers do not fill the memory."""
        ...

    async def close(self) -> None:
        """Send what can be sent without waiting, then disconnect. No messages are sent or received afterwards.
        Idempotent."""
        ...
