"""
What each engine of the solver brings: the same instances again with one or more engines left out.

    python benchmarks/placement/engines.py --seconds 20 --without tree-search --without column-types,class-assignment \
        --out benchmarks/results/engines.md

Instances are made afresh from ``--seed``: trees, rails, racks, a slow node and no structure, 16 to 128 hosts, weights
that balance transfers and rings, and those of a real job. An engine is left out only where the table of
``solver/portfolio.py`` lets it work; elsewhere there is a dash. Run it on a machine that does nothing else.
"""

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipette_opt.base.files import write_atomically
from pipette_opt.base.types import P2PMode
from pipette_opt.lab.placement_bench.instances import BALANCED, BenchInstance
from pipette_opt.lab.placement_bench.problems import Shape
from pipette_opt.lab.placement_bench.run import dependent_ticks, warm_up
from pipette_opt.lab.placement_bench.tables import environment
from pipette_opt.problem.data import ProblemData
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.params import ENGINES, SolverParams
from pipette_opt.solver.portfolio import TABLE, Portfolio
from pipette_opt.solver.solve import solve

INSTANCES: tuple[tuple[str, Shape | None, P2PMode, str], ...] = (
    ("tree", (4, 4), "async", BALANCED),
    ("rail", (8, 2), "blocking", BALANCED),
    ("unif", (16, 1), "async", BALANCED),
    ("two-rack", (4, 4), "blocking", BALANCED),
    ("spares", (4, 4), "async", BALANCED),
    ("unif", (4, 4), "async", BALANCED),
    ("measured-16", (4, 4), "blocking", BALANCED),
    ("tree", None, "blocking", BALANCED),
    ("tree", (8, 4), "async", BALANCED),
    ("unif", (8, 4), "async", BALANCED),
    ("slow-node", (8, 4), "blocking", BALANCED),
    ("tree", (8, 4), "async", "llama-3-70b"),
    ("tree", (8, 8), "async", BALANCED),
    ("rail", (16, 4), "blocking", BALANCED),
    ("two-rack", (8, 8), "blocking", BALANCED),
    ("unif", (8, 8), "blocking", BALANCED),
    ("tree", (16, 8), "async", BALANCED),
    ("tree", (16, 8), "blocking", BALANCED),
    ("two-rack", (8, 16), "async", BALANCED),
    ("rail", (16, 8), "async", BALANCED),
    ("unif", (16, 8), "async", BALANCED),
)
"""Cluster, shape of the grid (``None`` for the choice among all candidates of a job), send mode and weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One instance without some engines."""

    instance: str
    hosts: int
    without: str
    objective: int
    bound: int
    dependent: int
    seconds: float
    load: float

    @property
    def cell(self) -> str:
        """Placement gap, and the seconds it took if it was closed."""
        if self.objective == self.bound:
            return f"closed, {self.seconds:.1f} s"
        return f"{(self.objective - self.bound) / max(1, self.dependent):.2%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and write the table, and every run to a file beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", action="append", default=[], metavar="NAME[,NAME]", help=", ".join(ENGINES))
    parser.add_argument("--sizes", default="16,32,64,128", help="numbers of hosts used")
    parser.add_argument("--clusters", default="", help="named clusters; all by default")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of each run")
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the table goes; standard output by default")
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.sizes.split(",")]
    chosen = [
        one
        for one in _instances(options.seed, options.seconds)
        if one.num_used in sizes and one.cluster in (options.clusters.split(",") if options.clusters else one.cluster)
    ]
    warm_up(options.workers)
    runs = []
    for run in _runs(chosen, ["", *options.without], options.seconds, options.workers):
        runs.append(run)
        sys.stderr.write(f"{run.instance}, {run.without}: {run.cell} (load {run.load:.1f})\n")
    loads = [run.load for run in runs]
    rules = f"{options.workers} threads; {options.seconds:g} s each; load {min(loads):.1f} to {max(loads):.1f}"
    head = f"{environment()}; {rules}."
    text = head + "\n\n" + _table(runs, options.without)
    if options.out is None:
        sys.stdout.write(text)
        return
    write_atomically(options.out, text)
    with options.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Run.__dataclass_fields__)
        writer.writerows([getattr(run, name) for name in Run.__dataclass_fields__] for run in runs)


def _instances(seed: int, seconds: float) -> Iterator[BenchInstance]:
    for cluster, shape, p2p, weights in INSTANCES:
        yield BenchInstance(
            cluster=cluster, weights=weights, shape=shape, p2p=p2p, seed=seed, limit_s=seconds, target=None
        )


def _runs(chosen: Sequence[BenchInstance], variants: Sequence[str], seconds: float, workers: int) -> Iterator[Run]:
    for instance in chosen:
        data = instance.build()
        able = _able(data)
        for without in variants:
            left_out = without.split(",") if without else []
            if without and not able & set(left_out):
                continue
            engines = tuple(name for name in ENGINES if name not in left_out)
            params = SolverParams(time_limit_s=seconds, workers=workers, seed=1, engines=engines)
            result = solve(data, params)
            assert result.solution is not None
            yield Run(
                instance=instance.name,
                hosts=instance.num_used,
                without=without or "all engines",
                objective=result.solution.objective_ticks,
                bound=result.lower_bound_ticks,
                dependent=dependent_ticks(data, result.solution),
                seconds=result.wall_time_s,
                load=os.getloadavg()[0],
            )


def _able(data: ProblemData) -> set[str]:
    """Engines that may work on some candidate at some time."""
    portfolio = Portfolio(Incumbent(data, SolverParams()))
    return {
        row.engine
        for index, candidate in enumerate(data.candidates)
        for row in TABLE
        if row.admits(candidate, data.num_nodes)
        and row.structure(portfolio, index)
        and portfolio.engines[row.engine].suits(index)
    }


def _table(runs: Sequence[Run], variants: Sequence[str]) -> str:
    """Instances in rows, what was left out in columns."""
    names = ["all engines", *variants]
    cells = {(run.instance, run.without): run.cell for run in runs}
    lines = ["| instance | all engines | " + " | ".join(f"without {name}" for name in variants) + " |"]
    lines.append("| " + " | ".join(["---"] * (1 + len(names))) + " |")
    for instance in dict.fromkeys(run.instance for run in runs):
        lines.append(f"| {instance} | " + " | ".join(cells.get((instance, name), "-") for name in names) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
