"""The benchmark's gates can fail: on regressions, on missed bars, and on missing measurements."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bench import inprocess, overload, sampling, unobserved
from bench import run as bench_run
from bench.driver import Sample
from bench.environments import ROOT, CannotInstall, Environments, export
from bench.report import Figures
from bench.workloads import BASE, BASE_UVICORN, ROWS, TARGETS, Bar, Row, against_base

BARE = ROOT / "bench" / "peers" / "bare.py"
BURN = "    sum(range(3_000))  # a slowdown, put in here on purpose\n"


@pytest.fixture
def scripts(tmp_path: Path) -> dict[str, Path]:
    """The same small server twice, once with a slowdown in the path of every request."""
    source = BARE.read_text("utf-8")
    slow = tmp_path / "slow.py"
    slow.write_text(source.replace("    request = decode(line)\n", "    request = decode(line)\n" + BURN), "utf-8")
    assert BURN in slow.read_text("utf-8")
    return {"quick": BARE, "slow": slow}


def bench_of(ours: Path, base: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    """The exit status of `make bench BASE=…`, for one row and with these servers for the two trees."""
    commands = {"trunkline": [sys.executable, str(ours)], BASE: [sys.executable, str(base)]}
    monkeypatch.setattr(bench_run, "commands_of", lambda *_: (commands, {}))
    monkeypatch.setattr(bench_run, "pin", lambda: None)
    monkeypatch.setattr(sampling, "BATCH_US", 3_000)
    options = ["--base", "HEAD", "--rows", "async echo, 64 in flight", "--quick", "--repeats", "1"]
    return bench_run.main([*options, "--json", str(folder / "figures.json")])


@pytest.mark.row("Z06", "PH55")
def test_slower_row_fails_run(scripts, monkeypatch, tmp_path, capsys) -> None:
    assert bench_of(scripts["slow"], scripts["quick"], monkeypatch, tmp_path) == 1
    assert "FAIL         gate  at most 1.1 times base" in capsys.readouterr().out


@pytest.mark.row("Z06")
def test_faster_row_passes(scripts, monkeypatch, tmp_path, capsys) -> None:
    assert bench_of(scripts["quick"], scripts["slow"], monkeypatch, tmp_path) == 0
    assert "PASS         gate  at most 1.1 times base" in capsys.readouterr().out


@pytest.mark.row("Z06")
def test_unmeasurable_base_fails_run(scripts, monkeypatch, tmp_path) -> None:
    absent = tmp_path / "absent.py"

    assert bench_of(scripts["quick"], absent, monkeypatch, tmp_path) == 1


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a git checkout")
def test_base_is_tree_of_commit(tmp_path: Path) -> None:
    export("HEAD", tmp_path / "tree")

    assert (tmp_path / "tree" / "pyproject.toml").is_file()
    assert (tmp_path / "tree" / "src" / "trunkline" / "__init__.py").is_file()
    with pytest.raises(CannotInstall):
        export("no-such-commit", tmp_path / "other")


def figures(**cpu_us: float) -> Figures:
    return Figures({name: [Sample(cost, 100)] for name, cost in cpu_us.items()})


ROW = Row("a row", None, ("trunkline", "mcp", "zeromcp"), (Bar("cheaper", 10, "mcp"), Bar("cheaper", 6, "zeromcp")))


def test_row_passes_if_all_bars_are_cleared() -> None:
    assert not bench_run.fails(ROW, figures(trunkline=1, mcp=10, zeromcp=6))
    assert bench_run.fails(ROW, figures(trunkline=1, mcp=10, zeromcp=5))


def test_unmeasured_peer_fails_its_own_bars_only() -> None:
    without = Row("another", None, ("trunkline", "mcp", "zeromcp"), (Bar("cheaper", 10, "mcp"),))
    found = figures(trunkline=1, mcp=10)
    found.missing["zeromcp"] = "could not be installed"

    assert bench_run.fails(ROW, found)
    assert not bench_run.fails(without, found)


def test_new_row_is_not_compared_with_base() -> None:
    assert not bench_run.fails(against_base(ROW), figures(trunkline=1))
    assert bench_run.fails(against_base(ROW), figures(trunkline=1.2, base=1))


@pytest.mark.row("Z06")
def test_one_fast_batch_does_not_hide_regression() -> None:
    found = figures()
    found.samples = {
        "trunkline": [Sample(cost, 100) for cost in (1.2, 0.5, 2.4, 1.2, 1.3)],
        BASE: [Sample(cost, 100) for cost in (1.0, 1.0, 2.0, 1.0, 1.0)],
    }

    assert bench_run.fails(against_base(ROW), found)


@pytest.mark.row("Z06")
def test_noise_is_not_a_regression() -> None:
    found = figures()
    found.samples = {
        "trunkline": [Sample(cost, 100) for cost in (1.0, 3.0, 2.0, 9.0, 1.0)],
        BASE: [Sample(cost, 100) for cost in (1.0, 3.0, 2.0, 1.0, 0.9)],
    }

    assert not bench_run.fails(against_base(ROW), found)


def test_asgi_row_is_compared_with_base_under_same_server() -> None:
    (row,) = [against_base(row) for row in ROWS if "under uvicorn" in row.name]

    assert row.targets == ("trunkline, uvicorn", BASE_UVICORN)
    assert bench_run.fails(row, Figures({"trunkline, uvicorn": [Sample(1.05, 1)], BASE_UVICORN: [Sample(1.0, 1)]}))
    assert not bench_run.fails(row, Figures({"trunkline, uvicorn": [Sample(1.0, 1)], BASE_UVICORN: [Sample(1.0, 1)]}))


def test_target_that_cannot_run_is_reported_and_others_are_measured(tmp_path: Path) -> None:
    row = Row("a row", None, ("bare", "zeromcp"))
    options = bench_run._options(["--quick", "--repeats", "1", "--json", str(tmp_path / "figures.json")])

    found = bench_run.measure(
        row, {"bare": [sys.executable, str(BARE)], "zeromcp": [str(tmp_path / "absent")]}, options
    )

    assert set(found.samples) == {"bare"}
    assert "absent" in found.missing["zeromcp"]


def test_bars_compare_targets_of_their_row() -> None:
    for row in ROWS:
        assert set(row.targets) <= TARGETS.keys()
        assert {bar.peer for bar in row.bars if bar.peer} | {bar.ours for bar in row.bars} <= set(row.targets)


def test_uninstallable_package_falls_back_to_older_version(monkeypatch) -> None:
    def installed(_: Environments, home: Path, requirements: list[str], tree: Path) -> Path:
        if home.name == "fastmcp":
            raise CannotInstall("no such version")
        return home / "bin" / "python"

    monkeypatch.setattr(Environments, "_installed", installed)
    environments = Environments(sys.executable)

    assert environments.interpreter("fastmcp").parts[-3] == "fastmcp-older"


def test_missed_rate_is_a_failure_only_if_it_is_a_gate() -> None:
    assert inprocess.Rate("Z01", "decode", 9.0, 10, gate=True).missed
    assert not inprocess.Rate("Z01", "decode", 10.0, 10, gate=True).missed
    assert not inprocess.Rate("Z02", "validate", 9.0, 10).missed


@pytest.mark.parametrize(
    "program", ["bench.inprocess", "bench.stores", "bench.observers", "bench.unobserved", "bench.metrics"]
)
def test_programs_of_the_run_find_their_packages(program: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {program}"], cwd=ROOT, check=True)


def test_build_without_observability_serves_calls(tmp_path: Path) -> None:
    assert unobserved.run(unobserved.build(tmp_path)) > 0
    assert "self.facts.observed" not in (tmp_path / "trunkline/rpc/connection.py").read_text()


async def test_in_process_benchmarks_do_their_work(monkeypatch) -> None:
    monkeypatch.setattr(inprocess, "RUN_NS", 100_000)
    monkeypatch.setattr(inprocess, "SUBSCRIBERS", 3)
    server = inprocess.make_server()
    actions = (inprocess.decoding(server), inprocess.validation(), inprocess.tracking(), inprocess.asking())
    decoded = actions[0]()

    assert (decoded.a, decoded.b) == (5, 3)
    assert inprocess.reading(server)().key == inprocess.URI
    assert all(inprocess.rate(action) > 0 for action in actions)
    assert await inprocess.telling(server) > 0
    assert await inprocess.dispatching(inprocess.make_server()) > 0


# --- overload ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "starved", "missed"),
    [
        (0.004, 0.0, []),
        (0.006, 0.0, ["half of the refusals take less than 5 ms, on a machine that is not busy"]),
        (0.006, 1.0, []),
    ],
)
def test_slow_refusals_miss_a_bar_unless_the_machine_is_busy(refusal: float, starved: float, missed: list[str]) -> None:
    answers = [overload.Answer(0.1, True, False)] * 1000 + [overload.Answer(refusal, False, True)] * 9000
    figures = overload.Figures(sent=10_000, seconds=10.0, drained=10.0, cpu=1.0, starved=starved, answers=answers)
    assert figures.missed_bars() == missed
