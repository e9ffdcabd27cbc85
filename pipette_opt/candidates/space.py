"""Search space: the configurations that ``solve`` considers."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

from pipette_opt.base.degrees import DEGREES
from pipette_opt.base.errors import InputError
from pipette_opt.base.offload import offload_of
from pipette_opt.base.typed import typed
from pipette_opt.base.types import Recomputation
from pipette_opt.options.description import SpaceOptions
from pipette_opt.options.names import option_name
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.config import SHARDING_STRATEGIES
from pipette_opt.parallel.layout import layout_layers
from pipette_opt.parallel.recompute import known_word

PINNABLE = (
    *("num_gpus", "max_gpus", *(degree.option for degree in DEGREES), "max_micro_batch_size"),
    *("max_virtual_pipeline", "sequence_parallel", "use_distributed_optimizer", "data_parallel_sharding_strategy"),
    *("num_distributed_optimizer_instances", "recompute", "offload", "layers_per_stage"),
)
"""Fields that a user's options pin, in the order in which messages name them."""

WORDS = (
    *("recompute", "offload", "sequence_parallel", "use_distributed_optimizer", "data_parallel_sharding_strategy"),
    *("pipelined_sharding", "outer_dp_sharding_strategy"),
)
"""Fields whose values are texts or flags, not whole numbers."""

COUNTS = ("num_gpus", "max_gpus", "max_micro_batch_size", "max_virtual_pipeline")
"""Fields whose value is a single whole number."""

RECOMPUTATIONS: tuple[Recomputation | None, ...] = (None, "selective", "block", "full")
"""Default recomputation choices, least recomputation first; ``None`` is no recomputation."""


