"""One way to split the training of a model."""

from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal

import numpy as np

from pipette_opt.base.offload import offload_of
from pipette_opt.base.typed import Count, Size
from pipette_opt.base.types import FloatArray, Recomputation, RecomputeGranularity, RecomputeMethod
from pipette_opt.parallel.chunks import deal_layers, fit_chunks, missing_layers
from pipette_opt.parallel.layout import layout_layers, layout_of
from pipette_opt.parallel.recompute import CORE, modules_in_order

OuterSharding = Literal["no_shard", "optim"]
"""What groups of replicas share with each other, by Megatron-Core's names."""

SHARDING_STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""What replicas share, by ZeRO stage: ``--data-parallel-sharding-strategy`` of Megatron-FSDP."""

COUNTS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "data_parallel_size",
    "micro_batch_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_size",
    "recompute_num_layers",
)
"""Fields of a configuration that are whole numbers of at least one."""


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
        ``pipeline_model_parallel_size``. With interleaving the chunks of a stage are equal, except that the embedding
        may count as a layer of the first chunk of all, and the head as one of the last; or a layout says what each
        chunk has. ``layers_per_chunk`` has them.
    recompute_granularity
        ``selective`` recomputes modules of each layer, ``full`` whole layers from their inputs.
    recompute_modules
        With ``selective``: which ones (:data:`~pipette_opt.parallel.recompute.RECOMPUTE_MODULES`); kept in their order.
    recompute_method, recompute_num_layers
        With ``full``: ``uniform`` recomputes all layers, that many at a time from the first one's input; ``block`` the
        first layers of each chunk, up to that many and one at a time, and keeps the activations of the others. There is
        one number for all stages (Megatron-Core, ``TransformerBlock._checkpointed_forward``).
    expert_tensor_parallel_size
        Tensor-parallel ranks of one expert; ``None`` for ``tensor_model_parallel_size``.
    zero_stage
        What replicas share: nothing (0), optimizer states (1), gradients too (2), parameters too (3). ``None``: what
        ``use_distributed_optimizer`` says, 1 or 0.
    num_distributed_optimizer_instances, outer_dp_sharding_strategy
        Groups of consecutive replicas that each share gradients and parameters among themselves (hybrid sharding), and
        whether optimizer states are divided over the groups too (``optim``) or not (``no_shard``). From stage 2 on.
    overlap_grad_reduce, overlap_param_gather
        Gradients are reduced beside the last backward, parameters gathered beside the next forward; the latter needs
        the former and the distributed optimizer.
    ddp_bucket_size
        Parameters of one bucket of gradients; ``None`` for Megatron-Core's own size.
    overlap_p2p_communication
        Whether the interleaved schedule goes on while it sends; without interleaving it plays no role.
    offload
        What the host's memory has in place of the GPU's, where the search chose it: ``optimizer``, ``layers:8``,
        modules joined by ``+`` (:mod:`~pipette_opt.base.offload`); ``None`` for what the training says.
    tp_comm_overlap
        Whether tensor-parallel ranks send beside products, where the search chose it; a training may say so, too
        (:mod:`~pipette_opt.specs.user_buffers`).
    pipeline_model_parallel_layout
        What each chunk of each stage holds, as Megatron-Core writes it (:mod:`~pipette_opt.parallel.layout`). It is
        kept in its shortest form, and only where the chunks of a stage are unequal; otherwise it becomes ``None``.
    """

    tensor_model_parallel_size: Size
    pipeline_model_parallel_size: Size
    data_parallel_size: Size
    micro_batch_size: Size
    layers_per_stage: tuple[Count, ...]
    context_parallel_size: Size = 1
    expert_model_parallel_size: Size = 1
    virtual_pipeline_model_parallel_size: Count | None = None
    sequence_parallel: bool = False
    recompute_granularity: RecomputeGranularity | None = None
    use_distributed_optimizer: bool = False
    recompute_method: RecomputeMethod = "uniform"
    recompute_num_layers: Size = 1
    expert_tensor_parallel_size: Count | None = None
    zero_stage: Count | None = None
    num_distributed_optimizer_instances: Size = 1
    outer_dp_sharding_strategy: OuterSharding = "no_shard"
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    ddp_bucket_size: Count | None = None
    overlap_p2p_communication: bool = True
    pipeline_model_parallel_layout: str | None = None
    recompute_modules: tuple[str, ...] = CORE
    offload: str | None = None
    tp_comm_overlap: bool = False

    def __post_init__(self) -> None:
        counts = self._counts()
        if min(counts) < 1:
            field, count = next(pair for pair in zip(COUNTS, counts, strict=True) if pair[1] < 1)
            raise ValueError(f"{field} must be >= 1, got {count}.")
        if len(self.layers_per_stage) != self.pipeline_model_parallel_size:
            raise ValueError(
                f"layers_per_stage must have {self.pipeline_model_parallel_size} entries, "
                f"got {len(self.layers_per_stage)}."
            )
        if min(self.layers_per_stage) < 0:
            raise ValueError(f"layers_per_stage must be >= 0, got {self.layers_per_stage}.")
        if self.recompute_method not in ("uniform", "block"):
            raise ValueError(f"recompute_method must be uniform or block, got {self.recompute_method!r}.")
        if self.recompute_modules is not CORE:
            object.__setattr__(self, "recompute_modules", modules_in_order(self.recompute_modules))
            if self.recompute_modules != CORE and self.recompute_granularity != "selective":
                raise ValueError(
                    f"recompute_modules={self.recompute_modules} need recompute_granularity=selective, "
                    f"got {self.recompute_granularity}."
                )
        if self.zero_stage is not None:
            if self.zero_stage not in range(4):
                raise ValueError(f"zero_stage must be None or 0 to 3, got {self.zero_stage!r}.")
            if (self.zero_stage > 0) != self.use_distributed_optimizer:
                raise ValueError(
                    f"zero_stage={self.zero_stage} contradicts "
                    f"use_distributed_optimizer={self.use_distributed_optimizer}."
                )
        self._check_instances()
        if self.offload is not None:
            try:
                object.__setattr__(self, "offload", offload_of(self.offload).word)
            except ValueError as error:
                raise ValueError(f"offload {error}") from None
        if self.overlap_param_gather and not (self.overlap_grad_reduce and self.use_distributed_optimizer):
            raise ValueError("overlap_param_gather needs overlap_grad_reduce and use_distributed_optimizer.")
        if self.ddp_bucket_size is not None and self.ddp_bucket_size < 1:
            raise ValueError(f"ddp_bucket_size must be None or >= 1, got {self.ddp_bucket_size}.")
        vpp = self.virtual_pipeline_model_parallel_size
        if vpp is not None:
            if vpp < 2:
                raise ValueError(f"virtual_pipeline_model_parallel_size must be None or >= 2, got {vpp}.")
            if self.pipeline_model_parallel_size < 2:
                raise ValueError("virtual_pipeline_model_parallel_size needs pipeline_model_parallel_size >= 2.")
        if self.pipeline_model_parallel_layout is not None:
            self._keep_layout(self.pipeline_model_parallel_layout)
        if (
            vpp is not None
            and self.pipeline_model_parallel_layout is None
            and not fit_chunks(self.layers_per_stage, vpp)
        ):
            raise ValueError(
                f"{vpp} chunks must divide the layers of every stage (or of equal stages, of which the first and the "
                f"last may have one layer less), got {self.layers_per_stage}; a layout may say more."
            )

    def _check_instances(self) -> None:
        """Groups of replicas are equal, and share something."""
        groups, outer = self.num_distributed_optimizer_instances, self.outer_dp_sharding_strategy
        if outer not in ("no_shard", "optim"):
            raise ValueError(f"outer_dp_sharding_strategy must be no_shard or optim, got {outer!r}.")
        if groups == 1 and outer == "no_shard":
            return
        if groups < 2:
            raise ValueError(
                "num_distributed_optimizer_instances must be >= 1, and >= 2 with "
                f"outer_dp_sharding_strategy=optim, got {groups}."
            )
        if self.sharding_stage < 2:
            raise ValueError(
                f"num_distributed_optimizer_instances={groups} needs zero_stage 2 or 3, got {self.sharding_stage}."
            )
        replicas = self.data_parallel_size * self.context_parallel_size
        if replicas % groups:
            raise ValueError(
                f"num_distributed_optimizer_instances={groups} does not divide data_parallel_size * "
                f"context_parallel_size = {replicas}."
            )

    def _keep_layout(self, layout: str) -> None:
        """A layout that agrees with stages and chunks, in its shortest form; none where chunks are equal anyway."""
        try:
            held = layout_layers(layout, self.pipeline_model_parallel_size)
        except ValueError as error:
            raise ValueError(f"pipeline_model_parallel_layout {layout} {error}") from None
        stages = tuple(map(sum, zip(*held, strict=True)))
        if len(held) != self.num_chunks or stages != self.layers_per_stage:
            raise ValueError(
                f"pipeline_model_parallel_layout {layout} has {len(held)} chunks of stages of {stages} layers, but "
                f"virtual_pipeline_model_parallel_size={self.virtual_pipeline_model_parallel_size} and "
                f"layers_per_stage={self.layers_per_stage}."
            )
        object.__setattr__(self, "pipeline_model_parallel_layout", _shortest_layout(held))

    def _counts(self) -> tuple[int, ...]:
        """The values of :data:`COUNTS`; written out, as searches make a hundred thousand configurations."""
        return (
            self.tensor_model_parallel_size,
            self.pipeline_model_parallel_size,
            self.data_parallel_size,
            self.micro_batch_size,
            self.context_parallel_size,
            self.expert_model_parallel_size,
            self.expert_tensor_size,
            self.recompute_num_layers,
        )

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
    def expert_tensor_size(self) -> int:
        """Tensor-parallel ranks of one expert."""
        chosen = self.expert_tensor_parallel_size
        return self.tensor_model_parallel_size if chosen is None else chosen

    @property
    def sharding_stage(self) -> int:
        """What replicas share, as ZeRO counts it, 0 to 3."""
        return int(self.use_distributed_optimizer) if self.zero_stage is None else self.zero_stage

    @property
    def data_parallel_sharding_strategy(self) -> str:
        """What replicas share, by Megatron-FSDP's word."""
        return SHARDING_STRATEGIES[self.sharding_stage]

    @property
    def sharing_ranks(self) -> int:
        """Ranks that share what is divided among replicas: data- and context-parallel ones of one group of replicas."""
        return self.data_parallel_size * self.context_parallel_size // self.num_distributed_optimizer_instances

    @property
    def state_groups(self) -> int:
        """Groups of replicas over which optimizer states are divided once more; 1 if they are not."""
        return self.num_distributed_optimizer_instances if self.outer_dp_sharding_strategy == "optim" else 1

    def layers_recomputed_at_once(self) -> int:
        """Layers that one recomputation brings back; 0 without full recomputation."""
        if self.recompute_granularity != "full":
            return 0
        return self.recompute_num_layers if self.recompute_method == "uniform" else 1

    @property
    def recomputation(self) -> Recomputation | None:
        """What is recomputed, as search spaces name it."""
        if self.recompute_granularity == "full" and self.recompute_method == "block":
            return "block"
        if self.recompute_granularity == "selective" and self.recompute_modules != CORE:
            return "+".join(self.recompute_modules)
        return self.recompute_granularity

    def recomputes(self, module: str) -> bool:
        """Whether every layer's backward computes a module again, be it with all else of the layer."""
        if self.recompute_granularity == "selective":
            return module in self.recompute_modules
        return self.recompute_granularity == "full"

    @property
    def recomputed_per_chunk(self) -> tuple[tuple[int, ...], ...]:
        """Layers of each chunk that are recomputed whole, the first ones of it, shape ``(num_chunks, pp)``."""
        most = {"full": sum(self.layers_per_stage), "block": self.recompute_num_layers}
        limit = most.get(self.recomputation or "", 0)
        return tuple(tuple(min(layers, limit) for layers in chunk) for chunk in self.layers_per_chunk)

    @property
    def num_chunks(self) -> int:
        """Model chunks per stage, 1 without interleaving."""
        return self.virtual_pipeline_model_parallel_size or 1

    @property
    def layers_per_chunk(self) -> tuple[tuple[int, ...], ...]:
        """Transformer layers of each chunk of each stage, shape ``(num_chunks, pp)``; chunks go round the stages."""
        if self.pipeline_model_parallel_layout is not None:
            return layout_layers(self.pipeline_model_parallel_layout, self.pipeline_model_parallel_size)
        return deal_layers(self.layers_per_stage, self.num_chunks)

    @property
    def chunk_shares(self) -> FloatArray:
        """Part of each stage's layers that each chunk holds, shape ``(num_chunks, pp)``; equal ones without layers."""
        held = np.array(self.layers_per_chunk, dtype=np.float64)
        shares: FloatArray = np.where(held.sum(axis=0) > 0, held / np.maximum(held.sum(axis=0), 1), 1 / len(held))
        return shares

    @property
    def counts_embedding(self) -> bool:
        """Whether the embedding takes the place of a layer of the first chunk."""
        is_equal = self.pipeline_model_parallel_layout is None
        return is_equal and missing_layers(self.layers_per_stage, self.num_chunks)[0] > 0

    @property
    def counts_loss(self) -> bool:
        """Whether the output head takes the place of a layer of the last chunk."""
        is_equal = self.pipeline_model_parallel_layout is None
        return is_equal and missing_layers(self.layers_per_stage, self.num_chunks)[-1] > 0

    @property
    def microbatch_group_size(self) -> int:
        """Micro-batches that only go together: one for each stage with interleaving, else 1."""
        return 1 if self.virtual_pipeline_model_parallel_size is None else self.pipeline_model_parallel_size

    def num_microbatches(self, global_batch_size: int, *, unequal: bool = False) -> int:
        """
        Micro-batches of one replica in one iteration; of those that have most where replicas may differ.

        Parameters
        ----------
        unequal
            Whether replicas may have different numbers, as :meth:`microbatches_of_replicas` deals them.

        Raises
        ------
        ValueError
            If micro-batches do not come out whole, or if a replica has none.
        """
        per_step = self.data_parallel_size * self.micro_batch_size
        if unequal:
            return self.microbatches_of_replicas(global_batch_size)[0]
        if global_batch_size % per_step:
            raise ValueError(
                f"global_batch_size={global_batch_size} is no multiple of data_parallel_size * micro_batch_size "
                f"= {self.data_parallel_size} * {self.micro_batch_size} = {per_step}."
            )
        return global_batch_size // per_step

    def microbatches_of_replicas(self, global_batch_size: int) -> tuple[int, ...]:
        """
        The global batch dealt to the replicas as evenly as whole groups of micro-batches can be, the most first.

        Shape ``(data_parallel_size,)``; the sum is ``global_batch_size / micro_batch_size``, and two replicas differ by
        one group at most. Raises ``ValueError`` if groups do not come out whole, or if a replica has none.
        """
        size, dp = self.microbatch_group_size, self.data_parallel_size
        groups, rest = divmod(global_batch_size, self.micro_batch_size * size)
        if rest or groups < dp:
            raise ValueError(
                f"global_batch_size={global_batch_size} does not give each of {dp} replicas a whole number of "
                f"{'groups of ' if size > 1 else ''}{f'{size} ' if size > 1 else ''}micro-batches of "
                f"{self.micro_batch_size}."
            )
        each, more = divmod(groups, dp)
        return ((each + 1) * size,) * more + (each * size,) * (dp - more)

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
        if self.tp_comm_overlap:
            parts.append("tp-overlap")
        if self.recompute_granularity:
            is_whole = self.recompute_granularity == "full"
            parts.append("full" if is_whole else self.recomputation or "")
        if self.recompute_granularity == "full" and (self.recompute_method, self.recompute_num_layers) != (
            "uniform",
            1,
        ):
            parts.append(f"{self.recompute_method}{self.recompute_num_layers}")
        if self.offload is not None:
            parts.append(f"offload:{self.offload}")
        if self.expert_model_parallel_size > 1:
            parts.append(f"ep{self.expert_model_parallel_size}")
        if self.expert_tensor_parallel_size is not None:
            parts.append(f"etp{self.expert_tensor_parallel_size}")
        if self.use_distributed_optimizer:
            parts.append("dopt" if self.sharding_stage == 1 else f"zero{self.sharding_stage}")
        if self.num_distributed_optimizer_instances > 1:
            outer = "+optim" if self.state_groups > 1 else ""
            parts.append(f"groups{self.num_distributed_optimizer_instances}{outer}")
        if self.overlap_grad_reduce:
            parts.append("overlap+gather" if self.overlap_param_gather else "overlap")
        if self.virtual_pipeline_model_parallel_size and not self.overlap_p2p_communication:
            parts.append("no-overlap-p2p")
        if self.pipeline_model_parallel_layout is not None:
            parts.append(f"layout {self.pipeline_model_parallel_layout}")
        elif len(set(self.layers_per_stage)) > 1:
            runs = [(layers, len(list(run))) for layers, run in groupby(self.layers_per_stage)]
            parts.append(
                "layers" + ",".join(f"{layers}x{count}" if count > 1 else str(layers) for layers, count in runs)
            )
        return " ".join(parts)


