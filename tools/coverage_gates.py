"""Combine the coverage data of a test run and fail below the gates: every line and branch of the pure parts, 90 % of
all.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coverage import Coverage

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/trunkline/"
GATES = {"wire": 100.0, "protocol": 100.0, "registry": 100.0, "server/features": 100.0}
OVERALL = 90.0
COUNTED = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def measure() -> dict[str, Any]:
    """Return the coverage report. Child processes of tests do not count."""
    coverage = Coverage(config_file=str(ROOT / "pyproject.toml"))
    data = Path(coverage.get_option("run:data_file"))
    if data.exists():
        coverage.load()
    if any(data.parent.glob(f"{data.name}.*")):  # processes that ended after the run had combined its own
        coverage.combine([str(data.parent)])
        coverage.save()
    report = data.with_name("report.json")
    coverage.json_report(outfile=str(report))
    return json.loads(report.read_bytes())


def by_part(files: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Return lines and branches, and how many of them ran, by part of the package."""
    parts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, file in files.items():
        inside = name.replace("\\", "/").partition(PACKAGE)[2]
        part = inside.partition("/")[0] if "/" in inside else "ground floor"
        gated = [folder for folder in GATES if "/" in folder and inside.startswith(f"{folder}/")]
        for key in ("all", part, *gated):
            parts[key].update({counted: file["summary"][counted] for counted in COUNTED})
    return dict(parts)


def percent(counted: Counter[str]) -> float:
    """Return lines and branches together, as coverage counts them."""
    whole = counted["num_statements"] + counted["num_branches"]
    return 100.0 if not whole else 100.0 * (counted["covered_lines"] + counted["covered_branches"]) / whole


def gaps(files: Mapping[str, Any], part: str) -> list[str]:
    """Return the lines of a part that did not run."""
    return [
        f"  {name}: lines {file['missing_lines']}, branches {file['missing_branches']}"
        for name, file in files.items()
        if f"{PACKAGE}{part}/" in name.replace("\\", "/") and (file["missing_lines"] or file["missing_branches"])
    ]


def judge(files: Mapping[str, Any]) -> int:
    """Print a table of the parts; return 1 if a gate fails."""
    parts = by_part(files)
    failed: list[str] = []
    print(f"{'part':<16}{'lines':>13}{'branches':>13}{'seen':>9}  gate")
    for part in [*sorted(parts.keys() - {"all"}), "all"]:
        counted = parts[part]
        gate = OVERALL if part == "all" else GATES.get(part)
        lines = f"{counted['covered_lines']}/{counted['num_statements']}"
        branches = f"{counted['covered_branches']}/{counted['num_branches']}"
        verdict = "" if gate is None else f"{gate:g} %"
        if gate is not None and percent(counted) < gate:
            verdict += "  FAIL"
            failed.append(part)
        print(f"{part:<16}{lines:>13}{branches:>13}{percent(counted):>8.2f}%  {verdict}".rstrip())
    for part in failed:
        print(*gaps(files, part), sep="\n")
    if missing := GATES.keys() - parts.keys():
        print(f"nothing was measured in {', '.join(sorted(missing))}")
    return int(bool(failed or missing))


if __name__ == "__main__":
    sys.exit(judge(measure()["files"]))
