"""`trunkline run`, `dev` and `settings`."""

import asyncio
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.limits import PATIENCE
from tests.spec.certificates import Pair, shown_at
from tests.unit.cli.commands import trunkline

from trunkline import Client, Context, Server
from trunkline.cli.code_watch import changed_files, snapshot_files
from trunkline.cli.loading import load_server
from trunkline.cli.main import main
from trunkline.cli.message_log import MessageLog
from trunkline.cli.reload import Reloader
from trunkline.errors import PeerError
from trunkline.server.run.importing import Overrides

SERVER = """
from helper import WORD
from trunkline import Context, Server, Settings

server = Server("it", settings=Settings(max_calls=7, page_size=3))

@server.tool
def say() -> str:
    return WORD

@server.tool
def settings() -> list[int]:
    return [server.settings.max_calls, server.settings.page_size, server.settings.max_waiting]

server.run()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("WORD = 'one'\n")
    (tmp_path / "it.py").write_text(SERVER)
    return tmp_path / "it.py"


def rewrite(path: Path, text: str) -> None:
    """Change a file so that its time or its size differ."""
    path.write_text(text)
    later = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(later, later))


# --- run -----------------------------------------------------------------------------------------


async def test_run_serves_on_stdio(program: Path) -> None:
    async with Client([sys.executable, "-m", "trunkline", "run", str(program)]) as client:
        assert (await client.call_tool("say")).data == "one"


async def test_settings_come_from_options_environment_file_and_program(program: Path) -> None:
    from trunkline.transports.stdio.client import Command

    (program.parent / "trunkline.toml").write_text("page_size = 4\nmax_waiting = 4\n")
    command = [sys.executable, "-m", "trunkline", "run", str(program), "--max-waiting", "6"]
    environ = {"TRUNKLINE_PAGE_SIZE": "5", "TRUNKLINE_MAX_WAITING": "5"}
    async with Client(Command(command, cwd=program.parent, env=environ)) as client:
        assert (await client.call_tool("settings")).data == [7, 5, 6]


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[tuple[str, asyncio.StreamReader]]:
    """Run a command that listens; yield its address and the rest of its standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trunkline", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            while b"listens at" not in (line := await process.stderr.readline()):
                assert line, await process.wait()
        yield line.decode().split()[-1], process.stderr
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            await process.stderr.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_with(reader: asyncio.StreamReader, text: str) -> str:
    async with asyncio.timeout(PATIENCE):
        while line := (await reader.readline()).decode():
            if text in line:
                return line
    raise AssertionError(f"the output ended before {text!r}")


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_reload_keeps_clients_connected(program: Path, revision: str) -> None:
    async with (
        serving("run", str(program), "--http", "--port", "0", "--reload") as (url, err),
        Client(url, revision=revision) as client,
    ):
        changes = client.notifications("notifications/tools/list_changed")
        assert (await client.call_tool("say")).data == "one"
        rewrite(program.parent / "helper.py", "WORD = 'three'\n")
        await line_with(err, "helper.py changed; reloaded")
        async with asyncio.timeout(PATIENCE):
            await anext(changes)
        assert (await client.call_tool("say")).data == "three"
        rewrite(program, SERVER + "x =\n")
        await line_with(err, "the old code keeps serving")
        assert (await client.call_tool("say")).data == "three"
        assert client.losses == 0


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_reload_changes_the_code_of_all_workers(program: Path, revision: str) -> None:
    whole = SERVER.replace(
        "def say() -> str:\n    return WORD", "def say() -> list[str]:\n    return [WORD, str(os.getpid())]"
    )
    program.write_text(f"import os\n{whole}")
    arguments = ("run", str(program), "--http", "--port", "0", "--reload", "--workers", "2")

    async def word_of_each_worker(url: str) -> dict[str, str]:
        """Return the words of two workers by process."""
        words: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE):
            while len(words) < 2:
                async with Client(url, revision=revision) as other:
                    word, process = (await other.call_tool("say")).data
                    words[process] = word
        return words

    async with serving(*arguments) as (url, err), Client(url, revision=revision) as client:
        first = await word_of_each_worker(url)
        assert {*first.values()} == {"one"}
        rewrite(program.parent / "helper.py", "WORD = 'three'\n")
        await line_with(err, "helper.py changed; reloaded")
        async with asyncio.timeout(PATIENCE):
            while {*(await word_of_each_worker(url)).values()} != {"three"}:
                pass
        rewrite(program, f"{whole}x =\n")
        await line_with(err, "it.py changed; the old code keeps serving: it.py cannot be imported: SyntaxError")
        os.kill(int(min(first)), signal.SIGKILL)
        assert (
            "restarting" in (await asyncio.wait_for(err.readline(), PATIENCE)).decode()
        )  # no worker has reported it, too
        assert {*(await word_of_each_worker(url)).values()} == {"three"}
        assert (await client.call_tool("say")).data[0] == "three"


