"""
What the solver's engines prove in the same seconds from the same incumbent: the CP-SAT model alone, and all of them.

    python benchmarks/placement/engines.py --sizes 16,32 --seconds 20 --out benchmarks/results/engines.md
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipette_opt.files import write_atomically
from pipette_opt.heuristics.annealing import AnnealingParams, anneal
from pipette_opt.placement_bench.clusters import UnavailableError
from pipette_opt.placement_bench.instances import BenchInstance, instances
from pipette_opt.placement_bench.run import dependent_ticks
from pipette_opt.placement_bench.tables import environment
from pipette_opt.problem import ProblemData
from pipette_opt.solution import Result
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.solve import solve

HEAD = ("instance", "annealing alone", "gap, model alone", "seconds", "gap, all engines", "seconds")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="16", help="numbers of hosts used")
    parser.add_argument("--clusters", default="", help="named clusters; all by default")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each engine, annealing before it apart")
    parser.add_argument("--annealing", type=float, default=2.0, help="seconds of annealing for the incumbent of both")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the table goes; standard output by default")
    options = parser.parse_args(arguments)
    chosen = instances(
        "full",
        clusters=options.clusters.split(",") if options.clusters else None,
        sizes=[int(size) for size in options.sizes.split(",")],
        weights=["balanced"],
        seeds=options.seeds,
        seconds=options.seconds,
    )
    params = SolverParams(time_limit_s=options.seconds, workers=options.workers)
    for warm_up in instances("full", clusters=["unif"], sizes=[16], weights=["balanced"], seeds=1, seconds=1.0)[:1]:
        _row(warm_up, replace(params, time_limit_s=1.0), 0.1)  # compiles
    lines = [f"{environment()}; {options.workers} threads; {options.seconds:g} s each.", ""]
    lines += ["| " + " | ".join(cells) + " |" for cells in (HEAD, ["---"] * len(HEAD))]
    for instance in chosen:
        if instance.shape is None:
            continue
        cells = _row(instance, params, options.annealing)
        if cells is not None:
            lines.append("| " + " | ".join(cells) + " |")
            sys.stderr.write(lines[-1] + "\n")
    text = "\n".join(lines) + "\n"
    if options.out is None:
        sys.stdout.write(text)
    else:
        write_atomically(options.out, text)


def _row(instance: BenchInstance, params: SolverParams, annealing_s: float) -> list[str] | None:
    """One instance; ``None`` if its data is not on this machine."""
    try:
        data = instance.build()
    except UnavailableError:
        return None
    found = anneal(data, AnnealingParams(time_limit_s=annealing_s, seed=instance.seed))
    start = [] if found.solution is None else [found.solution]
    results = [solve(data, replace(params, decompose=every), hint=start) for every in (False, True)]
    best = min(one.solution.objective_ticks for one in results if one.solution is not None)
    cells = [instance.name, _share(data, results[1], (start[0].objective_ticks if start else best) - best)]
    for result in results:
        assert result.solution is not None
        gap = result.solution.objective_ticks - result.lower_bound_ticks
        cells += [_share(data, result, gap), f"{result.wall_time_s:.1f}"]
    return cells


def _share(data: ProblemData, result: Result, ticks: int) -> str:
    """Of what placement can change."""
    assert result.solution is not None
    return f"{ticks / max(1, dependent_ticks(data, result.solution)):.2%}"


if __name__ == "__main__":
    main()
