"""Sockets that systemd passed: which variables and descriptors are accepted."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from trunkline.errors import ConfigError
from trunkline.transports import systemd
from trunkline.transports.systemd import parse_variables, take_sockets

PID = 42


def variables(**changed: str) -> Mapping[str, str]:
    return {"LISTEN_PID": "42", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "web:mcp", **changed}


def test_descriptors_begin_at_three_and_have_names() -> None:
    assert parse_variables(variables(), PID) == [("web", 3), ("mcp", 4)]


def test_sockets_without_names_are_unknown() -> None:
    assert parse_variables({"LISTEN_PID": "42", "LISTEN_FDS": "1"}, PID) == [("unknown", 3)]


def test_no_variables_mean_no_sockets() -> None:
    assert parse_variables({}, PID) == []
    assert parse_variables({"LISTEN_PID": "42"}, PID) == []


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"LISTEN_PID": "41"}, "LISTEN_PID is '41', but this is process 42: systemd passed its sockets to another"),
        ({"LISTEN_PID": ""}, "a shell script has to start it with exec"),
        ({"LISTEN_FDS": "many"}, "LISTEN_FDS is the number of sockets that systemd passed, not 'many'"),
        ({"LISTEN_FDS": "-1"}, "LISTEN_FDS is the number of sockets"),
        ({"LISTEN_FDNAMES": "web"}, "LISTEN_FDNAMES has 1 names for the 2 sockets of LISTEN_FDS"),
    ],
)
def test_invalid_variables_are_explained(changed: Mapping[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_variables(variables(**changed), PID)
    assert why in str(raised.value)


@contextmanager
def passed(monkeypatch: pytest.MonkeyPatch, *names: str, kind: str = "tcp") -> Iterator[list[int]]:
    """Pass listening sockets to this process, with their descriptors wherever there is room."""
    kinds = {"tcp": (socket.AF_INET, socket.SOCK_STREAM), "udp": (socket.AF_INET, socket.SOCK_DGRAM)}
    opened = [socket.socket(*kinds[kind]) for _ in names]
    for each in opened:
        each.bind(("127.0.0.1", 0))
        if kind == "tcp":
            each.listen()
    numbers = [each.detach() for each in opened]
    monkeypatch.setattr(systemd, "_remaining", list(zip(names, numbers, strict=True)))
    try:
        yield numbers
    finally:
        for number in numbers:
            try:
                os.close(number)
            except OSError:
                continue


def test_sockets_are_taken_by_name_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with passed(monkeypatch, "web", "mcp", "web") as numbers:
        first = take_sockets("web")
        assert [each.fileno() for each in first] == [numbers[0], numbers[2]]
        assert not any(each.get_inheritable() or each.getblocking() for each in first)
        with pytest.raises(ConfigError, match="no socket with the name 'web', only mcp: set FileDescriptorName=web in"):
            take_sockets("web")
        rest = take_sockets()
        assert [each.fileno() for each in rest] == [numbers[1]]
        with pytest.raises(ConfigError, match="systemd passed no sockets: LISTEN_FDS is not set, or the sockets were"):
            take_sockets()
        for each in (*first, *rest):
            each.close()


def test_variables_are_removed_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**variables(LISTEN_PID="1"), "LISTEN_PIDFDID": "7"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="LISTEN_PID"):
        take_sockets()
    assert not [name for name in os.environ if name.startswith("LISTEN_")]


def test_datagram_socket_is_refused_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with passed(monkeypatch, "web", kind="udp") as numbers:
        with pytest.raises(
            ConfigError, match=rf"the socket web \(descriptor {numbers[0]}\) does not accept connections"
        ):
            take_sockets()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(numbers[0])


def test_connected_socket_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(systemd, "_remaining", [("web", ours.detach())])
    with theirs, pytest.raises(ConfigError, match="use ListenStream= and Accept=no in the socket unit"):
        take_sockets()


def test_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    number = os.open(tmp_path / "file", os.O_CREAT)
    monkeypatch.setattr(systemd, "_remaining", [("web", number)])
    try:
        with pytest.raises(ConfigError, match=rf"descriptor {number} \(web\) is not a socket"):
            take_sockets()
    finally:
        os.close(number)


def test_socket_of_another_family_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (
        passed(monkeypatch, "web"),
        pytest.raises(ConfigError, match="web is a TCP socket, and this transport needs a U"),
    ):
        take_sockets(unix=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    listening.listen()
    monkeypatch.setattr(systemd, "_remaining", [("web", listening.detach())])
    with pytest.raises(ConfigError, match="a Unix socket, and this transport needs a TCP socket: ListenStream=127"):
        take_sockets(unix=False)
