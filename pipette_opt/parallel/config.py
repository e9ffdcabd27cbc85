"""One way to split the training of a model."""

from dataclasses import dataclass
from itertools import groupby

from pipette_opt.types import RecomputeGranularity


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """
    Parallel degrees, micro-batch and memory savers, in Megatron-Core's words.

    Parameters
    ----------
    virtual_pipeline_model_parallel_size
        Model chunks per stage; ``None`` (never 1) without interleaving.
    layers_per_stage
        Transformer layers of each pipeline stage, all its chunks together, length
        ``pipeline_model_parallel_size``. With interleaving the chunks of a stage are equal.
    recompute_granularity
        ``selective`` recomputes the attention core, ``full`` every layer from its input (method ``uniform``,
        one layer at a time).
    """

    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    data_parallel_size: int
    micro_batch_size: int
    layers_per_stage: tuple[int, ...]
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    sequence_parallel: bool = False
    recompute_granularity: RecomputeGranularity | None = None
    use_distributed_optimizer: bool = False

    def __post_init__(self) -> None:
        for field in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "data_parallel_size",
            "micro_batch_size",
            "context_parallel_size",
            "expert_model_parallel_size",
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be >= 1, got {getattr(self, field)}.")
        if len(self.layers_per_stage) != self.pipeline_model_parallel_size:
            raise ValueError(
                f"layers_per_stage must have {self.pipeline_model_parallel_size} entries, "
                f"got {len(self.layers_per_stage)}."
            )
        if min(self.layers_per_stage) < 0:
            raise ValueError(f"layers_per_stage must be >= 0, got {self.layers_per_stage}.")
        vpp = self.virtual_pipeline_model_parallel_size
        if vpp is not None:
            if vpp < 2:
                raise ValueError(f"virtual_pipeline_model_parallel_size must be None or >= 2, got {vpp}.")
            if self.pipeline_model_parallel_size < 2:
                raise ValueError("virtual_pipeline_model_parallel_size needs pipeline_model_parallel_size >= 2.")
            if any(layers % vpp for layers in self.layers_per_stage):
                raise ValueError(f"{vpp} chunks must divide the layers of every stage, got {self.layers_per_stage}.")

    @property
    def world_size(self) -> int:
        """Ranks, hence GPUs."""
        return (
            self.tensor_model_parallel_size
            * self.context_parallel_size
            * self.data_parallel_size
            * self.pipeline_model_parallel_size
        )

    @property
    def num_chunks(self) -> int:
        """Model chunks per stage, 1 without interleaving."""
        return self.virtual_pipeline_model_parallel_size or 1

    def num_microbatches(self, global_batch_size: int) -> int:
        """Micro-batches of one replica in one iteration. Raises ``ValueError`` if they do not come out whole."""
        per_step = self.data_parallel_size * self.micro_batch_size
        if global_batch_size % per_step:
            raise ValueError(
                f"global_batch_size={global_batch_size} is no multiple of data_parallel_size * micro_batch_size "
                f"= {self.data_parallel_size} * {self.micro_batch_size} = {per_step}."
            )
        return global_batch_size // per_step

    def label(self) -> str:
        """Short name for tables, e.g. ``tp8 pp2 dp4 mbs1 vpp2 sp full dopt``."""
        parts = [
            f"tp{self.tensor_model_parallel_size}",
            f"pp{self.pipeline_model_parallel_size}",
            f"dp{self.data_parallel_size}",
            f"mbs{self.micro_batch_size}",
        ]
        if self.context_parallel_size > 1:
            parts.append(f"cp{self.context_parallel_size}")
        if self.virtual_pipeline_model_parallel_size:
            parts.append(f"vpp{self.virtual_pipeline_model_parallel_size}")
        if self.sequence_parallel:
            parts.append("sp")
        if self.recompute_granularity:
            parts.append(self.recompute_granularity)
        if self.use_distributed_optimizer:
            parts.append("dopt")
        if len(set(self.layers_per_stage)) > 1:
            runs = [(layers, len(list(run))) for layers, run in groupby(self.layers_per_stage)]
            parts.append(
                "layers" + ",".join(f"{layers}x{count}" if count > 1 else str(layers) for layers, count in runs)
            )
        return " ".join(parts)
