"""Critical paths as counts: exact where they were found, a lower bound everywhere else."""

import numpy as np
import pytest
from pipelines import random_pipeline

from pipette_opt.base.types import FloatArray, P2PMode
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.problem.path_counts import PathCounts, plain_counts
from pipette_opt.simulate.critical_path import critical_path
from pipette_opt.simulate.longest_paths import critical_counts

KINDS = ("equal", "near", "uneven", "wild", "binary")
MODES: tuple[P2PMode, ...] = ("blocking", "async")


def longest(counts: PathCounts, times: PlacedTimes) -> FloatArray:
    """Length of the longest path to each stage of each replica, shape ``(pp, dp)``."""
    length = np.einsum("rcs,csd->rd", counts.forward, times.forward_s)
    length += np.einsum("rcs,csd->rd", counts.backward, times.backward_s)
    length += counts.up @ times.send_forward_s + counts.down @ times.send_backward_s
    finish = np.zeros(times.forward_s.shape[1:])
    np.maximum.at(finish, counts.stage, length)
    return finish


@pytest.mark.search
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p2p", MODES)
def test_paths_are_the_critical_path_where_found_and_below_it_elsewhere(kind: str, p2p: P2PMode) -> None:
    """With and without interleaving: 60 pipelines of four replicas, paths of one looked at on all others."""
    rng = np.random.default_rng(40)
    for trial in range(60):
        chunks = 1 + int(rng.integers(0, 4))
        pp = int(rng.integers(2 if chunks > 1 else 1, 7))
        m = pp * int(rng.integers(1, 5)) if chunks > 1 else int(rng.integers(1, 13))
        times = random_pipeline(rng, kind, pp, 4, chunks)
        finish = critical_path(times, m, p2p)
        counts = critical_counts(times, m, p2p)
        np.testing.assert_allclose(longest(counts, times), finish, rtol=1e-12, atol=1e-12)
        for other_kind in (kind, KINDS[trial % len(KINDS)]):
            other = random_pipeline(rng, other_kind, pp, 4, chunks)
            assert (longest(counts, other) <= critical_path(other, m, p2p) * (1 + 1e-12) + 1e-12).all()


@pytest.mark.search
@pytest.mark.parametrize("p2p", MODES)
def test_plain_paths_are_below_the_critical_path(p2p: P2PMode) -> None:
    """What every schedule has, interleaved or not; and exact with one micro-batch on one stage."""
    rng = np.random.default_rng(41)
    for trial in range(300):
        chunks = 1 + int(rng.integers(0, 4))
        pp = int(rng.integers(2 if chunks > 1 else 1, 7))
        m = pp * int(rng.integers(1, 5)) if chunks > 1 else int(rng.integers(1, 13))
        times = random_pipeline(rng, KINDS[trial % len(KINDS)], pp, 3, chunks)
        finish = critical_path(times, m, p2p)
        lower = longest(plain_counts(pp, m, chunks), times)
        assert (lower <= finish * (1 + 1e-12) + 1e-12).all()
        if pp == 1:
            np.testing.assert_allclose(lower, finish)


def test_each_stage_has_a_path_of_its_own() -> None:
    """The plain paths: one to every stage, and one by every other stage to the first."""
    counts = plain_counts(4, 8, 2)
    assert sorted(counts.stage.tolist()) == [0, 0, 0, 0, 1, 2, 3]
    assert counts.forward.sum(axis=(1, 2)).tolist() == [17, 18, 19, 16, 17, 18, 19]
