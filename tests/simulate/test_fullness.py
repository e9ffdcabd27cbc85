"""Plans near the end of memory lose what runs did there."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from specs_for_tests import LLAMA_8B, cluster

from pipette_opt.candidates import SearchSpace
from pipette_opt.costs.edge import edge_times_s, gradients_outgrow
from pipette_opt.memory.filter import keep_fitting
from pipette_opt.memory.framework import Framework, numbers_of
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import ParallelConfig, identity_placement
from pipette_opt.prepare import prepare
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.fullness import EDGE, NEAR, REDUCTION_BYTES, WIDTH, near_risk, stack_predictor, with_edge_loss
from pipette_opt.specs import DEFAULT_STACK, Instance, StackSpec, TrainingSpec

CALIBRATED = replace(DEFAULT_STACK, memory=numbers_of(Framework(spread=0.01)))
LOSSY = replace(CALIBRATED, flush_s=0.5, refill_s=3.0)
FREEING = replace(CALIBRATED, flush_s=0.5, refill_s_per_billion=0.5, refill_half_gpus=20.0)
SPACE = SearchSpace(
    virtual_pipeline=(1,),
    tensor_parallel=(2, 8),
    uneven_layers=False,
    context_parallel=(1,),
    overlap_grad_reduce=False,
)


def job(stack: StackSpec) -> Instance:
    """Eight billion parameters on two hosts."""
    training = TrainingSpec(global_batch_size=32, seq_length=4096)
    return Instance(model=LLAMA_8B, cluster=cluster(2), training=training, stack=stack)


def fullness(instance: Instance, config: ParallelConfig) -> tuple[float, float, float]:
    """What the fullest stage needs over what it may use, on equal hosts; how sure that is; what there is."""
    check = keep_fitting(instance, [config], stack_predictor(instance.stack))
    (one,) = (*check.fitting, *check.rejected)
    stage = int(one.prediction.predicted_bytes.argmax())
    usable = float(check.capacity_bytes[0])
    return one.prediction.predicted_bytes[stage] / usable, float(one.prediction.spread[stage]), usable


def test_half_of_the_jobs_lose_at_nine_tenths() -> None:
    """And nearly none at half, nearly all beyond the end."""
    assert near_risk(NEAR) == pytest.approx(0.5)
    assert near_risk(0.5) < 1e-6
    assert near_risk(NEAR * np.exp(2 * WIDTH)) == pytest.approx(NormalDist().cdf(2.0))


@pytest.mark.parametrize(
    "stack", [DEFAULT_STACK, CALIBRATED, replace(LOSSY, memory=None), replace(FREEING, memory=None)]
)
def test_stacks_that_know_no_loss(stack: StackSpec) -> None:
    """Without times or without memory nothing is added."""
    instance = job(stack)
    assert with_edge_loss(instance) is instance


def test_a_loss_by_parameters_alone_is_a_loss() -> None:
    """Of stacks whose runs lost in proportion to what a rank holds, and nothing else."""
    assert with_edge_loss(job(replace(CALIBRATED, refill_s_per_billion=1.0))).edge_loss_s is not None


def test_a_changed_job_has_a_loss_of_its_own() -> None:
    """Longer sequences fill more memory; a stack that loses nothing there has no loss."""
    before = with_edge_loss(job(LOSSY))
    longer = replace(before, training=replace(before.training, seq_length=16384))
    config = ParallelConfig(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=1,
        data_parallel_size=8,
        micro_batch_size=1,
        layers_per_stage=(32,),
        sequence_parallel=True,
        use_distributed_optimizer=True,
    )
    changed, fresh = with_edge_loss(longer), with_edge_loss(replace(longer, edge_loss_s=None))
    assert before.edge_loss_s is not None
    assert changed.edge_loss_s is not None
    assert fresh.edge_loss_s is not None
    assert before.edge_loss_s(config) < changed.edge_loss_s(config) == fresh.edge_loss_s(config)
    assert with_edge_loss(replace(before, stack=CALIBRATED)).edge_loss_s is None


@pytest.mark.search
def test_loss_by_hand() -> None:
    """Every candidate, checked before or alone: probability times seconds, by the stage that is fullest."""
    prepared = prepare(job(LOSSY), SPACE, 0.01)
    alone = with_edge_loss(job(LOSSY))
    assert prepared.instance.edge_loss_s is not None
    assert alone.edge_loss_s is not None
    assert with_edge_loss(alone) is alone
    losses = []
    for config in {one.config for one in prepared.problem.candidates}:
        full, spread, _ = fullness(alone, config)
        at_edge = 1 - NormalDist().cdf(float(np.log(EDGE / full)) / spread)
        flushes_s, refill_s, _ = edge_times_s(alone, config)
        expected = at_edge * flushes_s + near_risk(full) * refill_s
        assert alone.edge_loss_s(config) == pytest.approx(expected, rel=0.02, abs=1e-3)
        assert prepared.instance.edge_loss_s(config) == alone.edge_loss_s(config)
        losses.append(expected)
    assert min(losses) < 0.01 < max(losses)


@pytest.mark.search
def test_loss_of_freed_gradients_by_hand() -> None:
    """By parameters and a chance, where the reduction's buffers leave no room, and gradients outgrow activations."""
    short = replace(job(FREEING).training, seq_length=2048)
    deep = replace(job(FREEING), training=short, model=replace(LLAMA_8B, num_layers=128))
    alone = with_edge_loss(deep)
    assert alone.edge_loss_s is not None
    lost = []
    for config in {one.config for one in prepare(deep, SPACE, 0.01).problem.candidates}:
        full, spread, usable = fullness(alone, config)
        at_edge = 1 - NormalDist().cdf(float(np.log(EDGE / full)) / spread)
        flushes_s, _, regrown_s = edge_times_s(alone, config)
        outgrow = gradients_outgrow(alone.model, alone.training, config)
        regrown_s *= near_risk(full + REDUCTION_BYTES / usable) * outgrow
        assert alone.edge_loss_s(config) == pytest.approx(at_edge * flushes_s + regrown_s, rel=0.02, abs=1e-3)
        lost.append(regrown_s)
    assert min(lost) < 0.01 < max(lost)


