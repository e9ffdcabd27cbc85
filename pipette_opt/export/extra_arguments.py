"""Arguments of the user's launch that the predictions ignore, and whether they fit the plan's degrees."""

from collections.abc import Callable, Mapping

from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import TrainingSpec


def _has_stages(config: ParallelConfig) -> bool:
    return config.pipeline_model_parallel_size > 1


def _has_context(config: ParallelConfig) -> bool:
    return config.context_parallel_size > 1


def _has_chunks(config: ParallelConfig) -> bool:
    return config.num_chunks > 1


def _has_torch_fsdp2(config: ParallelConfig) -> bool:
    return config.sharding_stage > 1 and not _has_stages(config) and config.expert_model_parallel_size == 1


NEEDED: Mapping[str, Callable[[ParallelConfig], bool]] = {
    "--tp-comm": lambda config: config.sequence_parallel,
    "--no-tp-comm": lambda config: config.sequence_parallel,
    "--defer-embedding-wgrad-compute": _has_stages,
    "--wgrad-deferral-limit": _has_stages,
    "--cp-comm-type": _has_context,
    "--hierarchical-context-parallel-sizes": _has_context,
    "--overlap-param-gather-with-optimizer-step": lambda config: _has_chunks(config) and config.overlap_param_gather,
    "--overlap-p2p-communication-warmup-flush": _has_chunks,
    "--microbatch-group-size-per-virtual-pipeline-stage": _has_chunks,
    "--use-torch-fsdp2": _has_torch_fsdp2,
    "--torch-fsdp2-no-reshard-after-forward": lambda config: _has_torch_fsdp2(config) and config.sharding_stage == 2,
    "--cpu-offloading": lambda config: not _has_stages(config) and config.recompute_granularity is None,
    "--use-precision-aware-optimizer": lambda config: config.use_distributed_optimizer,
}
"""
Condition on the configuration for arguments with a prefix; arguments without a prefix here always fit.

From Megatron-LM's own checks: ``validate_args`` in ``megatron/training/arguments.py``, and
``TransformerConfig.__post_init__``.
"""


def goes_with(option: str, config: ParallelConfig) -> bool:
    """Return whether Megatron-LM accepts an argument of the user's launch together with the plan's configuration."""
    return all(holds(config) for begin, holds in NEEDED.items() if option.startswith(begin))


def divided_by_torch(training: TrainingSpec, config: ParallelConfig) -> bool:
    """Return whether launch and plan use ``--use-torch-fsdp2``, which replaces other sharding options."""
    option = "--use-torch-fsdp2"
    return (option,) in (training.other_arguments or ()) and goes_with(option, config)


def left_out_lines(training: TrainingSpec, config: ParallelConfig) -> list[str]:
    """Return a comment that lists arguments of the user's launch that the export omits; empty if none is omitted."""
    left_out = [" ".join(words) for words in training.other_arguments or () if not goes_with(words[0], config)]
    text = f"Of the launch that the job was read from, without effect or refused here: {', '.join(left_out)}."
    return [text] if left_out else []
