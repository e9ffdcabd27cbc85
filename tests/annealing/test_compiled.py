"""The compiled objective gives the same numbers as the plain one."""

import numpy as np
import pytest
from instances import SMALL_SHAPES, SPANS, Variant, random_problem

from pipette_opt.annealing.compiled import NUM_TIMES, evaluate, tables
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import objective_ticks

pytestmark = pytest.mark.search


def test_compiled_objective_is_the_plain_one() -> None:
    """Rings in slots, blocks, several kinds; a placement on a missing link costs more than any other."""
    rng = np.random.default_rng(0)
    equal = worse = 0
    for trial in range(280):
        shape = SMALL_SHAPES[trial % len(SMALL_SHAPES)]
        spans = SPANS[trial // len(SMALL_SHAPES) % len(SPANS)]
        variant = Variant(missing_share=0.1 * (trial % 3), num_kinds=2, spans=spans)
        data = random_problem(rng, [shape], 6, variant, max_block=3)
        candidate = data.candidates[0]
        t = tables(data, candidate)
        finish = np.zeros((candidate.num_stages, shape[1]), dtype=np.int64)
        ring = np.zeros(candidate.num_stages, dtype=np.int64)
        times = np.zeros((NUM_TIMES, candidate.num_stages), dtype=np.int64)
        values = []
        for _ in range(4):
            nodes = rng.permutation(6)
            expected = objective_ticks(data, candidate, nodes[: candidate.num_cells].reshape(shape))
            values.append((expected, int(evaluate(t, nodes, finish, ring, times))))
        for expected, value in values:
            if expected < UNUSABLE_TICKS:
                assert value == expected
                equal += 1
            else:
                assert all(value > other for plain, other in values if plain < UNUSABLE_TICKS)
                worse += 1
    assert equal > 500
    assert worse > 50
