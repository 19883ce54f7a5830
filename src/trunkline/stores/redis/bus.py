"""Bus on Redis publish/subscribe: a message reaches the processes that are subscribed at that moment.

Each process subscribes to two channels, one for broadcasts and one of its own, over one connection, and publishes over
another. So messages from one process to another stay in order on either channel. A joining process asks Redis for the
channels of all peers, sends each a hello, and waits for the answers.

Redis delivers to subscribers of every database alike, and accepts messages from any client. So channel names contain
the identity of the store, the name of a process is followed by a tag that only processes of that store can compute, and
every message is a signed frame (`signed_frames.py`). A broadcast counts only if its sender has sent this process a
direct frame before. Otherwise the receiver sends a hello, and the answer proves that the sender exists.

Messages that are published while a connection is down are lost, and Redis reports that to no process. So a process that
has lost a connection starts over with all peers once it has both connections again: it sends each of them a
`_HELLO_AFTER_LOSS`, reports `lost(None)` to its own listener in the same loop iteration, and sends nothing else before
that. A process that receives a `_HELLO_AFTER_LOSS` reports its sender as lost. Redis returns the number of subscribers
that received a message: a peer without any is reported as lost, and sent a `_HELLO_AFTER_LOSS` at that moment, in case
it has subscribed meanwhile. A listener drops its work for a lost peer, and no process waits for dropped work: whenever
one side reports a loss, the other side reports it as well, and not earlier.

The bus detects a process that ended without a goodbye by periodically querying the number of its subscribers.
"""

import asyncio
import hmac
import ssl
from functools import lru_cache, partial
from typing import Any, Final

from trunkline.errors import StoreUnavailable
from trunkline.stores.bus import BusListener, is_process_name
from trunkline.stores.bus_endpoint import BusEndpoint, check_process_name
from trunkline.stores.futures import ignore_error
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.redis.client import RedisClient
from trunkline.stores.redis.connection import encode_command
from trunkline.stores.redis.url import RedisAddress
from trunkline.stores.redis.watches import prefix_pattern
from trunkline.stores.signed_frames import ALL, Rejection

__all__ = ["Channels", "RedisBus"]

HIGH_WATER_BYTES: Final = 1 << 20  # unconfirmed bytes above which senders should wait
MAX_UNSENT_BYTES: Final = 64 << 20  # unconfirmed bytes at which sending stops
LOSS_REPORT_INTERVAL: Final = 0.2  # seconds between reports of lost messages
ANSWER_TIMEOUT: Final = 2.0  # seconds that a joining process waits for answers; a peer may be suspended
MAX_DEPARTED: Final = 1000  # names

_MESSAGE: Final = b"m"
_HELLO: Final = b"h"
_HELLO_AFTER_LOSS: Final = b"a"  # the sender has just reported the receiver as lost to its own listener
_HELLO_ANSWER: Final = b"y"  # answer to either hello
_BYE: Final = b"b"
_KINDS: Final = {_MESSAGE, _HELLO, _HELLO_AFTER_LOSS, _HELLO_ANSWER, _BYE}
_TAG: Final = 16  # characters


class Channels:
    """Channel names of one deployment."""

    def __init__(self, prefix: str, identity: StoreIdentity) -> None:
        self._key = identity.key("bus channels")
        self.all = f"{prefix}bus:{identity.id}:all"
        self.peer_prefix = f"{prefix}bus:{identity.id}:to:"  # of each process's channel
        self.for_peer = lru_cache(1024)(self._channel_for_peer)

    def _channel_for_peer(self, name: str) -> str:
        """Return the channel of a process."""
        return f"{self.peer_prefix}{name}:{hmac.digest(self._key, name.encode(), 'sha256').hex()[:_TAG]}"

    def peer_name(self, channel: str) -> str | None:
        """Return the process of a channel, or None if its tag is wrong: a foreign client has subscribed to it."""
        name = channel[len(self.peer_prefix) :].rpartition(":")[0]
        return name if is_process_name(name) and self.for_peer(name) == channel else None


