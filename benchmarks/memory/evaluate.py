"""
Memory predictions against measured runs: ours, the closed formula, a margin of 20 %, Pipette's network.

Run ``python benchmarks/memory/evaluate.py -o benchmarks/results/memory.md``; measured runs are looked for in
``$PIPETTE_OPT_SHARED/measured`` or ``../shared/measured``, and without them the file says so.
"""

import argparse
import datetime
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np

from pipette_opt.backtest.memory_evaluation import (
    Evaluation,
    coverage_rows,
    evaluate_memory,
    measured_folder,
    method_rows,
)
from pipette_opt.files import write_atomically


def main() -> None:
    """Evaluate, and write or show the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, help="Markdown file; shown without it.")
    parser.add_argument("--max-oom-risk", type=float, default=0.01)
    parser.add_argument("--without-pipette", action="store_true", help="Do not train Pipette's network.")
    arguments = parser.parse_args()
    folder = measured_folder()
    if not folder.is_dir():
        text = "No measured runs here: set PIPETTE_OPT_SHARED. Nothing evaluated.\n"
    else:
        start = time.perf_counter()
        evaluation = evaluate_memory(folder, arguments.max_oom_risk, with_pipette=not arguments.without_pipette)
        text = report(evaluation, arguments.max_oom_risk, time.perf_counter() - start)
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        write_atomically(arguments.out, text)


def report(evaluation: Evaluation, max_oom_risk: float, seconds: float) -> str:
    """Both tables, with when and on what."""
    head = (
        f"# Memory on measured runs\n\n{datetime.date.today()}, Python {platform.python_version()}, numpy "
        f"{np.__version__}, {os.cpu_count()} cores of {platform.machine()}, {seconds:.0f} s in all. `python "
        f"benchmarks/memory/evaluate.py`; every stack is calibrated on the small jobs of the split alone.\n\n"
        f"Missed: jobs that ran out of memory and were called safe at a risk of {max_oom_risk:.0%}; false: jobs that "
        "fitted and were refused; accuracy: of both together. Intervals are 95 % (Wilson). Kept: model and number of "
        "GPUs whose fastest measured run is not refused.\n"
    )
    notes = "".join(f"\n{note}" for note in evaluation.notes)
    return f"{head}\n{_table(method_rows(evaluation))}\n\n## Coverage\n\n{_table(coverage_rows(evaluation))}\n{notes}"


def _table(rows: list[dict[str, str]]) -> str:
    if not rows:
        return "nothing"
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
