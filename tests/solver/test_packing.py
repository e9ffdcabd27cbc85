"""Packings and their bounds, beside enumeration of tiny instances."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest

from pipette_opt.plans.clock import Clock
from pipette_opt.solver.packing.bounds import least_bins, time_bound
from pipette_opt.solver.packing.exact import solved
from pipette_opt.solver.packing.problem import Packing, PackingProblem, places, total_time
from pipette_opt.solver.packing.relaxation import relaxed, rounded
from pipette_opt.solver.packing.search import improved
from pipette_opt.solver.packing.solve import pack_documents
from pipette_opt.solver.packing.start import best_start, first_fit
from pipette_opt.verify.packing import step_time

pytestmark = pytest.mark.search

CASES = tuple(product((False, True), (1, 3)))
"""Wait at each micro-batch or each step, and pipeline stages."""


def make_problem(
    seed: int, num_documents: int = 6, *, size: int = 2, fill: float = 0.8, each: bool, stages: int
) -> PackingProblem:
    """Return a random problem of ``size`` replicas of ``size`` micro-batches; work grows faster than length."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 60, num_documents)
    bin_tokens = max(int(lengths.max()), int(lengths.sum() / (fill * size**2)))
    return PackingProblem(
        lengths=lengths,
        works=100 * lengths + lengths**2,
        bin_tokens=bin_tokens,
        num_replicas=size,
        num_microbatches=size,
        num_stages=stages,
        waits_each_microbatch=each,
        num_steps=1,
    )


def times_of(problem: PackingProblem, packing: Packing) -> int:
    """Time of all steps from the places of documents, by the formula of ``verify``."""
    works = np.zeros((problem.num_steps, problem.num_replicas, problem.num_microbatches), int)
    np.add.at(works, places(problem, packing), problem.works)
    return sum(step_time(step.tolist(), problem.num_stages, problem.waits_each_microbatch) for step in works)


def is_packing(problem: PackingProblem, packing: Packing) -> bool:
    """Whether bins are within capacity, and lanes have equally many bins."""
    tokens = np.bincount(packing.bin_of, problem.lengths, problem.num_bins)
    lanes = np.bincount(packing.lane_of)
    return bool(tokens.max() <= problem.bin_tokens and set(lanes) == {problem.bins_per_lane})


def enumerated(problem: PackingProblem) -> int:
    """Least time of all packings."""
    best, shape = 10**12, (problem.num_steps, problem.num_replicas, problem.num_microbatches)
    for bin_of in product(range(problem.num_bins), repeat=len(problem.lengths)):
        tokens = np.bincount(bin_of, problem.lengths, problem.num_bins)
        if tokens.max() <= problem.bin_tokens:
            works = np.bincount(bin_of, problem.works, problem.num_bins).astype(int).reshape(shape).tolist()
            time = sum(step_time(step, problem.num_stages, problem.waits_each_microbatch) for step in works)
            best = min(best, time)
    return best


@pytest.mark.parametrize(("each", "stages"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_small_packings_are_the_best(each: bool, stages: int, seed: int) -> None:
    """Enumeration gives the same time, and every bound is at most that time."""
    problem, start = best_start(make_problem(seed, 5, each=each, stages=stages))
    least = enumerated(problem)
    found = pack_documents(problem, Clock().after(2.0))
    assert found.time == found.bound == least
    assert time_bound(problem) <= least
    assert relaxed(problem, Clock().after(0.3), 1, 0).bound <= least
    assert solved(problem, start, 0, Clock().after(5.0), 1, 0)[1] == least


@pytest.mark.parametrize(("each", "stages"), CASES)
@pytest.mark.parametrize("fill", [0.6, 0.95])
def test_every_document_is_packed_once(each: bool, stages: int, fill: float) -> None:
    """The search never makes a packing slower; starts and relaxation keep capacities, bounds are below."""
    problem, start = best_start(make_problem(1, 60, size=4, fill=fill, each=each, stages=stages))
    better = improved(problem, start, Clock().after(0.1), 0, 0)
    bound = relaxed(problem, Clock().after(0.3), 1, 0)
    packings = [start, better, *(rounded(problem, bound, by_class=by_class) for by_class in (False, True))]
    for packing in packings:
        if packing is not None:
            assert is_packing(problem, packing)
            assert total_time(problem, packing) == times_of(problem, packing)
            assert max(bound.bound, time_bound(problem)) <= total_time(problem, packing)
    assert total_time(problem, better) <= total_time(problem, start)


def test_documents_of_several_steps() -> None:
    """More documents than a step holds take the fewest steps; first-fit is a packing, too."""
    problem = replace(make_problem(2, 40, each=False, stages=2), bin_tokens=60)
    found = pack_documents(problem, Clock().after(0.3))
    steps = found.problem.num_steps
    assert steps > 1
    assert is_packing(found.problem, found.packing)
    assert least_bins(problem.lengths, 60) <= 4 * steps
    for order in (range(40), np.argsort(-problem.lengths)):
        assert is_packing(*first_fit(problem, order))
    assert first_fit(problem, range(40), reach=1)[1].bin_of.tolist() == sorted(
        first_fit(problem, range(40), reach=1)[1].bin_of
    )


@pytest.mark.parametrize("lengths", [(6, 6, 6, 4, 4), (5, 5, 5, 5), (7, 7, 3, 2), (10, 1), (1,)])
def test_bound_on_bins(lengths: tuple[int, ...]) -> None:
    """L2 equals the best number of bins here; three of 6 and two of 4 tokens need three bins of 10."""
    array = np.array(lengths)
    best = len(lengths)
    for order in permutations(array):
        bins = [0]
        for length in order:
            bins = [*bins[:-1], bins[-1] + length] if bins[-1] + length <= 10 else [*bins, length]
        best = min(best, len(bins))
    assert least_bins(array, 10) == best


def test_l2_is_above_the_sum() -> None:
    """Documents of 6 tokens need a bin each, and 3 of 3 tokens find room beside them, but 4 of 5 tokens do not."""
    assert least_bins(np.array([6, 6, 6, 3, 3, 3]), 10) == 3
    assert least_bins(np.array([6, 6, 6, 5, 5]), 10) == 4


def test_an_optimum_that_a_presolve_missed() -> None:
    """Three replicas, two micro-batches, 16 stages: OR-tools 9.15 by itself proves a packing that is 3 % slower."""
    lengths = np.array([100, 50, 51, 63])
    problem = PackingProblem(
        lengths=lengths,
        works=np.array([378971333, 189320483, 193110262, 238597922]),  # of llama-3-8b
        bin_tokens=100,
        num_replicas=3,
        num_microbatches=2,
        num_stages=16,
        waits_each_microbatch=False,
        num_steps=1,
    )
    _, start = first_fit(problem, range(4))
    packing, bound = solved(problem, start, 0, Clock().after(30.0), 2, 0)
    assert bound == total_time(problem, packing) == enumerated(problem)


@pytest.mark.parametrize("each", [False, True])
def test_the_longest_document_bounds_few_documents(each: bool) -> None:
    """A document for each bin and more bins than documents: the bound is the optimum."""
    problem = make_problem(0, 3, size=3, fill=0.1, each=each, stages=2)
    assert time_bound(problem) == int(problem.works.max()) * 2
