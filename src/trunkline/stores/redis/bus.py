"""A bus on Redis: what is published there reaches all who are subscribed at that moment, and nobody else.

Each process subscribes to two channels, one for all and one of its own, over one connection; it publishes over another.
So what one sends to another comes in its order, whichever channel it takes. Who joins asks Redis for everybody else's
channels, says hello to each, and waits for their answers.

Redis publishes to subscribers of every database alike, and takes messages from any client. So the names of channels
have the identity of the store in them, the name of a process goes with a tag that only processes of that store can
make, and every message is a signed frame (`frames.py`). A broadcast counts only from a process that has sent this one
something before; any other is answered with a hello, and the answer to that proves that its sender is there.

What is published while a connection is lost is lost, too, and Redis reports it to no process. So a process that has
lost a connection starts over with all others once it has both again: it sends each of them an `_AGAIN`, reports
`lost(None)` to its own listener in the same turn of the loop, and sends nothing else before that. A process that
receives an `_AGAIN` reports its sender as lost. Redis says how many subscribers have received a message: a process that
has none is reported as lost, and sent an `_AGAIN` at that moment, in case it has subscribed meanwhile. A listener that
is told of a loss drops what it does for the other process, and no process waits for what was dropped: whenever one side
is told, the other is told as well, and not before it.

A process that has ended without a goodbye is found by asking, now and then, for the number of its subscribers.
"""

import asyncio
import hmac
import ssl
from functools import lru_cache, partial
from typing import Any, Final

from trunkline.errors import MisuseError, StoreUnavailable
from trunkline.stores import validation
from trunkline.stores.bus import BusListener
from trunkline.stores.bus_listener import GuardedListener
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.redis.client import RedisClient
from trunkline.stores.redis.connection import encode_command
from trunkline.stores.redis.url import RedisAddress
from trunkline.stores.redis.watches import prefix_pattern
from trunkline.stores.signed_frames import ALL, FrameSigner, Rejection

__all__ = ["Channels", "RedisBus"]

HIGH_WATER_BYTES: Final = 1 << 20  # bytes that Redis has not taken yet: who can wait should
MAX_UNSENT_BYTES: Final = 64 << 20  # bytes at which nothing more is sent
LOSS_REPORT_INTERVAL: Final = 0.2  # seconds between two times that one is told that messages did not leave
ANSWER_TIMEOUT: Final = 2.0  # seconds that who joins waits for those that do not answer; one may be stopped
MAX_DEPARTED: Final = 1000  # names

_MESSAGE: Final = b"m"
_HELLO: Final = b"h"
_HELLO_AFTER_LOSS: Final = b"a"  # hello from a process that has just reported the receiver as lost to its own listener
_HELLO_ANSWER: Final = b"y"  # the answer to either
_BYE: Final = b"b"
_KINDS: Final = {_MESSAGE, _HELLO, _HELLO_AFTER_LOSS, _HELLO_ANSWER, _BYE}
_TAG: Final = 16  # letters


class Channels:
    """Names of the channels of one deployment."""

    def __init__(self, prefix: str, identity: StoreIdentity) -> None:
        self._key = identity.key("bus channels")
        self.all = f"{prefix}bus:{identity.id}:all"
        self.peer_prefix = f"{prefix}bus:{identity.id}:to:"  # of the channel of each process
        self.for_peer = lru_cache(1024)(self._channel_for_peer)

    def _channel_for_peer(self, name: str) -> str:
        """Return the channel of a process."""
        return f"{self.peer_prefix}{name}:{hmac.digest(self._key, name.encode(), 'sha256').hex()[:_TAG]}"

    def peer_name(self, channel: str) -> str | None:
        """Return the process whose channel it is, or None if its tag is wrong: a stranger has subscribed to it."""
        name = channel[len(self.peer_prefix) :].rpartition(":")[0]
        return name if validation.is_process_name(name) and self.for_peer(name) == channel else None


