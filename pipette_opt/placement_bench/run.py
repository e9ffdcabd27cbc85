"""Solver and baselines on a placement instance: what each finds in the same seconds, and what the solver proves."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

import numpy as np

from pipette_opt.heuristics.amp import AmpParams, amp
from pipette_opt.heuristics.megatron import identity_order
from pipette_opt.heuristics.varuna import varuna
from pipette_opt.placement_bench.clusters import UnavailableError
from pipette_opt.placement_bench.instances import BenchInstance, Shape, balanced_problem
from pipette_opt.problem import ProblemData, objective_ticks
from pipette_opt.solution import Result, Solution
from pipette_opt.types import P2PMode

BASELINES = ("annealing_tuned", "annealing_pipette", "amp", "varuna", "identity")
"""Columns beside the solver's."""

HINT_SHARE, HINT_S_PER_HOST, MOST_HINT_S = 0.2, 0.03, 10.0
"""How long annealing looks for the solver's first incumbent: share of the limit, seconds per host, most seconds."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """
    What came out for one instance; seconds are without imports and compilation.

    Parameters
    ----------
    objective_s, lower_bound_s
        Of the integer problem; ``None`` without a solution.
    dependent_s
        The objective minus what it would be with all transfers between hosts free.
    placement_gap
        Objective minus bound, over ``dependent_s``.
    seconds
        Wall time of the solver, the annealing of its first incumbent included.
    num_open
        Candidates whose bound is below the objective.
    annealing_tuned_s, annealing_pipette_s, amp_s, varuna_s, identity_s
        Objective of the baseline; ``None`` where it has no placement. Both annealings had as many seconds as the
        solver took, on as many threads.
    """

    cluster: str
    weights: str
    p2p: str
    num_used: int
    num_listed: int
    shape: str
    seed: int
    limit_s: float
    target: float | None
    status: str
    objective_s: float | None
    lower_bound_s: float
    dependent_s: float | None
    gap: float | None
    placement_gap: float | None
    seconds: float
    num_candidates: int
    num_open: int
    annealing_tuned_s: float | None
    annealing_pipette_s: float | None
    amp_s: float | None
    varuna_s: float | None
    identity_s: float | None

    def key(self) -> tuple[object, ...]:
        """What identifies the instance."""
        return self.cluster, self.weights, self.p2p, self.shape, self.seed, self.limit_s

    def above(self, baseline: str) -> float | None:
        """How far a baseline's objective is above the solver's, over the part that placement can change."""
        value = getattr(self, f"{baseline}_s")
        if value is None or self.objective_s is None or not self.dependent_s:
            return None
        return float((value - self.objective_s) / self.dependent_s)


def key_of(instance: BenchInstance) -> tuple[object, ...]:
    """The same as :meth:`BenchRow.key`, before the run."""
    one = instance
    return one.cluster, one.weights, one.p2p, one.shape_text, one.seed, one.limit_s


def run_all(
    chosen: Sequence[BenchInstance],
    *,
    workers: int,
    known: Iterable[BenchRow] = (),
    say: Say = lambda text: None,
    stop: threading.Event | None = None,
) -> Iterator[BenchRow]:
    """
    Run instances one after the other; those whose data is not on this machine are said and left out.

    Parameters
    ----------
    known
        Rows of an earlier run, given back where they are of the same instance.
    stop
        When set, or at an interrupt from the keyboard, nothing more is begun.
    """
    stop = stop if stop is not None else threading.Event()
    done = {row.key(): row for row in known}
    missing: set[str] = set()
    for number, instance in enumerate(chosen, start=1):
        if key_of(instance) in done:
            yield done[key_of(instance)]
            continue
        if stop.is_set():
            return
        try:
            data = instance.build()
        except UnavailableError as reason:
            if str(reason) not in missing:
                missing.add(str(reason))
                say(f"left out: {reason}")
            continue
        row = run_one(instance, data, workers=workers, stop=stop)
        if stop.is_set():
            return  # what was interrupted had less than its time
        say(f"{number}/{len(chosen)} {instance.name}: {_in_words(row)}")
        yield row


def run_one(
    instance: BenchInstance, data: ProblemData, *, workers: int, stop: threading.Event | None = None
) -> BenchRow:
    """The solver first; then every baseline, annealing with the seconds that the solver took."""
    stop = stop if stop is not None else threading.Event()
    result, seconds = solve_from_hint(data, instance.limit_s, workers=workers, seed=instance.seed, stop=stop)
    found = {
        "annealing_tuned": anneal_on_threads(data, "tuned", seconds, workers, instance.seed, stop),
        "annealing_pipette": anneal_on_threads(data, "pipette", seconds, workers, instance.seed, stop),
        "amp": amp(data, AmpParams(moves=amp_moves(data), time_limit_s=instance.limit_s, seed=instance.seed)),
        "varuna": varuna(data),
        "identity": identity_order(data),
    }
    best = result.solution
    objective = None if best is None else best.objective_ticks * data.tick_s
    dependent = None if best is None else dependent_ticks(data, best) * data.tick_s
    bound = result.lower_bound_ticks * data.tick_s
    difference = None if objective is None else max(0.0, objective - bound)
    upper = np.inf if best is None else best.objective_ticks
    return BenchRow(
        cluster=instance.cluster,
        weights=instance.weights,
        p2p=instance.p2p,
        num_used=instance.num_used,
        num_listed=data.num_nodes,
        shape=instance.shape_text,
        seed=instance.seed,
        limit_s=instance.limit_s,
        target=instance.target,
        status=result.status,
        objective_s=objective,
        lower_bound_s=bound,
        dependent_s=dependent,
        gap=None if objective is None or difference is None else difference / objective,
        placement_gap=None if difference is None or dependent is None else _share(difference, dependent),
        seconds=seconds,
        num_candidates=len(data.candidates),
        num_open=int((result.candidate_bounds < upper).sum()),
        **{f"{name}_s": _objective_s(data, one) for name, one in found.items()},
    )


def amp_moves(data: ProblemData) -> int:
    """Exchanges for AMP's annealing, more on more hosts."""
    return max(5_000, 200 * data.num_nodes)