OF_EXPERTS: tuple[Recomputation, ...] = ("moe_act+layernorm",)
"""
Recomputed modules also tried for models with experts, unless recomputation is pinned.

They hold most activations of a layer with experts, and cost two kernels in the backward pass. NVIDIA's recipes for such
models use them most (``benchmarks/results/recipes.md``).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace(SpaceOptions):
    """
    Choices of configurations to search; fields that are not set are open.

    By default, every tensor x pipeline x data split of the GPUs is tried, including tensor groups across hosts and
    pipelines inside a host. On 128 to 1024 GPUs, a few thousand configurations are legal.

    Parameters
    ----------
    num_gpus
        Number of GPUs to use; ``None`` for ``world_sizes``.
    max_gpus
        Largest number of GPUs to use; ``None`` for all GPUs of the hosts.
    world_sizes
        Numbers of GPUs to search if ``num_gpus`` is ``None``, the most promising first, as the search chose them by
        time (``solver/world_sizes.py``). Empty before that choice: all hosts, and the smaller counts of
        :func:`~pipette_opt.candidates.world_sizes`.
    others_below_s
        Seconds of a known plan on the first of ``world_sizes``. On the other numbers, configurations whose compute
        alone takes as long are left out. ``None``: none is.
    tensor_parallel, pipeline_parallel, data_parallel
        Allowed degrees; ``None`` for every divisor of the GPUs.
    context_parallel
        Allowed degrees. ``None`` for degrees with which tensor and context group together share a host or fill whole
        hosts, if tensor groups fit into a host. If all other degrees are pinned: only degrees inside a host.
    context_a2a
        Allowed numbers of ranks of a context group that exchange heads; ``None`` for every divisor of the group with
        ``cp_comm_type`` ``a2a+p2p``, else 1. They share a host.
    expert_parallel
        Allowed degrees; ``None`` for every divisor of the experts that the ranks of a stage can hold. A model without
        experts has 1.
    expert_tensor_parallel
        Allowed tensor-parallel sizes of experts; ``None`` for 1 and the tensor-parallel size.
    virtual_pipeline
        Allowed model chunks per stage, 1 for no interleaving; ``None`` for 1 up to ``max_virtual_pipeline``.
    micro_batch_size
        Allowed sizes; ``None`` for the divisors of the global batch up to ``max_micro_batch_size``.
    sequence_parallel
        Allowed values; ``None`` for on wherever it is legal: the tensor ranks divide the sequence evenly.
    use_distributed_optimizer
        Allowed values; ``None`` for on wherever there are several data-parallel ranks (context ranks count).
    data_parallel_sharding_strategy
        Allowed sharding among replicas (:data:`~pipette_opt.parallel.config.SHARDING_STRATEGIES`), instead of
        ``use_distributed_optimizer``; ``None`` to use that field. A single replica shares nothing.
    num_distributed_optimizer_instances
        Allowed numbers of groups of replicas that share states only within the group (optimizer instances). With shared
        parameters, optimizer states may also be shared over the groups. ``None`` for one group.
    recompute
        Allowed recomputation choices; ``None`` in the tuple means no recomputation. ``block``: first layers of each
        chunk, as few as memory requires in each configuration (:mod:`~pipette_opt.memory.fewest`). Modules joined by
        ``+``: those modules of every layer (:data:`~pipette_opt.parallel.recompute.RECOMPUTE_MODULES`).
    offload
        Allowed offloading choices (:func:`~pipette_opt.base.offload.offload_of`); ``None`` in the tuple means no
        offloading. Each configuration offloads no more than memory requires (:mod:`~pipette_opt.memory.fewest`).
        ``None``: the training's own options.
    tp_comm_overlap
        ``True``: tensor overlap in all configurations; ``False``: the training's own option. ``None``: both wherever
        Transformer Engine allows it (:mod:`~pipette_opt.specs.user_buffers`), off only where memory requires that.
    uneven_layers
        Whether splits with a lighter first or last stage are tried beside the even split
        (:func:`~pipette_opt.candidates.layer_splits`).
    layers_per_stage
        Allowed layer splits instead of the default ones; each is used with pipelines of its length.
    more_splits
        Layer splits that the joint CP-SAT model chose, tried beside the default ones; ignored with
        ``layers_per_stage``.
    more_layouts
        Layouts of unequal chunks, tried beside all splits with their numbers of stages and chunks; found by a search
        near a plan (``solver/layouts.py``).
    more_configs
        Configurations tried beside all others, such as the one that runs today.
    near
        Configurations whose single changes are tried beside all others
        (:mod:`~pipette_opt.candidates.single_changes`): the fastest plans of the search.
    more_recompute, more_sharding
        Further recomputation choices, and further sharding among replicas.
    pipelined_sharding
        Allowed sharding among replicas in pipelines of several stages, in place of
        ``data_parallel_sharding_strategy``; ``None`` if that holds for them, too.
    outer_dp_sharding_strategy
        Allowed sharding of optimizer states over groups of replicas with ZeRO 3, by Megatron-FSDP's names.
    needs_replicas
        Whether stages and tensor ranks need several replicas, context ranks among them.
    overlap_grad_reduce, overlap_param_gather
        Overlap of gradient and parameter traffic with compute in all configurations, as in
        :class:`~pipette_opt.parallel.ParallelConfig`; parameters only with the distributed optimizer. ``None``: both
        values wherever they are legal and have an effect.
    ddp_bucket_size, overlap_p2p_communication
        Values for all configurations; the bucket size only for those that overlap gradients.
    narrowed
        Open fields that a short time limit narrowed; see :mod:`~pipette_opt.solver.narrowing`.
    """

    num_gpus: int | None = None
    world_sizes: tuple[int, ...] = ()
    others_below_s: float | None = None
    max_micro_batch_size: int = 8
    max_virtual_pipeline: int = 5
    sequence_parallel: tuple[bool, ...] | None = None
    use_distributed_optimizer: tuple[bool, ...] | None = None
    recompute: tuple[Recomputation | None, ...] = RECOMPUTATIONS
    tp_comm_overlap: bool | None = False
    uneven_layers: bool = True
    layers_per_stage: tuple[tuple[int, ...], ...] | None = None
    more_splits: tuple[tuple[int, ...], ...] = ()
    more_layouts: tuple[str, ...] = ()
    more_configs: tuple[ParallelConfig, ...] = ()
    near: tuple[ParallelConfig, ...] = ()
    more_recompute: tuple[Recomputation | None, ...] = ()
    more_sharding: tuple[str, ...] = ()
    pipelined_sharding: tuple[str, ...] | None = None
    needs_replicas: bool = False
    outer_dp_sharding_strategy: tuple[str, ...] = ("no_shard", "optim")
    narrowed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value, option = getattr(self, field.name), option_name(field.name)
            if field.name in COUNTS and value is not None:
                _check_count(option, value)
            elif isinstance(value, tuple):
                if field.name in ("narrowed", "more_layouts"):
                    self._check_names()
                    continue
                if field.name in ("world_sizes", "more_configs", "near", "more_recompute", "more_sharding"):
                    continue
                if not value and field.name != "more_splits":
                    raise InputError(option, "must list at least one value, but is empty.")
                if field.name not in WORDS:
                    for entry in value:
                        for count in entry if isinstance(entry, tuple) else (entry,):
                            _check_count(option, count)
                    value = tuple(sorted(value))
                object.__setattr__(self, field.name, tuple(dict.fromkeys(value)))
        self._check_sharding()
        try:
            words = tuple(dict.fromkeys(map(known_word, self.recompute)))
        except ValueError as error:
            problem = f"must be none, selective, block, full, ops, or modules as in moe_act+layernorm: {error}"
            raise InputError("--recompute", problem) from None
        object.__setattr__(self, "recompute", words)
        if self.offload is not None:
            object.__setattr__(self, "offload", _offloads(self.offload))
        if self.num_gpus is not None and self.max_gpus is not None and self.num_gpus > self.max_gpus:
            raise InputError("--max-gpus", f"must be at least --num-gpus {self.num_gpus}, got {self.max_gpus}.")
        if self.overlap_param_gather and self.overlap_grad_reduce is False:
            raise InputError("--overlap-param-gather", "needs --overlap-grad-reduce.")
        if self.ddp_bucket_size is not None:
            _check_count("ddp_bucket_size", self.ddp_bucket_size)
            if self.overlap_grad_reduce is False:
                raise InputError("ddp_bucket_size", "needs --overlap-grad-reduce, which is switched off.")
        if () in (self.layers_per_stage or ()):
            raise InputError("--layers-per-stage", "must have a number of layers for every stage, got none.")

    def _check_sharding(self) -> None:
        """Raise ``InputError`` for unknown sharding names, contradictory options, or groups that share no gradients."""
        given, option = self.data_parallel_sharding_strategy, "--data-parallel-sharding-strategy"
        words = (*(given or ()), *self.more_sharding, *(self.pipelined_sharding or ()))
        unknown = [word for word in words if word not in SHARDING_STRATEGIES]
        if unknown:
            raise InputError(option, f"must be some of {', '.join(SHARDING_STRATEGIES)}; got {', '.join(unknown)}.")
        if given and self.use_distributed_optimizer is not None:
            raise InputError(option, "repeats --use-distributed-optimizer; give only one of them.")
        groups, shares = self.num_distributed_optimizer_instances, True in (self.use_distributed_optimizer or (True,))
        if groups not in (None, (1,)) and not (set(given) - {"no_shard"} if given else shares):
            problem = "needs states that replicas share, but none of the allowed choices shares any"
            raise InputError("num_distributed_optimizer_instances", f"{problem}.")

    def _check_names(self) -> None:
        for layout in self.more_layouts:
            try:
                layout_layers(layout, 1)
            except ValueError as error:
                raise InputError("more_layouts", f"{layout} {error}") from None
        for name in self.narrowed:
            if name not in (*PINNABLE, "world_sizes") or getattr(self, name) is None:
                raise InputError("narrowed", f"must name fields of the search space that are set, got {name!r}.")


def space_of(recorded: Mapping[str, Any]) -> SearchSpace:
    """Return the search space that a plan records under ``inputs.search``; unknown fields are refused."""
    return typed(SearchSpace, recorded, "inputs.search", closed=True)


def _offloads(words: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Return each distinct offloading choice once, least offloading first."""
    try:
        found = {offload_of(word) for word in words}
    except ValueError as error:
        raise InputError("--offload", str(error)) from None
    ordered = sorted(found, key=lambda offload: (len(offload.offload_modules), *astuple(offload)))
    return tuple(offload.word for offload in ordered)


def _check_count(option: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(option, f"must be whole numbers >= 1, got {value!r}.")
