"""What a job loses where memory is nearly full."""

from dataclasses import replace

import pytest
from specs_for_tests import cluster, config, instance

from pipette_opt.costs.compute import stage_compute, stage_parameters
from pipette_opt.costs.edge import edge_times_s, gradients_outgrow, losing_chance
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


def test_a_refill_of_what_a_rank_holds() -> None:
    """Where gradients are freed, two seconds for each billion parameters of the largest stage's rank."""
    stack = replace(LOSSY, refill_s_per_billion=2.0)
    for one in (config(tp=4, pp=2, dp=2), config(tp=4, dp=4)):
        largest = float(stage_parameters(job().model, one).max())
        assert edge_times_s(replace(job(), stack=stack), one)[1:] == (3.0, pytest.approx(2.0 * largest / 1e9))


def test_a_job_loses_if_any_rank_does() -> None:
    """A half of the jobs on 16 GPUs, three quarters of those on 32; all without such a number."""
    assert losing_chance(16.0, 16) == pytest.approx(0.5)
    assert losing_chance(16.0, 32) == pytest.approx(0.75)
    assert losing_chance(16.0, 1) == pytest.approx(1 - 0.5 ** (1 / 16))
    assert losing_chance(0.0, 1) == 1.0
    sure = replace(job(), stack=replace(LOSSY, refill_s_per_billion=1.0))
    half = replace(sure, stack=replace(sure.stack, refill_half_gpus=16.0))
    one = config(tp=4, dp=4)
    assert edge_times_s(half, one) == (0.0, 3.0, pytest.approx(0.5 * edge_times_s(sure, one)[2]))


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 1024),
        ({"tensor_model_parallel_size": 8}, 512),
        ({"tensor_model_parallel_size": 8, "sequence_parallel": True}, 1024),
        ({"recompute_granularity": "full"}, 4096),
        ({"recompute_granularity": "full", "tensor_model_parallel_size": 8}, 512),
        ({"recompute_granularity": "full", "tensor_model_parallel_size": 2, "sequence_parallel": True}, 4096),
        ({"context_parallel_size": 2}, 2048),
    ],
)
def test_gradients_that_outgrow_activations(changes: dict[str, object], tokens: int) -> None:
    """Hidden size 1024, 4096 inside: of few tokens, up to where one block is as large as the matrix, by hand."""
    one, model = replace(config(tp=1), **changes), job().model  # type: ignore[arg-type]
    assert (model.hidden_size, model.ffn_hidden_size) == (1024, 4096)
    for seq_length, expected in ((tokens // 2, True), (tokens - 2, True), (tokens, False), (2 * tokens, False)):
        training = replace(job().training, seq_length=seq_length)
        assert gradients_outgrow(model, training, replace(one, micro_batch_size=1)) is expected


def test_what_is_lost_ends_the_iteration() -> None:
    """It comes with the optimizer's step, and nowhere else."""
    plain, lossy = job(), replace(job(), edge_loss_s=lambda _: 7.0)
    before, after = stage_compute(plain, config()), stage_compute(lossy, config())
    assert after.optimizer_s == pytest.approx(before.optimizer_s + 7.0)
    assert (after.forward_s == before.forward_s).all()
