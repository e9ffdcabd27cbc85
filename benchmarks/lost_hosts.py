"""
Comparison of ``replan`` with ``solve`` after a host is lost: ``python -m benchmarks.lost_hosts``.

Clusters are random: hosts of one type, noisy links around the rate of their NICs, and two hosts with slow links. A host
that the plan uses is lost. ``replan`` and ``solve`` have an equal time limit on the remaining hosts. The bound of
``whatif --without`` must be below both plans.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.page import made_by, option, run_page, say
from pipette_opt.candidates import SearchSpace
from pipette_opt.job.read import Job, read_job
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.options.description import JobOptions
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.read.cluster import exclude_hosts
from pipette_opt.replan.changed_hosts import replan
from pipette_opt.replan.changes import without_hosts
from pipette_opt.replan.whatif import Answer, WhatIf
from pipette_opt.specs import ClusterSpec, Instance

NOISE = 0.1
"""Standard deviation of the log of a link's bandwidth. Chosen."""

ATTAINED = 0.8
"""Median of a link's bandwidth over its nominal bandwidth. Chosen."""

SLOW_HOSTS, SLOWEST, FASTEST = 2, 0.5, 0.8
"""Number of hosts with slow links, and the range of their bandwidth relative to an ordinary link. Chosen."""

OLD_SHARE, WHATIF_SHARE = 1 / 3, 1 / 3
"""Fractions of the time limit for the plan before the loss, and for ``whatif``. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Job on a random cluster; ``seed`` draws its links and the lost host."""

    num_hosts: int
    gpu: str
    nics: str
    model: str
    global_batch_size: int
    seq_length: int
    seed: int