@lru_cache(maxsize=1 << 12)
def _shortest_layout(held: tuple[tuple[int, ...], ...]) -> str | None:
    """The shortest text of such chunks; none where they are equal anyway."""
    stages = tuple(map(sum, zip(*held, strict=True)))
    is_usual = fit_chunks(stages, len(held)) and held == deal_layers(stages, len(held))
    return None if is_usual else layout_of(held)


def without_recomputation(config: ParallelConfig) -> ParallelConfig:
    """The same where all activations are kept."""
    return _changed(
        config, recompute_granularity=None, recompute_method="uniform", recompute_num_layers=1, recompute_modules=CORE
    )


def with_offload(config: ParallelConfig, word: str | None) -> ParallelConfig:
    """The same with another choice of what the host has, which is known to hold together; copied as in the above."""
    return _changed(config, offload=word)


def with_tensor_overlap(config: ParallelConfig, is_on: bool) -> ParallelConfig:
    """The configuration with or without tensor-parallel communication beside products, unchecked as in the above."""
    return config if config.tp_comm_overlap == is_on else _changed(config, tp_comm_overlap=is_on)


def without_overlap(config: ParallelConfig) -> ParallelConfig:
    """The configuration that sends nothing beside compute; what shares it has the same memory and the same bound."""
    if not config.overlap_grad_reduce:
        return config
    return with_overlap(config, grad_reduce=False)


