"""Leaks of tokens, codes and secrets: in logs, errors, terminal output, or readable files."""

import asyncio
import importlib
import logging
import os
import pkgutil
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Struct
from tests.attacks.attacked_server import AttackedServer, protected
from tests.attacks.fake_internet import issuer, page
from tests.attacks.oauth_login import Login, login
from tests.attacks.raw import ask, begin, initialize, tool
from tests.limits import PATIENCE

import trunkline.auth
from trunkline.auth import ClientCredentials, FileTokens, Introspection, Principal, StaticTokens
from trunkline.auth.server.authorization_header import PresentedToken
from trunkline.errors import StoreError

CANARY = "canary-7c1e"
SECRET = {  # members with secrets
    *("access", "access_token", "assertion", "body", "client_secret", "code", "headers", "key", "presented"),
    *("refresh", "refresh_token", "secret", "sent_token", "state", "token", "verifier"),
}
HARMLESS = {
    ("Challenge", "token"),
    ("FetchResponse", "headers"),
    ("FetchResponse", "body"),
    ("Rejected", "headers"),
}  # of peers
HARMLESS |= {("Verified", "key"), ("_CacheEntry", "verifier")}  # a key id; the name of a verifier
PARTS = {"location": SimpleNamespace(resource="https://mcp.example/mcp"), "presented": PresentedToken("Bearer", CANARY)}


def structs() -> dict[str, type[Struct]]:
    """All structures of authorization, by module."""
    found: dict[str, type[Struct]] = {}
    for module in pkgutil.walk_packages(trunkline.auth.__path__, "trunkline.auth."):
        for name, member in vars(importlib.import_module(module.name)).items():
            if isinstance(member, type) and issubclass(member, Struct) and member.__module__ == module.name:
                found[f"{module.name}.{name}"] = member
    return found


def test_reprs_have_no_secrets() -> None:
    telling: list[str] = []
    for where, kind in structs().items():
        secret = [name for name in kind.__struct_fields__ if name in SECRET and (kind.__name__, name) not in HARMLESS]
        if secret:
            made = kind(**{name: PARTS.get(name, f"{CANARY} {name}") for name in kind.__struct_fields__})
            telling += [f"{where}.{name}" for name in secret if f"{CANARY} {name}" in repr(made) + str(made)]
            telling += [where] if f"{CANARY}'" in repr(made) else []
    assert telling == []


# --- clients -----------------------------------------------------------------------------------------


def canaries(one: Login, *, expires: int = 3600) -> None:
    """An authorization server whose secrets are recognizable."""
    one.person.back = lambda asked: one.person.agreed(asked, code=f"{CANARY}-code")
    issued = {"access_token": f"{CANARY}-access", "refresh_token": f"{CANARY}-refresh", "token_type": "Bearer"}
    one.authority.site.pages["/token"] = page({**issued, "expires_in": expires})
    made = {"client_id": "c", "client_secret": f"{CANARY}-secret", "token_endpoint_auth_method": "client_secret_post"}
    one.authority.site.pages["/register"] = page(made, 201)