class RedisBus:
    """Bus between the processes of one store, on Redis publish/subscribe."""

    def __init__(self, address: RedisAddress, tls: ssl.SSLContext | None, *, prefix: str, patience: float) -> None:
        self._display_address = str(address)
        self._create_client = partial(RedisClient, address, tls, patience)
        self._prefix = prefix
        self._check_interval = patience  # seconds between health checks
        self._endpoint = BusEndpoint(f"the bus at {address}")
        self._channels: Channels
        self._opened = False
        self._publisher: RedisClient
        self._subscriber: RedisClient
        self._subscribe_futures: list[asyncio.Future[Any]] = []
        self._subscribed = False
        self._loss_unannounced = False  # messages were lost, and the peers do not know it yet
        self._peers: set[str] = set()
        self._departed: dict[str, None] = {}  # the latest peers that said goodbye
        self._unverified_senders: set[str] = set()  # peers with dropped broadcasts, which may have been replays
        self._awaiting_answer: set[str] = set()  # peers
        self._all_answered: asyncio.Future[None] | None = None
        self._greet_task: asyncio.Task[None] | None = None
        self._channel_query: asyncio.Future[Any] | None = None  # of existing channels
        self._unsent_bytes = 0  # unconfirmed
        self._drained: asyncio.Future[None] | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._unreported_losses: set[str | None] = set()  # peers whose messages may be lost; None: any
        self._report_timer: asyncio.TimerHandle | None = None
        self._reported_at = 0.0  # time of the last report

    # --- lifecycle ---------------------------------------------------------------------------------

    async def open(self, name: str, ears: BusListener, identity: StoreIdentity) -> None:
        """Connect, subscribe, and exchange hellos with all subscribed peers."""
        self._endpoint.open(name, ears, identity)
        self._channels = Channels(self._prefix, identity)
        self._publisher = self._create_client(on_connected=self._greet_again, on_lost=self._mark_loss)
        self._subscriber = self._create_client(
            on_connected=self._subscribe, on_lost=self._subscriber_lost, on_push=self._frame_received
        )
        try:
            await self._publisher.open()
            await self._subscriber.open()
            await asyncio.gather(*self._subscribe_futures)
            await self._greet_peers()
        except BaseException:
            await self.close()
            raise
        self._opened = True
        self._schedule_check()
        if self._loss_unannounced:
            self._greet_again()

    async def close(self) -> None:
        """Publish a goodbye, and disconnect."""
        if self._endpoint.closed:
            return
        if self._opened:
            self._publish_frame(None, _BYE)
        self._endpoint.close()
        for timer in filter(None, (self._check_timer, self._report_timer)):
            timer.cancel()
        if self._greet_task is not None:
            self._greet_task.cancel()
            await asyncio.wait([self._greet_task])
        if self._endpoint.name:
            await self._publisher.close()
            await self._subscriber.close()

    # --- sending -----------------------------------------------------------------------------------

    def send(self, to: str, message: bytes) -> bool:
        """Publish a message to one process. A process that has said goodbye certainly does not exist any more."""
        self._endpoint.check_message(message)
        check_process_name(to)
        if to in self._departed:
            return False
        if not self._endpoint.closed:
            self._publish_message(to, message)
        return True

    def publish(self, message: bytes) -> None:
        """Publish a message to all peers."""
        self._endpoint.check_message(message)
        if not self._endpoint.closed:
            self._publish_message(None, message)

    async def sent(self) -> None:
        """Wait until Redis has confirmed enough messages."""
        while self._unsent_bytes > HIGH_WATER_BYTES:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._drained])

    def _publish_message(self, to: str | None, message: bytes) -> None:
        """Publish a message. It counts as lost if an earlier one was, and the peers do not know that yet."""
        if self._loss_unannounced:
            self._publish_failed(to)
        else:
            self._publish_frame(to, _MESSAGE, message)

    def _publish_frame(self, to: str | None, kind: bytes, body: bytes = b"") -> None:
        """Publish a frame to one process or to all. Without a connection it is lost."""
        if not self._publisher.connected or self._unsent_bytes > MAX_UNSENT_BYTES:
            self._publish_failed(to)
            return
        channel = self._channels.all if to is None else self._channels.for_peer(to)
        packed = encode_command("PUBLISH", channel, self._endpoint.signer.sign(ALL if to is None else to, kind, body))
        self._unsent_bytes += len(packed)
        self._publisher.submit(packed).add_done_callback(partial(self._publish_done, to, kind, len(packed)))

    def _publish_done(self, to: str | None, kind: bytes, size: int, done: asyncio.Future[int]) -> None:
        """Handle the reply of Redis, which has the number of receivers, or the failure."""
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
        """Note a possible loss: report it to the listener soon, and to the peers before any other message."""
        self._mark_loss()
        self._schedule_loss_report(to)

    def _schedule_loss_report(self, to: str | None) -> None:
        """Report losses in intervals, because a listener may retry at once and fail again."""
        self._unreported_losses.add(to)
        if self._report_timer is None:
            loop = asyncio.get_running_loop()
            self._report_timer = loop.call_at(
                max(loop.time(), self._reported_at + LOSS_REPORT_INTERVAL), self._report_losses
            )

    def _report_losses(self) -> None:
        """Report losses. A peer that had no subscriber may have subscribed since, and sent messages that the
        listener will drop. So that peer learns of the loss as well."""
        self._report_timer, self._reported_at = None, asyncio.get_running_loop().time()
        unreached, self._unreported_losses = self._unreported_losses, set()
        for name in unreached:
            if name is not None and name not in self._departed and not self._loss_unannounced:
                self._publish_frame(name, _HELLO_AFTER_LOSS)
            self._endpoint.report_lost(name)
        if self._loss_unannounced and (self._channel_query is None or self._channel_query.done()):
            self._greet_again()

    def _peer_missing(self, name: str) -> None:
        self._peers.discard(name)
        self._schedule_loss_report(name)

    # --- receiving ---------------------------------------------------------------------------------

    def _frame_received(self, message: list[Any]) -> None:
        """Handle a published frame. Frames count as lost until all channels are subscribed."""
        if not self._subscribed:
            return
        frame = self._endpoint.signer.verify(message[-1])
        if isinstance(frame, Rejection):
            self._endpoint.report_rejected(frame, self._display_address)
            return
        sender, kind, body = frame.sender, frame.payload[:1], frame.payload[1:]
        if sender == self._endpoint.name or kind not in _KINDS:
            return
        if not frame.fresh:
            self._challenge_sender(sender)
        elif kind == _BYE:
            self._peer_departed(sender)
        else:
            self._accept_frame(sender, kind, body)

    def _challenge_sender(self, sender: str) -> None:
        """Drop a broadcast that may be a replay. If its sender exists, it answers the hello and becomes known."""
        if sender in self._peers:
            self._unverified_senders.add(sender)
        if sender not in self._departed and not self._endpoint.closed:
            self._publish_frame(sender, _HELLO)

    def _accept_frame(self, sender: str, kind: bytes, body: bytes) -> None:
        """Handle a frame of an existing peer."""
        if kind == _HELLO_AFTER_LOSS or sender in self._unverified_senders:
            self._unverified_senders.discard(sender)
            self._endpoint.report_lost(sender)
        self._add_peer(sender)
        if kind == _MESSAGE:
            self._endpoint.deliver(sender, body)
        elif kind != _HELLO_ANSWER and not self._endpoint.closed:
            self._publish_frame(sender, _HELLO_ANSWER)

    def _add_peer(self, name: str) -> None:
        if name not in self._peers:
            self._peers.add(name)
            self._endpoint.report_met(name)
        self._stop_awaiting(name)

    def _stop_awaiting(self, name: str) -> None:
        self._awaiting_answer.discard(name)
        if not self._awaiting_answer and self._all_answered is not None and not self._all_answered.done():
            self._all_answered.set_result(None)

    def _peer_departed(self, name: str) -> None:
        """Handle the goodbye of a process. Its name is never used again."""
        self._departed[name] = None
        if len(self._departed) > MAX_DEPARTED:
            del self._departed[next(iter(self._departed))]
        self._stop_awaiting(name)
        self._peer_missing(name)

    # --- joining -----------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        """Subscribe over a new connection."""
        channels = (self._channels.all, self._channels.for_peer(self._endpoint.name))
        self._subscribe_futures = self._subscriber.submit_all([encode_command("SUBSCRIBE", each) for each in channels])
        self._subscribe_futures[0].add_done_callback(ignore_error)
        self._subscribe_futures[-1].add_done_callback(self._subscription_confirmed)

    def _subscription_confirmed(self, done: asyncio.Future[Any]) -> None:
        if done.exception() is not None:
            return  # the connection is lost; the next one subscribes again
        self._subscribed = True
        if self._loss_unannounced:
            self._endpoint.report_lost(None)  # later messages may follow missing ones
        self._greet_again()

    def _mark_loss(self) -> None:
        self._loss_unannounced = True

    def _subscriber_lost(self) -> None:
        self._subscribed = False
        self._mark_loss()

    def _greet_again(self) -> None:
        """Start over with the peers after a loss, as soon as both connections exist."""
        if self._endpoint.closed or not self._opened or not self._subscribed or not self._publisher.connected:
            return
        if self._greet_task is not None:
            self._greet_task.cancel()
        self._greet_task = asyncio.create_task(self._greet_peers())
        self._greet_task.add_done_callback(ignore_error)

    async def _greet_peers(self) -> None:
        """Send a hello to all peers and wait for their answers, up to a timeout, since one may be suspended."""
        self._channel_query = self._publisher.submit(
            encode_command("PUBSUB", "CHANNELS", prefix_pattern(self._channels.peer_prefix))
        )
        channels = await self._channel_query
        if not self._subscribed:  # the next subscription greets the peers again
            raise StoreUnavailable(f"a connection of the bus at {self._display_address} was lost")
        names = [self._channels.peer_name(channel.decode("utf-8", "replace")) for channel in channels]
        self._awaiting_answer = {name for name in names if name is not None} - {self._endpoint.name}
        self._all_answered = asyncio.get_running_loop().create_future()
        after_loss, self._loss_unannounced = self._loss_unannounced, False
        for name in [*self._awaiting_answer]:
            self._publish_frame(name, _HELLO_AFTER_LOSS if after_loss else _HELLO)
        if after_loss:
            self._unreported_losses.clear()
            self._endpoint.report_lost(None)
        if self._awaiting_answer:
            await asyncio.wait([self._all_answered], timeout=ANSWER_TIMEOUT)
        for name in [*self._awaiting_answer]:
            self._add_peer(name)

    # --- health checks -----------------------------------------------------------------------------

    def _schedule_check(self) -> None:
        self._check_timer = asyncio.get_running_loop().call_later(self._check_interval, self._check_health)

    def _check_health(self) -> None:
        """Check the subscriber's connection, and whether known peers are still subscribed."""
        if self._subscriber.connected:
            self._subscriber.submit(encode_command("PING")).add_done_callback(ignore_error)
        if self._publisher.connected and self._peers:
            names = sorted(self._peers)
            counts = self._publisher.submit(encode_command("PUBSUB", "NUMSUB", *map(self._channels.for_peer, names)))
            counts.add_done_callback(partial(self._subscriber_counts_received, names))
        self._schedule_check()

    def _subscriber_counts_received(self, names: list[str], done: asyncio.Future[list[Any]]) -> None:
        if done.exception() is None:
            for name, count in zip(names, done.result()[1::2], strict=True):
                if not count:
                    self._peer_missing(name)
