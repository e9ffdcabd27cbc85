"""How the time limit is shared out."""

from dataclasses import replace

import pytest
from factories import TINY, make_cluster, make_job

from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.budget import (
    MIN_BESIDE_SHARE,
    MIN_CERTIFYING_S,
    MIN_PLACING_S,
    beside_clock,
    clock_of,
    proof_clock,
)
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Question, prepare, prunes
from pipette_opt.solver.open_families import JointLimits

pytestmark = pytest.mark.search


def test_the_proof_keeps_time_for_what_follows_it() -> None:
    """Plans beside the fastest have a little time even after the limit, and the proof enough to place a first plan."""
    watcher = Watcher()
    clock = clock_of(make_job(make_cluster(2), TINY, 8, 1024), OptimizeParams(time_limit_s=100.0), watcher)
    assert proof_clock(clock, has_plan=True).left_s == pytest.approx(85.0, rel=0.01)
    assert beside_clock(clock).left_s == pytest.approx(10.0, rel=0.01)
    watcher.started -= 200.0
    assert proof_clock(clock, has_plan=True).left_s == pytest.approx(MIN_CERTIFYING_S, rel=0.1)
    assert proof_clock(clock, has_plan=False).left_s == pytest.approx(MIN_PLACING_S, rel=0.1)
    assert beside_clock(clock).left_s == pytest.approx(100 * MIN_BESIDE_SHARE, rel=0.01)
    watcher.stop.set()
    assert proof_clock(clock, has_plan=False).left_s == 0.0


def test_whose_bound_is_the_least() -> None:
    """The joint model's below all other bounds alone; not where nothing was bounded or it was not asked."""
    job = make_job(make_cluster(2, gpus=4), TINY, 16, 1024)
    space = SearchSpace(tensor_parallel=(1,), context_parallel=(1,), micro_batch_size=(1,), recompute=(None,))
    limits = JointLimits(time_limit_s=60.0, workers=1)
    prepared = prepare(Question(job, space, 0.01, keep=prunes, joint=limits))
    assert prepared.pruned is not None
    assert prepared.joined is not None
    joined, least_s = prepared.joined, min(prepared.pruned.bounds_s.values())
    for share in (0.99, 1.0, 1.01):
        model = replace(joined.model, bound_s=share * least_s)
        assert replace(prepared, joined=replace(joined, model=model)).is_joint_least == (share < 1)
    assert not replace(prepared, pruned=None).is_joint_least
    assert not replace(prepared, joined=None).is_joint_least
