"""
Contribution of each engine of the solver: runs of the same instances with one or more engines left out.

  python -m benchmarks.placement.engines --seconds 20 --without class-assignment --without cp-sat-model --out page.md
  python -m benchmarks.placement.engines --judged --sizes 16,32 --without class-assignment --out page.md

Instances are made from ``--seed``: trees, rails, racks, a slow node and no structure; 16 to 128 hosts; weights that
balance transfers and rings, and weights of a real job. An engine is left out only where the table of
``solver/portfolio.py`` lets it work; other cells have a dash. Run it on a machine without other work.

With ``--judged`` the same clusters and shapes are whole jobs: llama-2-70b with pinned degrees, and the gap of the
plan's simulated time. The relaxations are then paths through the schedule, not the analytical 1F1B model. Only rows of
that table are left out, so only class assignment.
"""

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.placement.clusters import link_gb_per_s, num_flows
from benchmarks.placement.instances import BALANCED, BenchInstance
from benchmarks.placement.problems import Shape, cluster_of
from benchmarks.placement.run import dependent_ticks, warm_up
from benchmarks.placement.tables import environment
from pipette_opt.base.files import write_atomically
from pipette_opt.base.types import P2PMode
from pipette_opt.baselines.rounds import place
from pipette_opt.candidates import SearchSpace
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.problem.data import ProblemData
from pipette_opt.read.model import read_model
from pipette_opt.solver import portfolio as portfolios
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.params import ENGINES, MODEL, SolverParams
from pipette_opt.solver.portfolio import TABLE, Portfolio
from pipette_opt.specs import Instance, TrainingSpec

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
    """Run of one instance without some engines."""

    instance: str
    hosts: int
    without: str
    objective: float | None
    bound: float
    dependent: float | None
    seconds: float
    load: float

    @property
    def cell(self) -> str:
        """Placement gap of the run, or its seconds if the gap was closed, as text."""
        if self.objective is None or self.dependent is None:
            return "no placement"
        if self.objective == self.bound:
            return f"closed, {self.seconds:.1f} s"
        return f"{(self.objective - self.bound) / max(1, self.dependent):.2%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the instances and write the table, with every run in a CSV file beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", action="append", default=[], metavar="NAME[,NAME]", help=", ".join(ENGINES))
    parser.add_argument("--sizes", default="16,32,64,128", help="numbers of hosts used")
    parser.add_argument("--clusters", default="", help="named clusters; all by default")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of each run")
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--judged", action="store_true", help="the gap of whole plans with pinned degrees")
    parser.add_argument("--out", type=Path, help="file for the table; by default standard output")
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.sizes.split(",")]
    chosen = [
        instance
        for instance in _instances(options.seed, options.seconds)
        if instance.num_used in sizes
        and instance.cluster in (options.clusters.split(",") if options.clusters else instance.cluster)
    ]
    warm_up(options.workers)
    runs = []
    run_all = _judged_runs if options.judged else _runs
    for run in run_all(chosen, ["", *options.without], options.seconds, options.workers):
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
            result = place(data, params)
            yield Run(
                instance=instance.name,
                hosts=instance.num_used,
                without=without or "all engines",
                objective=None if result.solution is None else result.solution.objective_ticks,
                bound=result.lower_bound_ticks,
                dependent=None if result.solution is None else dependent_ticks(data, result.solution),
                seconds=result.wall_time_s,
                load=os.getloadavg()[0],
            )


def _judged_runs(
    chosen: Sequence[BenchInstance], variants: Sequence[str], seconds: float, workers: int
) -> Iterator[Run]:
    """Yield plans of whole jobs on the same clusters, without some rows of the table; each shape once."""
    table = portfolios.TABLE
    shapes = {
        (instance.cluster, instance.num_used, instance.shape): instance
        for instance in chosen
        if instance.num_listed == instance.num_used
    }
    for instance in shapes.values():
        if instance.shape is None:
            continue
        rates = link_gb_per_s(instance.cluster, instance.num_used, instance.seed)
        job = Instance(
            model=read_model("llama-2-70b"),
            cluster=cluster_of(rates, num_flows(instance.cluster), "a100-80gb"),
            training=TrainingSpec(global_batch_size=512, seq_length=4096),
        )
        space = SearchSpace(
            tensor_parallel=(8,),
            pipeline_parallel=instance.shape[:1],
            context_parallel=(1,),
            virtual_pipeline=(1,),
            micro_batch_size=(1,),
        )
        for without in variants:
            portfolios.TABLE = tuple(row for row in table if row.engine not in without.split(","))
            plan = optimize(job, space, OptimizeParams(time_limit_s=seconds, workers=workers, seed=1))
            proof = plan.certificate
            yield Run(
                instance=f"{instance.cluster} {instance.num_used} {instance.shape_text}",
                hosts=instance.num_used,
                without=without or "all engines",
                objective=proof.objective_s,
                bound=proof.lower_bound_s if proof.status != "OPTIMAL" else proof.objective_s,
                dependent=proof.placement_dependent_s,
                seconds=proof.wall_time_s,
                load=os.getloadavg()[0],
            )
    portfolios.TABLE = table


def _able(data: ProblemData) -> set[str]:
    """Return the names of engines that may work on any candidate."""
    engines = Portfolio(Incumbent(data, SolverParams())).engines
    able = {
        row.engine
        for index, candidate in enumerate(data.candidates)
        for row in TABLE
        if row.admits(candidate) and engines[row.engine].suits(index)
    }
    return able | {name for name in MODEL if any(map(engines[name].suits, range(len(data.candidates))))}


def _table(runs: Sequence[Run], variants: Sequence[str]) -> str:
    """Return a table with instances in rows and left-out engines in columns."""
    names = ["all engines", *variants]
    cells = {(run.instance, run.without): run.cell for run in runs}
    lines = ["| instance | all engines | " + " | ".join(f"without {name}" for name in variants) + " |"]
    lines.append("| " + " | ".join(["---"] * (1 + len(names))) + " |")
    for instance in dict.fromkeys(run.instance for run in runs):
        lines.append(f"| {instance} | " + " | ".join(cells.get((instance, name), "-") for name in names) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
