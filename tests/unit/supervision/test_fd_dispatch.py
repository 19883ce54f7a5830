"""Connections that the supervisor accepts for its workers."""

import selectors
import socket
import time
from pathlib import Path

import pytest

from trunkline.fdlimit import DescriptorReserve
from trunkline.supervision.fd_dispatch import ConnectionDispatcher
from trunkline.supervision.worker_table import WorkerTable


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_shut_down_listener_is_dropped_and_others_stay(family: int, tmp_path: Path) -> None:
    now, said = time.monotonic(), list[str]()
    places = [socket.socket(family, socket.SOCK_STREAM) for _ in range(2)]
    for number, place in enumerate(places):
        place.bind(str(tmp_path / str(number)) if family == socket.AF_UNIX else ("127.0.0.1", 0))
        place.listen()
        place.setblocking(False)
    rota = WorkerTable(1)
    rota.mark_started(0, now)
    rota.record_heartbeat(0, now + 3600, "ready", 0)  # it is never late
    with selectors.DefaultSelector() as selector:
        handing = ConnectionDispatcher(places, rota, {}, selector, reserve=DescriptorReserve(0), report=said.append)
        handing.update(now)
        places[0].shutdown(socket.SHUT_RDWR)
        for key, _ in selector.select(60):
            key.data()
        assert [key.fileobj for key in selector.get_map().values()] == [places[1]]
        assert places[0].fileno() == -1
        handing.update(now)
        handing.close()
    assert len(said) == 1
    assert "has ended: its socket was shut down or closed" in said[0]
    assert places[1].fileno() == -1