CASES = (
    Case(num_hosts=24, gpu="h100", nics="8x400", model="llama-2-70b", global_batch_size=512, seq_length=4096, seed=1),
    Case(num_hosts=24, gpu="h100", nics="8x400", model="llama-3-70b", global_batch_size=512, seq_length=8192, seed=2),
    Case(num_hosts=24, gpu="a100", nics="8x200", model="gpt-3-175b", global_batch_size=1536, seq_length=2048, seed=3),
    Case(num_hosts=24, gpu="h100", nics="4x100", model="llama-2-13b", global_batch_size=960, seq_length=4096, seed=4),
    Case(num_hosts=16, gpu="h100", nics="8x400", model="llama-2-70b", global_batch_size=512, seq_length=4096, seed=5),
    Case(num_hosts=16, gpu="a100", nics="8x200", model="llama-2-13b", global_batch_size=256, seq_length=4096, seed=6),
    Case(num_hosts=12, gpu="h100", nics="8x400", model="mixtral-8x7b", global_batch_size=480, seq_length=4096, seed=7),
    Case(num_hosts=12, gpu="h100", nics="8x400", model="llama-3-70b", global_batch_size=240, seq_length=8192, seed=8),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Plans and answer of the commands for one case."""

    case: Case
    old: Plan
    solved: Plan
    replanned: Plan
    answer: Answer
    replan_s: float

    @property
    def excess(self) -> float:
        """Iteration time of the plan of ``replan`` over that of ``solve``, minus 1."""
        return _time_s(self.replanned) / _time_s(self.solved) - 1

    @property
    def is_bounded(self) -> bool:
        """Return whether the bound of ``whatif`` is below both plans."""
        return self.answer.simulated_bound_s is not None and self.answer.simulated_bound_s <= min(
            _time_s(self.solved), _time_s(self.replanned)
        )


def make(given: argparse.Namespace) -> Iterator[str]:
    """Run the cases, one after the other; yield the page after each."""
    results: list[Result] = []
    for case in CASES if not given.cases else [CASES[number - 1] for number in given.cases]:
        results.append(run(case, given.time_limit))
        say(row(results[-1]))
        yield page(results, given.time_limit)


OPTIONS = (
    option("--time-limit", type=float, default=60.0, help="time limit of solve and of replan, seconds"),
    option("--cases", type=int, nargs="*", help="numbers of the cases to run, from 1; by default all"),
)


def run(case: Case, time_limit_s: float) -> Result:
    """Plan a job, lose a host, and run ``solve``, ``replan`` and ``whatif``."""
    job, rng = job_of(case), np.random.default_rng(case.seed)
    instance = replace(job.instance, cluster=measured(job.instance.cluster, rng))
    old = optimize(instance, SearchSpace(), _params(OLD_SHARE * time_limit_s), inputs=job.inputs)
    lost = old.hosts[rng.choice(sorted(old.placement.nodes_used))]
    rest = replace(instance, cluster=exclude_hosts(instance.cluster, (lost,)))
    solved = optimize(rest, SearchSpace(), _params(time_limit_s), inputs=job.inputs)
    begun = time.perf_counter()
    replanned = replan(rest, old, params=_params(time_limit_s), inputs=job.inputs).options[-1].plan
    replan_s = time.perf_counter() - begun
    return Result(
        case=case,
        old=old,
        solved=solved,
        replanned=replanned,
        answer=asked(instance, old, lost, WHATIF_SHARE * time_limit_s),
        replan_s=replan_s,
    )


def job_of(case: Case) -> Job:
    """Return the job on hosts with nominal link bandwidths."""
    return read_job(
        JobOptions(
            nodes=f"gpu[01-{case.num_hosts:02d}]",
            gpu=case.gpu,
            nics=case.nics,
            model=case.model,
            global_batch_size=case.global_batch_size,
            seq_length=case.seq_length,
        )
    )


def measured(cluster: ClusterSpec, rng: np.random.Generator) -> ClusterSpec:
    """Return the cluster with random link bandwidths: noise, and hosts with slow links."""
    factor = ATTAINED * np.exp(rng.normal(0.0, NOISE, (cluster.num_nodes,) * 2))
    for node in rng.choice(cluster.num_nodes, SLOW_HOSTS, replace=False):
        slow = rng.uniform(SLOWEST, FASTEST)
        factor[node] *= slow
        factor[:, node] *= slow
    links = tuple(replace(matrix, bytes_per_s=matrix.bytes_per_s * factor) for matrix in cluster.link_matrices)
    return replace(cluster, link_matrices=links)


def asked(instance: Instance, old: Plan, lost: str, seconds: float) -> Answer:
    """Return the answer of ``whatif --without`` for the lost host."""
    asking = WhatIf(old, instance, _params(seconds), Watcher())
    return asking.ask([without_hosts(instance, [lost])], seconds)[0]


def _params(seconds: float) -> OptimizeParams:
    return OptimizeParams(time_limit_s=seconds, workers=1)


def _time_s(plan: Plan) -> float:
    return plan.estimate.iteration_time_s


def _hosts(plan: Plan) -> int:
    return len(plan.placement.nodes_used)


def page(results: Sequence[Result], time_limit_s: float) -> str:
    """Return the page: the answer first, then a row for each case."""
    worst = max(result.excess for result in results)
    bounded = sum(result.is_bounded for result in results)
    return "\n".join(
        [
            "# A host lost",
            "",
            f"`replan` is at most {max(worst, 0.0):.2%} slower than `solve` on the hosts that are left, "
            f"{time_limit_s:g} s each. The bound of `whatif --without` is below all plans in {bounded} of "
            f"{len(results)} cases.",
            "",
            f"{made_by()} One thread; clusters and lost hosts are drawn by a seed.",
            "",
            "| hosts | job | hosts used before | iteration before | `solve` on the rest | `replan` | over `solve` | "
            "`whatif`: found | at best | seconds of `replan` |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *map(row, results),
            "",
        ]
    )


def row(result: Result) -> str:
    """Return the table row of one case."""
    case, answer = result.case, result.answer
    found = [f"{_time_s(plan):.4g} s on {_hosts(plan)}" for plan in (result.solved, result.replanned)]
    asked_for = "-" if answer.simulated_s is None else f"{answer.simulated_s:.4g} s on {answer.num_hosts}"
    bound = "-" if answer.simulated_bound_s is None else f"{answer.simulated_bound_s:.4g} s"
    cells = [
        f"{case.num_hosts} of {case.gpu}, {case.nics}",
        f"{case.model}, batch {case.global_batch_size}",
        f"{_hosts(result.old)}",
        f"{_time_s(result.old):.4g} s",
        *found,
        f"{result.excess:+.2%}",
        asked_for,
        bound,
        f"{result.replan_s:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    run_page(make, *OPTIONS)
