"""The cost of observability that is off: a server without observers, beside a build that cannot observe calls.

    python -m bench.unobserved [--rounds 20]

The build is a copy of the package in which the questions whether a call is observed or traced are answered at compile
time, with no. Both run the same calls in processes of their own, in turn. The best and the median of their best batches
are printed, in µs of CPU time per call; "again" is the package itself a second time, for the noise of the machine.
"""

import argparse
import asyncio
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.observers import CALLS, calling

import trunkline

ROUNDS = 20
BATCHES = 25  # of one process
PACKAGE = Path(trunkline.__file__).parent
QUESTION = re.compile(r"(?:self\.)?_?facts\.(?:observed|wants_received|tracer is not None)|call\.timing is not None")
FILES = ("rpc/connection.py", "rpc/replies.py", "rpc/dispatch.py")
MIN_QUESTIONS = 8  # fewer: the code has changed, and this program has to follow


def build(folder: Path) -> Path:
    """Copy the package without the questions; return the folder to import it from."""
    copy, answered = shutil.copytree(PACKAGE, folder / PACKAGE.name), 0
    for name in FILES:
        text, count = QUESTION.subn("False", (copy / name).read_text(encoding="utf-8"))
        (copy / name).write_text(text, encoding="utf-8")
        answered += count
    if answered < MIN_QUESTIONS:
        raise SystemExit(f"only {answered} questions were found in {', '.join(FILES)}")
    return folder


async def measure() -> float:
    """Return the CPU time per call of the best batch, in µs."""
    batch, found = await calling(), list[float]()
    for _ in range(BATCHES):
        start = time.process_time_ns()
        await batch()
        found.append((time.process_time_ns() - start) / CALLS / 1000)
    return min(found)


def run(source: Path) -> float:
    """Measure the package in a folder."""
    path = os.pathsep.join((str(source), str(Path(__file__).parents[1])))
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "bench.unobserved", "--measure"]
    return float(subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(asyncio.run(measure()))
        return
    with tempfile.TemporaryDirectory() as folder:
        sources = {"no observer": PACKAGE.parent, "without observability": build(Path(folder)), "again": PACKAGE.parent}
        found: dict[str, list[float]] = {name: [] for name in sources}
        for _ in range(options.rounds):
            for name, source in sources.items():
                found[name].append(run(source))
    print("\nCPU per call in µs, in process                        best   median")
    for name, times in found.items():
        print(f"  {name:<48}{min(times):>8.2f}{statistics.median(times):>9.2f}")


if __name__ == "__main__":
    main()