@pytest.mark.search
def test_solver_and_simulator_count_it_alike() -> None:
    """In ticks and in seconds, of every candidate, what is added is the loss."""
    plain, lossy = prepare(job(CALIBRATED), SPACE, 0.01), prepare(job(LOSSY), SPACE, 0.01)
    assert lossy.instance.edge_loss_s is not None
    for before, after in zip(plain.problem.candidates, lossy.problem.candidates, strict=True):
        config = before.config
        lost = lossy.instance.edge_loss_s(config)
        seconds = after.optimizer_ticks * lossy.problem.tick_s - before.optimizer_ticks * plain.problem.tick_s
        assert seconds == pytest.approx(lost, abs=2 * max(plain.problem.tick_s, lossy.problem.tick_s))
        placement = identity_placement(config, 8, np.arange(2), "tp-cp-ep-dp-pp")
        before_s, after_s = (estimate(one.instance, config, placement) for one in (plain, lossy))
        assert after_s.iteration_time_s - before_s.iteration_time_s == pytest.approx(lost)
        assert after_s.breakdown == pytest.approx({**before_s.breakdown, "full_memory": lost})


@pytest.mark.search
def test_a_plan_that_fills_less_memory_wins() -> None:
    """Where full memory costs minutes; the plan says nothing then, and what it costs where it stays full."""
    params = OptimizeParams(time_limit_s=3.0)
    full = optimize(job(CALIBRATED), SPACE, params)
    dear = job(replace(LOSSY, refill_s=1000.0))
    lean = optimize(dear, SPACE, params)
    loss = with_edge_loss(dear).edge_loss_s
    assert loss is not None
    assert loss(lean.config) < loss(full.config)
    assert not any("nearly full" in note for note in full.notes)
    pinned = replace(
        SPACE,
        num_gpus=full.config.world_size,
        tensor_parallel=(full.config.tensor_model_parallel_size,),
        pipeline_parallel=(full.config.pipeline_model_parallel_size,),
        micro_batch_size=(full.config.micro_batch_size,),
        recompute=(full.config.recompute_granularity,),
        use_distributed_optimizer=(full.config.use_distributed_optimizer,),
    )
    assert any("nearly full" in note for note in optimize(dear, pinned, params).notes)
