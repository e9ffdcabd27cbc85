"""
Placement benchmark with dated results: ``python -m benchmarks.placement.dated [--set full] [options]``.

Runs ``python -m benchmarks.placement`` with the same options. Writes ``benchmarks/results/placement-SET-DATE.md``
(medians over seeds, with versions and hardware) and ``.csv`` (every run). A second start on the same day continues the
first. Run it on a machine without other work.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.placement.__main__ import placement
from pipette_opt.cli.program import run_command

RESULTS = Path(__file__).parents[1] / "results"


def run() -> None:
    """Run the benchmark with all options and the files for its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--set", default="quick", choices=("quick", "full", "reach"))
    arguments, others = parser.parse_known_args()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"placement-{arguments.set}-{datetime.now(UTC).date().isoformat()}"
    files = ["--csv", f"{path}.csv", "--out", f"{path}.md", "--resume"]
    sys.argv = [sys.argv[0], "--set", arguments.set, *files, *others]
    run_command(placement)


if __name__ == "__main__":
    run()
