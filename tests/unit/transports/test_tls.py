"""TLS contexts that follow certificate files."""

import logging
import os
import ssl
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.spec.certificates import Pair

from trunkline import CertificateFiles
from trunkline.errors import ConfigError, MisuseError
from trunkline.testing import ManualClock
from trunkline.transports.tls import FileVersions, LastCertificate, ServerTls, TlsOptions, make_context

INTERVAL = 10.0
FIRST, SECOND, THIRD = ((1, 1, 1),), ((2, 1, 1),), (None,)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    Pair("first").write(tmp_path)
    return CertificateFiles(tmp_path / "server.pem", tmp_path / "server.key")


# --- when changed files are loaded -----------------------------------------------------------------------


def test_unchanged_files_are_not_loaded() -> None:
    versions = FileVersions(FIRST)
    assert not any(versions.is_due(FIRST) for _ in range(3))


def test_changed_files_are_loaded_once_they_have_settled() -> None:
    versions = FileVersions(FIRST)
    assert [versions.is_due(found) for found in (SECOND, THIRD, SECOND, SECOND)] == [False, False, False, True]
    versions.mark_loaded(SECOND)
    assert not versions.is_due(SECOND)


def test_failed_version_is_not_tried_again() -> None:
    versions = FileVersions(FIRST)
    versions.is_due(SECOND)
    assert versions.is_due(SECOND)
    versions.mark_failed(SECOND)
    assert not any(versions.is_due(SECOND) for _ in range(3))
    assert [versions.is_due(found) for found in (THIRD, THIRD)] == [False, True]


def test_version_that_failed_is_tried_again_after_the_old_one_was_back() -> None:
    versions = FileVersions(FIRST)
    versions.mark_failed(SECOND)
    assert [versions.is_due(found) for found in (FIRST, SECOND, SECOND)] == [False, False, True]


# --- contexts --------------------------------------------------------------------------------------------


def passes(clock: ManualClock, intervals: int = 1) -> None:
    for _ in range(intervals):
        clock.advance(INTERVAL)


def test_new_files_give_a_new_context_for_new_connections(files: CertificateFiles) -> None:
    clock = ManualClock()
    tls = ServerTls(files, clock, INTERVAL)
    options = TlsOptions(tls, 5.0, ssl_shutdown_timeout=1.0)
    options.watch()
    before = options.arguments()
    assert before == {"ssl": tls.context, "ssl_shutdown_timeout": 1.0, "ssl_handshake_timeout": 5.0}
    passes(clock, 3)
    assert options.arguments() == before
    Pair("second").write(Path(files.certfile).parent)
    passes(clock)
    assert options.arguments() == before, "they may still be written"
    passes(clock)
    assert options.arguments()["ssl"] is not before["ssl"]
    options.close()
    after = tls.context
    Pair("third").write(Path(files.certfile).parent)
    passes(clock, 5)
    assert tls.context is after


