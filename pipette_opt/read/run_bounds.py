"""Lower bound on the time of a measured run: FLOPs of its model at the peak of its GPUs."""

import math
from collections.abc import Iterator
from dataclasses import replace

from pipette_opt.base.errors import InputError
from pipette_opt.read.measured_run import MeasuredRun
from pipette_opt.read.precision_words import precision_of
from pipette_opt.read.run_models import run_model
from pipette_opt.specs.precision import PRECISION_RECIPES

USUAL_MFU, MIN_MFU, MAX_MFU = 0.4, 0.03, 0.75
"""Usual, smallest and largest MFU of public runs. Chosen: outside, an error names a unit mistake that fits."""

MINUTE_S = 60.0

OF_A_LOG = "megatron-lm log"
"""Source of a run whose numbers a program printed, so that nobody mistook their units."""


def check_time(where: str, run: MeasuredRun) -> None:
    """
    Raise ``InputError`` for a time below :func:`least_time_s`.

    The message has the bound, its inputs, and the unit mistake that would explain the time.
    """
    bound_s = least_time_s(run)
    if run.iter_time_s is None or bound_s is None or run.iter_time_s >= bound_s:
        return
    assert run.gpu is not None
    name, flops = peak_of(run)
    slip = "check the times of the log, and its GPU" if run.source == OF_A_LOG else _slip(run, bound_s)
    raise InputError(
        where,
        f"iter_time_s={run.iter_time_s:g} is impossible: {run.num_gpus} {run.gpu.gpu.name} at 100 % of their "
        f"{flops / 1e12:,.4g} TFLOP/s in {name} need {bound_s:.4g} s for the model's FLOPs of gbs={run.gbs} sequences "
        f"of {run.seq_len} tokens; {slip}.",
    )


def least_time_s(run: MeasuredRun) -> float | None:
    """
    Return the seconds that the model's FLOPs take at the peak FLOP/s of all GPUs, in the run's precision.

    FLOPs are those of MFU (:meth:`~pipette_opt.specs.ModelSpec.flops_per_token`): all matrix products, forward and
    backward, causal attention, without recomputation. ``None`` for a row without model, batch size or GPU.
    """
    if run.gpu is None or run.num_layers is None or run.hidden is None or run.seq_len is None or run.gbs is None:
        return None
    try:
        # The number of heads cancels out of the FLOPs of heads whose width it is derived from.
        model = run_model(run if run.heads is not None else replace(run, heads=1, kv_heads=1))
    except ValueError:
        return None
    _, peak = peak_of(run)
    return run.gbs * run.seq_len * model.flops_per_token(run.seq_len) / (run.num_gpus * peak)


def peak_of(run: MeasuredRun) -> tuple[str, float]:
    """
    Return the number format of the run's matrix products, bf16 if not given, and a GPU's peak in this format, FLOP/s.

    An fp32 run may use the GPU's tf32. If the GPU's peak in the format is unknown, the fastest format counts.
    """
    assert run.gpu is not None
    peaks = run.gpu.gpu.peak_flops
    words = {"bf16": ("bf16", "fp16"), "fp16": ("fp16", "bf16"), "fp32": ("tf32", "fp32")}
    precision = precision_of(run.precision) or ""
    recipe = PRECISION_RECIPES.get(precision)
    formats = (recipe.peak,) if recipe is not None else words.get(precision, ())
    known = [name for name in formats if name in peaks]
    name = known[0] if known else max(peaks, key=peaks.__getitem__)
    return name, peaks[name]


def _slip(run: MeasuredRun, bound_s: float) -> str:
    """Return a text that names the unit mistake with the most usual MFU; if none fits, advice on what to check."""
    excess = bound_s / (run.iter_time_s or bound_s)
    found = [(excess / factor, words) for factor, words in _slips(run) if MIN_MFU <= excess / factor <= MAX_MFU]
    if found:
        return min(found, key=lambda slip: abs(math.log(slip[0] / USUAL_MFU)))[1]
    return "check iter_time_s (seconds of one iteration), gbs (sequences), num_gpus and the shape of the model"


def _slips(run: MeasuredRun) -> Iterator[tuple[float, str]]:
    """Yield the factor by which each unit mistake shortens the time, with its description."""
    assert run.seq_len is not None
    assert run.gbs is not None
    yield run.seq_len, "gbs seems to count tokens, and must count sequences"
    if run.dp is not None and run.mbs is not None:
        yield run.gbs / (run.dp * run.mbs), "iter_time_s seems to be of one micro-batch, and must be of an iteration"
    yield run.gpus_per_node, "num_gpus seems to count hosts, and must count GPUs"
    yield MINUTE_S, "iter_time_s seems to be in minutes, and must be in seconds"
