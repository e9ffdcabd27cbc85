"""Local search of packings: moves and swaps of documents, and swaps of whole bins."""

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.plans.clock import Clock
from pipette_opt.solver.packing.problem import Packing, PackingProblem, bin_sums

EVENNESS = (0.001, 0.1)
"""
Weights of uneven lanes beside the time: of squared lane times over twice the mean bin.

Each new beginning draws one between these, evenly in its logarithm. Chosen by ``benchmarks.packing``.
"""

PATIENCE = 200
"""Attempts without a better packing after which the search begins again near the best. Chosen by benchmarks.packing."""

MAX_KICKS = 8
"""Largest number of random swaps of such a new beginning. Chosen."""


def improved(problem: PackingProblem, packing: Packing, clock: Clock, goal: float, seed: int) -> Packing:
    """Return the best packing of a local search, which ends with the clock or at a total time of at most ``goal``."""
    rng = np.random.default_rng(seed)
    state = _State(problem, packing, np.sqrt(EVENNESS[0] * EVENNESS[1]))
    best, best_time, waited = packing, state.time, 0
    while best_time > goal and not clock.is_over:
        state.step(rng)
        waited += 1
        if state.time < best_time:
            best, best_time, waited = state.packing(), state.time, 0
        if waited >= PATIENCE:
            state, waited = _State(problem, best, np.exp(rng.uniform(*np.log(EVENNESS)))), 0
            state.kick(rng)
    return best


