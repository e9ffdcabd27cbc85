"""What a job loses where memory is nearly full."""

from dataclasses import replace

import pytest
from specs_for_tests import cluster, config, instance

from pipette_opt.costs.compute import stage_compute
from pipette_opt.costs.edge import edge_times_s
from pipette_opt.specs import DEFAULT_STACK, Instance

LOSSY = replace(DEFAULT_STACK, flush_s=0.5, refill_s=3.0)


def job() -> Instance:
    """With losses."""
    return replace(instance(cluster(2)), stack=LOSSY)


def test_a_flush_in_every_micro_batch_of_half_of_two_stages() -> None:
    """In a pipeline of two, with its micro-batches and one more; none without a pipeline."""
    two = config(tp=4, pp=2, dp=2)
    rounds = two.num_microbatches(job().training.global_batch_size) + 1
    assert edge_times_s(job(), two)[0] == pytest.approx(0.5 * 0.5 * rounds)
    assert edge_times_s(job(), config(tp=4, dp=4))[0] == 0.0


def test_a_refill_once_in_an_iteration() -> None:
    """Of any job."""
    assert {edge_times_s(job(), one)[1] for one in (config(tp=4, pp=2, dp=2), config(tp=4, dp=4))} == {3.0}


def test_what_is_lost_ends_the_iteration() -> None:
    """It comes with the optimizer's step, and nowhere else."""
    plain, lossy = job(), replace(job(), edge_loss_s=lambda _: 7.0)
    before, after = stage_compute(plain, config()), stage_compute(lossy, config())
    assert after.optimizer_s == pytest.approx(before.optimizer_s + 7.0)
    assert (after.forward_s == before.forward_s).all()
