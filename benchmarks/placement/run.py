"""
Placement benchmark with dated results: ``python benchmarks/placement/run.py [--set full] [options]``.

Runs ``pipette-opt benchmark placement`` with the same options and writes ``benchmarks/results/placement-SET-DATE.md``
(medians over seeds, with versions and hardware) and ``.csv`` (every run). Started again on the same day it goes on
where it was. Run it on a machine that does nothing else.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from pipette_opt.cli import main

RESULTS = Path(__file__).parents[1] / "results"


def run() -> None:
    """Hand all options on, with the files for the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--set", default="quick", choices=("quick", "full", "reach"))
    arguments, others = parser.parse_known_args()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"placement-{arguments.set}-{datetime.now(UTC).date().isoformat()}"
    files = ["--csv", f"{path}.csv", "--out", f"{path}.md", "--resume"]
    sys.argv = ["pipette-opt", "benchmark", "placement", "--set", arguments.set, *files, *others]
    main()


if __name__ == "__main__":
    run()