class RedisBus:
    """A way to the other processes on the same store, by a Redis."""

    def __init__(self, address: RedisAddress, tls: ssl.SSLContext | None, *, prefix: str, patience: float) -> None:
        self._display_address = str(address)
        self._create_client = partial(RedisClient, address, tls, patience)
        self._prefix = prefix
        self._check_interval = patience  # seconds between two looks at whether all is well
        self._name = ""  # as long as it is not open
        self._listener = GuardedListener()
        self._signer: FrameSigner
        self._channels: Channels
        self._opened = False
        self._closed = False
        self._publisher: RedisClient | None = None
        self._subscriber: RedisClient | None = None
        self._subscribe_futures: list[asyncio.Future[Any]] = []
        self._subscribed = False
        self._hello_kind = _HELLO
        self._loss_unannounced = False  # something was lost, and the other processes do not know that yet
        self._peers: set[str] = set()
        self._departed: dict[str, None] = {}  # who has said goodbye, the last ones
        self._unverified_senders: set[str] = (
            set()
        )  # peers whose broadcasts were dropped, since they may have been replays
        self._awaiting_answer: set[str] = set()  # names, whose answers
        self._all_answered: asyncio.Future[None] | None = None
        self._greet_task: asyncio.Task[None] | None = None
        self._channel_query: asyncio.Future[Any] | None = None  # which channels there are
        self._unsent_bytes = 0  # bytes that were not confirmed
        self._drained: asyncio.Future[None] | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._unreported_losses: set[str | None] = set()  # to whom something was sent that may not have arrived
        self._report_timer: asyncio.TimerHandle | None = None
        self._reported_at = 0.0  # when that was told last

    # --- from open to closed ---------------------------------------------------------------------

    async def open(self, name: str, ears: BusListener, identity: StoreIdentity) -> None:
        """Connects, subscribes, and meets all others that are subscribed."""
        validation.check_process_name(name)
        if self._closed:
            raise StoreUnavailable(f"the bus at {self._display_address} is closed")
        if self._name:
            raise MisuseError(f"the bus at {self._display_address} is open already")
        self._name = name
        self._signer, self._channels = FrameSigner(identity, name), Channels(self._prefix, identity)
        self._listener.open(ears)
        speaking = self._publisher = self._create_client(on_connected=self._greet_again, on_lost=self._mark_loss)
        listening = self._subscriber = self._create_client(
            on_connected=self._subscribe, on_lost=self._subscriber_lost, on_push=self._frame_received
        )
        try:
            await speaking.open()
            await listening.open()
            await asyncio.gather(*self._subscribe_futures)
            await self._greet_peers(speaking)
        except BaseException:
            await self.close()
            raise
        self._opened = True
        self._schedule_check()
        if self._loss_unannounced:
            self._greet_again()

    async def close(self) -> None:
        """Says goodbye, and hangs up."""
        if self._closed:
            return
        if self._opened:
            self._publish_frame(None, _BYE)
        self._closed = True
        self._listener.close()
        for timer in filter(None, (self._check_timer, self._report_timer)):
            timer.cancel()
        if self._greet_task is not None:
            self._greet_task.cancel()
            await asyncio.wait([self._greet_task])
        for line in (self._publisher, self._subscriber):
            if line is not None:
                await line.close()

    # --- sending ---------------------------------------------------------------------------------

    def send(self, to: str, message: bytes) -> bool:
        """Publishes a message for one process. Nobody is there for certain if it has said goodbye."""
        self._check_message(message)
        validation.check_process_name(to)
        if to in self._departed:
            return False
        if not self._closed:
            self._publish_message(to, message)
        return True

    def publish(self, message: bytes) -> None:
        """Publishes a message for all."""
        self._check_message(message)
        if not self._closed:
            self._publish_message(None, message)

    async def sent(self) -> None:
        """Waits for Redis."""
        while self._unsent_bytes > HIGH_WATER_BYTES:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._drained])

    def _check_message(self, message: bytes) -> None:
        validation.check_message(message)
        if not self._name:
            raise MisuseError(f"the bus at {self._display_address} is not open yet")

    def _publish_message(self, to: str | None, message: bytes) -> None:
        """Publish a message. It is lost if an earlier one was, and the other processes do not know that yet."""
        if self._loss_unannounced:
            self._publish_failed(to)
        else:
            self._publish_frame(to, _MESSAGE, message)

    def _publish_frame(self, to: str | None, kind: bytes, body: bytes = b"") -> None:
        """Publish to one process or to all. Nothing waits for a connection: what cannot be sent now is lost."""
        line = self._publisher
        if line is None or not line.connected or self._unsent_bytes > MAX_UNSENT_BYTES:
            self._publish_failed(to)
            return
        channel = self._channels.all if to is None else self._channels.for_peer(to)
        packed = encode_command("PUBLISH", channel, self._signer.sign(ALL if to is None else to, kind, body))
        self._unsent_bytes += len(packed)
        line.submit(packed).add_done_callback(partial(self._publish_done, to, kind, len(packed)))

    def _publish_done(self, to: str | None, kind: bytes, size: int, done: asyncio.Future[int]) -> None:
        """Redis has taken something, and says how many have got it; or has not."""
        self._unsent_bytes -= size
        if self._unsent_bytes <= HIGH_WATER_BYTES and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if done.exception() is not None:
            self._publish_failed(to)
        elif not done.result() and to is not None:
            self._stop_awaiting(to)
            if kind == _MESSAGE or to in self._peers:
                self._peer_missing(to)

    def _publish_failed(self, to: str | None) -> None:
        """Something may not have arrived: report it here soon, and to the other processes before anything else."""
        self._mark_loss()
        self._schedule_loss_report(to)

    def _schedule_loss_report(self, to: str | None) -> None:
        """Who is told may try again at once, and fail again: so it is told every now and then, of all that has failed
        meanwhile."""
        self._unreported_losses.add(to)
        if self._report_timer is None:
            loop = asyncio.get_running_loop()
            self._report_timer = loop.call_at(
                max(loop.time(), self._reported_at + LOSS_REPORT_INTERVAL), self._report_losses
            )

    def _report_losses(self) -> None:
        """Report losses. A process that had no subscriber may have subscribed since, and sent something that the
        listener drops when it is told: so that process is told as well."""
        self._report_timer, self._reported_at = None, asyncio.get_running_loop().time()
        unreached, self._unreported_losses = self._unreported_losses, set()
        for name in unreached:
            if name is not None and name not in self._departed and not self._loss_unannounced:
                self._publish_frame(name, _HELLO_AFTER_LOSS)
            self._listener.lost(name)
        if self._loss_unannounced and (self._channel_query is None or self._channel_query.done()):
            self._greet_again()

    def _peer_missing(self, name: str) -> None:
        self._peers.discard(name)
        self._schedule_loss_report(name)

    # --- hearing ---------------------------------------------------------------------------------

    def _frame_received(self, message: list[Any]) -> None:
        """Something was published. Until all channels are subscribed to, it counts as lost."""
        if not self._subscribed:
            return
        frame = self._signer.verify(message[-1])
        if isinstance(frame, Rejection):
            self._listener.rejected(frame, self._display_address)
            return
        sender, kind, body = frame.sender, frame.payload[:1], frame.payload[1:]
        if sender == self._name or kind not in _KINDS:
            return
        if not frame.fresh:
            self._challenge_sender(sender)
        elif kind == _BYE:
            self._peer_departed(sender)
        else:
            self._accept_frame(sender, kind, body)

    def _challenge_sender(self, sender: str) -> None:
        """Drop a broadcast that may be a replay. If its sender is there, its answer proves that, and counts."""
        if sender in self._peers:
            self._unverified_senders.add(sender)
        if sender not in self._departed and not self._closed:
            self._publish_frame(sender, _HELLO)

    def _accept_frame(self, sender: str, kind: bytes, body: bytes) -> None:
        """Something came from a process that is there."""
        if kind == _HELLO_AFTER_LOSS or sender in self._unverified_senders:
            self._unverified_senders.discard(sender)
            self._listener.lost(sender)
        self._add_peer(sender)
        if kind == _MESSAGE:
            self._listener.heard(sender, body)
        elif kind != _HELLO_ANSWER and not self._closed:
            self._publish_frame(sender, _HELLO_ANSWER)

    def _add_peer(self, name: str) -> None:
        if name not in self._peers:
            self._peers.add(name)
            self._listener.met(name)
        self._stop_awaiting(name)

    def _stop_awaiting(self, name: str) -> None:
        self._awaiting_answer.discard(name)
        if not self._awaiting_answer and self._all_answered is not None and not self._all_answered.done():
            self._all_answered.set_result(None)

    def _peer_departed(self, name: str) -> None:
        """A process has ended, and nobody will ever have its name."""
        self._departed[name] = None
        if len(self._departed) > MAX_DEPARTED:
            del self._departed[next(iter(self._departed))]
        self._stop_awaiting(name)
        self._peer_missing(name)

    # --- meeting ---------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        """There is a connection to hear by."""
        if self._subscriber is not None:
            channels = (self._channels.all, self._channels.for_peer(self._name))
            self._subscribe_futures = self._subscriber.submit_all(
                [(encode_command("SUBSCRIBE", each), ()) for each in channels]
            )
            self._subscribe_futures[0].add_done_callback(_ignore_error)
            self._subscribe_futures[-1].add_done_callback(self._subscription_confirmed)

    def _subscription_confirmed(self, done: asyncio.Future[Any]) -> None:
        if done.exception() is not None:
            return  # the connection is lost, so there will be another
        self._subscribed = True
        if self._loss_unannounced:
            self._listener.lost(None)  # what is heard from now on may follow something that is missing
        self._greet_again()

    def _mark_loss(self) -> None:
        self._hello_kind, self._loss_unannounced = _HELLO_AFTER_LOSS, True

    def _subscriber_lost(self) -> None:
        self._subscribed = False
        self._mark_loss()

    def _greet_again(self) -> None:
        """Start over with the other processes after a loss, as soon as there are both connections."""
        speaking = self._publisher
        if self._closed or not self._opened or not self._subscribed or speaking is None or not speaking.connected:
            return
        if self._greet_task is not None:
            self._greet_task.cancel()
        self._greet_task = asyncio.create_task(self._greet_peers(speaking))
        self._greet_task.add_done_callback(_ignore_error)

    async def _greet_peers(self, publisher: RedisClient) -> None:
        """Says hello to all, and waits for those that are there; not for ever, since one may be stopped."""
        self._channel_query = publisher.submit(
            encode_command("PUBSUB", "CHANNELS", prefix_pattern(self._channels.peer_prefix))
        )
        channels = await self._channel_query
        if not self._subscribed:  # another meeting follows the next subscription
            raise StoreUnavailable(f"a connection of the bus at {self._display_address} was lost")
        names = [self._channels.peer_name(channel.decode("utf-8", "replace")) for channel in channels]
        self._awaiting_answer = {name for name in names if name is not None} - {self._name}
        self._all_answered = asyncio.get_running_loop().create_future()
        self._loss_unannounced = False
        for name in [*self._awaiting_answer]:
            self._publish_frame(name, self._hello_kind)
        if self._hello_kind == _HELLO_AFTER_LOSS:
            self._unreported_losses.clear()
            self._listener.lost(None)
        if self._awaiting_answer:
            await asyncio.wait([self._all_answered], timeout=ANSWER_TIMEOUT)
        for name in [*self._awaiting_answer]:
            self._add_peer(name)

    # --- now and then ----------------------------------------------------------------------------

    def _schedule_check(self) -> None:
        self._check_timer = asyncio.get_running_loop().call_later(self._check_interval, self._check_health)

    def _check_health(self) -> None:
        """Whether we would hear anything, and whether those are there whom we know."""
        if self._subscriber is not None and self._subscriber.connected:
            self._subscriber.submit(encode_command("PING")).add_done_callback(_ignore_error)
        if self._publisher is not None and self._publisher.connected and self._peers:
            names = sorted(self._peers)
            asked = self._publisher.submit(encode_command("PUBSUB", "NUMSUB", *map(self._channels.for_peer, names)))
            asked.add_done_callback(partial(self._subscriber_counts_received, names))
        self._schedule_check()

    def _subscriber_counts_received(self, names: list[str], done: asyncio.Future[list[Any]]) -> None:
        if done.exception() is None:
            for name, count in zip(names, done.result()[1::2], strict=True):
                if not count:
                    self._peer_missing(name)


def _ignore_error(done: asyncio.Future[Any]) -> None:
    """Whether it was done is seen when there is a connection again."""
    if not done.cancelled():
        done.exception()