def with_overlap(
    config: ParallelConfig, *, grad_reduce: bool, param_gather: bool = False, ddp_bucket_size: int | None = None
) -> ParallelConfig:
    """
    The configuration with another choice of what is sent beside compute.

    Other fields were checked already: they are copied as they are, as searches do this a hundred thousand times.

    Parameters
    ----------
    param_gather
        Needs ``grad_reduce`` and a distributed optimizer.
    ddp_bucket_size
        As in :class:`ParallelConfig`.
    """
    if param_gather and not (grad_reduce and config.use_distributed_optimizer):
        raise ValueError("overlap_param_gather needs overlap_grad_reduce and use_distributed_optimizer.")
    return _changed(
        config, overlap_grad_reduce=grad_reduce, overlap_param_gather=param_gather, ddp_bucket_size=ddp_bucket_size
    )


def with_whole_layers(config: ParallelConfig, method: str, number: int) -> ParallelConfig:
    """The same with full recomputation, by one method or the other, of so many layers; copied as in the above."""
    return _changed(config, recompute_granularity="full", recompute_method=method, recompute_num_layers=number)


def _changed(config: ParallelConfig, **values: Any) -> ParallelConfig:
    """A copy with other values of some fields, without a check."""
    changed = object.__new__(ParallelConfig)
    for name, slot in _SLOTS.items():
        slot.__set__(changed, values[name] if name in values else slot.__get__(config))
    return changed


OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather", "ddp_bucket_size")
"""Fields that :func:`with_overlap` chooses."""

SPLIT = ("layers_per_stage", "pipeline_model_parallel_layout")
"""Fields that say which layers are where."""

_SLOTS = {one.name: getattr(ParallelConfig, one.name) for one in fields(ParallelConfig)}
"""The slots of all fields."""