def text_of_error(error: BaseException) -> str:
    """All text of an error and its causes."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))


async def test_client_errors_and_logs_have_no_secrets(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    async with login() as one:
        store = FileTokens(tmp_path / "tokens")
        canaries(one)
        engine = one.engine(store=store)
        assert await one.challenged(engine)
        said += [repr(one_) for one_ in (engine, vars(engine), store, one.oauth(store=store))]
        broken = page(b"<html>" + CANARY.encode(), 200)
        for answer in (page({"error": "invalid_grant"}, 400), broken, page({}, 500), page({"access_token": CANARY})):
            one.authority.site.pages["/token"] = answer
            said.append(text_of_error(await one.fails(one.engine(store=FileTokens(tmp_path / "others")))))
            secret = ClientCredentials("app", secret=f"{CANARY}-secret")
            said += [text_of_error(await one.fails(one.engine(secret))), repr(secret), repr(vars(secret)["_binding"])]
        one.person.back = lambda asked: one.person.agreed(asked, code=f"{CANARY}-code", state="x")
        said.append(text_of_error(await one.fails(one.engine(store=FileTokens(tmp_path / "more")))))
        one.server.asked.clear()
    said += [caplog.text, *capfd.readouterr()]
    assert [text[max(0, text.find(CANARY) - 200) :][:300] for text in said if CANARY in text] == []
    holding = {
        path.parent.name for path in tmp_path.rglob("*") if path.is_file() and CANARY in path.read_text("latin-1")
    }
    assert holding <= {"tokens", "others", "more"}
    assert "tokens" in holding


# --- servers -----------------------------------------------------------------------------------------


async def test_server_errors_and_logs_have_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    known = f"{CANARY}-static"
    async with issuer() as down:
        down.site.other = down.site.pages["/jwks"] = page({}, 503)
        asking = Introspection(down.name, client_id="c", client_secret=f"{CANARY}-secret", endpoint=f"{down.name}/ask")
        verifiers = (StaticTokens({known: Principal("ada", scopes=("s",))}), asking)
        async with protected(*verifiers, public_url="https://mcp.example/mcp") as place:
            said = [repr(verifiers), repr(vars(verifiers[0]))]
            for token in (known, f"{CANARY}-unknown", f"{CANARY}.{CANARY}.{CANARY}", f"{CANARY}\x7f"):
                for path in ("/mcp", f"/mcp?access_token={token}", "/sse"):
                    answer = await asked_of(place, path, token)
                    said += [str(answer.headers), answer.body.decode()]
            session = await begin(place.port, authorization=f"Bearer {known}")
            mine = {"mcp_session_id": session, "authorization": f"Bearer {known}"}
            said.append(str((await ask(place.port, "POST", "/mcp", tool("effect", what="x"), **mine)).json))
            said += [repr(place.server._auth), repr(place.server._auth.tokens), repr(vars(place.server._auth.tokens))]
            said += [repr(place.observer.facts), caplog.text]
    assert "tokens cannot be verified" in caplog.text
    assert place.observer.facts
    assert [text[max(0, text.find(CANARY) - 200) :][:300] for text in said if CANARY in text] == []


async def asked_of(place: AttackedServer, path: str, token: str) -> Any:
    method, body = ("POST", initialize()) if path != "/sse" else ("DELETE", None)
    return await ask(place.port, method, path, body, authorization=f"Bearer {token}")


# --- files -------------------------------------------------------------------------------------------


async def test_stored_tokens_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = FileTokens(tmp_path / "a" / "b" / "tokens")
        await store.put("key", b"secret")
        async with store.locked("key"):
            pass
    finally:
        os.umask(before)
    made = list(tmp_path.rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o600}
    assert all(b"secret" not in path.name.encode() and "key" not in path.name for path in made)


async def refused(does: Callable[[], Any], what: str) -> None:
    try:
        await does()
    except StoreError:
        return
    raise AssertionError(f"{what} was used")


async def used(store: FileTokens) -> None:
    async with asyncio.timeout(PATIENCE), store.locked("key"):
        pass


async def test_accessible_token_files_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    store = FileTokens(folder)
    await store.put("key", b"secret")
    async with store.locked("key"):
        pass
    kept, lock = (next(folder.glob(f"*.{kind}")) for kind in ("token", "lock"))
    for mode in (0o644, 0o640, 0o620, 0o604, 0o666):
        kept.chmod(mode)
        await refused(lambda: store.get("key"), f"a file of mode {mode:o}")
        lock.chmod(mode)
        await refused(lambda: used(store), f"a lock of mode {mode:o}")
    kept.chmod(0o600)
    lock.chmod(0o600)
    for mode in (0o755, 0o750, 0o711, 0o777, 0o1777):
        folder.chmod(mode)
        for does in (lambda: store.get("key"), lambda: store.put("key", b"x"), lambda: used(store)):
            await refused(does, f"a folder of mode {mode:o}")
    folder.chmod(0o700)
    assert await store.get("key") == b"secret"


async def test_symlink_is_not_followed(tmp_path: Path) -> None:
    folder, target = tmp_path / "tokens", tmp_path / "target"
    store = FileTokens(folder)
    await store.put("key", b"secret")
    kept = next(folder.glob("*.token"))
    evil = kept.read_bytes()
    kept.unlink()
    target.write_bytes(evil)
    target.chmod(0o600)
    kept.symlink_to(target)
    await refused(lambda: store.get("key"), "what a link points to")
    await store.put("key", b"another")  # replaces the link
    assert target.read_bytes() == evil
    assert not kept.is_symlink()
    missing = tmp_path / "missing"
    (folder / f"{kept.stem}.lock").symlink_to(missing)
    await refused(lambda: used(store), "a lock that is a link")
    assert not missing.exists()
