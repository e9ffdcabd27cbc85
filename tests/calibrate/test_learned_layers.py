"""Factors of layers are found in runs, and noise is not."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from factories import make_run

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, make_cases, with_stack
from pipette_opt.calibrate.layers import learn_layers
from pipette_opt.calibrate.predict import predicted_times_s
from pipette_opt.costs.learned import layer_shape
from pipette_opt.specs import DEFAULT_STACK, StackSpec
from pipette_opt.specs.layers import LayerFactor, LearnedLayers

pytestmark = pytest.mark.search


def jobs() -> list[Case]:
    """Layouts of two widths on one host and on two."""
    runs = [
        make_run(num_gpus=num, tp=tp, pp=pp, dp=num // tp // pp, mbs=mbs, hidden=hidden, gbs=256)
        for num in (8, 16)
        for tp in (1, 2, 4)
        for pp in (1, 2)
        for mbs in (1, 2, 4)
        for hidden in (1024, 2048)
    ]
    return [case for case in make_cases(runs, DEFAULT_STACK) if isinstance(case, Case)]


def shape_of(case: Case) -> LayerFactor:
    """Of the layers of a case."""
    shape = layer_shape(case.instance, case.config, case.instance.cluster.gpu_kinds[0])
    assert shape is not None
    return shape


def times_of(cases: list[Case]) -> Callable[[StackSpec], FloatArray]:
    """Their times by a stack."""
    return lambda stack: predicted_times_s(with_stack(cases, stack))


def test_factors_are_found() -> None:
    """Each shape takes its own; they come back, a little nearer to 1."""
    cases, rng = jobs(), np.random.default_rng(0)
    shapes = tuple({shape_of(case): None for case in cases})
    truth = LearnedLayers(shapes=tuple(replace(one, factor=float(np.exp(0.1 * rng.normal()))) for one in shapes))
    measured = predicted_times_s(with_stack(cases, replace(DEFAULT_STACK, layers=truth)))
    measured *= np.exp(0.01 * rng.normal(size=len(cases)))
    plain = predicted_times_s(cases)
    learned = learn_layers(cases, times_of(cases), measured, DEFAULT_STACK)
    assert learned is not None
    wanted = np.log([truth.factor(one) for one in shapes])
    found = np.log([learned.factor(one) for one in shapes])
    assert np.abs(found - wanted).mean() < 0.4 * np.abs(wanted).mean()
    assert found @ wanted < wanted @ wanted
    better = predicted_times_s(with_stack(cases, replace(DEFAULT_STACK, layers=learned)))
    assert np.abs(np.log(better / measured)).mean() < 0.3 * np.abs(np.log(plain / measured)).mean()
    assert sum(one.num_runs for one in learned.shapes) == len(cases)


def test_what_is_no_shape_teaches_nothing() -> None:
    """Runs that are off by chance, or by the number of GPUs."""
    cases, rng = jobs(), np.random.default_rng(0)
    plain = predicted_times_s(cases)
    by_chance = plain * np.exp(0.1 * rng.normal(size=len(cases)))
    assert learn_layers(cases, times_of(cases), by_chance, DEFAULT_STACK) is None
    by_size = plain * np.array([1.1 if case.run.num_gpus == 16 else 0.9 for case in cases])
    assert learn_layers(cases, times_of(cases), by_size, DEFAULT_STACK) is None
