"""
The judge's certificate: no plan of the searched space is faster by the judge than a proven bound.

The judge's time is a maximum over paths through the event graph of a schedule, and every path is linear in the times of
work and links. So each candidate starts with a few paths, and this goes round: place it for the longest of its paths
(a lower form), judge the placement, and add the critical paths that the judge found there. At that placement the form
now is the judge's time; where the judge is slower than the form said, the form has been cut. First annealing places,
which is quick and finds most of the paths that matter, then the solver, which proves. When the solver's optimum is a
placement at which form and judge agree, nothing is left between bound and plan.

Where expert-parallel groups span hosts the lower form counts their all-to-alls over the best links. Such candidates are
judged on every placement if these are few, which settles them, and otherwise by exchanging hosts; the form remains
their bound.

Candidates that cannot be faster than the best plan are never placed: by their plain paths over the best links, or by
the judge itself over links that are all as fast as the fastest, as no operation starts later when a time gets shorter.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipette_opt.build import experts_stay_inside, with_paths
from pipette_opt.costs.placed import placed_times
from pipette_opt.errors import MissingLinkError
from pipette_opt.estimator.estimate import judge_times
from pipette_opt.estimator.longest_paths import critical_counts
from pipette_opt.heuristics.annealing import AnnealingParams, anneal
from pipette_opt.heuristics.common import checked_solution
from pipette_opt.judge import JudgedSolution, best_links_times, judge_solution
from pipette_opt.optimistic import optimistic_ticks
from pipette_opt.parallel import ParallelConfig, block_placement
from pipette_opt.prepare import Prepared
from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, ProblemData, objective_ticks
from pipette_opt.reseat import MOST_ORDERS, best_of_all, climb, num_orders
from pipette_opt.solution import Result, Solution
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.chains.search import searches_chain
from pipette_opt.types import BoolArray, IntArray

FLOAT_MARGIN = 1e-9
"""Relative; given back from bounds that are computed in doubles, and allowed where form and judge are compared."""

CLOSE_ENOUGH = 1e-6
"""Relative; what could at most be faster by this is not looked for, as ticks are not much finer."""

FIRST_MOVES, MOST_MOVES, MOST_MOVES_OF_CHAINS = 20_000, 640_000, 80_000
"""
Moves of a candidate's first restart, and of the longest annealing; they double when nothing was learned. A single
column of hosts is soon searched to its end, so annealing it any longer is not worth while.
"""

ANNEALING_SHARE, RUNNERS_UP_SHARE = 0.3, 0.1
"""Parts of the time left that annealing may take, and that the next best configurations get after that."""

RESEATING_SHARE = 0.5
"""Part of the time left after that for candidates whose experts span hosts."""

RUNNER_UP_VISITS = 3
"""How often a configuration that cannot win is annealed, to be shown as an alternative."""

SLOWER_LINK = 1.5
"""What one link after the other is slowed down by, to find the paths that a slow link there would be on."""

Report = Callable[[str, float | None, float | None], None]
"""Told the step, the fastest time so far and the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyParams:
    """
    How long and how closely.

    Parameters
    ----------
    gap_limit
        Stop when (fastest - bound) / fastest is proven to be at most this.
    reserve_s
        Part of the time limit that is left unused if the fastest plan is not interleaved: its closed form needs it.
    num_alternatives
        Configurations beside the best that are placed and judged in any case, if there are so many.
    """

    time_limit_s: float
    reserve_s: float = 0.0
    gap_limit: float = 0.0
    workers: int = 1
    seed: int = 0
    num_alternatives: int = 0

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be > 0, got {self.time_limit_s}.")
        if not 0 <= self.gap_limit < 1:
            raise ValueError(f"gap_limit must be in [0, 1), got {self.gap_limit}.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certified:
    """
    What the judge's certificate says.

    Parameters
    ----------
    bound_s
        No plan of any candidate is faster by the judge.
    judged
        The placements that were judged on the way, as candidates of ``prepared.problem``.
    open_configs
        Configurations that no bound without a search rules out.
    """

    bound_s: float
    judged: tuple[JudgedSolution, ...]
    open_configs: frozenset[ParallelConfig]


def certify(
    prepared: Prepared,
    known: Sequence[JudgedSolution],
    params: CertifyParams,
    report: Report = lambda step, fastest_s, bound_s: None,
    stop: threading.Event | None = None,
) -> Certified:
    """
    Bound the judge's time over all candidates, and look for faster plans on the way.

    Parameters
    ----------
    known
        Plans judged before; the bound is never above the fastest of these and of what is found.
    """
    search = _Search(prepared, known, params, report, stop or threading.Event())
    search.bound_at_best_links()
    search.anneal()
    search.place_runners_up()
    search.reseat()
    search.solve()
    return Certified(bound_s=search.bound_s, judged=tuple(search.judged()), open_configs=search.open_configs)


@dataclass(slots=True, kw_only=True, eq=False)
class _Open:
    """
    A candidate that may be faster than the best plan.

    Parameters
    ----------
    candidate
        With the paths found so far.
    bound_ticks
        No placement has a smaller lower form.
    deciding
        Stages whose end can decide the iteration, shape ``(pp,)``.
    """

    index: int
    candidate: CandidateData
    bound_ticks: int
    deciding: BoolArray
    best: JudgedSolution | None = None
    seen: set[bytes] = field(default_factory=set)
    visits: int = 0
    moves: int = FIRST_MOVES


class _Search:
    """The fastest plan, and what is proven about each candidate."""

    def __init__(
        self,
        prepared: Prepared,
        known: Sequence[JudgedSolution],
        params: CertifyParams,
        report: Report,
        stop: threading.Event,
    ) -> None:
        self.prepared, self.params, self.stop = prepared, params, stop
        self.data: ProblemData = prepared.lower
        self.ends = time.perf_counter() + params.time_limit_s
        self.known = list(known)
        self.fastest_s, self.is_interleaved = float("inf"), False
        for one in known:
            self._take(one)
        self.closed_s = float("inf")
        self.open: list[_Open] = []
        self.runners_up: list[_Open] = []
        self.order: list[int] = []
        self.open_configs: frozenset[ParallelConfig] = frozenset()
        self._report = report

    @property
    def seconds_left(self) -> float:
        """Until the time limit, or what is reserved of it."""
        return self.ends - (0.0 if self.is_interleaved else self.params.reserve_s) - time.perf_counter()

    @property
    def bound_s(self) -> float:
        """No plan is faster."""
        return self._with_open(min((one.bound_ticks for one in self.open), default=UNUSABLE_TICKS))

    @property
    def is_over(self) -> bool:
        """Whether to stop."""
        if self.stop.is_set() or self.seconds_left <= 0:
            return True
        if not np.isfinite(self.fastest_s):
            return False
        return self.fastest_s - self.bound_s <= max(self.params.gap_limit, CLOSE_ENOUGH) * self.fastest_s

    def _with_open(self, ticks: int) -> float:
        """The bound if the open candidates have this one."""
        lowest = min(self.closed_s, ticks * self.data.tick_s) * (1 - FLOAT_MARGIN)
        return max(0.0, min(lowest, self.fastest_s))

    def _take(self, judged: JudgedSolution) -> None:
        """A plan, which may be the fastest."""
        if judged.estimate.iteration_time_s < self.fastest_s:
            self.fastest_s = judged.estimate.iteration_time_s
            self.is_interleaved = judged.objective_s is None

    def report(self, step: str, bound_s: float | None = None) -> None:
        """Tell how far it is."""
        fastest_s = self.fastest_s if np.isfinite(self.fastest_s) else None
        self._report(step, fastest_s, self.bound_s if bound_s is None else bound_s)

    def judged(self) -> list[JudgedSolution]:
        """The best placement of each candidate that was placed."""
        return [one.best for one in (*self.open, *self.runners_up) if one.best is not None]

    def bound_at_best_links(self) -> None:
        """Open the candidates that could be faster if all links were as fast as the fastest."""
        self._report("bounding the judge", None, None)
        bounds = [optimistic_ticks(self.data, candidate) for candidate in self.data.candidates]
        nodes_of: dict[tuple[object, object], IntArray] = {}
        for plan in sorted(self.known, key=lambda one: -one.estimate.iteration_time_s):
            nodes_of[plan.candidate.config, plan.candidate.block] = plan.nodes
        order = np.argsort(bounds, kind="stable").tolist()
        self.order = [index for index in order if bounds[index] < UNUSABLE_TICKS]
        for index in self.order:
            bound_s, candidate = bounds[index] * self.data.tick_s, self.data.candidates[index]
            if bound_s >= self.fastest_s or self.seconds_left <= 0:
                self.closed_s = min(self.closed_s, bound_s)
                break
            one = self._opened(index, candidate, bounds[index])
            if one is None:
                continue
            self.open.append(one)
            hint = nodes_of.get((candidate.config, candidate.block))
            if hint is not None:
                self._look(one, hint)
            if not np.isfinite(self.fastest_s):
                self._anneal_once(one)
        self.open_configs = frozenset(one.candidate.config for one in self._could_win())

    def _opened(self, index: int, candidate: CandidateData, bound_ticks: int) -> _Open | None:
        """The candidate with the paths of the best links; ``None`` if the judge rules it out there."""
        deciding = np.ones(candidate.num_stages, dtype=np.bool_)
        times = best_links_times(self.prepared.instance, candidate)
        if times is not None:
            ideal_s = judge_times(times, candidate.num_microbatches, self.data.p2p).iteration_time_s
            if ideal_s * (1 - FLOAT_MARGIN) >= self.fastest_s:
                self.closed_s = min(self.closed_s, ideal_s)
                return None
            deciding = _deciding_stages(candidate, times.backward_s[0].min(axis=1) / self.data.tick_s)
            counts = critical_counts(times, candidate.num_microbatches, self.data.p2p)
            candidate = with_paths(self.prepared.instance, self.data, candidate, [counts.ending_at(deciding)])
            bound_ticks = max(bound_ticks, candidate_bound(self.data, candidate))
        return _Open(index=index, candidate=candidate, bound_ticks=bound_ticks, deciding=deciding)

    def _could_win(self) -> list[_Open]:
        """Candidates that are not ruled out, most promising first."""
        enough = (1 - CLOSE_ENOUGH) * self.fastest_s
        able = [one for one in self.open if one.bound_ticks < min(UNUSABLE_TICKS, enough / self.data.tick_s)]
        return sorted(able, key=lambda one: (one.bound_ticks, one.index))

    def anneal(self) -> None:
        """Place, judge and cut each candidate until that teaches nothing more, or its share of the time is over."""
        ends = time.perf_counter() + ANNEALING_SHARE * max(self.seconds_left, 0.0)
        while not self.is_over and time.perf_counter() < ends:
            able = [one for one in self._could_win() if one.moves <= self._most_moves(one)]
            if not able:
                return
            self.report(f"placing {len(able)} candidates for the judge")
            for one in able:
                if self.is_over or time.perf_counter() >= ends:
                    return
                if one.bound_ticks * self.data.tick_s < self.fastest_s and one.visits == 0:
                    self._slow_links_down(one)
                if one.bound_ticks * self.data.tick_s < self.fastest_s:
                    self._anneal_once(one)

    def _most_moves(self, one: _Open) -> int:
        return MOST_MOVES_OF_CHAINS if searches_chain(self.data, one.candidate) else MOST_MOVES

    def _slow_links_down(self, one: _Open) -> None:
        """Add the paths that become critical when one of the links between hosts is slower than all others."""
        times, candidate = best_links_times(self.prepared.instance, one.candidate), one.candidate
        if times is None:
            return
        rows = np.arange(candidate.num_stages) // candidate.block.stages
        found = []
        for stage in np.flatnonzero(rows != np.roll(rows, -1))[: candidate.num_links].tolist():
            sends = [times.send_forward_s.copy(), times.send_backward_s.copy()]
            for side in sends:
                side[stage] *= SLOWER_LINK
            slower = replace(times, send_forward_s=sends[0], send_backward_s=sends[1])
            found.append(critical_counts(slower, candidate.num_microbatches, self.data.p2p).ending_at(one.deciding))
        one.candidate = with_paths(self.prepared.instance, self.data, candidate, found)
        one.bound_ticks = max(one.bound_ticks, candidate_bound(self.data, one.candidate))

    def place_runners_up(self) -> None:
        """Configurations that cannot win, with those that might so many as are asked for beside the best."""
        ends = time.perf_counter() + RUNNERS_UP_SHARE * max(self.seconds_left, 0.0)
        placed = {one.candidate.config for one in (*self.known, *self.judged())}
        for index in self.order:
            candidate = self.data.candidates[index]
            if len(placed) > self.params.num_alternatives or time.perf_counter() >= ends or self.stop.is_set():
                return
            if candidate.config in placed:
                continue
            everywhere = np.ones(candidate.num_stages, dtype=np.bool_)
            one = _Open(index=index, candidate=candidate, bound_ticks=0, deciding=everywhere)
            for _ in range(RUNNER_UP_VISITS):
                self._anneal_once(one)
            if one.best is not None:
                self.runners_up.append(one)
                placed.add(candidate.config)

    def reseat(self) -> None:
        """Place candidates whose experts span hosts by the judge alone."""
        ends = time.perf_counter() + RESEATING_SHARE * max(self.seconds_left, 0.0)
        instance = self.prepared.instance
        for one in self._could_win():
            candidate = one.candidate
            if experts_stay_inside(instance, candidate.config, candidate.block):
                continue
            if time.perf_counter() >= ends or self.is_over:
                return
            self.report("placing experts that span hosts")
            if num_orders(self.data, candidate) <= MOST_ORDERS:
                settled = best_of_all(instance, self.data, candidate, ends, self.stop)
                if settled is None:
                    continue
                nodes, seconds = settled
                if nodes is not None:
                    self._look(one, nodes)
                least = seconds * (1 - FLOAT_MARGIN) / self.data.tick_s
                one.bound_ticks = max(one.bound_ticks, int(min(least, UNUSABLE_TICKS)))
            elif one.best is not None:
                self._look(
                    one, climb(instance, self.data, candidate, one.best.nodes, ends, self.stop, self.params.seed)
                )

    def _anneal_once(self, one: _Open) -> None:
        """One annealing for the lower form, judged."""
        one.visits += 1
        found = anneal(
            replace(self.data, candidates=(one.candidate,)),
            AnnealingParams(
                time_limit_s=max(self.seconds_left, 0.01),
                max_moves=one.moves,
                first_moves=FIRST_MOVES,
                seed=self.params.seed + one.visits,
            ),
            stop=self.stop,
        )
        learned = found.solution is not None and self._look(one, found.solution.nodes)
        one.moves *= 1 if learned else 2
        one.bound_ticks = max(one.bound_ticks, optimistic_ticks(self.data, one.candidate))

    def _look(self, one: _Open, nodes: IntArray) -> bool:
        """Judge a placement and add its critical paths; whether that made the lower form larger there, or is faster."""
        if nodes.tobytes() in one.seen:
            return False
        one.seen.add(nodes.tobytes())
        instance, candidate = self.prepared.instance, one.candidate
        try:
            judged = judge_solution(
                instance, self.prepared.problem, Solution(candidate=one.index, nodes=nodes, objective_ticks=0)
            )
            times = placed_times(instance, candidate.config, block_placement(candidate.config, candidate.block, nodes))
        except MissingLinkError:
            return False
        seconds = judged.estimate.iteration_time_s
        form = objective_ticks(self.data, candidate, nodes)
        if form * self.data.tick_s > seconds * (1 + FLOAT_MARGIN):
            name = candidate.config.label()
            raise AssertionError(f"{name}: lower form {form * self.data.tick_s} s, above the judge's time {seconds} s")
        better = one.best is None or seconds < one.best.estimate.iteration_time_s
        if better:
            one.best = judged
        self._take(judged)
        counts = critical_counts(times, candidate.num_microbatches, self.data.p2p).ending_at(one.deciding)
        one.candidate = with_paths(instance, self.data, candidate, [counts])
        return better or objective_ticks(self.data, one.candidate, nodes) > form

    def solve(self) -> None:
        """Let the solver place for the lower forms, judge and cut, until nothing can be faster or time is over."""
        for one in self._could_win():
            one.bound_ticks = max(one.bound_ticks, candidate_bound(self.data, one.candidate))
        share = 0.5
        while not self.is_over:
            able = self._could_win()
            if not able:
                return
            result = self._solve_once(able, share * self.seconds_left)
            learned = False
            for solution in (result.solution, *result.pool) if result.solution is not None else ():
                learned |= self._look(able[solution.candidate], solution.nodes)
            if not learned:
                share = 1.0
            if result.status == "INFEASIBLE" or (result.status == "OPTIMAL" and not learned):
                return

    def _solve_once(self, able: list[_Open], seconds: float) -> Result:
        """The solver on the lower forms of some candidates; what it proves is kept."""
        from pipette_opt.solver.params import SolverParams
        from pipette_opt.solver.solve import solve

        known = (replace(one.candidate, least_ticks=one.bound_ticks) for one in able)
        data = replace(self.data, candidates=tuple(known))
        hints = [
            checked_solution(data, number, one.best.nodes) for number, one in enumerate(able) if one.best is not None
        ]

        step = f"bounding the judge over {len(able)} candidates"

        def on_progress(elapsed_s: float, incumbent: int | None, bound: int) -> None:
            self.report(step, max(self.bound_s, self._with_open(bound)))

        result = solve(
            data,
            SolverParams(
                time_limit_s=max(0.1, seconds),
                gap_limit=self.params.gap_limit,
                workers=self.params.workers,
                seed=self.params.seed,
            ),
            hint=[one for one in hints if one is not None],
            on_progress=on_progress,
            stop=self.stop,
        )
        for one, ticks in zip(able, result.candidate_bounds.tolist(), strict=True):
            one.bound_ticks = max(one.bound_ticks, ticks)
        return result


def _deciding_stages(candidate: CandidateData, backward_ticks: np.ndarray) -> BoolArray:
    """
    Stages whose last backward can decide the iteration.

    The first stage is finished later than stage ``s`` by the backward passes before ``s``. Stage ``s`` matters only if
    its reduction can be longer than the first stage's by more. Tied embeddings follow both ends alike.

    Parameters
    ----------
    backward_ticks
        Backward pass of the first chunk of each stage, at least, shape ``(pp,)``.
    """
    longest, shortest = candidate.ring_floor_ticks.copy(), candidate.ring_floor_ticks.copy()
    if candidate.grid[1] > 1:
        usable = [ticks[ticks < UNUSABLE_TICKS] for ticks in candidate.ring_ticks]
        most = np.array([int(ticks.max(initial=0)) for ticks in usable])[candidate.ring_class]
        least = np.array([int(ticks.min(initial=UNUSABLE_TICKS)) for ticks in usable])[candidate.ring_class]
        longest, shortest = np.maximum(longest, most), np.maximum(shortest, least)
    still = np.concatenate([[0.0], np.cumsum(backward_ticks)[:-1]])
    deciding: BoolArray = longest > shortest[0] + still
    deciding[0] = True
    return deciding