def dependent_ticks(data: ProblemData, solution: Solution) -> int:
    """The objective minus what it would be with all transfers between hosts free."""
    candidate = data.candidates[solution.candidate]
    free = replace(
        candidate,
        p2p_ticks=np.zeros_like(candidate.p2p_ticks),
        ring_ticks=np.zeros_like(candidate.ring_ticks),
        tensor_forward_ticks=np.zeros_like(candidate.tensor_forward_ticks),
        tensor_backward_ticks=np.zeros_like(candidate.tensor_backward_ticks),
    )
    return solution.objective_ticks - objective_ticks(data, free, solution.nodes)


def solve_from_hint(
    data: ProblemData, limit_s: float, *, workers: int, seed: int, stop: threading.Event | None = None
) -> tuple[Result, float]:
    """The solver from a short annealing, as ``optimize`` does it; the result and the wall time of both."""
    from pipette_opt.heuristics.annealing import AnnealingParams, anneal
    from pipette_opt.solver.params import SolverParams
    from pipette_opt.solver.solve import solve

    started = time.perf_counter()
    hint_s = min(HINT_SHARE * limit_s, HINT_S_PER_HOST * data.num_nodes, MOST_HINT_S)
    hint = anneal(data, AnnealingParams(time_limit_s=hint_s, seed=seed), stop=stop)
    known = [] if hint.solution is None else [hint.solution, *hint.pool]
    left = max(0.1, limit_s - (time.perf_counter() - started))
    result = solve(data, SolverParams(time_limit_s=left, workers=workers, seed=seed), hint=known, stop=stop)
    return result, time.perf_counter() - started


def anneal_on_threads(
    data: ProblemData,
    variant: Literal["tuned", "pipette"],
    seconds: float,
    workers: int,
    seed: int,
    stop: threading.Event | None = None,
) -> Result:
    """Annealing with another seed on each thread; the best of them."""
    from pipette_opt.heuristics.annealing import AnnealingParams, anneal

    settings = [
        AnnealingParams(variant=variant, time_limit_s=seconds, seed=seed + 1000 * number) for number in range(workers)
    ]
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda one: anneal(data, one, stop=stop), settings))
    return min(results, key=lambda one: np.inf if one.solution is None else one.solution.objective_ticks)


WARM_UP_SHAPES: tuple[Shape, ...] = ((2, 2), (3, 1), (1, 3), (4, 2))


def warm_up(workers: int) -> float:
    """Import and compile everything that is timed; the seconds that took, without the work itself."""
    first, again = (_every_form(workers) for _ in range(2))
    return max(0.0, first - again)


def _every_form(workers: int) -> float:
    """Solve and anneal tiny problems of every form; wall time."""
    started = time.perf_counter()
    rates = np.random.default_rng(0).uniform(20, 25, (9, 9))
    np.fill_diagonal(rates, np.nan)
    for (P, D), p2p, spare in product(WARM_UP_SHAPES, get_args(P2PMode), (0, 1)):
        used = P * D + spare
        data = balanced_problem(rates[:used, :used], (P, D), p2p)
        solve_from_hint(data, 0.3, workers=workers, seed=0)
        anneal_on_threads(data, "pipette", 0.0, 1, 0)
        amp(data, AmpParams(moves=10))
    return time.perf_counter() - started


def _share(difference: float, dependent: float) -> float:
    if dependent > 0:
        return difference / dependent
    return 0.0 if difference <= 0 else 1.0


def _objective_s(data: ProblemData, result: Result) -> float | None:
    best: Solution | None = result.solution
    return None if best is None else best.objective_ticks * data.tick_s


def _in_words(row: BenchRow) -> str:
    if row.objective_s is None:
        return f"{row.status}, no solution in {row.seconds:.1f} s"
    above = row.above("annealing_tuned")
    beside = "" if above is None else f", tuned annealing {above:+.2%}"
    return f"placement gap {row.placement_gap:.2%} in {row.seconds:.1f} s{beside}"