async def test_dev_prints_calls_with_their_contents(program: Path) -> None:
    async with serving("dev", str(program), "--port", "0") as (url, err):
        async with Client(url, revision="2025-11-25") as client:
            await client.call_tool("say")
        assert (await line_with(err, "->")).strip() == '-> {"result":"one"}'
        assert "tools/call say" in await line_with(err, "tools/call")


async def test_log_shows_arguments_results_and_reasons_escaped_and_shortened() -> None:
    out = io.StringIO()
    log = MessageLog(out)
    server = Server("t", observers=[log])
    server.middleware(log.show_contents)

    @server.tool
    async def echo(text: str) -> str:
        return text * 2

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample("hello")).text

    async with Client(server, revision="2025-11-25", sampling=lambda _: "hi") as client:
        await client.call_tool("echo", {"text": "\x9b\u202ex"})
        await client.call_tool("echo", {"text": "y" * 150})
        await client.call_tool("ask")
        with pytest.raises(PeerError):
            await client.call_tool("none")
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert '{"text":"\\x9b\\u202ex"} -> {"result":"\\x9b\\u202ex\\x9b\\u202ex"}' in lines
    assert f'{{"text":"{"y" * 150}"}} -> {{"result":"{"y" * 189}…' in lines
    assert any("ok              sampling/createMessage to the client  " in line for line in lines)
    assert any("error (-32602)  tools/call none  " in line and "tool named 'none'" in line for line in lines)


async def test_store_option_makes_sessions_durable(program: Path, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with (
        serving("run", str(program), "--http", "--port", "0", "--store", str(store)) as (url, _),
        Client(url, revision="2025-11-25") as client,
    ):
        assert (await client.call_tool("say")).data == "one"
        assert store.exists()


async def test_certificate_is_shown_to_clients(program: Path, tmp_path: Path) -> None:
    pair = Pair("shop")
    pair.write(tmp_path)
    files = ("--cert", str(tmp_path / "server.pem"), "--key", str(tmp_path / "server.key"))
    async with serving("run", str(program), "--http", "--port", "0", *files) as (url, _):
        address = urlsplit(url)
        assert address.scheme == "https"
        assert await asyncio.to_thread(shown_at, address.port) == pair.shown


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--reload", "--workers", "2"], "trunkline: --workers needs --http\n"),
        (["--unix"], "trunkline: --unix needs the path of the socket"),
        (["--tcp", "--uds", "x"], "trunkline: --uds needs --http\n"),
        (["--key", "x"], "trunkline: --key needs --cert\n"),
        (["--cert", "none.pem"], "trunkline: --cert needs --http or --tcp\n"),
        (["--max-calls", "x"], "--max-calls must be a whole number"),
        (["--settings", "none.toml"], "cannot read settings from none.toml"),
        (["--port", "1"], "trunkline: --port needs --http or --tcp\n"),
        (["--store", "http://x"], "trunkline: no store has URLs that begin with http://"),
    ],
)
async def test_wrong_option_is_explained(program: Path, arguments: list[str], why: str) -> None:
    ended = await trunkline("run", str(program), *arguments)
    assert ended.status == 2
    assert why in ended.err


# --- reload --------------------------------------------------------------------------------------


async def test_reload_replaces_entries_and_restores_modules_after_a_failure(program: Path) -> None:
    said: list[str] = []
    server = load_server(str(program))
    reloader = Reloader(server, str(program), Overrides(), said.append)
    assert not reloader.check()
    rewrite(program, SERVER.replace("def say", "def tell"))
    assert reloader.check()
    async with Client(server) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"tell", "settings"}
        rewrite(program, "1 / 0")
        helper = sys.modules["helper"]
        assert not reloader.check()
        rewrite(program, "raise SystemExit(3)")
        assert not reloader.check()
        assert sys.modules["helper"] is helper
        assert (await client.call_tool("tell")).data == "one"
    assert [line.partition("; ")[2].partition(": ")[::2] for line in said] == [
        ("reloaded", ""),
        ("the old code keeps serving", "it.py cannot be imported: ZeroDivisionError: division by zero at it.py:1"),
        ("the old code keeps serving", "the program exits with 3 when it is imported"),
    ]


