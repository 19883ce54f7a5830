"""Servers that cannot run with workers, and addresses of workers."""

import os
import socket
import threading

import pytest

from trunkline import MemoryStore, Server
from trunkline.errors import MisuseError, TransportError
from trunkline.transports.listening import bind


def test_workers_refuse_a_memory_store(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        Server("workers", store=MemoryStore()).run("http", workers=2)
    assert "need a store that processes can share" in capsys.readouterr().err


def test_workers_need_the_main_thread() -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            Server("workers").run("http", workers=2)
        except MisuseError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


def test_workers_need_fork(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(SystemExit, match="2"):
        Server("workers").run("http", workers=2)
    assert "needs os.fork" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "::", ""])
def test_chosen_port_is_the_same_for_all_addresses(host: str) -> None:
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
def test_unknown_host_is_named_in_the_error(host: str) -> None:
    with pytest.raises(TransportError, match=f"cannot listen on {host}:0: "):
        bind(host, 0)
