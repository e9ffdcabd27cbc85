"""Changes of a fine-tuning job that fits nowhere, each of which alone makes it fit, with what it then takes."""

from collections.abc import Iterator
from dataclasses import replace

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.units import GIB, three_digits
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.conflicts import MANY_CHUNKS, SHORT_SEQUENCE
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.layers.adapters import Adapters, linears_of
from pipette_opt.optimize import optimize
from pipette_opt.read.finetune import METHODS, USUAL_RANK
from pipette_opt.specs import Instance, ModelSpec
from pipette_opt.specs.stack import ON_MEGATRON_CORE

PARAMS = OptimizeParams(time_limit_s=4.0, gap_limit=0.05, num_alternatives=0)
"""Limits of each search: the price of a change is shown in three digits at most, without a proof. Chosen."""

HALVINGS = 3
"""Largest number of times that a sequence is halved. Chosen."""


def ways_out(
    instance: Instance, space: SearchSpace, max_oom_risk: float, *, offload: str | None = "optimizer"
) -> list[str]:
    """
    Return a line for each change that makes the job fit: the options, seconds of an iteration, and memory.

    The shortest iteration comes first; of lengths, only the longest that fits is tried. The list is empty if no single
    change helps. ``offload``: what the job's framework can keep in the hosts' memory; ``None`` for nothing.
    """
    found: list[tuple[float, str]] = []
    for words, changed, its_space in _changes(instance, space, offload):
        is_length = words.startswith("--seq-length")
        if is_length and any(line.startswith("--seq-length") for _, line in found):
            continue
        try:
            plan = optimize(changed, its_space, replace(PARAMS, max_oom_risk=max_oom_risk))
        except (InfeasibleError, InputError):
            continue
        fullest = max(plan.memory, key=lambda stage: stage.predicted_bytes)
        seconds, peak = plan.estimate.iteration_time_s, fullest.predicted_bytes / GIB
        found.append((seconds, f"{words}: {three_digits(seconds)} s, {three_digits(peak)} GiB, {plan.config.label()}"))
    return [line for _, line in sorted(found)]


def _changes(
    instance: Instance, space: SearchSpace, offload: str | None
) -> Iterator[tuple[str, Instance, SearchSpace]]:
    """Yield options, the job with them, and its search space."""
    model, training = instance.model, instance.training
    for words, changed in _frozen(model):
        yield words, replace(instance, model=changed), space
    if model.adapters is None and training.optimizer == "adam":
        yield "--optimizer adam-8bit", replace(instance, training=replace(training, optimizer="adam-8bit")), space
    if training.loss_chunks < MANY_CHUNKS and instance.stack.family not in ON_MEGATRON_CORE:
        chunked = replace(training, loss_chunks=MANY_CHUNKS)
        yield f"loss_chunks: {MANY_CHUNKS} (job file)", replace(instance, training=chunked), space
    if offload is not None and space.offload is None and training.offload.is_nothing:
        yield f"--offload none,{offload}", instance, replace(space, offload=(None, offload))
    for times in range(1, HALVINGS + 1):
        length = training.seq_length >> times
        if length >= SHORT_SEQUENCE // 8:
            yield f"--seq-length {length}", replace(instance, training=training.changed(seq_length=length)), space


def _frozen(model: ModelSpec) -> Iterator[tuple[str, ModelSpec]]:
    """Yield methods that train less, or freeze in fewer bits, and the model with them."""
    given = model.adapters
    for method, base in METHODS.items():
        if not base or (given is not None and (given.is_quantised or method == "lora")):
            continue
        adapters = given or Adapters(rank=USUAL_RANK, targets=linears_of(model))
        yield f"--finetune {method}", replace(model, adapters=replace(adapters, base=base))  # type: ignore[arg-type]