async def test_changes_within_a_second_are_loaded(program: Path) -> None:
    helper = program.parent / "helper.py"
    async with (
        serving("run", str(program), "--http", "--port", "0", "--reload") as (url, err),
        Client(url) as client,
    ):
        for word in ("two", "six", "ten"):
            rewrite(helper, f"WORD = '{word}'\n")
            os.utime(helper, ns=(int(word == "six"), int(word == "six")))
            await line_with(err, "reloaded")
            assert (await client.call_tool("say")).data == word
    assert not (program.parent / "__pycache__").exists()


def test_changes_of_source_files_are_found(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", ".hidden/c.py", "node_modules/d.py", "pkg/e.py", "data.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    before = snapshot_files([tmp_path])
    assert {Path(path).name for path in before} == {"a.py", "b.py", "e.py"}
    rewrite(tmp_path / "pkg" / "e.py", "2")
    (tmp_path / "a.py").unlink()
    (tmp_path / "new.py").write_text("")
    changed = changed_files(before, snapshot_files([tmp_path]))
    assert {Path(path).name for path in changed} == {"a.py", "e.py", "new.py"}


# --- settings ------------------------------------------------------------------------------------


def test_settings_are_shown_with_their_sources(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRUNKLINE_PAGE_SIZE", "5")
    monkeypatch.setenv("TRUNKLINE_STATE_KEYS", "k" * 40)
    monkeypatch.setenv("TRUNKLINE_METRICS_TOKEN", "t" * 20)
    (tmp_path / "trunkline.toml").write_text("max_calls = 4\nlongest_call = 9.0\n")
    assert main(["settings", "--longest-call", "off"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "longest_call   off  --longest-call",
        "max_calls      4    trunkline.toml",
        "metrics_token  …    TRUNKLINE_METRICS_TOKEN",
        "page_size      5    TRUNKLINE_PAGE_SIZE",
        "state_keys     …    TRUNKLINE_STATE_KEYS",
    ]
    assert main(["settings", "--json", "--all"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["page_size"] == {"value": "5", "source": "TRUNKLINE_PAGE_SIZE"}
    assert shown["state_keys"]["value"] == "…"
    assert shown["quick_timeout"]["source"] == "default"


COUNTING = """
import os
from pathlib import Path
from trunkline import Server

server = Server("it")

@server.tool
async def count(number: int) -> list[int]:
    with open(Path(__file__).with_name("effects"), "a") as file:
        file.write(f"{number}\\n")
    return [VERSION, os.getpid()]
"""


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
async def test_reloads_under_load_fail_no_call(program: Path, capsys: pytest.CaptureFixture[str], workers: int) -> None:
    rewrite(program, f"VERSION = 0\n{COUNTING}")
    (program.parent / "effects").touch()
    numbers, versions, stop = iter(range(10**9)), set[int](), asyncio.Event()
    made: list[int] = []
    latest: dict[int, int] = {}  # the version that a process has answered with
    updated = asyncio.Event()  # all processes have the last version

    async def call_on(client: Client) -> None:
        while not stop.is_set():
            number = next(numbers)
            version, process = (await client.call_tool("count", {"number": number})).data
            versions.add(version)
            latest[process] = version
            if [*latest.values()] == [20] * workers:
                updated.set()
            made.append(number)

    arguments = ("run", str(program), "--http", "--port", "0", "--reload", *(["--workers", "2"] if workers > 1 else []))
    async with (
        serving(*arguments) as (url, err),
        contextlib.AsyncExitStack() as stack,
        asyncio.TaskGroup() as calls,
    ):
        for revision in ("2025-06-18", "2025-11-25", "2026-07-28"):
            for _ in range(4):
                client = await stack.enter_async_context(Client(url, revision=revision))
                calls.create_task(call_on(client))
        for version in range(1, 21):
            if version % 5 == 0:
                rewrite(program, f"VERSION = {version}\n{COUNTING}\nx =\n")
                await line_with(err, "the old code keeps serving")
            rewrite(program, f"VERSION = {version}\n{COUNTING}")
            await line_with(err, "it.py changed; reloaded")
        await asyncio.wait_for(updated.wait(), PATIENCE)
        stop.set()
    effects = sorted(map(int, (program.parent / "effects").read_text().split()))
    assert effects == sorted(made)
    with capsys.disabled():
        print(f"\n{workers} processes, 20 reloads, {len(made)} calls, 0 failed, {len(versions)} versions answered")
    assert {0, 20} <= versions
