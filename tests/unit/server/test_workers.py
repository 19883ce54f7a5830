"""What cannot be served by workers, and where they can be reached."""

import asyncio
import os
import socket
import threading
from typing import Any

import pytest

from trunkline import MemoryStore, Server
from trunkline.errors import ConfigError, MisuseError, TransportError
from trunkline.transports.accepting import bind


@pytest.mark.parametrize(
    ("transport", "workers", "why"),
    [
        ("http", 0, "workers must be 1 or more, not 0"),
        ("http", -1, "workers must be 1 or more"),
        ("stdio", 2, "workers= is for \"http\".* not 'stdio'"),
        ("tcp", 1, "workers= is for \"http\".* not 'tcp'"),
    ],
)
def test_only_http_is_served_by_workers_and_by_one_at_least(transport: Any, workers: int, why: str) -> None:
    with pytest.raises(MisuseError, match=why):
        Server("house").run(transport, workers=workers)


def test_workers_cannot_share_what_one_process_has_in_memory() -> None:
    with pytest.raises(MisuseError, match="need a store that they can share"):
        Server("house", store=MemoryStore()).run("http", workers=2)


def test_workers_are_run_by_the_main_thread() -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            Server("house").run("http", workers=2)
        except MisuseError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


async def test_workers_are_not_run_where_a_loop_is() -> None:
    assert asyncio.get_running_loop()
    with pytest.raises(MisuseError, match="no event loop"):
        Server("house").run("http", workers=2)


def test_a_system_that_cannot_fork_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(ConfigError, match="cannot fork"):
        Server("house").run("http", workers=2)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "::", ""])
def test_a_port_that_is_left_open_is_the_same_at_every_address_of_a_host(host: str) -> None:
    places = bind(host, 0)
    try:
        (port,) = {place.getsockname()[1] for place in places}
        assert len({(place.family, place.getsockname()[0]) for place in places}) == len(places)
        for place in places:
            reached = "::1" if place.family == socket.AF_INET6 else "127.0.0.1"
            socket.create_connection((reached, port), 5.0).close()
    finally:
        for place in places:
            place.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_this_machine_is_named(host: str) -> None:
    with pytest.raises(TransportError, match=f"cannot listen at {host}:0: "):
        bind(host, 0)
