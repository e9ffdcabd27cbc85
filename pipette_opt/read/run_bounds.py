"""Lower bound on the time of a measured run: FLOPs of its model at the peak of its GPUs."""

from pipette_opt.base.errors import InputError
from pipette_opt.read.measured_run import MeasuredRun
from pipette_opt.read.precision_words import precision_of
from pipette_opt.specs.precision import PRECISION_RECIPES

OF_A_LOG = "megatron-lm log"
"""Source of a run whose numbers a program printed, so that nobody mistook their units."""


def check_time(where: str, run: MeasuredRun) -> None:
    """
    Raise ``InputError`` for a time below :func:`least_time_s`.

    The message has the bound, its inputs, and the columns to check.
    """
    bound_s = least_time_s(run)
    if run.iter_time_s is None or bound_s is None or run.iter_time_s >= bound_s:
        return
    assert run.gpu is not None
    name, flops = peak_of(run)
    columns = "iter_time_s (seconds of one iteration), gbs (sequences), num_gpus and the shape of the model"
    check = "the times of the log, and its GPU" if run.source == OF_A_LOG else columns
    raise InputError(
        where,
        f"iter_time_s={run.iter_time_s:g} is impossible: {run.num_gpus} {run.gpu.gpu.name} at 100 % of their "
        f"{flops / 1e12:,.4g} TFLOP/s in {name} need {bound_s:.4g} s for the model's FLOPs of "
        f"gbs={run.launch.global_batch_size} sequences of {run.launch.seq_length} tokens; check {check}.",
    )


def least_time_s(run: MeasuredRun) -> float | None:
    """
    Return the seconds that the model's FLOPs take at the peak FLOP/s of all GPUs, in the run's precision.

    FLOPs are those of MFU (:meth:`~pipette_opt.specs.ModelSpec.flops_per_token`): all matrix products, forward and
    backward, causal attention, without recomputation. ``None`` for a row without model, batch size or GPU.
    """
    model, batch, length = run.launch.model, run.launch.global_batch_size, run.launch.seq_length
    if run.gpu is None or model is None or length is None or batch is None:
        return None
    _, peak = peak_of(run)
    return batch * length * model.flops_per_token(length) / (run.num_gpus * peak)


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
