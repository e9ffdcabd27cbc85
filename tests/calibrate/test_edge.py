"""Runs at the edge of memory."""

from dataclasses import replace

import numpy as np
import pytest
from measured_runs import measured_run

from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.edge import edge_risks, frees_gradients
from pipette_opt.calibrate.predict import predict_runs, predicted_times_s
from pipette_opt.memory.framework import Framework, numbers_of
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.fullness import with_edge_loss
from pipette_opt.specs import DEFAULT_STACK, StackSpec

FITTED = replace(DEFAULT_STACK, flush_s=0.5, refill_s=3.0, memory=numbers_of(Framework(spread=0.01)))
FREEING = replace(FITTED, refill_s=0.0, refill_s_per_billion=0.5, refill_half_gpus=20.0)
FREED = {"gradients": "freed"}


def cases(*runs: MeasuredRun, stack: StackSpec = FITTED) -> list[Case]:
    """Runs that can be predicted."""
    made = [case for case in make_cases(runs, stack) if isinstance(case, Case)]
    assert len(made) == len(runs)
    return made


def test_small_jobs_are_far_from_the_edge_and_huge_ones_beyond() -> None:
    """Risk 0 and 1, up to what a normal spread has; nothing where memory was not fitted."""
    small, huge = measured_run(), measured_run(hidden=16384, ffn_hidden=65536, heads=128)
    beyond = [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    jobs = cases(small, huge, replace(huge, extra=FREED))
    assert edge_risks(jobs, FITTED) == pytest.approx(np.array(beyond), abs=1e-3)
    assert not edge_risks(jobs, DEFAULT_STACK).any()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"extra": {"gradients": "kept"}}, False),
        ({"extra": {"gradients": "Freed"}}, True),
    ],
)
def test_who_frees_gradients(changes: dict[str, object], expected: bool) -> None:
    """The row says it."""
    assert frees_gradients(measured_run(**changes)) is expected


def test_gradients_that_fit_into_activations_come_back_without_loss() -> None:
    """As full, with twice the tokens in a micro-batch, which are then as many as the hidden size."""
    huge = measured_run(hidden=4096, ffn_hidden=16384, heads=32, num_layers=128, mbs=1, extra=FREED)
    outgrown, fitting = edge_risks(cases(huge, replace(huge, mbs=2)), FITTED)
    assert outgrown == pytest.approx([1.0, 0.0, 1.0], abs=1e-3)
    assert fitting == pytest.approx([1.0, 0.0, 0.0], abs=1e-3)


def test_what_is_near_is_soft() -> None:
    """Layer by layer the risk of a loss in each iteration grows, a half where nine tenths are in use."""
    jobs = cases(*(measured_run(num_layers=24 * times, pp=1, dp=8) for times in range(1, 12)))
    edge, near, _ = edge_risks(jobs, FITTED).T
    assert (np.diff(near) >= 0).all()
    assert ((near > 0.1) & (near < 0.9)).sum() > ((edge > 0.1) & (edge < 0.9)).sum()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1.0),
        ({"zero_stage": 1}, 0.0),
        ({"pp": 1, "dp": 8}, 0.0),
        ({"extra": {"after_pp_fix": "True"}}, 0.0),
    ],
)
def test_versions_that_kept_memory(changes: dict[str, object], expected: float) -> None:
    """Marked by the source, in a pipeline, with nothing sharded."""
    run = measured_run(**({"extra": {"after_pp_fix": "False"}, "zero_stage": 0} | changes))
    assert edge_risks(cases(run), FITTED)[0, 0] == pytest.approx(expected, abs=1e-3)


def test_predictions_have_it() -> None:
    """What the simulator says, and the loss in proportion to the risk."""
    run = measured_run(extra={"after_pp_fix": "False"})
    plain = predicted_times_s(cases(run))[0]
    (prediction,) = predict_runs([run], FITTED, rivals=False)
    assert prediction.iter_time_s == pytest.approx(plain + 0.5 * 0.5 * 9, rel=1e-6)


@pytest.mark.search
@pytest.mark.parametrize(("stack", "extra", "told"), [(FITTED, {}, [0, 1]), (FREEING, FREED, [0, 2])])
def test_plans_and_back_tests_have_one_clock(stack: StackSpec, extra: dict[str, str], told: list[int]) -> None:
    """Job by job, up to the end of memory, the simulator says of a plan what back-tests say of a run."""
    unsure = replace(stack, memory=numbers_of(Framework(spread=0.1)))
    layers = (24 * times for times in range(1, 20))
    jobs = cases(*(measured_run(num_layers=one, mbs=1, seq_len=1024, extra=extra) for one in layers), stack=unsure)
    risks = edge_risks(jobs, unsure)
    assert ((risks > 0.1) & (risks < 0.9)).any(axis=0).nonzero()[0].tolist() == told
    judged = [estimate(with_edge_loss(job.instance), job.config, job.placement).iteration_time_s for job in jobs]
    assert predicted_times_s(jobs, risks) == pytest.approx(judged)
