"""
The same jobs solved again, and by other Pythons: whether ``plan.json`` is the same byte for byte, apart from times.

``python benchmarks/hardening/same_answer.py --jobs 20 --python python3.12 --python python3.13`` solves random jobs
(those of ``soak.py --small``) twice in this Python and once in each other, with one thread and the seed of the job. The
others need the package's dependencies. Compared are

- decisions: degrees, placement, times, memory;
- the whole file, without the fields in :data:`TIMES`.

Limits are of wall time: where one strikes, as on a busy machine, more or less is proven, and files differ in that. Exit
code 1 if decisions differ between jobs whose plans are proven optimal in both runs.
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

TIMES = ("created", "versions", "wall_time_s", "seconds")
"""Fields that tell when, with what and for how long; the others must be the same."""

DECISIONS = ("parallel", "placement", "unused_hosts", "hosts", "estimate", "memory")
"""What is run, and what is predicted of it."""


def solve(folder: Path, jobs: int, seconds: float) -> None:
    """Write the plans of all jobs; none for a job that has no plan."""
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
    """A plan's content without the fields in ``TIMES``, at any depth."""
    if isinstance(value, dict):
        return {name: without_times(one) for name, one in value.items() if name not in TIMES}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def differing(first: Any, second: Any, where: str = "") -> list[str]:
    """Names of the fields that differ; the whole list counts where one has another length."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return [one for name in first for one in differing(first[name], second[name], f"{where}.{name}".lstrip("."))]
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        pairs = zip(first, second, strict=True)
        return list(dict.fromkeys(one for a, b in pairs for one in differing(a, b, f"{where}[]")))
    return [] if json.dumps(first) == json.dumps(second) else [where]


def main() -> None:
    """Read the arguments, solve in each Python, compare, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--python", action="append", default=[], help="another interpreter; may be repeated")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of each solve")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
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
            a, b = without_times(first[seed]), without_times(other[seed])
            same = all(json.dumps(a[name]) == json.dumps(b[name]) for name in DECISIONS)
            both = a["certificate"]["status"] == b["certificate"]["status"] == "OPTIMAL"
            decided, proven, whole = decided + same, proven + both, whole + (json.dumps(a) == json.dumps(b))
            wrong += both and not same
            fields.update(
                {one.split(".")[0] if "." not in one else ".".join(one.split(".")[:2]) for one in differing(a, b)}
            )
        version = subprocess.run([python, "-VV"], check=True, capture_output=True, text=True).stdout.split()[1]
        most = ", ".join(f"{name} {count}" for name, count in fields.most_common(6))
        rows.append((version, len(first), proven, decided, whole, most or "-"))
    print("\n| Python | plans | proven twice | same decisions | same bytes | fields that differ |\n" + 6 * "|---" + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
