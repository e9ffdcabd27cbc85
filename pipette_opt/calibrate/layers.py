"""
What layers of each shape took beyond the formula, learned from runs.

Which kernel a library chooses for a product, and whether the host keeps up, depends on the shape in an order that no
formula has, and is the same at every depth and in every pipeline. So what a fit leaves is laid to the shapes of layers
(width, micro-batch, tensor ranks, sequence length, kernels): a Gaussian process over their logarithms, whose prior is
no factor at all. A shape with few runs is shrunk towards 1, one unlike all that ran has none. Nothing is learned unless
it helps runs of a number of GPUs (or, where all have one, of a number of stages) that were left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.calibrate.cases import Case
from pipette_opt.costs.learned import layer_shape
from pipette_opt.specs import StackSpec
from pipette_opt.specs.layers import LayerFactor, LearnedLayers, likeness

SPREAD = 0.1
"""Of the logarithm of factors, over shapes."""

NOISE = 0.05
"""Of one run, beside its layers."""

LARGEST = 0.3
"""Beyond this a run had another trouble than its layers; it counts as this."""

STEP = 0.02

MIN_GAIN = 0.02
"""Of the absolute errors of runs left out."""


def learn_layers(
    cases: Sequence[Case],
    predicted_s_of: Callable[[StackSpec], FloatArray],
    measured_s: FloatArray,
    stack: StackSpec,
) -> LearnedLayers | None:
    """
    Factors of the shapes that the runs have; ``None`` if they do not help runs left out.

    Parameters
    ----------
    predicted_s_of
        Seconds of each run, by a stack.
    measured_s
        Of each run.
    stack
        Has no factors yet.
    """
    predicted_s, found = predicted_s_of(stack), dict[LayerFactor, int]()
    which = np.full(len(cases), -1)
    for index, case in enumerate(cases):
        shape = layer_shape(case.instance, case.config, case.instance.cluster.gpu_kinds[0])
        if shape is not None:
            which[index] = found.setdefault(shape, len(found))
    known, shapes = which >= 0, list(found)
    if not known.any():
        return None
    residual = np.clip(np.log(measured_s / predicted_s), -LARGEST, LARGEST)[known]
    longer = LearnedLayers(shapes=tuple(replace(one, factor=float(np.exp(STEP))) for one in shapes))
    moved = predicted_s_of(replace(stack, layers=longer))
    share = (np.log(moved / predicted_s) / STEP)[known]
    sizes = np.array([case.run.num_gpus for case in cases])[known]
    if len(np.unique(sizes)) == 1:
        sizes = np.array([case.config.pipeline_model_parallel_size for case in cases])[known]
    which = which[known]
    if not _helps(shapes, which, share, residual, sizes):
        return None
    factors = np.exp(_smoothed(shapes, which, share, residual)).tolist()
    counts = np.bincount(which, minlength=len(shapes)).tolist()
    return LearnedLayers(
        shapes=tuple(
            replace(one, factor=factor, num_runs=count)
            for one, factor, count in zip(shapes, factors, counts, strict=True)
        )
    )


def _smoothed(shapes: Sequence[LayerFactor], which: IntArray, share: FloatArray, residual: FloatArray) -> FloatArray:
    """
    Logarithms of the factors of all shapes, as the Gaussian process expects them from these runs.

    The runs of a shape count together: with ``K`` between shapes, what runs tell of each ``b`` and how surely ``A``,
    ``(1 / K + A)`` has the solution ``b``, written so that ``K`` may be singular.
    """
    covariance = SPREAD**2 * _likeness(shapes)
    sure = np.bincount(which, share**2, len(shapes)) / NOISE**2
    told = np.bincount(which, share * residual, len(shapes)) / NOISE**2
    expected: FloatArray = covariance @ np.linalg.solve(np.eye(len(shapes)) + sure[:, None] * covariance, told)
    return expected


def _likeness(shapes: Sequence[LayerFactor]) -> FloatArray:
    places = np.array([one.place for one in shapes])
    same = np.array([[left.family == right.family for right in shapes] for left in shapes], dtype=np.float64)
    alike: FloatArray = likeness(places, places) * same
    return alike


def _helps(
    shapes: Sequence[LayerFactor], which: IntArray, share: FloatArray, residual: FloatArray, sizes: IntArray
) -> bool:
    """Whether runs of each size are nearer with the factors that the others teach."""
    left = np.zeros(len(which))
    for size in np.unique(sizes):
        out = sizes == size
        if out.all():
            return False
        taught = _smoothed(shapes, which[~out], share[~out], residual[~out])
        left[out] = residual[out] - share[out] * taught[which[out]]
    return bool(np.abs(left).sum() < (1.0 - MIN_GAIN) * np.abs(residual).sum())
