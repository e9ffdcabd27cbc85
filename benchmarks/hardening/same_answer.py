"""
Check of whether repeated runs and other Pythons give equal plans, apart from times.

``python benchmarks/hardening/same_answer.py --jobs 20 --python python3.12 --python python3.13`` solves random jobs
(those of ``soak.py --small``) twice in this Python and once in each other, with one thread and the seed of the job. The
other Pythons need the package's dependencies. ``--compare 3.11.json 3.12.json`` compares existing plans. Compared are

- decisions: degrees and placement exactly; times and memory within ``LAST_DIGITS``, because sums of equal numbers
differ
  from Python 3.12 on;
- the whole file, without the fields in :data:`LEFT_OUT`.

Limits are of wall time. If a limit ends a search, as on a busy machine, the proofs and the files differ. The exit code
is 1 if decisions differ for a job whose plans are both proven optimal.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

LEFT_OUT = ("created", "versions", "wall_time_s", "seconds", "path")
"""Fields with the date, versions, durations and folder of a run; all other fields must be equal."""

DECISIONS = ("parallel", "placement", "unused_hosts", "hosts", "estimate", "memory")
"""Fields with the launched job and its predictions."""

LAST_DIGITS = 1e-12
"""Relative difference of two sums of equal numbers in different order."""


def solve(folder: Path, jobs: int, seconds: float) -> None:
    """Write the plan of each job into ``folder``, except for jobs without a plan."""
    from soak import made_instance

    from pipette_opt.base.errors import PipetteError
    from pipette_opt.candidates import SearchSpace
    from pipette_opt.optimize import OptimizeParams, optimize
    from pipette_opt.report.plan_file import write_plan

    for seed in range(jobs):
        params = OptimizeParams(time_limit_s=seconds, workers=1, seed=seed)
        try:
            plan = optimize(made_instance(seed, small=True), SearchSpace(), params)
        except PipetteError:
            continue
        write_plan(plan, folder / f"{seed}.json")


def without_times(value: Any) -> Any:
    """Return a plan's content without the fields in ``LEFT_OUT``, at any depth."""
    if isinstance(value, dict):
        return {name: without_times(item) for name, item in value.items() if name not in LEFT_OUT}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def differing(first: Any, second: Any, tolerance: float = 0.0, where: str = "") -> list[str]:
    """Return the names of fields that differ by more than a relative tolerance, or lists by their length."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        parts = [(first[name], second[name], f"{where}.{name}".lstrip(".")) for name in first]
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        parts = [(a, b, f"{where}[]") for a, b in zip(first, second, strict=True)]
    elif isinstance(first, float) and isinstance(second, float):
        return [] if first == second or abs(first - second) <= tolerance * abs(first) else [where]
    else:
        return [] if first == second else [where]
    return list(dict.fromkeys(name for a, b, place in parts for name in differing(a, b, tolerance, place)))


def compared(first: Any, second: Any) -> tuple[bool, bool, list[str]]:
    """Return whether both plans are proven optimal, whether their decisions are equal, and all fields that differ."""
    first, second = without_times(first), without_times(second)
    proven = first["certificate"]["status"] == second["certificate"]["status"] == "OPTIMAL"
    decided = not any(differing(first[name], second[name], LAST_DIGITS) for name in DECISIONS)
    return proven, decided, differing(first, second)


def compare_files(paths: list[Path]) -> int:
    """Compare plans with the first of them; return the number of proven plans whose decisions differ."""
    first, *others = (json.loads(path.read_text()) for path in paths)
    wrong = 0
    for path, other in zip(paths[1:], others, strict=True):
        proven, decided, fields = compared(first, other)
        difference = "the same bytes apart from times" if not fields else f"differ in {', '.join(fields[:8])}"
        print(f"{path.name} and {paths[0].name}: {difference}{'' if proven else ' (not both proven)'}")
        wrong += proven and not decided
    return wrong


def main() -> None:
    """Parse the arguments, solve in each Python, compare the plans, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--python", action="append", default=[], help="another interpreter; may be repeated")
    parser.add_argument("--time-limit", type=float, default=20.0, help="time limit of each search, seconds")
    parser.add_argument(
        "--compare", type=Path, nargs="+", help="plans to compare with the first of them, without a search"
    )
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compare:
        sys.exit(1 if compare_files(given.compare) else 0)
    if given.into:
        solve(given.into, given.jobs, given.time_limit)
        return
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    runs: list[dict[str, Any]] = []
    rows, wrong = [], 0
    for python in (sys.executable, sys.executable, *given.python):
        with tempfile.TemporaryDirectory() as name:
            limits = ("--jobs", str(given.jobs), "--time-limit", str(given.time_limit), "--into", name)
            subprocess.run([python, __file__, *limits], check=True, env=environment)
            runs.append({path.stem: json.loads(path.read_text()) for path in Path(name).glob("*.json")})
        if len(runs) == 1:
            continue
        first, other = runs[0], runs[-1]
        decided = proven = whole = 0
        fields: Counter[str] = Counter(("no plan",) * len(first.keys() ^ other.keys()))
        for seed in sorted(first.keys() & other.keys(), key=int):
            both, same, names = compared(first[seed], other[seed])
            decided, proven, whole = decided + same, proven + both, whole + (not names)
            wrong += both and not same
            fields.update({".".join(name.split(".")[:2]) for name in names})
        version = subprocess.run([python, "-VV"], check=True, capture_output=True, text=True).stdout.split()[1]
        most = ", ".join(f"{name} {count}" for name, count in fields.most_common(6))
        rows.append((version, len(first), proven, decided, whole, most or "-"))
    print("\n| Python | plans | proven twice | same decisions | same bytes | fields that differ |\n" + 6 * "|---" + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