BROKEN = {
    "half a certificate": lambda folder: (folder / "server.pem").write_bytes(Pair("x").certificate[:200]),
    "half a key": lambda folder: (folder / "server.key").write_bytes(Pair("x").key[:80]),
    "empty": lambda folder: (folder / "server.pem").write_bytes(b""),
    "another key": lambda folder: (folder / "server.key").write_bytes(Pair("x").key),
    "missing": lambda folder: (folder / "server.key").unlink(),
}
REASONS = {
    "another key": "the private key does not belong to the certificate; replace both files together",
    "missing": "server.key: No such file or directory",
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_files_are_logged_once_and_the_old_certificate_stays(
    files: CertificateFiles, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, folder = ManualClock(), Path(files.certfile).parent
    tls = ServerTls(files, clock, INTERVAL)
    tls.watch()
    before = tls.context
    BROKEN[how](folder)
    passes(clock, 5)
    assert tls.context is before
    (line,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert line.startswith(f"cannot load the certificate {files.certfile}: ")
    assert REASONS.get(how, "no complete certificate and private key in PEM format") in line
    assert line.endswith("; new connections still use the previous certificate")
    Pair("repaired").write(folder)
    passes(clock, 2)
    assert tls.context is not before
    tls.close()


def test_reload_loads_at_once_and_logs_each_failure(files: CertificateFiles, caplog: pytest.LogCaptureFixture) -> None:
    clock, folder = ManualClock(), Path(files.certfile).parent
    tls = ServerTls(files, clock, None)
    tls.watch()
    before = tls.context
    Pair("second").write(folder)
    passes(clock, 5)
    assert tls.context is before, "there are no checks without an interval"
    tls.reload()
    assert tls.context is not before
    BROKEN["missing"](folder)
    after = tls.context
    tls.reload()
    tls.reload()
    assert tls.context is after
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 2


def test_fixed_context_stays(files: CertificateFiles) -> None:
    context, clock = make_context(files), ManualClock()
    tls = ServerTls(context, clock, INTERVAL)
    tls.watch()
    tls.reload()
    Pair("second").write(Path(files.certfile).parent)
    passes(clock, 3)
    assert tls.context is context
    assert TlsOptions(context).arguments() == {"ssl": context}
    assert TlsOptions(None, 5.0).arguments() == {}


def test_links_are_followed(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        Pair(name).write(tmp_path / name)
    (tmp_path / "live").symlink_to("old")
    clock = ManualClock()
    tls = ServerTls(CertificateFiles(tmp_path / "live/server.pem", tmp_path / "live/server.key"), clock, INTERVAL)
    tls.watch()
    before = tls.context
    (tmp_path / "next").symlink_to("new")
    (tmp_path / "next").replace(tmp_path / "live")
    passes(clock, 2)
    assert tls.context is not before
    tls.close()


def test_previous_context_is_used_while_the_files_are_broken(
    files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    clock, folder, previous = ManualClock(), Path(files.certfile).parent, make_context(files)
    assert ServerTls(files, clock, INTERVAL, previous).context is not previous
    BROKEN["missing"](folder)
    tls = ServerTls(files, clock, INTERVAL, previous)
    assert tls.context is previous
    tls.watch()
    passes(clock, 3)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    Pair("repaired").write(folder)
    passes(clock, 2)
    assert tls.context is not previous
    tls.close()


def test_last_certificate_follows_the_files_without_a_loop(files: CertificateFiles) -> None:
    folder, last = Path(files.certfile).parent, LastCertificate(files, INTERVAL)
    first = last.context
    last.check(0.0)
    Pair("second").write(folder)
    for now in (1.0, INTERVAL, INTERVAL + 1.0):
        last.check(now)
        assert last.context is first, "it is not checked more often, and has not settled"
    last.check(2 * INTERVAL)
    second = last.context
    assert second is not first
    BROKEN["another key"](folder)
    for turn in range(3, 6):
        last.check(turn * INTERVAL)
    last.reload()
    assert last.context is second


def test_last_certificate_without_interval_is_only_reloaded(files: CertificateFiles) -> None:
    last = LastCertificate(files, None)
    first = last.context
    Pair("second").write(Path(files.certfile).parent)
    for turn in range(3):
        last.check(turn * INTERVAL)
    assert last.context is first
    last.reload()
    assert last.context is not first


# --- certificate files -----------------------------------------------------------------------------------


def test_one_file_may_hold_certificate_and_key(tmp_path: Path) -> None:
    pair = Pair("both")
    (tmp_path / "both.pem").write_bytes(pair.key + pair.certificate)
    assert make_context(CertificateFiles(tmp_path / "both.pem")).verify_mode is ssl.CERT_NONE


def test_clients_need_a_certificate_with_client_cafile(files: CertificateFiles) -> None:
    context = make_context(CertificateFiles(files.certfile, files.keyfile, client_cafile=files.certfile))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1


def test_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    Pair("secret", password=b"open sesame").write(tmp_path)
    names = (tmp_path / "server.pem", tmp_path / "server.key")
    make_context(CertificateFiles(*names, password="open sesame"))
    with pytest.raises(ConfigError, match="the private key is encrypted; pass password="):
        make_context(CertificateFiles(*names))
    with pytest.raises(ConfigError, match="cannot load the certificate") as raised:
        make_context(CertificateFiles(*names, password="wrong"))
    assert "wrong" not in str(raised.value)


def test_password_is_not_shown() -> None:
    shown = repr(CertificateFiles("server.pem", password="open sesame"))
    assert "sesame" not in shown
    assert "server.pem" in shown


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"certfile": None}, "certfile= of CertificateFiles is the path of a PEM file, not None"),
        ({"certfile": "a", "keyfile": 5}, "keyfile= of CertificateFiles is the path of a PEM file, not 5"),
        ({"certfile": "a", "client_cafile": b"x"}, "client_cafile= of CertificateFiles is the path of a PEM file"),
        ({"certfile": "a", "password": 5}, "password= of CertificateFiles is a text, not of type int"),
    ],
)
def test_invalid_certificate_files_are_refused(options: Any, why: str) -> None:
    with pytest.raises(MisuseError, match=why):
        CertificateFiles(**options)


def test_unreadable_authorities_are_named(files: CertificateFiles, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(ConfigError, match="the file has no certificates"):
        make_context(CertificateFiles(files.certfile, files.keyfile, client_cafile=tmp_path / "empty.pem"))
    with pytest.raises(ConfigError, match=r"none\.pem: No such file"):
        make_context(CertificateFiles(files.certfile, files.keyfile, client_cafile=tmp_path / "none.pem"))


def test_versions_differ_for_files_of_one_size_and_time(files: CertificateFiles, tmp_path: Path) -> None:
    """A file that replaces another has its own inode."""
    clock = ManualClock()
    tls = ServerTls(files, clock, INTERVAL)
    tls.watch()
    contexts = [tls.context]
    for _ in range(2):
        for name in ("server.pem", "server.key"):
            old = (tmp_path / name).stat()
            copy = tmp_path / f"{name}.copy"
            copy.write_bytes((tmp_path / name).read_bytes())
            os.utime(copy, ns=(old.st_atime_ns, old.st_mtime_ns))
            os.link(tmp_path / name, tmp_path / f"{name}.{len(contexts)}")  # so that its inode is not used again
            copy.replace(tmp_path / name)
        passes(clock, 2)
        contexts.append(tls.context)
    assert all(first is not second for first, second in pairwise(contexts))
    tls.close()