class _State:
    """Packing under change, with works of its bins and times of its lanes and waves."""

    def __init__(self, problem: PackingProblem, packing: Packing, evenness: float) -> None:
        self.problem, self.evenness = problem, evenness
        self.bin_of, self.lane_of = packing.bin_of.copy(), packing.lane_of.copy()
        self.tokens = bin_sums(problem, self.bin_of, problem.lengths)
        self.works = bin_sums(problem, self.bin_of, problem.works)
        self.mean = max(1.0, self.works.mean())
        self.refresh()

    def packing(self) -> Packing:
        """Return a copy of the packing."""
        return Packing(bin_of=self.bin_of.copy(), lane_of=self.lane_of.copy())

    def refresh(self) -> None:
        """Compute times of lanes, and sort lanes into waves."""
        problem, works = self.problem, self.works
        by_lane = np.lexsort((-works, self.lane_of)).reshape(-1, problem.bins_per_lane)
        largest = works[by_lane[:, 0]]
        self.sums = works[by_lane].sum(axis=1)
        self.other_bin = largest[self.lane_of]
        self.other_bin[by_lane[:, 0]] = works[by_lane[:, 1]] if problem.bins_per_lane > 1 else 0
        self.times = self.sums + problem.largest_weight * largest
        ranked = np.argsort(-self.times, kind="stable")
        self.waves = ranked.reshape(-1, problem.num_replicas)
        self.wave_of = np.empty(len(ranked), np.int64)
        self.wave_of[ranked] = np.arange(len(ranked)) // problem.num_replicas
        padding = ((0, 0), (0, max(0, 3 - problem.num_replicas)))
        self.top = np.pad(self.waves, padding, constant_values=-1)[:, :3]
        self.top_times = np.where(self.top < 0, 0, self.times[self.top])
        self.time = int(problem.wave_weights @ self.top_times[:, 0])
        self.score = self.time + self.evenness * float(np.square(self.times, dtype=float).sum()) / self.mean / 2

    def step(self, rng: np.random.Generator) -> None:
        """Try the best change of a bin: mostly of a lane that its wave waits for."""
        lane = rng.choice(self.waves[:, 0]) if rng.random() < 0.7 else rng.integers(len(self.times))
        bins = np.flatnonzero(self.lane_of == lane)
        chosen = rng.choice(bins) if rng.random() < 0.5 else bins[np.argmax(self.works[bins])]
        if not self.move(int(chosen)) and len(bins) > 1 and rng.random() < 0.2:
            self.swap_bins(int(lane))

    def move(self, source: int) -> bool:
        """Move a document out of a bin, or swap it with another, as lowers the score most; return whether it fell."""
        problem, bins = self.problem, np.arange(self.problem.num_bins)
        own, others = np.flatnonzero(self.bin_of == source), np.flatnonzero(self.bin_of != source)
        none = np.zeros_like(bins)
        target = np.concatenate([self.bin_of[others], bins])
        works = problem.works[own, None] - np.concatenate([problem.works[others], none])
        tokens = problem.lengths[own, None] - np.concatenate([problem.lengths[others], none])
        fitting = (self.tokens[source] - tokens <= problem.bin_tokens) & (works != 0) & (target != source)
        fitting &= self.tokens[target] + tokens <= problem.bin_tokens
        lane, lanes = int(self.lane_of[source]), self.lane_of[target]
        if problem.largest_weight == 0:
            fitting &= lanes != lane
        rows, columns = np.nonzero(fitting)
        if not len(rows):
            return False
        gain, target = works[rows, columns], target[columns]
        lanes, weight = lanes[columns], problem.largest_weight
        left = self.works[source] - gain, self.works[target] + gain
        source_time = self.sums[lane] - gain + weight * np.maximum(self.other_bin[source], left[0])
        target_time = self.sums[lanes] + gain + weight * np.maximum(self.other_bin[target], left[1])
        if weight:  # within a lane only its largest bin changes
            inside = self.sums[lane] + weight * np.maximum(np.maximum(*left), self.other_bin[source])
            source_time, target_time = (np.where(lanes == lane, inside, time) for time in (source_time, target_time))
        scores = self.changes(lane, lanes, source_time, target_time)
        best = int(np.argmin(scores))
        if scores[best] >= 0:
            return False
        moved = [(int(own[rows[best]]), source, int(target[best]))]
        if columns[best] < len(others):
            moved.append((int(others[columns[best]]), int(target[best]), source))
        return self.keep_if_better(moved)

    def swap_bins(self, lane: int) -> bool:
        """Swap a bin of a lane with a bin of another, as lowers the score most; return whether it fell."""
        inside, outside = np.flatnonzero(self.lane_of == lane), np.flatnonzero(self.lane_of != lane)
        own, others = np.repeat(inside, len(outside)), np.tile(outside, len(inside))
        if not len(own):
            return False
        lanes, gain, weight = self.lane_of[others], self.works[own] - self.works[others], self.problem.largest_weight
        source_time = self.sums[lane] - gain + weight * np.maximum(self.other_bin[own], self.works[others])
        target_time = self.sums[lanes] + gain + weight * np.maximum(self.other_bin[others], self.works[own])
        scores = self.changes(lane, lanes, source_time, target_time)
        best = int(np.argmin(scores))
        if scores[best] >= 0:
            return False
        self.lane_of[own[best]], self.lane_of[others[best]] = lanes[best], lane
        self.refresh()
        return True

    def changes(self, lane: int, lanes: IntArray, source_time: IntArray, target_time: IntArray) -> FloatArray:
        """
        Return changes of the score if ``lane`` and one of ``lanes`` take new times and lanes keep their waves.

        Parameters
        ----------
        source_time, target_time
            New times of ``lane`` and of each of ``lanes``.
        """
        here, away = np.full_like(lanes, self.wave_of[lane]), self.wave_of[lanes]
        weights, both = self.problem.wave_weights, np.maximum(source_time, target_time)

        def growth(waves: IntArray, times: IntArray) -> IntArray:
            top = self.top[waves]
            others = np.where((top == lane) | (top == lanes[:, None]), 0, self.top_times[waves]).max(axis=1)
            grown: IntArray = weights[waves] * (np.maximum(times, others) - self.top_times[waves, 0])
            return grown

        time = np.where(here == away, growth(here, both), growth(here, source_time) + growth(away, target_time))
        uneven = np.square(source_time, dtype=float) - float(self.times[lane]) ** 2
        uneven_away = np.square(target_time, dtype=float) - np.square(self.times[lanes], dtype=float)
        uneven += np.where(lanes == lane, 0.0, uneven_away)
        scores: FloatArray = time + self.evenness * uneven / self.mean / 2
        return scores

    def keep_if_better(self, moved: list[tuple[int, int, int]]) -> bool:
        """Move documents, each with its bin before and after; move them back unless the score falls."""
        before = self.score
        for document, _, target in moved:
            self.put(document, target)
        self.refresh()
        if self.score < before:
            return True
        for document, source, _ in moved:
            self.put(document, source)
        self.refresh()
        return False

    def put(self, document: int, target: int) -> None:
        """Move a document to a bin."""
        source = self.bin_of[document]
        for sums, values in ((self.tokens, self.problem.lengths), (self.works, self.problem.works)):
            sums[source] -= values[document]
            sums[target] += values[document]
        self.bin_of[document] = target

    def kick(self, rng: np.random.Generator) -> None:
        """Swap random documents where both bins have room."""
        lengths = self.problem.lengths
        for _ in range(rng.integers(1, MAX_KICKS + 1)):
            first, second = rng.integers(len(lengths), size=2)
            bins = self.bin_of[first], self.bin_of[second]
            tokens = lengths[first] - lengths[second]
            if max(self.tokens[bins[0]] - tokens, self.tokens[bins[1]] + tokens) <= self.problem.bin_tokens:
                self.put(first, bins[1])
                self.put(second, bins[0])
        self.refresh()
