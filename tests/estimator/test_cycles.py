import numpy as np
import pytest
from pipelines import pipeline, random_pipeline

from pipette_opt.estimator import critical_path
from pipette_opt.estimator.cycles import EventGraph, exact_period_s, largest_cycle_ratio
from pipette_opt.estimator.interleaved import interleaved_period_s
from pipette_opt.types import P2PMode

MODES: tuple[P2PMode, ...] = ("blocking", "async")


def graph(edges: list[tuple[int, int, float, int]]) -> EventGraph:
    """From (source, target, seconds, groups)."""
    source, target, seconds, groups = zip(*edges, strict=True)
    return EventGraph(
        np.array(source), np.array(target), np.array(seconds, dtype=float), np.array(groups), 1 + max(source + target)
    )


def test_cycle_ratio_by_hand() -> None:
    """Cycles 0-1 (5 s in one group), 0-1-2 (12 s in two) and 2-2 (3 s in one): the second is the largest."""
    edges = [(0, 1, 2, 0), (1, 0, 3, 1), (1, 2, 4, 1), (2, 0, 6, 1), (2, 2, 3, 1)]
    assert largest_cycle_ratio(graph(edges)) == 6.0
    assert largest_cycle_ratio(graph([*edges, (0, 0, 7, 1)])) == 7.0
    assert largest_cycle_ratio(graph([(0, 1, 2, 0)])) == 0.0


def test_a_cycle_inside_a_group_is_a_deadlock() -> None:
    """Work that waits for itself never ends."""
    with pytest.raises(ValueError, match="deadlocks"):
        largest_cycle_ratio(graph([(0, 1, 2, 0), (1, 0, 3, 0)]))


@pytest.mark.parametrize("kind", ["equal", "near", "uneven", "wild", "binary"])
@pytest.mark.parametrize("p2p", MODES)
def test_exact_period(kind: str, p2p: P2PMode) -> None:
    """In the long run one micro-batch more costs one period, to rounding, also with unequal chunks."""
    rng = np.random.default_rng(30)
    for _ in range(12):
        num_stages, num_chunks = int(rng.integers(2, 6)), int(rng.integers(2, 5))
        times = random_pipeline(rng, kind, num_stages, 1, num_chunks)
        more = 840 * num_stages
        before, after = (float(critical_path(times, m, p2p)[0, 0]) for m in (more, 2 * more))
        assert exact_period_s(times, p2p) == pytest.approx((after - before) / more, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", ["equal", "near", "uneven", "wild", "binary"])
def test_bounds_of_the_period(kind: str) -> None:
    """The closed form is never below the exact period, the busiest stage never above it, and blocking never shorter."""
    rng = np.random.default_rng(31)
    for _ in range(150):
        times = random_pipeline(rng, kind, int(rng.integers(2, 7)), 2, int(rng.integers(2, 5)))
        for replica in (0, 1):
            exact = exact_period_s(times, "async", replica)
            tolerance = 1e-9 * (1 + exact)
            busiest = (times.forward_s + times.backward_s)[:, :, replica].sum(axis=0).max()
            assert busiest - tolerance <= exact <= interleaved_period_s(times)[replica] + tolerance
            assert exact <= exact_period_s(times, "blocking", replica) + tolerance


def test_blocking_period_by_hand() -> None:
    """
    Two stages of two chunks, chunk times 1 + 1 s, 3 s from stage 0 to 1, all else free.

    Asynchronous, forwards go round in 1 + 3 + 1 s, twice for two micro-batches: 5 s at the most, above the 4 of work.
    Blocking, a receive is posted after the forward before: stage 1 has one forward every 1 + 3 s, two per micro-batch.
    """
    work = np.ones((2, 2, 1))
    times = pipeline(work, work, [3.0, 0.0])
    assert interleaved_period_s(times)[0] == 5.0
    assert exact_period_s(times, "blocking") == 8.0
