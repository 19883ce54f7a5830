"""Prints the findings of the official suite, by scenario: `make conformance`, and with --old `make conformance-old`.

The tests beside this file apply the same criteria; here everything runs, and is printed, even after a failure.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conformance.gate import LEAST, LEAST_OF_OLDEST, complaints, old_complaints
from tests.conformance.suite import (
    OLD_SERVER_SCENARIOS,
    OLD_SUITE,
    REVISIONS,
    Check,
    play,
    playable,
    playable_before,
    run,
    run_client,
    servable,
    serving,
)


class Row(NamedTuple):
    """One scenario and its complaints."""

    leg: str
    scenario: str
    checks: list[Check] | None
    complaints: list[str]

    def show(self) -> None:
        """Print it in a line; and its complaints below."""
        succeeded = sum(check["status"] == "SUCCESS" for check in self.checks or ())
        print(f"  {'not ok' if self.complaints else 'ok':<7} {self.leg} {self.scenario:<40} {succeeded:>3}")
        for complaint in self.complaints:
            print(f"          {complaint}")


def rows(revision: str, folder: Path) -> Iterator[Row]:
    """The requirement set of a revision."""
    least = LEAST[revision]
    with serving() as url:
        outcome = run("server", "--url", url, "--requirements", revision, output=folder / "server")
    for name in servable(revision):
        checks = outcome.checks.get(name)
        yield Row("server", name, checks, complaints(checks, least["server"][name]))
    for name in playable(revision):
        played = play(name, revision, folder / name)
        checks = played.checks.get(name)
        ended = [] if played.status == 0 else [f"the suite ended with {played.status}"]
        yield Row("client", name, checks, ended + complaints(checks, least["client"][name]))


def oldest_rows(folder: Path) -> Iterator[Row]:
    """The scenarios for a client of 2025-03-26."""
    for name, least in LEAST_OF_OLDEST.items():
        played = run_client(name, output=folder / name)
        checks = played.checks.get(name)
        ended = [] if played.status == 0 else [f"the suite ended with {played.status}"]
        yield Row("client", name, checks, ended + complaints(checks, least))


def old_rows(folder: Path) -> Iterator[Row]:
    """Everything in suite 0.1.16."""
    with serving() as url:
        outcome = run("server", "--url", url, "--suite", "all", output=folder / "server", suite=OLD_SUITE)
    for name, checks in outcome.checks.items():
        yield Row("server", name, checks, old_complaints(name, checks))
    for number in range(len(outcome.checks), OLD_SERVER_SCENARIOS):
        yield Row("server", f"number {number + 1}", None, ["wrote no checks"])
    for name in playable_before():
        played = run_client(name, output=folder / name, suite=OLD_SUITE)
        checks = played.checks.get(name)
        ended = [] if played.status == 0 else [f"the suite ended with {played.status}"]
        yield Row("client", name, checks, ended + old_complaints(name, checks))


def show(title: str, found: Iterator[Row]) -> bool:
    """Print a set row by row; return whether all passed."""
    print(f"{title}: scenarios, and how many of their checks succeeded")
    passed = total = 0
    for row in found:
        row.show()
        total += 1
        passed += not row.complaints
    print(f"{title}: {passed} of {total} pass\n")
    return passed == total


def main() -> int:
    """Run the requested sets."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "--old" in sys.argv[1:]:
            return 0 if show("0.1.16", old_rows(folder)) else 1
        passed = [show(revision, rows(revision, folder / revision)) for revision in REVISIONS]
        passed.append(show("2025-03-26", oldest_rows(folder)))
        return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
