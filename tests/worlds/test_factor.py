"""One factor of a job, and constants that measured runs move."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_config
from llama_jobs import job

from pipette_opt.base.errors import InputError
from pipette_opt.parallel import ParallelConfig, identity_placement
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.read.stack import read_stack
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance
from pipette_opt.specs.stack import FITTED, Anchor
from pipette_opt.worlds.bands import job_band
from pipette_opt.worlds.factor import job_factor, moved, moves_of, unmoved
from pipette_opt.worlds.prior import shipped_priors
from pipette_opt.worlds.reference import reference_terms
from pipette_opt.worlds.terms import TERMS, describe

FIRST, SECOND = make_config(tp=8), make_config(tp=2, pp=2, micro_batch_size=2)
"""Two layouts on 16 GPUs."""


@pytest.fixture
def given() -> Instance:
    """Llama 3 8B on two hosts, on the shipped stack."""
    return replace(job(), stack=read_stack())


def seconds(instance: Instance, config: ParallelConfig) -> float:
    """Simulated time with ranks in order."""
    place = identity_placement(config, 8, np.arange(2), "tp-cp-ep-dp-pp")
    return float(estimate_many(instance, [(config, place)])[0])


def measured(instance: Instance, *runs: tuple[ParallelConfig, float]) -> Instance:
    """The job with runs that took these multiples of their simulated times."""
    anchors = []
    for config, ratio in runs:
        place = identity_placement(config, 8, np.arange(2), "tp-cp-ep-dp-pp")
        terms = tuple(describe(instance, [(config, place)])[1][0].tolist())
        reference = tuple(reference_terms(instance).tolist())
        anchors.append(Anchor(run="log", terms=terms, log_ratio=log(ratio), reference=reference))
    known = replace(instance, stack=replace(instance.stack, anchors=tuple(anchors)))
    return replace(known, stack=moved(known))


def test_without_runs_the_factor_is_the_priors_mean(given: Instance) -> None:
    """At the reference layout of the job, for every layout and number of hosts."""
    expected = float(np.exp(shipped_priors().all_sources.mean @ reference_terms(given)))
    assert job_factor(given) == pytest.approx(expected)
    kind = read_gpu_catalogue()["a100-80gb"].gpu
    larger = replace(given, cluster=make_cluster(6, kinds=(kind,)))
    assert job_factor(larger) == pytest.approx(expected)


def test_order_and_ratios_are_those_of_simulated_times(given: Instance) -> None:
    """Before and after runs: expected over simulated time is one number."""
    for known in (given, measured(given, (FIRST, 1.4)), measured(given, (FIRST, 1.4), (SECOND, 1.1))):
        bands = [job_band(known, config, seconds(known, config)) for config in (FIRST, SECOND)]
        shown = [band.middle_s / seconds(known, config) for band, config in zip(bands, (FIRST, SECOND), strict=True)]
        assert shown[0] == pytest.approx(shown[1])
        assert all(band.low_s <= band.middle_s <= band.high_s for band in bands)


def test_one_run_moves_the_factor_and_nothing_else(given: Instance) -> None:
    """The measured launch shows its measured time; constants stay."""
    known = measured(given, (FIRST, 1.37))
    assert job_factor(known) == pytest.approx(1.37)
    assert known.stack.unmoved == known.stack
    assert seconds(known, SECOND) == seconds(given, SECOND)


def test_a_run_as_long_as_expected_changes_no_shown_time(given: Instance) -> None:
    """The prediction as a measurement is no news."""
    known = measured(given, (SECOND, job_factor(given)))
    for config in (FIRST, SECOND):
        shown = [job_band(each, config, seconds(each, config)).middle_s for each in (given, known)]
        assert shown[0] == pytest.approx(shown[1])


def test_repetitions_of_a_layout_move_no_constant(given: Instance) -> None:
    """Two runs of one layout tell the factor twice."""
    known = measured(given, (FIRST, 1.2), (FIRST, 1.25))
    assert not known.stack.moved_from
    assert job_factor(known) == pytest.approx(np.sqrt(1.2 * 1.25))


def test_unlike_runs_move_constants(given: Instance) -> None:
    """Towards the runs, and back by ``unmoved``; the worlds stay about the stack as it was."""
    known = measured(given, (FIRST, 1.5), (SECOND, 1.0))
    assert known.stack.moved_from
    assert unmoved(known).stack == replace(given.stack, anchors=known.stack.anchors)
    before, after = (log(seconds(each, FIRST) / seconds(each, SECOND)) for each in (given, known))
    assert before < after < before + log(1.5)


def test_moves_are_those_of_the_constants(given: Instance) -> None:
    """By the constants' ratios; the first-order times of the runs are near the simulated ones."""
    known = measured(given, (FIRST, 1.6), (SECOND, 0.9))
    moves = moves_of(known.stack)
    stack, before = known.stack, known.stack.moved_from
    ratio = stack.matmul_speed / before["matmul_speed"]
    assert moves[TERMS.index("matrix products")] == pytest.approx(log(ratio) / log(0.8))
    for anchor, config in zip(stack.anchors, (FIRST, SECOND), strict=True):
        exact = log(seconds(known, config) / seconds(given, config))
        assert np.array(anchor.terms) @ moves == pytest.approx(exact, abs=0.03)


def test_runs_of_another_job_move_the_factor_in_part(given: Instance) -> None:
    """A run of a job with another batch says less than one of the job itself, and something."""
    other = replace(given, training=replace(given.training, global_batch_size=4096))
    known = measured(other, (FIRST, 2.0))
    assert job_factor(given) < job_factor(replace(given, stack=known.stack)) < 2.0


def test_fitted_constants_have_no_usual_factor(given: Instance) -> None:
    """A stack whose constants were fitted starts from its own times, and its constants stay."""
    fitted = replace(given, stack=replace(given.stack, fitted={"constants": FITTED}))
    assert job_factor(fitted) == 1.0
    assert not measured(fitted, (FIRST, 1.5), (SECOND, 1.0)).stack.moved_from


def test_runs_of_another_version_are_refused(given: Instance) -> None:
    """They name their run."""
    old = Anchor(run="train.sh: 9 s", terms=(0.0,), log_ratio=0.0)
    known = replace(given, stack=replace(given.stack, anchors=(old,)))
    with pytest.raises(InputError, match=r"measured run train\.sh: 9 s.*solve again"):
        job_factor(known)


def test_other_kinds_of_jobs_have_other_factors() -> None:
    """Small models and Hopper are launched otherwise than large models on Ampere."""
    factors = {job_factor(replace(job(gpu), stack=read_stack())) for gpu in ("a100-80gb", "h100-80gb")}
    small = replace(job("h100-80gb"), model=replace(LLAMA_8B, num_layers=2), stack=read_stack())
    assert len({*factors, job_factor(small)}) == 3
