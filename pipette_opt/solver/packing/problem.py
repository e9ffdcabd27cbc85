"""Packing problem in integers, and packings of it."""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingProblem:
    """
    Documents, and the bins of the steps that take them.

    Parameters
    ----------
    lengths, works
        Tokens and work of each document; work in whole units of any size.
    bin_tokens
        Tokens that a bin holds. No document is longer.
    num_stages
        Pipeline stages P. A lane takes the sum of its bins' work and P - 1 times its largest: the makespan of a
        proportionate flow shop, whatever the order (Pinedo, Scheduling, theorem on proportionate flow shops).
    waits_each_microbatch
        Whether replicas wait for each other at each micro-batch; otherwise once a step.
    """

    lengths: IntArray
    works: IntArray
    bin_tokens: int
    num_replicas: int
    num_microbatches: int
    num_stages: int
    waits_each_microbatch: bool
    num_steps: int

    @property
    def num_bins(self) -> int:
        """Number of bins of all steps."""
        return self.num_replicas * self.num_microbatches * self.num_steps

    @property
    def bins_per_lane(self) -> int:
        """Number of bins of a lane."""
        return 1 if self.waits_each_microbatch else self.num_microbatches

    @property
    def largest_weight(self) -> int:
        """Weight of a lane's largest bin beside its sum: P - 1, or 0 where a lane is a bin."""
        return 0 if self.waits_each_microbatch else self.num_stages - 1

    @property
    def wave_weights(self) -> IntArray:
        """
        Factor on each wave's time in the total, for waves in the order of their time.

        With a wait at each micro-batch the longest wave of a step counts P times: its P - 1 further turns fill the
        pipeline.
        """
        if not self.waits_each_microbatch:
            return np.ones(self.num_steps, np.int64)
        places = np.arange(self.num_steps * self.num_microbatches) % self.num_microbatches
        return np.where(places == 0, self.num_stages, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing:
    """Bin of each document, and lane of each bin; all lanes have equally many bins."""

    bin_of: IntArray
    lane_of: IntArray


def bin_sums(problem: PackingProblem, bin_of: IntArray, values: IntArray) -> IntArray:
    """Return the sum of a value of documents over each bin."""
    return np.bincount(bin_of, values, problem.num_bins).astype(np.int64)


def lane_times(problem: PackingProblem, packing: Packing) -> IntArray:
    """Return the time of each lane, in units of work."""
    works = bin_sums(problem, packing.bin_of, problem.works)
    order = np.lexsort((-works, packing.lane_of))
    by_lane = works[order].reshape(-1, problem.bins_per_lane)
    times: IntArray = by_lane.sum(axis=1) + problem.largest_weight * by_lane[:, 0]
    return times


def total_time(problem: PackingProblem, packing: Packing) -> int:
    """Return the time of all steps, in units of work."""
    times = -np.sort(-lane_times(problem, packing))
    return int(problem.wave_weights @ times[:: problem.num_replicas])


def places(problem: PackingProblem, packing: Packing) -> tuple[IntArray, IntArray, IntArray]:
    """Return step, replica and micro-batch of each document."""
    ranks = np.argsort(np.argsort(-lane_times(problem, packing), kind="stable"))
    order = np.lexsort((np.arange(problem.num_bins), packing.lane_of))
    within = np.empty(problem.num_bins, np.int64)
    within[order] = np.arange(problem.num_bins) % problem.bins_per_lane
    rank, inside = ranks[packing.lane_of[packing.bin_of]], within[packing.bin_of]
    waves, replicas = rank // problem.num_replicas, rank % problem.num_replicas
    if problem.waits_each_microbatch:
        return waves // problem.num_microbatches, replicas, waves % problem.num_microbatches
    return waves, replicas, inside
