"""`make dist`: the checks of the distributions, and a trial on one Python."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tools.changelog import release_notes
from tools.dist import (
    DistError,
    check_extras,
    check_sdist,
    check_tags,
    check_wheel,
    classified_versions,
    find_pythons,
    read_version,
    readme_examples,
    sources_of,
)

from trunkline.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
INFO = "trunkline-1.0.dist-info"
WHEEL = ["trunkline/__init__.py", "trunkline/py.typed"]
WHEEL += [f"{INFO}/{name}" for name in ("METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE")]


def test_version_is_read_without_the_package() -> None:
    assert read_version() == __version__


@pytest.mark.parametrize(("tags", "release"), [([], False), (["v1.0"], True), (["1.0", "nightly"], True)])
def test_tag_of_the_version_is_accepted(tags: list[str], release: bool) -> None:
    check_tags("1.0", tags, release=release)


@pytest.mark.parametrize(("tags", "release"), [(["v1.1"], False), (["v1.0", "v1.1"], True), ([], True), (["x"], True)])
def test_other_or_missing_tag_is_refused(tags: list[str], release: bool) -> None:
    with pytest.raises(DistError, match="tag"):
        check_tags("1.0", tags, release=release)


def test_complete_wheel_is_accepted() -> None:
    check_wheel(WHEEL, ["trunkline/__init__.py", "trunkline/py.typed"], "1.0")


@pytest.mark.parametrize("missing", ["trunkline/py.typed", f"{INFO}/licenses/LICENSE", "trunkline/__init__.py"])
def test_incomplete_wheel_is_refused(missing: str) -> None:
    with pytest.raises(DistError, match=f"lacks {missing}"):
        check_wheel([name for name in WHEEL if name != missing], ["trunkline/__init__.py"], "1.0")


@pytest.mark.parametrize("unwanted", ["tests/test_x.py", "trunkline/__pycache__/a.pyc", "other/__init__.py"])
def test_wheel_with_other_files_is_refused(unwanted: str) -> None:
    with pytest.raises(DistError, match=unwanted.replace(".", r"\.")):
        check_wheel([*WHEEL, unwanted], ["trunkline/__init__.py", "trunkline/py.typed"], "1.0")


def test_sdist_without_tests_is_refused() -> None:
    with pytest.raises(DistError, match=r"tests/conftest\.py"):
        check_sdist(["trunkline-1.0/README.md"], [], "1.0")


def test_package_data_belongs_to_the_sources() -> None:
    assert "trunkline/py.typed" in sources_of()
    assert not [name for name in sources_of() if name.endswith(".pyc")]


@pytest.mark.parametrize("extras", [{"a": ["x"]}, {"a": ["x>1"], "all": ["x"]}, {"all": ["y"], "dev": ["y"]}])
def test_extra_all_must_have_all_requirements(extras: dict[str, list[str]]) -> None:
    with pytest.raises(DistError, match="the extra `all`"):
        check_extras(extras)


def test_extra_all_of_this_project_is_complete() -> None:
    check_extras(PROJECT["optional-dependencies"])


def test_missing_and_other_pythons_are_skipped_with_a_reason() -> None:
    here = f"3.{sys.version_info.minor}"
    pythons, skipped = find_pythons(f"{sys.executable} python3.99", [here, "3.98"])
    assert [python.version for python in pythons] == [here]
    assert skipped["3.98"] == "PYTHONS does not name it"
    assert "no python3.99 that runs" in skipped["3.99"]
    assert find_pythons(sys.executable, ["3.98"])[0] == []


def test_classifiers_name_pythons() -> None:
    assert classified_versions(PROJECT["classifiers"])[0] == PROJECT["requires-python"].removeprefix(">=")


def test_readme_has_both_examples() -> None:
    server, client = readme_examples((ROOT / "README.md").read_text("utf-8"))
    assert "server.run()" in server
    assert "calculator.py" in client
    with pytest.raises(DistError, match="no examples"):
        readme_examples("# Nothing")


def test_notes_of_the_next_release_have_an_entry_for_each_change() -> None:
    notes = release_notes(None)
    assert notes is not None
    assert notes.count("\n- ") + notes.startswith("- ") == len([*(ROOT / "changes").glob("[0-9]*.md")])
    assert release_notes("99.0") is None


def test_module_runs_as_a_program() -> None:
    said = subprocess.run([sys.executable, "-m", "trunkline", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"trunkline {__version__}\n"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_distributions_work_in_empty_environments(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "tools/dist.py"),
        "--pythons",
        sys.executable,
        "--output",
        str(tmp_path / "d"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("works ") == 2
