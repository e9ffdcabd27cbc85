"""Parallel configuration: degrees, micro-batch and memory savers of one way to split the training of a model."""

from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from pipette_opt.base.offload import offload_of
from pipette_opt.base.typed import Count, Size
from pipette_opt.base.types import FloatArray, Recomputation, RecomputeGranularity, RecomputeMethod
from pipette_opt.parallel.chunks import deal_layers, fit_chunks, missing_layers
from pipette_opt.parallel.layout import layout_layers, layout_of
from pipette_opt.parallel.recompute import CORE, OPERATIONS, modules_in_order

OuterSharding = Literal["no_shard", "optim"]
"""Sharding between groups of replicas, by Megatron-Core's names."""

SHARDING_STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""Sharding among replicas by ZeRO stage 0 to 3: ``--data-parallel-sharding-strategy`` of Megatron-FSDP."""

COUNTS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "data_parallel_size",
    "micro_batch_size",
    "context_parallel_size",
    "context_a2a_size",
    "expert_model_parallel_size",
    "expert_tensor_size",
    "recompute_num_layers",
)
"""Fields of a configuration that must be whole numbers >= 1."""


class _Remembered:
    """
    Slots for what searches ask of a configuration a hundred times.

    These are its hash, and the copy without overlap that :func:`with_overlap` made it from.
    """

    __slots__ = ("_alone", "_hash")
    _hash: int
    _alone: "ParallelConfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig(_Remembered):
    """
    Parallel degrees, micro-batch and memory savers, with Megatron-Core's names.

    Parameters
    ----------
    virtual_pipeline_model_parallel_size
        Model chunks per stage; ``None`` (never 1) without interleaving.
    layers_per_stage
        Transformer layers of each pipeline stage, all its chunks together, length ``pipeline_model_parallel_size``.
        With interleaving the chunks of a stage are equal, except that the embedding may count as a layer of the very
        first chunk, and the output head as a layer of the very last; or ``pipeline_model_parallel_layout`` sets each
        chunk. ``layers_per_chunk`` gives the result.
    recompute_granularity
        ``selective`` recomputes modules of each layer, ``full`` whole layers from their inputs.
    recompute_modules
        Modules that ``selective`` recomputes (:data:`~pipette_opt.parallel.recompute.RECOMPUTE_MODULES`, or
        :data:`~pipette_opt.parallel.recompute.OPERATIONS`), in that
        order.
    recompute_method, recompute_num_layers
        With ``full``: ``uniform`` recomputes all layers, this number at a time from the input of the first; ``block``
        recomputes the first layers of each chunk, up to this number and one at a time, and keeps the activations of the
        others. All stages share the number (Megatron-Core, ``TransformerBlock._checkpointed_forward``).
    context_a2a_size
        Consecutive ranks of a context group that exchange heads by all-to-all (DeepSpeed-Ulysses), so that the ring of
        keys and values has ``context_parallel_size / context_a2a_size`` ranks. Above 1 with the communication type
        ``a2a+p2p`` only. The two are Megatron-Core's ``hierarchical_context_parallel_sizes``.
    expert_tensor_parallel_size
        Tensor-parallel ranks of one expert; ``None`` for ``tensor_model_parallel_size``.
    zero_stage
        State that replicas share: nothing (0), optimizer states (1), also gradients (2), also parameters (3). ``None``
        means 1 with ``use_distributed_optimizer``, else 0.
    num_distributed_optimizer_instances, outer_dp_sharding_strategy
        Number of groups of consecutive replicas that share state within the group (optimizer instances, hybrid
        sharding), and whether optimizer states are also divided over the groups (``optim``) or not (``no_shard``).
        Several groups need ZeRO stage 1 to 3, and ``optim`` stage 2 or 3.
    overlap_grad_reduce, overlap_param_gather
        Gradients are reduced during the last backward pass, parameters gathered during the next forward pass. The
        latter needs the former and the distributed optimizer.
    ddp_bucket_size
        Parameters per gradient bucket; ``None`` for Megatron-Core's default.
    overlap_p2p_communication
        Whether interleaved stages compute while they send; no effect without interleaving.
    offload
        Offloading to host memory that the search chose: ``optimizer``, ``layers:8``, modules joined by ``+``
        (:mod:`~pipette_opt.base.offload`); ``None`` for the training's own options.
    tp_comm_overlap
        Whether the search chose tensor overlap: tensor-parallel ranks send during matrix products. The training may
        also set it (:mod:`~pipette_opt.specs.user_buffers`).
    pipeline_model_parallel_layout
        Contents of each chunk of each stage, in Megatron-Core's notation (:mod:`~pipette_opt.parallel.layout`). Stored
        in its shortest form, and ``None`` if the chunks are those of the default division.
    """

    tensor_model_parallel_size: Size
    pipeline_model_parallel_size: Size
    data_parallel_size: Size
    micro_batch_size: Size
    layers_per_stage: tuple[Count, ...]
    context_parallel_size: Size = 1
    context_a2a_size: Size = 1
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

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash(_ALL_FIELDS(self)))
            return self._hash

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
            if self.recompute_modules != OPERATIONS:
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
            raise ValueError(
                "overlap_param_gather=True needs overlap_grad_reduce=True and use_distributed_optimizer=True."
            )
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
                f"last may have one layer less), got {self.layers_per_stage}; other chunks need a layout."
            )

    def _check_instances(self) -> None:
        """Raise ``ValueError`` unless groups of replicas are equal in size and share state."""
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
        if self.sharding_stage < (1 if outer == "no_shard" else 2):
            needed = "1, 2 or 3" if outer == "no_shard" else f"2 or 3 with outer_dp_sharding_strategy={outer}"
            raise ValueError(
                f"num_distributed_optimizer_instances={groups} needs zero_stage {needed}, got {self.sharding_stage}."
            )
        replicas = self.data_parallel_size * self.context_parallel_size
        if replicas % groups:
            raise ValueError(
                f"num_distributed_optimizer_instances={groups} does not divide data_parallel_size * "
                f"context_parallel_size = {replicas}."
            )

    def _keep_layout(self, layout: str) -> None:
        """Store a layout in its shortest form, ``None`` for the default; ``ValueError`` if it contradicts stages."""
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
        """Return the values of :data:`COUNTS`; written out for speed, as searches make 100,000 configurations."""
        return (
            self.tensor_model_parallel_size,
            self.pipeline_model_parallel_size,
            self.data_parallel_size,
            self.micro_batch_size,
            self.context_parallel_size,
            self.context_a2a_size,
            self.expert_model_parallel_size,
            self.expert_tensor_size,
            self.recompute_num_layers,
        )

    @property
    def world_size(self) -> int:
        """Number of ranks, and so of GPUs."""
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
    def expert_data_parallel_size(self) -> int:
        """Number of ranks that hold equal experts and reduce their gradients."""
        stage = self.tensor_model_parallel_size * self.context_parallel_size * self.data_parallel_size
        return max(stage // (self.expert_tensor_size * self.expert_model_parallel_size), 1)

    @property
    def sharding_stage(self) -> int:
        """ZeRO stage, 0 to 3: the state that replicas share."""
        return int(self.use_distributed_optimizer) if self.zero_stage is None else self.zero_stage

    @property
    def data_parallel_sharding_strategy(self) -> str:
        """Sharding among replicas, by Megatron-FSDP's name."""
        return SHARDING_STRATEGIES[self.sharding_stage]

    @property
    def sharing_ranks(self) -> int:
        """Ranks over which sharded state is divided: data- times context-parallel ranks of one group of replicas."""
        return self.data_parallel_size * self.context_parallel_size // self.num_distributed_optimizer_instances

    @property
    def reduces_in_one_ring(self) -> bool:
        """Return whether gradients are reduced once an iteration, by a ring over all replicas."""
        return self.sharding_stage < 2 and self.num_distributed_optimizer_instances == 1

    @property
    def state_groups(self) -> int:
        """Groups of replicas over which optimizer states are also divided; 1 if they are not."""
        return self.num_distributed_optimizer_instances if self.outer_dp_sharding_strategy == "optim" else 1

    @property
    def recomputation(self) -> Recomputation | None:
        """Recomputation as search spaces name it: ``selective``, ``block``, ``full``, ``moe_act+layernorm``, ...."""
        if self.recompute_granularity == "full" and self.recompute_method == "block":
            return "block"
        if self.recompute_granularity == "selective" and self.recompute_modules != CORE:
            return "+".join(self.recompute_modules)
        return self.recompute_granularity

    def recomputes(self, module: str) -> bool:
        """Return whether every layer recomputes this module in the backward pass, alone or with the whole layer."""
        if self.recompute_granularity == "selective":
            return module in self.recompute_modules
        return self.recompute_granularity == "full"

    @property
    def recomputed_per_chunk(self) -> tuple[tuple[int, ...], ...]:
        """Number of layers at the start of each chunk that are recomputed whole, shape ``(num_chunks, pp)``."""
        most = {"full": sum(self.layers_per_stage), "block": self.recompute_num_layers}
        limit = most.get(self.recomputation or "", 0)
        return tuple(tuple(min(layers, limit) for layers in chunk) for chunk in self.layers_per_chunk)

    @property
    def num_chunks(self) -> int:
        """Model chunks per stage, 1 without interleaving."""
        return self.virtual_pipeline_model_parallel_size or 1

    @property
    def layers_per_chunk(self) -> tuple[tuple[int, ...], ...]:
        """Layers of each stage's chunks, shape ``(num_chunks, pp)``; data passes chunk 0 of all stages first."""
        if self.pipeline_model_parallel_layout is not None:
            return layout_layers(self.pipeline_model_parallel_layout, self.pipeline_model_parallel_size)
        return deal_layers(self.layers_per_stage, self.num_chunks)

    @property
    def has_equal_chunks(self) -> bool:
        """Return whether each stage divides its layers equally among its chunks."""
        return self.num_chunks == 1 or len(set(self.layers_per_chunk)) == 1

    @property
    def chunk_shares(self) -> FloatArray:
        """Share of a stage's layers in each chunk, shape ``(num_chunks, pp)``; equal shares without layers."""
        held = np.array(self.layers_per_chunk, dtype=np.float64)
        shares: FloatArray = np.where(held.sum(axis=0) > 0, held / np.maximum(held.sum(axis=0), 1), 1 / len(held))
        return shares

    @property
    def counts_embedding(self) -> bool:
        """Return whether the embedding counts as a layer of the very first chunk."""
        is_equal = self.pipeline_model_parallel_layout is None
        return is_equal and missing_layers(self.layers_per_stage, self.num_chunks)[0] > 0

    @property
    def counts_loss(self) -> bool:
        """Return whether the output head counts as a layer of the very last chunk."""
        is_equal = self.pipeline_model_parallel_layout is None
        return is_equal and missing_layers(self.layers_per_stage, self.num_chunks)[-1] > 0

    @property
    def microbatch_group_size(self) -> int:
        """Divisor of a replica's number of micro-batches: the number of stages with interleaving, else 1."""
        return 1 if self.virtual_pipeline_model_parallel_size is None else self.pipeline_model_parallel_size

    def num_microbatches(self, global_batch_size: int, *, unequal: bool = False) -> int:
        """
        Return the micro-batches of one replica in one iteration; of the largest replica if they may differ.

        Parameters
        ----------
        unequal
            Whether replicas may have different numbers, as :meth:`microbatches_of_replicas` divides them.

        Raises
        ------
        ValueError
            If the global batch does not divide into whole micro-batches, or if a replica gets none.
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
        Return the micro-batches of each replica, as even as whole groups of micro-batches allow, largest first.

        Shape ``(data_parallel_size,)``; the sum is ``global_batch_size / micro_batch_size``, and two replicas differ by
        at most one group (``microbatch_group_size``). Raises ``ValueError`` if the batch is not a whole number of
        groups, or if a replica gets none.
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
        """Return a short name for tables, e.g. ``tp8 pp2 dp4 mbs1 vpp2 sp full dopt``."""
        parts = [
            f"tp{self.tensor_model_parallel_size}",
            f"pp{self.pipeline_model_parallel_size}",
            f"dp{self.data_parallel_size}",
            f"mbs{self.micro_batch_size}",
        ]
        if self.context_parallel_size > 1:
            parts.append(f"cp{self.context_parallel_size}")
        if self.context_a2a_size > 1:
            parts.append(f"ulysses{self.context_a2a_size}")
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
    """Return the shortest layout text for layers per chunk; ``None`` if Megatron-Core divides so by default."""
    stages = tuple(map(sum, zip(*held, strict=True)))
    is_usual = fit_chunks(stages, len(held)) and held == deal_layers(stages, len(held))
    return None if is_usual else layout_of(held)


def without_recomputation(config: ParallelConfig) -> ParallelConfig:
    """Return a copy of the configuration without recomputation."""
    return _changed(
        config, recompute_granularity=None, recompute_method="uniform", recompute_num_layers=1, recompute_modules=CORE
    )


def with_offload(config: ParallelConfig, word: str | None) -> ParallelConfig:
    """Return a copy with another offloading choice, such as ``optimizer:0.5``, which is not checked."""
    return _changed(config, offload=word)


def with_tensor_overlap(config: ParallelConfig, is_on: bool) -> ParallelConfig:
    """Return a copy with or without tensor overlap; the result is not checked."""
    return config if config.tp_comm_overlap == is_on else _changed(config, tp_comm_overlap=is_on)


def without_overlap(config: ParallelConfig) -> ParallelConfig:
    """
    Return a copy that overlaps no gradient or parameter traffic with compute.

    All configurations with the same copy have the same memory and share a lower bound on their times.
    """
    if not config.overlap_grad_reduce:
        return config
    try:
        return config._alone
    except AttributeError:
        object.__setattr__(config, "_alone", with_overlap(config, grad_reduce=False))
        return config._alone


def with_overlap(
    config: ParallelConfig, *, grad_reduce: bool, param_gather: bool = False, ddp_bucket_size: int | None = None
) -> ParallelConfig:
    """
    Return a copy with another overlap of gradient and parameter traffic with compute.

    Other fields are copied unchecked, for speed: searches do this a hundred thousand times.

    Parameters
    ----------
    param_gather
        Gather parameters during the next forward pass; needs ``grad_reduce`` and the distributed optimizer.
    ddp_bucket_size
        Parameters per gradient bucket; ``None`` for Megatron-Core's default.
    """
    if param_gather and not (grad_reduce and config.use_distributed_optimizer):
        raise ValueError("overlap_param_gather=True needs overlap_grad_reduce=True and use_distributed_optimizer=True.")
    changed = _changed(
        config, overlap_grad_reduce=grad_reduce, overlap_param_gather=param_gather, ddp_bucket_size=ddp_bucket_size
    )
    if grad_reduce and not config.overlap_grad_reduce:
        object.__setattr__(changed, "_alone", config)
    return changed


def with_whole_layers(config: ParallelConfig, method: str, number: int) -> ParallelConfig:
    """Return a copy with full recomputation by this method and number of layers; nothing is checked."""
    return _changed(config, recompute_granularity="full", recompute_method=method, recompute_num_layers=number)


def _changed(config: ParallelConfig, **values: Any) -> ParallelConfig:
    """Return a copy with these fields changed, without any check; the configuration itself if nothing changes."""
    if all(getattr(config, name) == value for name, value in values.items()):
        return config
    changed = object.__new__(ParallelConfig)
    for write, value in zip(_WRITE.values(), _ALL_FIELDS(config), strict=True):
        write(changed, value)
    for name, value in values.items():
        _WRITE[name](changed, value)
    return changed


OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather", "ddp_bucket_size")
"""Fields that :func:`with_overlap` sets."""

SPLIT = ("layers_per_stage", "pipeline_model_parallel_layout")
"""Fields that assign layers to stages and chunks."""

_WRITE = {field.name: getattr(ParallelConfig, field.name).__set__ for field in fields(ParallelConfig)}
"""Function that writes each field, without the checks of the class."""

_ALL_FIELDS = attrgetter(*_WRITE)
"""Values of all fields of a configuration."""
