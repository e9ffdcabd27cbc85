"""
Correction factors by layer shape, measured over predicted layer time, learned from the residuals of a fit.

A library's choice of kernel for a matrix product, and whether the host keeps up, depend on the shape in ways that no
formula covers. They are equal at every depth and in every pipeline. So the residuals of a fit are assigned to layer
shapes: width, micro-batch, tensor ranks, sequence length, kernels. A Gaussian process over the logarithms of the
factors does so, with prior factor 1. A shape with few runs is shrunk towards 1; a shape unlike all measured shapes
keeps 1. Factors are kept only if they reduce errors of held-out runs. Runs are held out by number of GPUs, or by number
of stages if all have equally many GPUs.
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
"""Prior standard deviation of the logarithm of factors, among shapes. Chosen."""

NOISE = 0.05
"""Standard deviation of the logarithm of a run's time from causes other than its layers. Chosen."""

LARGEST = 0.3
"""Largest absolute residual of a run; larger residuals have causes other than layers and are clipped. Chosen."""

STEP = 0.02
"""Step of the logarithm of all factors, from which the share of layers in each time is derived. Chosen."""

MIN_GAIN = 0.02
"""Smallest relative reduction of the absolute errors of held-out runs for factors to be kept. Chosen."""


def learn_layers(
    cases: Sequence[Case],
    predicted_s_of: Callable[[StackSpec], FloatArray],
    measured_s: FloatArray,
    stack: StackSpec,
) -> LearnedLayers | None:
    """
    Return correction factors for the layer shapes of the runs; ``None`` if they do not reduce errors of held-out runs.

    Parameters
    ----------
    predicted_s_of
        Function that predicts the seconds of each run with a given stack.
    measured_s
        Measured seconds of each run.
    stack
        Stack without correction factors of layers.
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
    longer = LearnedLayers(shapes=tuple(replace(shape, factor=float(np.exp(STEP))) for shape in shapes))
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
            replace(shape, factor=factor, num_runs=count)
            for shape, factor, count in zip(shapes, factors, counts, strict=True)
        )
    )


def _smoothed(shapes: Sequence[LayerFactor], which: IntArray, share: FloatArray, residual: FloatArray) -> FloatArray:
    """
    Return the posterior mean of the logarithm of each shape's factor, shape ``(num_shapes,)``.

    Runs with the same shape are combined: with covariance ``K`` between shapes, and information ``A`` and evidence
    ``b`` from the runs, the mean solves ``(1 / K + A) x = b``, written so that ``K`` may be singular.

    Parameters
    ----------
    which
        Index of each run's shape.
    share
        Share of each run's time that its layers take.
    residual
        Logarithm of measured over predicted time of each run.
    """
    covariance = SPREAD**2 * _likeness(shapes)
    sure = np.bincount(which, share**2, len(shapes)) / NOISE**2
    evidence = np.bincount(which, share * residual, len(shapes)) / NOISE**2
    expected: FloatArray = covariance @ np.linalg.solve(np.eye(len(shapes)) + sure[:, None] * covariance, evidence)
    return expected


def _likeness(shapes: Sequence[LayerFactor]) -> FloatArray:
    coordinates = np.array([shape.coordinates for shape in shapes])
    same = np.array(
        [[left.comparison_key == right.comparison_key for right in shapes] for left in shapes], dtype=np.float64
    )
    alike: FloatArray = likeness(coordinates, coordinates) * same
    return alike


def _helps(
    shapes: Sequence[LayerFactor], which: IntArray, share: FloatArray, residual: FloatArray, sizes: IntArray
) -> bool:
    """
    Return whether factors learned from the other sizes reduce the errors of the runs of each size.

    ``sizes`` are numbers of GPUs, or of stages; other parameters are those of :func:`_smoothed`.
    """
    left = np.zeros(len(which))
    for size in np.unique(sizes):
        out = sizes == size
        if out.all():
            return False
        learned = _smoothed(shapes, which[~out], share[~out], residual[~out])
        left[out] = residual[out] - share[out] * learned[which[out]]
    return bool(np.abs(left).sum() < (1.0 - MIN_GAIN) * np.abs(residual).sum())
